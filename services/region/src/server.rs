//! The role's life: start, serve, drain.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle, Service as _};
use actix_web::web::{self, Data, ServiceConfig};
use actix_web::{App, HttpServer};
use dedup_core::{HomeSpec, HomeTable, Limits, Secret};
use dedup_runtime::config::{Config, HomeConfig};
use dedup_runtime::metrics::{Identity, Metrics, SERIES_MAX_DEFAULT};
use dedup_runtime::shutdown::Shutdown;
use dedup_runtime::traces::Traces;
use dedup_store::{Around, Figures, HomeSettings, Homes, HotSettings, HotTier, Ladder, LocalTier, PgTarget, StoreMetrics, Topics};
use tokio_util::sync::CancellationToken;

use crate::api;
use crate::auth::Callers;
use crate::metrics::{Decisions, Sources, watch_tiers};
use crate::problem::{Code, Problem};
use crate::service::{Parts, Phase, Service};
use crate::traces;

/// Why the service did not start, or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The table of homes contradicts itself.
    #[error("the prefix {0:?} is owned by two homes")]
    Prefix(String),
    /// A home's connection string.
    #[error("homes.{home}.postgres is not valid")]
    Target {
        /// Which home.
        home: String,
        /// Why.
        #[source]
        source: dedup_store::ConnectError,
    },
    /// The own home is not fit, and will not become so by waiting.
    #[error("the own home {home} cannot be used: {why}")]
    OwnHome {
        /// Which home.
        home: String,
        /// Why.
        why: String,
    },
    /// Redis' address.
    #[error("redis.url is not valid: {0}")]
    Redis(String),
    /// An address could not be listened on.
    #[error("cannot listen on {addr}")]
    Listen {
        /// Which.
        addr: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Telemetry.
    #[error("telemetry cannot start: {0}")]
    Telemetry(String),
    /// Anything of the operating system.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// Longest the goodbye to the homes may take.
const SIGN_OFF: Duration = Duration::from_secs(1);

/// Runs the service until SIGINT or SIGTERM; answers the exit code. `ready_file` gets the bound addresses as JSON.
pub fn serve(config: Config, ready_file: Option<PathBuf>) -> Result<i32, ServeError> {
    // The store's work (batchers, feeds, Redis) shares this runtime; each HTTP worker has a single-threaded one of its own.
    // Half the cores: the rest is for the HTTP workers and, on a small machine, for the database beside it.
    let threads = std::thread::available_parallelism().map_or(1, |n| (n.get() / 2).max(1));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().thread_name("store").build()?;
    runtime.block_on(run(config, ready_file))
}

async fn run(config: Config, ready_file: Option<PathBuf>) -> Result<i32, ServeError> {
    let shutdown = Shutdown::new();
    let stop = shutdown.token();
    let signals = tokio::spawn({
        let shutdown = shutdown.clone();
        async move { shutdown.wait_for_signal().await }
    });
    let Some(secret) = own_secret(&config, &stop).await? else { return Ok(0) };
    // The store goes on until the last question is answered.
    let store_stop = CancellationToken::new();
    let (service, telemetry) = build(&config, secret, &store_stop)?;
    let service = Data::new(service);

    let admin = config.process.admin_listen.map(|addr| bind(&config, &service, addr, Paths::Meta)).transpose()?;
    let paths = if admin.is_some() { Paths::Questions } else { Paths::Both };
    let (server, addr) = bind(&config, &service, config.process.listen, paths)?;
    let addrs = (addr, admin.as_ref().map(|(_, addr)| *addr));
    if let Some(file) = ready_file {
        write_ready(&file, &addrs)?;
    }
    tracing::info!(listen = %addrs.0, admin = addrs.1.map(|a| a.to_string()), "listening");
    tokio::spawn(become_ready(service.clone(), stop.clone()));
    let handle = server.handle();
    let drain = Duration::from_millis(config.process.drain_ms);
    tokio::spawn(drain_on_stop(service.clone(), stop.clone(), handle, drain));
    let admin = admin.map(|(server, _)| (server.handle(), tokio::spawn(server)));
    server.await?;
    if let Some((handle, running)) = admin {
        // Last, so that readiness can be asked until the end.
        handle.stop(false).await;
        let _ = running.await;
    }
    store_stop.cancel();
    service.ladder.homes().signed_off(SIGN_OFF).await;
    tracing::info!("stopped");
    signals.abort();
    telemetry.goodbye().await;
    Ok(0)
}

/// What is exported.
struct Telemetry {
    metrics: Metrics,
    traces: Option<Traces>,
}

impl Telemetry {
    /// Pushes what is left. A collector that is away is neither waited for long nor a reason for a bad exit code.
    async fn goodbye(self) {
        let pushed = tokio::task::spawn_blocking(move || {
            if let Some(traces) = &self.traces {
                traces.shutdown(SIGN_OFF);
            }
            if let Err(error) = self.metrics.shutdown() {
                tracing::warn!(error = %error, "the last metrics could not be pushed");
            }
        });
        let _ = tokio::time::timeout(SIGN_OFF * 2, pushed).await;
    }
}

/// The secret: the configuration's, or the own home's. Waits for a home that cannot be reached; `None` when told to stop meanwhile.
async fn own_secret(config: &Config, stop: &CancellationToken) -> Result<Option<Secret>, ServeError> {
    let configured = config.secret.as_ref().map(|s| Secret::new(*s.expose_bytes()));
    let home = config.own_homes().next().expect("checked when the configuration was read");
    let target = target(home)?;
    loop {
        let ours = configured.as_ref().map(Secret::id);
        match dedup_store::ask_home(&target).await {
            Ok(hello) => {
                let problems = match &hello {
                    None => vec![dedup_store::HomeProblem::NotMigrated],
                    Some(hello) => {
                        dedup_store::check_home(hello, &home.name, &home.region, &home.prefixes, ours, config.process.allow_weak_durability)
                    }
                };
                if let Some(problem) = problems.first() {
                    return Err(ServeError::OwnHome { home: home.name.clone(), why: problem.to_string() });
                }
                let bytes: Option<[u8; 32]> = hello.and_then(|h| h.secret.try_into().ok());
                return Ok(configured.or_else(|| bytes.map(Secret::new)));
            }
            // With the secret at hand the service starts all the same and answers for the other homes.
            Err(_) if configured.is_some() => return Ok(configured),
            Err(error) => {
                tracing::warn!(home = %home.name, error = &error as &dyn std::error::Error, "waiting for the own home, which keeps the secret")
            }
        }
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(1)) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}

fn target(home: &HomeConfig) -> Result<PgTarget, ServeError> {
    PgTarget::parse(&home.postgres, home.password.as_ref()).map_err(|source| ServeError::Target { home: home.name.clone(), source })
}

fn build(config: &Config, secret: Secret, stop: &CancellationToken) -> Result<(Service, Telemetry), ServeError> {
    let identity = Identity { region: &config.process.region, instance: &config.process.instance, version: env!("CARGO_PKG_VERSION") };
    let series = SERIES_MAX_DEFAULT.max(config.telemetry.topics_max * config.homes.len() * 64);
    let failed = |e: &dyn std::error::Error| ServeError::Telemetry(e.to_string());
    let metrics = Metrics::new(identity, &config.telemetry, series).map_err(|e| failed(&e))?;
    let traces = Traces::start(identity, &config.telemetry).map_err(|e| failed(&e))?;
    let meter = metrics.meter("dedup");
    let specs =
        config.homes.iter().map(|h| HomeSpec { name: h.name.clone(), region: h.region.clone(), prefixes: h.prefixes.clone() }).collect();
    let table = Arc::new(HomeTable::new(specs).map_err(ServeError::Prefix)?);
    let settings = config.homes.iter().map(|h| {
        Ok(HomeSettings {
            target: target(h)?,
            connections: h.connections,
            queue_items: h.queue_items,
            allow_weak_durability: config.process.allow_weak_durability,
        })
    });
    let settings = settings.collect::<Result<Vec<_>, ServeError>>()?;
    let store_metrics = StoreMetrics::new(&meter, &config.process.region, &table);
    let local = LocalTier::new(config.local.bytes);
    let hot = match &config.redis {
        None => None,
        Some(redis) => {
            let settings = HotSettings {
                url: redis.url.clone(),
                password: redis.password.clone(),
                timeout: Duration::from_millis(redis.timeout_ms),
                ttl_max: Duration::from_millis(redis.ttl_ms_max),
            };
            Some(
                HotTier::start(&settings, secret.clone(), store_metrics.clone(), stop.clone())
                    .map_err(|e| ServeError::Redis(e.to_string()))?,
            )
        }
    };
    // A cached value lives as long as Redis keeps it; so long its forget must be remembered.
    let keep_forgets = Duration::from_millis(config.redis.as_ref().map_or(0, |r| r.ttl_ms_max)).max(Duration::from_secs(3600));
    let around = Around {
        region: config.process.region.clone(),
        instance: config.process.instance.clone(),
        local: local.clone(),
        hot: hot.clone(),
        keep_forgets,
        filter_bytes: config.filters.bytes,
        metrics: store_metrics,
        stop: stop.clone(),
    };
    let homes = Homes::start(Arc::clone(&table), settings, &secret, &around);
    let topics = Topics::start(homes.clone(), stop.clone());
    let figures = Figures::start(&homes, hot.clone(), &config.process.region, stop);
    let region = config.process.region.clone();
    watch_tiers(
        &meter,
        &Sources { region, homes: homes.clone(), local: local.clone(), hot: hot.clone(), figures, filter_bytes_max: config.filters.bytes },
    );
    let decisions = Decisions::start(&meter, &config.process.region, table, config.telemetry.topics_max);
    let service = Service::new(Parts {
        region: config.process.region.clone(),
        instance: config.process.instance.clone(),
        ladder: Ladder::new(homes, topics, local, hot, secret),
        callers: Callers::new(config.callers.clone()),
        limits: limits(config),
        deadline: Duration::from_millis(config.process.request_deadline_ms),
        decisions,
        metrics: metrics.clone(),
        metrics_on: config.telemetry.prometheus,
        metrics_open: config.callers.is_empty() || config.process.admin_listen.is_some(),
        traces: traces.clone(),
    });
    Ok((service, Telemetry { metrics, traces }))
}

fn limits(config: &Config) -> Limits {
    let l = &config.limits;
    let ms = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    Limits {
        key_bytes: l.key_bytes,
        request_id_bytes: l.request_id_bytes,
        owner_bytes: l.owner_bytes,
        batch_items: l.batch_items,
        body_bytes: l.body_bytes,
        result_bytes: l.result_bytes,
        note_bytes: l.note_bytes,
        json_depth: l.json_depth,
        lease_ms_min: ms(l.lease_ms_min),
        lease_ms_max: ms(l.lease_ms_max),
        window_ms_min: ms(l.window_ms_min),
        window_ms_max: ms(l.window_ms_max),
    }
}

/// Bound addresses: questions, and the admin listener if there is one.
type Addrs = (SocketAddr, Option<SocketAddr>);

/// One listener's server. The admin listener has health and metrics and nothing else.
fn bind(config: &Config, service: &Data<Service>, addr: SocketAddr, what: Paths) -> Result<(Server, SocketAddr), ServeError> {
    let listener = std::net::TcpListener::bind(addr).map_err(|source| ServeError::Listen { addr, source })?;
    let bound = listener.local_addr()?;
    let workers = match (what, config.process.http_workers) {
        (Paths::Meta, _) => 1,
        (_, 0) => std::thread::available_parallelism().map_or(2, usize::from),
        (_, n) => n,
    };
    let data = service.clone();
    let server = HttpServer::new(move || {
        let paths = move |c: &mut ServiceConfig| {
            if what != Paths::Questions {
                meta(c);
            }
            if what != Paths::Meta {
                routes(c);
            }
        };
        let service = data.clone();
        App::new().app_data(data.clone()).configure(paths).default_service(web::to(api::not_found)).wrap_fn(move |request, inner| {
            let begun = traces::Begun::new(&request, &service);
            begun.answer(service.clone(), inner.call(request))
        })
    })
    .workers(workers)
    .max_connections((config.limits.open_connections / workers).max(1))
    .client_request_timeout(Duration::from_millis(config.limits.header_timeout_ms))
    // Longer than the idle time of common clients and balancers, so that they close first.
    .keep_alive(Duration::from_secs(75))
    .client_disconnect_timeout(Duration::from_secs(1))
    .shutdown_timeout(config.process.shutdown_grace_ms.div_ceil(1000))
    .tcp_nodelay(true)
    .disable_signals()
    .listen(listener)?;
    Ok((server.run(), bound))
}

/// What a listener answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Paths {
    Questions,
    Meta,
    Both,
}

fn meta(c: &mut ServiceConfig) {
    c.route("/healthz", web::get().to(api::healthz))
        .route("/readyz", web::get().to(api::readyz))
        .route("/metrics", web::get().to(api::metrics));
}

/// The route table.
fn routes(c: &mut ServiceConfig) {
    let mut at = |path: &str, allow: &'static str, route: actix_web::Route| {
        c.service(web::resource(path).route(route).default_service(web::to(move || method_not_allowed(allow))));
    };
    at("/v1/topics/{topic}/checks", "POST", web::post().to(api::check));
    at("/v1/topics/{topic}/checks/batch", "POST", web::post().to(api::check_batch));
    at("/v1/topics/{topic}/claims", "POST", web::post().to(api::claim));
    at("/v1/topics/{topic}/claims/batch", "POST", web::post().to(api::claim_batch));
    at("/v1/claims/complete", "POST", web::post().to(api::complete));
    at("/v1/claims/complete/batch", "POST", web::post().to(api::complete_batch));
    at("/v1/claims/release", "POST", web::post().to(api::release));
    at("/v1/claims/release/batch", "POST", web::post().to(api::release_batch));
    at("/v1/claims/extend", "POST", web::post().to(api::extend));
    at("/v1/claims/extend/batch", "POST", web::post().to(api::extend_batch));
    at("/v1/topics/{topic}/records/lookup", "POST", web::post().to(api::lookup));
    at("/v1/topics/{topic}/records/forget", "POST", web::post().to(api::forget));
    at("/v1/topics/{topic}/records/forget-all", "POST", web::post().to(api::forget_all));
    at("/v1/topics/{topic}/forget-jobs", "POST", web::post().to(api::start_job));
    at("/v1/jobs/{job}", "GET", web::get().to(api::job));
    at("/v1/topics/{topic}/records/force-release", "POST", web::post().to(api::force_release));
    at("/v1/claims", "GET", web::get().to(api::open_claims));
    at("/v1/audit", "GET", web::get().to(api::audit));
    at("/v1/stats", "GET", web::get().to(api::stats));
    at("/v1/segments", "GET", web::get().to(api::segments));
    at("/v1/topics", "GET", web::get().to(api::list));
    at("/v1/regions", "GET", web::get().to(api::regions));
    at("/openapi.json", "GET", web::get().to(api::openapi));
    at("/docs", "GET", web::get().to(api::docs));
    at("/docs/{part:.*}", "GET", web::get().to(api::page));
    at("/problems", "GET", web::get().to(api::problems));
    at("/problems/{code}", "GET", web::get().to(api::problem));
    c.service(
        web::resource("/v1/topics/{topic}")
            .route(web::put().to(api::put))
            .route(web::get().to(api::get))
            .route(web::delete().to(api::delete))
            .default_service(web::to(|| method_not_allowed("GET, PUT, DELETE"))),
    );
}

async fn method_not_allowed(allow: &'static str) -> Result<actix_web::HttpResponse, Problem> {
    Err(Problem::new(Code::MethodNotAllowed, "this path does not take this method; see /docs").with("allow", allow))
}

fn write_ready(file: &std::path::Path, addrs: &Addrs) -> Result<(), std::io::Error> {
    let text = serde_json::json!({ "listen": addrs.0, "admin_listen": addrs.1 }).to_string();
    let partial = file.with_extension("partial");
    std::fs::write(&partial, text)?;
    std::fs::rename(partial, file)
}

/// Ready as soon as every home was tried once: from then on each question has an answer or an honest refusal.
async fn become_ready(service: Data<Service>, stop: CancellationToken) {
    let tried = |h: &dedup_store::HomeHealth| h.up || h.why.as_deref() != Some("not connected yet");
    while !service.ladder.homes().health().iter().all(tried) {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(10)) => {}
            () = stop.cancelled() => return,
        }
    }
    if service.phase() == Phase::Starting {
        service.set_phase(Phase::Serving);
        tracing::info!("ready");
    }
}

/// First readiness goes off, then no connection is taken any more, then what was asked is answered.
async fn drain_on_stop(service: Data<Service>, stop: CancellationToken, handle: ServerHandle, drain: Duration) {
    stop.cancelled().await;
    service.set_phase(Phase::Draining);
    tracing::info!("draining");
    tokio::time::sleep(drain).await;
    service.waiting.end();
    handle.stop(true).await;
}
