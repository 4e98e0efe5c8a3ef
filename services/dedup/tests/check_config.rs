//! `dedup check-config`, as an operator runs it.

use std::io::Write;
use std::process::{Command, Output};

fn check_config(text: &str) -> Output {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(text.as_bytes()).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dedup"));
    // Secrets of whoever runs the test must not matter.
    command.env_clear().args(["check-config", "--config"]);
    command.arg(file.path()).output().expect("it runs")
}

#[test]
fn every_mistake_has_a_line_with_its_field() {
    let output = check_config(
        r#"
        region = "EU"
        listen = "0.0.0.0:8080"
        http_workers = 1000
        [limits]
        batch_items = 0
        [[homes]]
        name = "eu"
        region = "eu"
        prefixes = ["eu", "no colons:"]
        postgres = "host=127.0.0.1 user=a dbname=b password=hunter2"
        [redis]
        url = "http://127.0.0.1"
        "#,
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1), "{text}");
    for field in
        ["region: ", "listen: ", "http_workers: ", "limits.batch_items: ", "homes[0].prefixes: ", "homes[0].postgres: ", "redis.url: "]
    {
        assert!(text.lines().any(|line| line.starts_with(field)), "no line for {field} in:\n{text}");
    }
    assert!(!text.contains("hunter2"), "a password is shown:\n{text}");
}

#[test]
fn an_unknown_setting_is_named() {
    let output = check_config("region = \"eu\"\nregoin = \"eu\"");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(1));
    assert!(text.contains("regoin"), "{text}");
}

#[test]
fn a_good_file_is_ok() {
    let output = check_config(
        r#"
        region = "eu"
        [[homes]]
        name = "eu"
        region = "eu"
        prefixes = ["eu"]
        postgres = "host=127.0.0.1 user=a dbname=b"
        "#,
    );
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("ok: region=eu "), "{text}");
}

#[test]
fn a_usage_error_is_2() {
    let status = Command::new(env!("CARGO_BIN_EXE_dedup")).arg("check-config").output().expect("it runs").status;
    assert_eq!(status.code(), Some(2));
}
