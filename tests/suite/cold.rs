//! Long memory: a key stays what it is through rotation, filter, freezing, archive, merging and drop (P1, P2, P3, P5, P7).

mod damage;
mod export;
mod faults;
mod import;
mod jobs;
mod kept_results;
mod life;
mod month;
mod rotations;

use std::process::Output;
use std::time::Duration;

use dedup_testbed::{Janitor, Region, Testbed, wait_until};
use serde_json::{Value, json};

use crate::api::{check, get};
use crate::harness::options;

/// No cache answers, so that each question reaches the home; a janitor that wastes no time.
const TABLES: &str = "[local]\nbytes = 0\n[janitor]\npause_ms = 20\nlayout_pause_ms = 20\nclock_hold_ms = 0\n";

/// `eu` with a janitor and a clock that the test moves.
pub struct Cold {
    pub testbed: Testbed,
    offset_ms: i64,
}

impl Cold {
    /// `janitor`: more settings of the janitor, behind [`TABLES`].
    pub async fn start(janitor: &str) -> Self {
        Self::with_secret(None, janitor).await
    }

    /// A deployment with a given secret.
    pub async fn with_secret(secret_hex: Option<String>, janitor: &str) -> Self {
        let mut options = options(&["eu"], 1);
        options.secret_hex = secret_hex;
        options.redis = false;
        options.janitor = true;
        options.extra_tables = format!("{TABLES}{janitor}");
        Self { testbed: Testbed::start(options).await.unwrap(), offset_ms: 0 }
    }

    pub fn region(&self) -> &Region {
        self.testbed.region("eu")
    }

    pub fn url(&self) -> String {
        self.region().instances[0].url()
    }

    pub fn janitor(&self) -> &Janitor {
        self.region().janitor.as_ref().unwrap()
    }

    pub async fn owner(&self) -> tokio_postgres::Client {
        self.region().postgres.connect("dedup_owner").await
    }

    /// Moves home time forward at once.
    pub async fn forward(&mut self, by: Duration) {
        self.offset_ms += i64::try_from(by.as_millis()).unwrap();
        let sql = format!(
            "CREATE OR REPLACE FUNCTION dedup.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE \
             AS $$ SELECT clock_timestamp() + interval '{} milliseconds' $$",
            self.offset_ms
        );
        self.owner().await.batch_execute(&sql).await.unwrap();
    }

    /// A command of the home's own, `import` or `export`.
    pub fn command(&self, command: &str, args: &[&str]) -> tokio::process::Command {
        let password = self.region().postgres.password();
        let mut run = tokio::process::Command::new(crate::harness::dedup_bin());
        run.args([command, "--config"]).arg(self.janitor().config_path()).args(args);
        run.env("DEDUP_JANITOR_PASSWORD", password).env("DEDUP_HOME_EU_PASSWORD", password);
        run
    }

    /// The same, run to its end.
    pub async fn run(&self, command: &str, args: &[&str]) -> Output {
        self.command(command, args).output().await.unwrap()
    }

    /// What the janitor would do now.
    pub async fn plan(&self) -> String {
        let output = tokio::process::Command::new(crate::harness::dedup_bin())
            .args(["janitor", "--dry-run", "--config"])
            .arg(self.janitor().config_path())
            .env("DEDUP_JANITOR_PASSWORD", self.region().postgres.password())
            .output()
            .await
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until the janitor has nothing left to do.
    pub async fn settled(&self) {
        wait_until("nothing is due", Duration::from_secs(60), || async {
            let plan = self.plan().await;
            if plan.trim() == "eu: nothing is due" { Ok(()) } else { Err(plan) }
        })
        .await;
    }

    /// Waits until the instance has every filter of the home.
    pub async fn loaded(&self) {
        wait_until("all filters are loaded", Duration::from_secs(20), || async {
            let segments = self.segments().await;
            let missing: Vec<&Value> = segments.iter().filter(|s| !s["filter_bytes"].is_null() && s["loaded"] == json!(false)).collect();
            if missing.is_empty() { Ok(()) } else { Err(format!("{missing:?}")) }
        })
        .await;
    }

    /// `GET /v1/segments`.
    pub async fn segments(&self) -> Vec<Value> {
        let reply = get(&self.url(), "/v1/segments").await;
        assert_eq!((reply.status, &reply.body["incomplete"]), (200, &json!([])), "{reply:?}");
        reply.body["segments"].as_array().unwrap().clone()
    }

    /// How many archives count.
    pub async fn archives(&self) -> usize {
        self.segments().await.iter().filter(|s| s["place"].as_str().unwrap().starts_with("archive") && s["state"] == "cold").count()
    }

    /// One day, and all that the janitor has to do for it.
    pub async fn next_day(&mut self) {
        self.forward(Duration::from_secs(86_400)).await;
        self.settled().await;
    }
}

/// A number that the environment may raise.
pub fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// Checks many keys in one batch; the verdicts.
pub async fn check_all(url: &str, topic: &str, keys: impl Iterator<Item = String>) -> Vec<String> {
    let keys: Vec<Value> = keys.map(|key| json!({ "key": key })).collect();
    let mut verdicts = Vec::new();
    for items in keys.chunks(1000) {
        let reply = crate::api::post(url, &format!("/v1/topics/{topic}/checks/batch"), json!({"detail": "verdict", "items": items})).await;
        let results = reply.body["results"].as_array().unwrap_or_else(|| panic!("{reply:?}"));
        verdicts.extend(
            results
                .iter()
                .map(|r| r["verdict"].as_str().map_or_else(|| r["problem"]["code"].as_str().unwrap_or("?").to_owned(), str::to_owned)),
        );
    }
    verdicts
}

/// Asserts one verdict for many keys.
#[track_caller]
pub fn all_are(verdicts: &[String], verdict: &str) {
    let others: Vec<_> = verdicts.iter().enumerate().filter(|(_, v)| *v != verdict).take(5).collect();
    assert!(others.is_empty(), "not {verdict}: {others:?} of {}", verdicts.len());
}

/// A check that must come from the archive.
pub async fn cold_duplicate(url: &str, topic: &str, key: &str) -> Value {
    let reply = check(url, topic, json!({"key": key, "fingerprint": "f"})).await.is("duplicate");
    assert_eq!(reply.body["tier"], json!("cold"), "{reply:?}");
    reply.body
}
