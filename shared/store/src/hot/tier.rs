//! Reading from and writing to Redis.

use std::sync::Arc;
use std::time::Duration;

use dedup_core::{Digest, Secret};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use secrecy::{ExposeSecret, SecretString};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use super::breaker::Breaker;
use super::worth::Worth;
use super::{keys, value};
use crate::StoreMetrics;
use crate::cached::Cached;

/// How to reach Redis.
#[derive(Debug, Clone)]
pub struct HotSettings {
    /// `redis://host:port[/db]` or `rediss://…`, without a password.
    pub url: String,
    /// Password.
    pub password: Option<SecretString>,
    /// Budget of one look-up; past it the answer is a miss.
    pub timeout: Duration,
    /// Longest a value is kept.
    pub ttl_max: Duration,
}

/// Whether it helps.
#[derive(Debug, Clone, Copy)]
pub struct HotHealth {
    /// Answering.
    pub up: bool,
}

/// What Redis says of itself.
#[derive(Debug, Clone, Copy)]
pub struct HotFigures {
    /// Bytes it uses in all.
    pub bytes: u64,
    /// Keys in the database we use; others' too, if it is shared.
    pub keys: u64,
    /// Keys it evicted for want of memory since its start.
    pub evicted: u64,
}

/// The region's Redis. Cloned freely.
#[derive(Clone)]
pub struct HotTier {
    inner: Arc<Inner>,
}

struct Inner {
    manager: ConnectionManager,
    secret: Secret,
    prefix: String,
    ttl_max_ms: i64,
    budget: Duration,
    breaker: Breaker,
    worth: Worth,
    asks: mpsc::Sender<LookUp>,
    puts: mpsc::Sender<Put>,
    metrics: StoreMetrics,
}

/// Digests somebody asks for, and where the values go.
type LookUp = (Vec<Digest>, oneshot::Sender<Vec<Option<Cached>>>);

enum Put {
    Record(Digest, Cached, i64),
    Forget(Vec<Digest>),
}

/// Back-fills waiting; beyond that they are dropped, which costs a later look-up and nothing else.
const PUTS_WAITING: usize = 8192;
const PUTS_A_TRIP: usize = 256;
/// After a trip that was not full: nobody waits for back-fills, and one by one they would cost Redis more than the look-ups they spare.
const PUTS_PAUSE: Duration = Duration::from_millis(2);
/// Callers whose look-ups wait; beyond that they are misses.
const ASKS_WAITING: usize = 4096;
const ASKS_A_TRIP: usize = 256;
/// Look-ups on their way at once: Redis works through them one after the other anyway.
const TRIPS: usize = 4;

impl HotTier {
    /// Starts a tier; connecting happens in the background. `Err` only for a URL that cannot be understood.
    pub fn start(
        settings: &HotSettings,
        secret: Secret,
        metrics: StoreMetrics,
        stop: CancellationToken,
    ) -> Result<Self, redis::RedisError> {
        let mut info: redis::ConnectionInfo = redis::IntoConnectionInfo::into_connection_info(settings.url.as_str())?;
        if let Some(password) = &settings.password {
            let with_password = info.redis_settings().clone().set_password(password.expose_secret());
            info = info.set_redis_settings(with_password);
        }
        let config = ConnectionManagerConfig::new()
            .set_number_of_retries(1)
            .set_min_delay(Duration::from_millis(100))
            .set_connection_timeout(Some(Duration::from_secs(1)))
            .set_response_timeout(Some(settings.timeout));
        let manager = ConnectionManager::new_lazy_with_config(redis::Client::open(info)?, config)?;
        let (puts, waiting) = mpsc::channel(PUTS_WAITING);
        let (asks, asked) = mpsc::channel(ASKS_WAITING);
        let inner = Arc::new(Inner {
            manager,
            prefix: keys::prefix(&secret),
            secret,
            ttl_max_ms: i64::try_from(settings.ttl_max.as_millis()).unwrap_or(i64::MAX),
            budget: settings.timeout,
            breaker: Breaker::new(),
            worth: Worth::default(),
            asks,
            puts,
            metrics,
        });
        tokio::spawn(look_up(Arc::clone(&inner), asked, stop.clone()));
        tokio::spawn(write_back(Arc::clone(&inner), waiting, stop));
        Ok(Self { inner })
    }

    /// Whether a question whose home is near should ask here first.
    pub(crate) fn is_worth_asking(&self) -> bool {
        self.inner.worth.asks()
    }

    /// Values of the digests, in order; all misses if Redis is not well. Whoever asks while earlier look-ups are on their way shares the next.
    pub(crate) async fn get(&self, digests: Vec<Digest>) -> Vec<Option<Cached>> {
        let inner = &self.inner;
        let n = digests.len();
        if n == 0 || !inner.breaker.may_ask() {
            return vec![None; n];
        }
        let (tell, told) = oneshot::channel();
        if inner.asks.try_send((digests, tell)).is_err() {
            return vec![None; n];
        }
        tokio::time::timeout(inner.budget, told).await.ok().and_then(Result::ok).unwrap_or_else(|| vec![None; n])
    }

    /// Hands a done record over for writing; never waits. `now_ms` is home time.
    pub(crate) fn put(&self, digest: Digest, cached: Cached, now_ms: i64) {
        if self.inner.breaker.is_open() || self.inner.puts.try_send(Put::Record(digest, cached, now_ms)).is_err() {
            self.inner.metrics.hot_dropped();
        }
    }

    /// Removes forgotten records; housekeeping only (the forget log is what makes them misses).
    pub(crate) async fn forget(&self, digests: Vec<Digest>) {
        let _ = self.inner.puts.send(Put::Forget(digests)).await;
    }

    /// Whether it helps right now.
    pub fn health(&self) -> HotHealth {
        HotHealth { up: !self.inner.breaker.is_open() }
    }

    /// Its own figures; `None` if it does not answer (or may not, for want of rights).
    pub(crate) async fn figures(&self, within: Duration) -> Option<HotFigures> {
        let mut manager = self.inner.manager.clone();
        let mut pipe = redis::pipe();
        pipe.cmd("INFO").arg("memory").cmd("INFO").arg("stats").cmd("DBSIZE");
        let asked = pipe.query_async::<(String, String, u64)>(&mut manager);
        let (memory, stats, keys) = tokio::time::timeout(within, asked).await.ok()?.ok()?;
        let field = |text: &str, name: &str| text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok());
        Some(HotFigures { bytes: field(&memory, "used_memory")?, keys, evicted: field(&stats, "evicted_keys")? })
    }

    /// What it holds for one digest, for `lookup`.
    pub(crate) async fn peek(&self, digest: Digest) -> Option<Cached> {
        self.get(vec![digest]).await.pop().flatten()
    }
}

async fn look_up(inner: Arc<Inner>, mut asked: mpsc::Receiver<LookUp>, stop: CancellationToken) {
    let trips = Arc::new(Semaphore::new(TRIPS));
    loop {
        let Ok(trip) = Arc::clone(&trips).acquire_owned().await else { return };
        let mut batch = Vec::new();
        tokio::select! {
            n = asked.recv_many(&mut batch, ASKS_A_TRIP) => if n == 0 { return },
            () = stop.cancelled() => return,
        }
        let inner = Arc::clone(&inner);
        tokio::spawn(async move {
            let values = ask(&inner, &batch).await;
            drop(trip);
            let mut values = values.into_iter();
            for (digests, tell) in batch {
                let _ = tell.send(values.by_ref().take(digests.len()).collect());
            }
        });
    }
}

/// One MGET for all that share a trip.
async fn ask(inner: &Inner, batch: &[LookUp]) -> Vec<Option<Cached>> {
    let digests: Vec<&Digest> = batch.iter().flat_map(|(digests, _)| digests).collect();
    let mut command = redis::cmd("MGET");
    for digest in &digests {
        command.arg(keys::record_key(&inner.prefix, digest));
    }
    let mut manager = inner.manager.clone();
    let asked = tokio::time::timeout(inner.budget, command.query_async::<Vec<redis::Value>>(&mut manager));
    let values = match asked.await {
        Ok(Ok(values)) if values.len() == digests.len() => values,
        other => {
            if let Ok(Err(error)) = other {
                tracing::debug!(error = %error, "hot tier look-up failed");
            }
            inner.breaker.failed();
            inner.metrics.hot_error();
            return vec![None; digests.len()];
        }
    };
    inner.breaker.succeeded();
    let decode = |(digest, value): (&Digest, redis::Value)| match value {
        redis::Value::BulkString(bytes) => {
            let cached = value::decode(digest, &bytes, &inner.secret);
            if cached.is_none() {
                inner.metrics.hot_forged();
            }
            cached
        }
        _ => None,
    };
    let values: Vec<Option<Cached>> = digests.into_iter().zip(values).map(decode).collect();
    inner.worth.learn(values.len(), values.iter().flatten().count());
    values
}

async fn write_back(inner: Arc<Inner>, mut waiting: mpsc::Receiver<Put>, stop: CancellationToken) {
    let mut batch = Vec::with_capacity(PUTS_A_TRIP);
    loop {
        batch.clear();
        tokio::select! {
            n = waiting.recv_many(&mut batch, PUTS_A_TRIP) => if n == 0 { return },
            () = stop.cancelled() => return,
        }
        let mut pipe = redis::pipe();
        for put in &batch {
            match put {
                Put::Record(digest, cached, now_ms) => {
                    let ttl = (cached.record.expires_ms.saturating_sub(*now_ms)).min(inner.ttl_max_ms);
                    if ttl > 0 {
                        let value = value::encode(digest, cached, &inner.secret);
                        pipe.cmd("SET").arg(keys::record_key(&inner.prefix, digest)).arg(value).arg("PX").arg(ttl).ignore();
                    }
                }
                Put::Forget(digests) => {
                    for digest in digests {
                        pipe.cmd("DEL").arg(keys::record_key(&inner.prefix, digest)).ignore();
                    }
                }
            }
        }
        let mut manager = inner.manager.clone();
        if let Err(error) = pipe.query_async::<()>(&mut manager).await {
            tracing::debug!(error = %error, "hot tier write failed");
            inner.metrics.hot_error();
        }
        if batch.len() < PUTS_A_TRIP {
            tokio::time::sleep(PUTS_PAUSE).await;
        }
    }
}
