//! Connections to a home: pooled lines for calls, and one feed for notifications.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::{Connect, Manager, ManagerConfig, Object, Pool, RecyclingMethod, Runtime};
use secrecy::{ExposeSecret, SecretString};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, LoadBalanceHosts, SslMode, TargetSessionAttrs};
use tokio_postgres::{AsyncMessage, Client};
use tokio_postgres_rustls::MakeRustlsConnect;
use tokio_util::task::AbortOnDropHandle;

use crate::sabotage;

/// Where a home's Postgres is. Several hosts are tried in turn; only a read-write primary is taken.
#[derive(Clone)]
pub struct PgTarget {
    config: tokio_postgres::Config,
    tls: MakeRustlsConnect,
}

/// A target that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The connection string cannot be understood.
    #[error("the connection string is not valid")]
    Parse(#[source] tokio_postgres::Error),
    /// The connection could not be made.
    #[error("no connection to Postgres")]
    Connect(#[source] tokio_postgres::Error),
    /// It took too long.
    #[error("no connection to Postgres within {0:?}")]
    TimedOut(Duration),
}

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

impl PgTarget {
    /// Parses `host=… port=… user=… dbname=…`. Hosts that are not on loopback get TLS with full verification, whatever the text says.
    pub fn parse(text: &str, password: Option<&SecretString>) -> Result<Self, ConnectError> {
        let mut config: tokio_postgres::Config = text.parse().map_err(ConnectError::Parse)?;
        if let Some(password) = password {
            config.password(password.expose_secret());
        }
        config
            .application_name("dedup")
            .connect_timeout(CONNECT_TIMEOUT)
            .tcp_user_timeout(Duration::from_secs(10))
            .keepalives_idle(Duration::from_secs(10))
            .target_session_attrs(TargetSessionAttrs::ReadWrite)
            // In any order: an old primary that was cut off still calls itself one, and must not always be found first.
            .load_balance_hosts(LoadBalanceHosts::Random)
            // Whatever the database's defaults are: each call is one READ COMMITTED transaction.
            .options(format!(
                "-c default_transaction_isolation=read\\ committed -c idle_in_transaction_session_timeout=10s -c jit=off{}",
                skew()
            ));
        let loopback = config.get_hosts().iter().all(|host| match host {
            Host::Tcp(name) => name == "localhost" || name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
            #[cfg(unix)]
            Host::Unix(_) => true,
        });
        config.ssl_mode(if loopback { SslMode::Disable } else { SslMode::Require });
        Ok(Self { config, tls: MakeRustlsConnect::new(tls_config()) })
    }

    /// Logs in as somebody else, for migrations.
    pub fn with_user(mut self, user: &str, password: Option<&SecretString>) -> Self {
        self.config.user(user);
        if let Some(password) = password {
            self.config.password(password.expose_secret());
        }
        self
    }
}

/// The setting by which a build that is broken on purpose judges by its own clock; empty in all others.
fn skew() -> String {
    sabotage::skew().map_or_else(String::new, |ms| format!(" -c dedup.skew={ms}"))
}

fn tls_config() -> rustls::ClientConfig {
    let mut roots = rustls::RootCertStore::empty();
    // Certificates that cannot be parsed are left out; a server signed by one of them is then refused.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth()
}

/// One connection outside any pool, for migrations and checks.
pub async fn connect_once(target: &PgTarget) -> Result<Client, ConnectError> {
    let (client, connection) = connect(target).await?;
    tokio::spawn(async move {
        let _ = connection.await;
    });
    Ok(client)
}

type Connection = tokio_postgres::Connection<
    tokio_postgres::Socket,
    <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<tokio_postgres::Socket>>::Stream,
>;

async fn connect(target: &PgTarget) -> Result<(Client, Connection), ConnectError> {
    // The driver's own timeout covers the TCP connect only; a stalled server accepts and then says nothing.
    match tokio::time::timeout(CONNECT_TIMEOUT, target.config.connect(target.tls.clone())).await {
        Ok(done) => done.map_err(ConnectError::Connect),
        Err(_) => Err(ConnectError::TimedOut(CONNECT_TIMEOUT)),
    }
}

/// The feed's connection: calls, and what the home says unasked.
pub struct Feed {
    pub client: Client,
    pub notifications: mpsc::Receiver<()>,
    warnings: Arc<AtomicU64>,
    driver: JoinHandle<()>,
}

impl Feed {
    /// Warnings the server sent so far.
    pub fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::SeqCst)
    }
}

impl Drop for Feed {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Opens a feed. A notification carries nothing: it only says that there is something to read, so several count as one.
pub async fn open_feed(target: &PgTarget) -> Result<Feed, ConnectError> {
    let (client, mut connection) = connect(target).await?;
    let (tell, notifications) = mpsc::channel(1);
    let warnings = Arc::new(AtomicU64::new(0));
    let warned = Arc::clone(&warnings);
    let driver = tokio::spawn(async move {
        while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            match message {
                AsyncMessage::Notification(_) => {
                    let _ = tell.try_send(());
                }
                AsyncMessage::Notice(notice) if notice.code().code().starts_with("01") => {
                    warned.fetch_add(1, Ordering::SeqCst);
                }
                _ => {}
            }
        }
    });
    Ok(Feed { client, notifications, warnings, driver })
}

/// Makes connections for the pool and watches what the server warns of.
struct Watched {
    target: PgTarget,
    warnings: Arc<AtomicU64>,
    /// Where connections live, whoever opens them: beside the batcher, so that a call does not go by way of some HTTP worker and wait for it.
    runtime: Handle,
}

impl Connect for Watched {
    fn connect(
        &self,
        _: &tokio_postgres::Config,
    ) -> std::pin::Pin<Box<dyn Future<Output = Result<(Client, JoinHandle<()>), tokio_postgres::Error>> + Send + '_>> {
        let (target, warnings) = (self.target.clone(), Arc::clone(&self.warnings));
        let opened = self.runtime.spawn(async move {
            let (client, mut connection) = target.config.connect(target.tls).await?;
            let driver = tokio::spawn(async move {
                while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                    if let AsyncMessage::Notice(notice) = message
                        && notice.code().code().starts_with("01")
                    {
                        warnings.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
            Ok((client, driver))
        });
        Box::pin(async move {
            match AbortOnDropHandle::new(opened).await {
                Ok(opened) => opened,
                // The runtime ends, and whoever waits with it.
                Err(_) => std::future::pending().await,
            }
        })
    }
}

/// The lines to one home: a few connections, each carrying several calls in a row.
pub struct Lines {
    pool: Pool,
    warnings: Arc<AtomicU64>,
    open: std::sync::Mutex<Vec<Option<Arc<Line>>>>,
    /// Held by whoever opens that line. Callers that find it closed wait for the one who opens it: were each to open one of its own, a crowd
    /// at the start would wait for connections that nobody gives back.
    opening: Vec<tokio::sync::Mutex<()>>,
}

/// One connection, taken out of the pool while it is healthy. A line that saw any error is closed, never given back.
pub struct Line {
    object: Option<Object>,
    calls: AtomicUsize,
    slot: usize,
}

impl Line {
    pub fn client(&self) -> &deadpool_postgres::Client {
        self.object.as_ref().expect("an object until dropped")
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(object) = self.object.take() {
            // Out of the pool for good: dropping the client closes the socket, in the middle of a statement if need be.
            drop(Object::take(object));
        }
    }
}

impl Lines {
    pub fn new(target: &PgTarget, connections: usize) -> Self {
        let warnings = Arc::new(AtomicU64::new(0));
        let connect = Watched { target: target.clone(), warnings: Arc::clone(&warnings), runtime: Handle::current() };
        let manager = Manager::from_connect(target.config.clone(), connect, ManagerConfig { recycling_method: RecyclingMethod::Fast });
        let timeout = Some(CONNECT_TIMEOUT);
        let pool = Pool::builder(manager)
            .max_size(connections)
            .runtime(Runtime::Tokio1)
            .wait_timeout(timeout)
            .create_timeout(timeout)
            .recycle_timeout(timeout)
            .build()
            .expect("a runtime is given, which is all that the timeouts need");
        let open = std::sync::Mutex::new((0..connections).map(|_| None).collect());
        let opening = (0..connections).map(|_| tokio::sync::Mutex::new(())).collect();
        Self { pool, warnings, open, opening }
    }

    /// Warnings the server sent so far over all lines. One during a call makes that call's success doubtful (a synchronous commit that
    /// was not confirmed warns and then reports success).
    pub fn warnings(&self) -> u64 {
        self.warnings.load(Ordering::SeqCst)
    }

    /// The least busy of lines `from .. to`, opened if need be.
    pub async fn line(&self, from: usize, to: usize) -> Result<Arc<Line>, String> {
        let slot = {
            let open = self.open.lock().expect("no panic while held");
            let to = to.min(open.len()).max(from + 1);
            let calls = |slot: usize| open.get(slot).and_then(Option::as_ref).map_or(0, |line| line.calls.load(Ordering::Relaxed));
            (from..to).min_by_key(|s| calls(*s)).unwrap_or(from)
        };
        if let Some(line) = self.opened(slot) {
            return Ok(line);
        }
        let _opening = match self.opening.get(slot) {
            Some(gate) => Some(gate.lock().await),
            None => None,
        };
        if let Some(line) = self.opened(slot) {
            return Ok(line);
        }
        let object = self.pool.get().await.map_err(|e| e.to_string())?;
        let line = Arc::new(Line { object: Some(object), calls: AtomicUsize::new(1), slot });
        let mut open = self.open.lock().expect("no panic while held");
        if let Some(place) = open.get_mut(slot) {
            *place = Some(Arc::clone(&line));
        }
        Ok(line)
    }

    /// The line of a slot, with one more call on it, if it is open. One that was closed from the other end leaves its slot at once: while it is
    /// kept, it takes the place in the pool that its successor needs.
    fn opened(&self, slot: usize) -> Option<Arc<Line>> {
        let mut open = self.open.lock().expect("no panic while held");
        let place = open.get_mut(slot)?;
        if place.as_ref().is_some_and(|line| line.client().is_closed()) {
            *place = None;
        }
        let line = place.as_ref()?;
        line.calls.fetch_add(1, Ordering::Relaxed);
        Some(Arc::clone(line))
    }

    /// Ends a call on a line. After any error the line is dropped: calls still on it finish or fail by themselves.
    pub fn done(&self, line: &Arc<Line>, healthy: bool) {
        line.calls.fetch_sub(1, Ordering::Relaxed);
        if !healthy {
            let mut open = self.open.lock().expect("no panic while held");
            if let Some(place) = open.get_mut(line.slot)
                && place.as_ref().is_some_and(|l| Arc::ptr_eq(l, line))
            {
                *place = None;
            }
        }
    }

    /// Drops every line, after the home changed.
    pub fn drop_all(&self) {
        self.open.lock().expect("no panic while held").iter_mut().for_each(|place| *place = None);
    }
}
