//! The service broken on purpose, so that the fault rig can show that it notices. Only builds with the feature `sabotage` can be broken; in
//! all others [`is`] is constantly `false` and nothing of it is left.

/// Whether this process is to be broken in that way: `DEDUP_SABOTAGE` names it.
#[cfg(feature = "sabotage")]
pub fn is(name: &str) -> bool {
    static NAME: std::sync::LazyLock<Option<String>> = std::sync::LazyLock::new(|| std::env::var("DEDUP_SABOTAGE").ok());
    NAME.as_deref() == Some(name)
}

/// Whether this process is to be broken in that way: never.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn is(_: &str) -> bool {
    false
}

/// How far this process's own clock is off, ms, for the build that judges by it.
#[cfg(feature = "sabotage")]
pub fn skew() -> Option<String> {
    if is("application-clock") { std::env::var("DEDUP_SABOTAGE_SKEW_MS").ok() } else { None }
}

/// How far this process's own clock is off: it does not matter.
#[cfg(not(feature = "sabotage"))]
#[inline(always)]
pub const fn skew() -> Option<String> {
    None
}
