//! Servers that tests share, and the ones a test has for itself.

use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use dedup_testbed::{Options, Testbed};
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use crate::api::check;

/// One runtime for all tests: the servers they share must outlive each of them.
pub fn run<T>(test: impl Future<Output = T>) -> T {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| Runtime::new().unwrap()).block_on(test)
}

/// The executable built beside this test.
pub fn dedup_bin() -> PathBuf {
    if let Some(bin) = std::env::var_os("DEDUP_BIN") {
        return bin.into();
    }
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    path.pop();
    path.push("dedup");
    assert!(path.exists(), "{} is missing: build it with `cargo build -p dedup`, or run `make test`", path.display());
    path
}

/// Options for a testbed of a test's own.
pub fn options(regions: &[&str], instances: usize) -> Options {
    let mut options = Options::new(dedup_bin());
    options.regions = regions.iter().map(|r| (*r).to_owned()).collect();
    options.instances = instances;
    options
}

/// `eu` and `us` with two instances each, shared by all tests that hurt nobody.
pub async fn shared() -> &'static Testbed {
    static SHARED: OnceCell<Testbed> = OnceCell::const_new();
    SHARED.get_or_init(|| async { Testbed::start(options(&["eu", "us"], 2)).await.unwrap() }).await
}

/// URL of instance `n` (0 or 1) of a region of the shared testbed.
pub async fn url(region: &str, n: usize) -> String {
    shared().await.region(region).instances[n].url()
}

/// A home whose clock tests move. One test at a time; time only goes forward.
pub struct Clocked {
    pub testbed: Testbed,
    offset_ms: i64,
}

/// `eu` with two instances and a clock of its own.
pub async fn clocked() -> MutexGuard<'static, Clocked> {
    static CLOCKED: OnceCell<Mutex<Clocked>> = OnceCell::const_new();
    let start = || async { Mutex::new(Clocked::start(options(&["eu"], 2)).await) };
    CLOCKED.get_or_init(start).await.lock().await
}

impl Clocked {
    /// A testbed of a test's own with such a clock, for `eu`.
    pub async fn start(options: Options) -> Self {
        Self { testbed: Testbed::start(options).await.unwrap(), offset_ms: 0 }
    }

    /// Moves home time forward at once, as the owner of the home's one clock function.
    pub async fn forward(&mut self, by: Duration) {
        self.shift(i64::try_from(by.as_millis()).unwrap()).await;
    }

    async fn shift(&mut self, by_ms: i64) {
        self.offset_ms += by_ms;
        let owner = self.testbed.region("eu").postgres.connect("dedup_owner").await;
        let sql = format!(
            "CREATE OR REPLACE FUNCTION dedup.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE \
             AS $$ SELECT clock_timestamp() + interval '{} milliseconds' $$",
            self.offset_ms
        );
        owner.batch_execute(&sql).await.unwrap();
    }

    /// The same, and each instance knows at once: a reply of the home tells it the time. Otherwise what is cached may be answered for up to a
    /// second more, since the instance only learns of the jump then.
    pub async fn forward_and_tell(&mut self, by: Duration, topic: &str) {
        self.forward(by).await;
        self.tell(topic).await;
    }

    /// Moves it back, and each instance knows at once.
    pub async fn back_and_tell(&mut self, by: Duration, topic: &str) {
        self.shift(-i64::try_from(by.as_millis()).unwrap()).await;
        self.tell(topic).await;
    }

    async fn tell(&self, topic: &str) {
        for n in 0..2 {
            let unheard = format!("eu:tick-{:016x}", rand::random::<u64>());
            check(&self.url(n), topic, json!({"key": unheard})).await.is("first");
        }
    }

    pub fn url(&self, n: usize) -> String {
        self.testbed.region("eu").instances[n].url()
    }
}
