//! The top-level settings: who this process is, where it listens, how it starts and stops.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use super::RawConfig;
use super::check::{Checker, LABEL, REGION};

const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);

/// Who this process is and where it listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessConfig {
    /// `region`: the serving region, `[a-z0-9-]{1,32}`. Required; never guessed from the host.
    pub region: String,
    /// `instance`: label of this process, `[A-Za-z0-9._-]{1,64}`. Default: region + `-1`.
    pub instance: String,
    /// `listen`: address of the REST service. Default `127.0.0.1:8080`; port 0 takes a free one; beyond loopback only with callers.
    pub listen: SocketAddr,
    /// `admin_listen`: address of `/healthz`, `/readyz` and `/metrics`, which then leave `listen`. Default: none.
    pub admin_listen: Option<SocketAddr>,
    /// `http_workers`: threads that serve HTTP, 0..=256, 0 = as many as cores. Default 2.
    pub http_workers: usize,
    /// `request_deadline_ms`: how long a request may take before it is answered 503, milliseconds, 100..=60,000. Default 5,000.
    pub request_deadline_ms: u64,
    /// `shutdown_grace_ms`: how long requests and tasks may finish after a stop signal, milliseconds, 0..=600,000. Default 30,000.
    pub shutdown_grace_ms: u64,
    /// `drain_ms`: how long questions are still taken after a stop signal while `/readyz` already says 503, so that load balancers turn away
    /// first, milliseconds, 0..=60,000. Default 1,000.
    pub drain_ms: u64,
    /// `allow_weak_durability`: start although a home may lose an acknowledged claim in a crash (fsync off and the like). Default false.
    pub allow_weak_durability: bool,
}

pub(super) fn check(raw: &RawConfig, check: &mut Checker) -> ProcessConfig {
    let region = raw.region.clone().unwrap_or_default();
    if raw.region.is_none() {
        check.note("region", "is required: the region this instance serves, 1 to 32 characters of a-z 0-9 -");
    } else {
        check.name("region", &region, 32, REGION);
    }
    let instance = raw.instance.clone().unwrap_or_else(|| format!("{region}-1"));
    if raw.instance.is_some() {
        check.name("instance", &instance, 64, LABEL);
    }
    let listen = raw.listen.as_deref().and_then(|text| address("listen", text, check)).unwrap_or(LISTEN_DEFAULT);
    if !listen.ip().is_loopback() && raw.callers.is_empty() {
        check.note(
            "listen",
            format!("{listen}: without authentication the service binds to loopback only; add [[callers]] or listen on 127.0.0.1"),
        );
    }
    let admin_listen = raw.admin_listen.as_deref().and_then(|text| address("admin_listen", text, check));
    if admin_listen == Some(listen) && listen.port() != 0 {
        check.note("admin_listen", format!("{listen} is `listen` already; take another port or leave the setting out"));
    }
    ProcessConfig {
        region,
        instance,
        listen,
        admin_listen,
        http_workers: check.number("http_workers", raw.http_workers, 2_u16, 0..=256).into(),
        request_deadline_ms: check.number("request_deadline_ms", raw.request_deadline_ms, 5_000, 100..=60_000),
        shutdown_grace_ms: check.number("shutdown_grace_ms", raw.shutdown_grace_ms, 30_000, 0..=600_000),
        drain_ms: check.number("drain_ms", raw.drain_ms, 1_000, 0..=60_000),
        allow_weak_durability: raw.allow_weak_durability.unwrap_or(false),
    }
}

fn address(field: &str, text: &str, check: &mut Checker) -> Option<SocketAddr> {
    let address = text.parse().ok();
    if address.is_none() {
        check.note(field, format!("{text:?} is no address; write ip:port, for example 127.0.0.1:8080 or [::1]:8080"));
    }
    address
}
