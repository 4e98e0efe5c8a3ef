//! The configuration as an operator meets it: the shipped sample, mistakes and their names, secrets that stay hidden.

use dedup_runtime::Config;
use dedup_runtime::config::{LimitsConfig, LogFormat, Role};
use secrecy::ExposeSecret;

const SAMPLE: &str = include_str!("../../../infra/dedup.toml");

const SMALL: &str = r#"
region = "eu"
[[homes]]
name = "eu"
region = "eu"
prefixes = ["eu"]
postgres = "host=localhost user=dedup dbname=dedup"
"#;

fn no_env(_: &str) -> Option<String> {
    None
}

fn mistakes(text: &str) -> String {
    Config::parse(text, no_env).expect_err("the text has mistakes").to_string()
}

#[test]
fn the_shipped_sample_is_read_and_equals_the_defaults() {
    let config = Config::parse(SAMPLE, no_env).expect("the sample is right");
    assert_eq!(config.process.instance, "eu-1");
    assert_eq!(config.process.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.homes.len(), 2);
    assert_eq!(config.own_homes().count(), 1);
    assert_eq!(config.limits, LimitsConfig::default());

    let small = Config::parse(SMALL, no_env).expect("the small text is right");
    assert_eq!(config.process, small.process);
    assert_eq!(config.log, small.log);
    assert_eq!(config.log.format, LogFormat::Json);
    assert_eq!(config.local, small.local);
    assert_eq!(config.filters, small.filters);
    assert_eq!(format!("{:?}", config.janitor), format!("{:?}", small.janitor));
    assert_eq!(config.telemetry, small.telemetry);
    assert_eq!(config.homes[0].connections, small.homes[0].connections);
    assert_eq!(config.homes[0].queue_items, small.homes[0].queue_items);
}

#[test]
fn the_sample_shows_every_setting() {
    // What deny_unknown_fields lists as expected is the full set; each must stand in the sample, at least as a comment.
    for table in [
        "",
        "[log]\n",
        "[limits]\n",
        "[local]\n",
        "[filters]\n",
        "[janitor]\n",
        "[[homes]]\n",
        "[redis]\n",
        "[[callers]]\n",
        "[telemetry]\n",
    ] {
        let message = mistakes(&format!("{table}no_such_setting = 1\n"));
        for setting in message.split('`').skip(3).step_by(2) {
            assert!(
                SAMPLE.contains(&format!("{setting} = ")) || SAMPLE.contains(&format!("[{setting}]")),
                "{setting} is not in the sample"
            );
        }
    }
}

#[test]
fn all_mistakes_are_reported_at_once_by_name() {
    let message = mistakes(
        r#"
        region = "EU!"
        listen = "0.0.0.0:8080"
        http_workers = -1
        [log]
        level = "inof"
        [limits]
        lease_ms_min = 5000
        lease_ms_max = 4000
        [[homes]]
        name = "eu"
        region = "EU!"
        prefixes = ["eu"]
        postgres = "host=localhost user=dedup dbname=dedup password=hunter2"
        [[homes]]
        name = "eu"
        region = "us"
        prefixes = ["us", "eu"]
        postgres = "postgres://localhost/dedup"
        connections = 99
        [redis]
        url = "redis://:hunter2@localhost:6379"
        "#,
    );
    for field in [
        "region:",
        "listen:",
        "http_workers:",
        "log.level:",
        "limits.lease_ms_min:",
        "homes[0].postgres:",
        "homes[1].name:",
        "homes[1].prefixes:",
        "homes[1].postgres:",
        "homes[1].connections:",
        "redis.url:",
    ] {
        assert!(message.lines().any(|line| line.starts_with(field)), "{field} is missing in:\n{message}");
    }
    assert!(message.contains("loopback only"), "{message}");
    assert!(message.contains("0..=256"), "what is allowed is said: {message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn a_misspelt_setting_is_refused_with_its_name_and_line() {
    let message = mistakes(&format!("{SMALL}conections = 4\n"));
    assert!(message.contains("homes[0].conections") && message.contains("line 8") && message.contains("`connections`"), "{message}");
    let message = mistakes("region = \"eu\"\nlisten = \"127.0.0.1:80\n");
    assert!(message.contains("line 2"), "{message}");
    let message = mistakes("region = 7");
    assert!(message.contains("region (line 1)") && message.contains("string"), "{message}");
}

#[test]
fn a_password_put_into_the_file_by_mistake_is_not_repeated() {
    let message = mistakes(&format!("{SMALL}password = \"hunter2\"\n"));
    assert!(message.contains("password") && !message.contains("hunter2"), "{message}");
}

/// Seen to fail before the text was parsed: it was `ok` here and failed at the first connection.
#[test]
fn a_connection_text_that_nobody_can_connect_with_is_a_mistake() {
    let message = mistakes(&SMALL.replace("host=localhost", "host=localhost port=x"));
    assert!(message.contains("homes[0].postgres: is not valid") && message.contains("port"), "{message}");
}

#[test]
fn what_is_missing_is_said_to_be_required() {
    let message = mistakes(&SMALL.replacen("name = \"eu\"", "", 1));
    assert!(message.contains("homes[0].name: is required"), "{message}");
    let message = mistakes(&format!("{SMALL}[[callers]]\n"));
    for field in ["callers[0].name: is required", "callers[0].role: is required", "callers[0].token_sha256: is required"] {
        assert!(message.contains(field), "{field} is missing in:\n{message}");
    }
}

#[test]
fn own_region_needs_a_home() {
    let message = mistakes(&SMALL.replacen("\"eu\"", "\"ap\"", 1));
    assert!(message.starts_with("homes: ") && message.contains("\"ap\""), "{message}");
    let message = mistakes("");
    assert!(message.starts_with("region: is required") && message.contains("homes: is required"), "{message}");
}

#[test]
fn beyond_loopback_needs_callers() {
    let caller =
        format!("[[callers]]\nname = \"a\"\ntoken_sha256 = \"{}\"\nrole = \"operate\"\ntopics = [\"pay*\", \"orders\"]\n", "ab".repeat(32));
    let open = format!("listen = \"0.0.0.0:0\"\n{SMALL}");
    assert!(mistakes(&open).contains("without authentication the service binds to loopback only"));
    let config = Config::parse(&format!("{open}{caller}"), no_env).expect("with a caller it may listen everywhere");
    let caller = &config.callers[0];
    assert!(Role::Use < caller.role && caller.role < Role::Admin);
    let allowed = |topic: &str| caller.topics.iter().any(|pattern| pattern.matches(topic));
    assert!(allowed("payments") && allowed("orders") && !allowed("orders2") && !allowed("x"));
    assert!(!format!("{config:?}").contains("171"), "0xab = 171 would be the digest's bytes");
}

#[test]
fn two_callers_with_one_token_are_refused() {
    let caller = |name: &str| format!("[[callers]]\nname = \"{name}\"\ntoken_sha256 = \"{}\"\nrole = \"use\"\n", "0f".repeat(32));
    let message = mistakes(&format!("{SMALL}{}{}", caller("a"), caller("b")));
    assert!(message.starts_with("callers[1].token_sha256"), "{message}");
}

#[test]
fn secrets_come_from_the_environment_and_stay_hidden() {
    let env = |name: &str| match name {
        "DEDUP_SECRET" => Some("c0ffee00".repeat(8)),
        "DEDUP_HOME_EU_2_PASSWORD" => Some("open-sesame".to_owned()),
        "DEDUP_REDIS_PASSWORD" => Some("swordfish".to_owned()),
        _ => None,
    };
    let text = format!("{}[redis]\nurl = \"redis://localhost:6379\"\n", SMALL.replace("name = \"eu\"", "name = \"eu-2\""));
    let config = Config::parse(&text, env).expect("the text is right");
    assert_eq!(config.secret.as_ref().expect("it is set").expose_bytes()[..2], [0xc0, 0xff]);
    assert_eq!(config.homes[0].password.as_ref().expect("it is set").expose_secret(), "open-sesame");
    let shown = format!("{config:?} {}", config.redacted_summary());
    for secret in ["c0ffee", "192, 255", "open-sesame", "swordfish"] {
        assert!(!shown.contains(secret), "{secret} shows in {shown}");
    }
}

#[test]
fn a_secret_of_the_wrong_length_names_its_variable() {
    let env = |value: &'static str| move |name: &str| (name == "DEDUP_SECRET").then(|| value.to_owned());
    let message = Config::parse(SMALL, env("c0ffee")).expect_err("it is too short").to_string();
    assert!(message.starts_with("DEDUP_SECRET: ") && !message.contains("c0ffee"), "{message}");
    assert!(Config::parse(SMALL, env("")).expect("empty counts as unset").secret.is_none());
}

#[test]
fn the_file_is_read_from_disk() {
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), SMALL).expect("it can be written");
    assert!(Config::load(file.path(), no_env).is_ok());
    let message = Config::load("no/such/file.toml", no_env).expect_err("there is no such file").to_string();
    assert!(message.starts_with("no/such/file.toml: "), "{message}");
}

#[test]
fn quoted_connection_values_are_understood() {
    let with = |postgres: &str| Config::parse(&SMALL.replace("host=localhost user=dedup dbname=dedup", postgres), no_env);
    assert!(with("host='/run/post gres' user = 'a\\\\'b' dbname=d").is_ok());
    assert!(with("host=h user=u dbname='password=x'").is_ok(), "a value is no keyword");
    assert!(with("host=h user=u dbname='open").is_err());
    assert!(with("host=h user=u").is_err());
}
