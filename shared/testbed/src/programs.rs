//! Where the programs of this machine are.

use std::path::{Path, PathBuf};

use crate::Error;

const DEBIAN_POSTGRES: &str = "/usr/lib/postgresql";

/// A program of the newest installed Postgres (`initdb`, `postgres`): the distribution's place first, then `PATH`.
pub(crate) fn postgres(program: &str) -> Result<PathBuf, Error> {
    newest(Path::new(DEBIAN_POSTGRES), program)
        .or_else(|| in_path(program))
        .ok_or_else(|| Error::Missing { program: program.into(), hint: "install the postgresql package (`make setup`)" })
}

/// `redis-server` from `PATH`.
pub(crate) fn redis() -> Result<PathBuf, Error> {
    in_path("redis-server")
        .ok_or_else(|| Error::Missing { program: "redis-server".into(), hint: "install the redis-server package (`make setup`)" })
}

/// `prometheus` from `PATH`.
pub(crate) fn prometheus() -> Result<PathBuf, Error> {
    in_path("prometheus")
        .ok_or_else(|| Error::Missing { program: "prometheus".into(), hint: "install the prometheus package (`make setup`)" })
}

/// `ROOT/VERSION/bin/PROGRAM` with the highest version.
fn newest(root: &Path, program: &str) -> Option<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir(root)
        .ok()?
        .filter_map(|entry| {
            let dir = entry.ok()?.path();
            let version = dir.file_name()?.to_str()?.parse().ok()?;
            let program = dir.join("bin").join(program);
            program.is_file().then_some((version, program))
        })
        .collect();
    found.sort_unstable();
    found.pop().map(|(_, program)| program)
}

fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|candidate| candidate.is_file())
}
