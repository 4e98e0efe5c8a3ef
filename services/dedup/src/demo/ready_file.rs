//! The file that tells scripts where everything is.

use std::path::{Path, PathBuf};

use anyhow::Context;
use dedup_testbed::{Region, Testbed};
use serde::Serialize;
use serde_json::{Value, json};

/// A written file; it goes with the regions it describes.
#[derive(Debug)]
pub(super) struct ReadyFile(PathBuf);

impl ReadyFile {
    /// Writes the file at once or not at all: who sees it can read all of it.
    pub(super) fn write(path: &Path, testbed: &Testbed, prometheus: Option<&str>) -> anyhow::Result<Self> {
        let all = Described { regions: testbed.regions().iter().map(region).collect(), prometheus };
        let text = format!("{}\n", serde_json::to_string_pretty(&all)?);
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{}", std::process::id()));
        private(temporary.as_ref(), &text)
            .and_then(|()| std::fs::rename(&temporary, path))
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }
}

impl Drop for ReadyFile {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

/// The regions come first: who takes the first address in the file has a service.
#[derive(Serialize)]
struct Described<'a> {
    regions: Vec<Value>,
    prometheus: Option<&'a str>,
}

/// Whether a file could be made there; asked before anything is started.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    anyhow::ensure!(folder.is_dir(), "cannot write {}: there is no folder {}", path.display(), folder.display());
    Ok(())
}

/// `url` and `pids.service` are those of the first instance.
fn region(region: &Region) -> Value {
    let first = &region.instances[0];
    let instance = |i: &dedup_testbed::Service| json!({ "name": i.name(), "url": i.url(), "pid": i.pid() });
    json!({
        "name": region.name,
        "url": first.url(),
        "postgres": region.postgres.dsn("postgres"),
        "redis": region.redis.as_ref().map(dedup_testbed::Redis::url),
        "pids": {
            "service": first.pid(),
            "postgres": region.postgres.pid(),
            "redis": region.redis.as_ref().map(dedup_testbed::Redis::pid),
        },
        "instances": region.instances.iter().map(instance).collect::<Vec<_>>(),
    })
}

/// Writes a file that only its owner reads: it holds passwords.
fn private(path: &Path, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::remove_file(path).ok();
    std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?.write_all(text.as_bytes())
}
