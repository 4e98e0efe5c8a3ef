//! Logs to standard error, one subscriber per process.

use std::panic;
use std::sync::Once;

use tracing_subscriber::{EnvFilter, fmt};

use crate::config::{LogConfig, LogFormat};

/// Starts logging as configured. Later calls do nothing, also where a test already set a subscriber of its own.
///
/// Panics are logged too, so that a JSON log stays JSON.
pub fn init(config: &LogConfig) {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let filter = EnvFilter::try_new(&config.level).unwrap_or_else(|_| EnvFilter::new("info"));
        let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
        // An error only says that there is a subscriber already.
        _ = match config.format {
            LogFormat::Json => builder.json().flatten_event(true).with_current_span(true).with_span_list(false).try_init(),
            LogFormat::Text => builder.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
        };
        panic::set_hook(Box::new(log_panic));
    });
}

fn log_panic(info: &panic::PanicHookInfo<'_>) {
    let location = info.location().map(ToString::to_string);
    let message = info.payload_as_str().unwrap_or("(no text)");
    tracing::error!(location, panic = message, "panicked");
}
