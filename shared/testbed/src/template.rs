//! One initialised data folder per process, copied for each cluster: `initdb` takes a second, a copy a tenth of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;

use crate::process::{Spec, run_tool};
use crate::user::{self, User};
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, programs};

const INITDB_TIMEOUT: Duration = Duration::from_secs(120);

static SHARED: Mutex<Option<Arc<Template>>> = Mutex::const_new(None);

/// A data folder nobody runs on, and the superuser's password in it.
#[derive(Debug)]
pub(crate) struct Template {
    watchdog: Arc<Watchdog>,
    pub(crate) data: PathBuf,
    pub(crate) password: String,
    pub(crate) user: Option<User>,
}

impl Template {
    /// This process's template, made by the first who asks.
    pub(crate) async fn get() -> Result<Arc<Self>, Error> {
        let mut shared = SHARED.lock().await;
        if let Some(template) = shared.as_ref() {
            return Ok(Arc::clone(template));
        }
        let template = Arc::new(Self::make().await?);
        *shared = Some(Arc::clone(&template));
        Ok(template)
    }

    async fn make() -> Result<Self, Error> {
        let initdb = programs::postgres("initdb")?;
        let user = User::for_stores()?;
        let watchdog = Arc::new(Watchdog::start()?);
        let password = hex(&rand::random::<[u8; 16]>());
        let data = watchdog.dir().join("template");
        let password_file = watchdog.dir().join("password");
        user::private_dir(&data, user)?;
        user::private_file(&password_file, &password, user)?;
        let spec = Spec {
            name: "initdb".into(),
            kind: Kind::Tool,
            program: initdb,
            args: arguments(&data, &password_file),
            env: Vec::new(),
            user,
            log: watchdog.dir().join("initdb.log"),
        };
        run_tool(&watchdog, &spec, INITDB_TIMEOUT).await?;
        Ok(Self { watchdog, data, password, user })
    }

    /// Copies the data folder to `target`, owners and modes included.
    pub(crate) async fn copy_to(&self, target: &Path, watchdog: &Arc<Watchdog>) -> Result<(), Error> {
        let spec = Spec {
            name: "cp".into(),
            kind: Kind::Tool,
            program: "/bin/cp".into(),
            args: vec!["-a".into(), self.data.clone().into(), target.into()],
            env: Vec::new(),
            user: None,
            log: target.with_extension("cp.log"),
        };
        run_tool(watchdog, &spec, INITDB_TIMEOUT).await
    }
}

/// Removes what the testbeds of this process share. Without it that goes a moment after the process ended.
///
/// # Errors
/// If the folder could not be removed.
pub async fn discard() -> Result<(), Error> {
    let Some(template) = SHARED.lock().await.take() else {
        return Ok(());
    };
    template.watchdog.close()
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("a string takes all that is written");
        text
    })
}

fn arguments(data: &Path, password_file: &Path) -> Vec<std::ffi::OsString> {
    let mut pwfile = std::ffi::OsString::from("--pwfile=");
    pwfile.push(password_file);
    let mut args: Vec<_> =
        ["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", "--username=postgres"].map(Into::into).to_vec();
    args.extend([pwfile, "--pgdata".into(), data.into()]);
    args
}
