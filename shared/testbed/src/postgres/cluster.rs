//! The files of one cluster before its first start.

use std::path::Path;
use std::sync::Arc;

use crate::template::Template;
use crate::watchdog::Watchdog;
use crate::{Error, user};

/// Real durability (fsync and all that goes with it), WAL settings of a busy home, and nothing outside the folder.
const SETTINGS: &[(&str, &str)] = &[
    ("listen_addresses", "'127.0.0.1'"),
    ("unix_socket_directories", "''"),
    ("fsync", "on"),
    ("full_page_writes", "on"),
    ("synchronous_commit", "on"),
    ("max_connections", "200"),
    ("shared_buffers", "128MB"),
    ("max_wal_size", "4GB"),
    ("wal_compression", "on"),
    ("jit", "off"),
    ("timezone", "'UTC'"),
    ("log_timezone", "'UTC'"),
    ("log_line_prefix", "'%m [%p] %u '"),
    // In the data folder, not in /dev/shm: there a killed postmaster would leave its segments behind.
    ("dynamic_shared_memory_type", "mmap"),
];

/// Makes the data folder `data`. Settings given by the caller come last and so win.
pub(crate) async fn create(template: &Template, data: &Path, own: &[(String, String)], watchdog: &Arc<Watchdog>) -> Result<(), Error> {
    template.copy_to(data, watchdog).await?;
    let mut text = String::from("# Written by the testbed; all else is the server's default.\n");
    let lines = SETTINGS.iter().copied().chain(own.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    for (name, value) in lines {
        text += &format!("{name} = {value}\n");
    }
    let file = data.join("postgresql.conf");
    user::private_file(&file, &text, template.user)
}
