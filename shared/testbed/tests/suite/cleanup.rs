//! Nothing outlives the process that started it, however that process ends.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::common::{one_region, wait_until_gone};
use dedup_testbed::{Options, Testbed};

/// Set in a copy of this test program: how it is to end.
const HOLD: &str = "TESTBED_TEST_ENDS_BY";

fn pids(testbed: &Testbed) -> Vec<u32> {
    let region = testbed.region("eu");
    vec![region.postgres.pid(), region.redis.as_ref().expect("it is on by default").pid()]
}

#[tokio::test]
async fn a_stopped_testbed_is_gone_when_stop_returns() {
    let testbed = one_region().await;
    let (pids, dir) = (pids(&testbed), testbed.dir().to_owned());
    testbed.region("eu").postgres.sigstop().await;
    testbed.stop().await.expect("all is removed");
    assert!(!dir.exists());
    wait_until_gone(&pids, &dir).await;
}

#[tokio::test]
async fn a_failed_start_leaves_nothing_and_shows_the_log() {
    let mut options = Options::new(PathBuf::from("/nonexistent/dedup"));
    options.regions = vec!["eu".into()];
    options.postgres_settings = vec![("max_connections".into(), "'many'".into())];
    let error = Testbed::start_stores(options).await.expect_err("no such setting").to_string();
    assert!(error.contains("max_connections"), "{error}");
}

/// Not a test of its own: the others run this very program again with the variable set.
#[tokio::test]
async fn victim() {
    let Ok(how) = std::env::var(HOLD) else { return };
    let testbed = one_region().await;
    let line = pids(&testbed).iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
    // Straight to the file descriptor: the harness shows `println!` only at the end.
    std::fs::write("/dev/stderr", format!("victim {line} {}\n", testbed.dir().display())).expect("stderr is open");
    match how.as_str() {
        "panic" => panic!("as asked"),
        "exit" => std::process::exit(3),
        _ => std::future::pending::<()>().await,
    }
}

/// Starts a victim and reads what it holds.
fn start_victim(how: &str) -> (Child, Vec<u32>, PathBuf) {
    let me = std::env::current_exe().expect("this program has a path");
    let mut child = Command::new(me)
        .args(["--exact", "cleanup::victim", "--nocapture"])
        .env(HOLD, how)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("this program runs again");
    let stderr = BufReader::new(child.stderr.take().expect("it is piped"));
    let line = stderr.lines().map_while(Result::ok).find(|l| l.starts_with("victim ")).expect("the victim starts");
    let words: Vec<&str> = line.split(' ').collect();
    let pids = words[1..3].iter().map(|w| w.parse().expect("a process id")).collect();
    (child, pids, PathBuf::from(words[3]))
}

async fn ends_by(how: &str, signal: Option<&str>) {
    let (mut child, pids, dir) = start_victim(how);
    if let Some(signal) = signal {
        let script = format!("kill -{signal} {}", child.id());
        assert!(Command::new("/bin/sh").args(["-c", &script]).status().expect("the shell runs").success());
    }
    child.wait().expect("it ends");
    wait_until_gone(&pids, &dir).await;
}

#[tokio::test]
async fn nothing_survives_a_kill_9() {
    ends_by("waiting", Some("KILL")).await;
}

#[tokio::test]
async fn nothing_survives_ctrl_c() {
    ends_by("waiting", Some("INT")).await;
}

#[tokio::test]
async fn nothing_survives_a_panic() {
    ends_by("panic", None).await;
}

#[tokio::test]
async fn nothing_survives_an_exit_without_destructors() {
    ends_by("exit", None).await;
}
