//! A network namespace of one cluster's own, so that the line to it can be cut where the kernel's TCP notices: segments are resent, connections
//! stay half open, nobody is told. The namespace has no name: it ends with its last process. The pair of links would end with it, but the
//! kernel may have something to resend for a minute, so the watchdog removes them, however this process ends.
//!
//! Two pairs of addresses lie on the links. The instances use the first, which can be cut; the testbed and its caller use the second. All
//! are of 127.0.0.0/8: an instance demands TLS of a Postgres anywhere else, and the cut is to be tried, not the encryption.
//!
//! A direction is cut by telling its sender a hardware address that nobody has: its frames arrive and are not for the other end, as on a dead
//! cable. (A blackhole route would not do: the sender is told at once.)

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Error;
use crate::process::{Process, Spec, run_tool};
use crate::watchdog::{Kind, Watchdog};

const TIMEOUT: Duration = Duration::from_secs(30);
/// Holds the namespace; tells that it is there by making a file.
const HOLD: &str = "ip link set lo up && touch \"$1\" && exec sleep 100000";
/// Run outside: `$1` the holder, `$2` the name of our end, `$3` the first three parts of all addresses.
const SETUP: &str = "set -e
ip link add \"$2\" type veth peer name line netns \"$1\"
echo 1 >\"/proc/sys/net/ipv4/conf/$2/route_localnet\"
ip addr add \"$3.1/30\" dev \"$2\"
ip addr add \"$3.5/30\" dev \"$2\"
ip link set \"$2\" up
exec nsenter -t \"$1\" -n sh -ec 'echo 1 >/proc/sys/net/ipv4/conf/line/route_localnet
ip addr add \"$1.2/30\" dev line
ip addr add \"$1.6/30\" dev line
ip link set line up' sh \"$3\"";
/// All that is needed, tried in a namespace that is gone afterwards.
const TRIAL: &str = "set -e
ip link add trial type veth peer name other
echo 1 >/proc/sys/net/ipv4/conf/trial/route_localnet
ip addr add 127.64.0.1/30 dev trial
ip link set trial up
ip neigh replace 127.64.0.2 lladdr 02:00:00:00:00:99 dev trial nud permanent";
/// A hardware address that nobody has.
const NOBODY: &str = "02:00:00:00:00:99";

/// What a cut line loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lost {
    /// What instances send.
    Requests,
    /// What Postgres sends.
    Replies,
    /// Everything.
    Both,
}

/// Why a home cannot have a network namespace of its own here (it needs root, `ip` and links in pairs); `None`: it can.
#[must_use]
pub fn no_lines_here() -> Option<String> {
    let tried = Command::new("unshare").args(["-n", "sh", "-c", TRIAL]).stdin(Stdio::null()).output();
    match tried {
        Ok(done) if done.status.success() => None,
        Ok(done) => Some(String::from_utf8_lossy(&done.stderr).lines().next().unwrap_or("a namespace cannot be made").to_owned()),
        Err(e) => Some(format!("unshare: {e}")),
    }
}

#[derive(Debug)]
pub(super) struct Line {
    holder: Process,
    watchdog: Arc<Watchdog>,
    /// Our end of the links.
    link: String,
    /// The first three parts of the addresses.
    net: String,
    log: PathBuf,
}

impl Line {
    /// Makes the namespace and the links into it.
    pub(super) async fn create(dir: &Path, watchdog: &Arc<Watchdog>) -> Result<Self, Error> {
        let (ready, log) = (dir.join("line.ready"), dir.join("line.log"));
        let spec = Spec {
            name: "a network namespace".into(),
            kind: Kind::Tool,
            program: "/usr/bin/unshare".into(),
            args: ["-n", "sh", "-c", HOLD, "hold"].map(Into::into).into_iter().chain([ready.clone().into()]).collect(),
            env: Vec::new(),
            user: None,
            log: log.clone(),
        };
        let mut holder = Process::spawn(watchdog, &spec).await?;
        let began = Instant::now();
        while !ready.exists() {
            if holder.ended()?.is_some() || began.elapsed() > TIMEOUT {
                return Err(Error::tool(&spec.name, "it could not be made (this needs root)", &spec.log));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // The holder's process id makes names and addresses that no other testbed of this machine has at the same time.
        let pid = holder.pid();
        let (link, net) = (format!("dedup{pid}"), format!("127.{}.{}", 64 + (pid >> 8) % 63, pid & 255));
        let new = Self { holder, watchdog: Arc::clone(watchdog), link, net, log };
        watchdog.add_link(&new.link)?;
        new.shell(SETUP, &[&pid.to_string(), &new.link, &new.net]).await?;
        Ok(new)
    }

    /// Where instances find the server.
    pub(super) fn cuttable_host(&self) -> String {
        format!("{}.2", self.net)
    }

    /// Where the testbed finds it, whatever is cut.
    pub(super) fn sure_host(&self) -> String {
        format!("{}.6", self.net)
    }

    /// What the server must listen on, as a setting.
    pub(super) fn listen(&self) -> (String, String) {
        ("listen_addresses".into(), format!("'{},{}'", self.cuttable_host(), self.sure_host()))
    }

    /// Lets both ends of the links log in.
    pub(super) fn admit(data: &Path) -> Result<(), Error> {
        let open = std::fs::OpenOptions::new().append(true).open(data.join("pg_hba.conf"));
        open.and_then(|mut file| file.write_all(b"host all all 127.0.0.0/8 scram-sha-256\n")).map_err(Error::io("write pg_hba.conf"))
    }

    /// The same program, run in the namespace.
    pub(super) fn around(&self, spec: Spec) -> Spec {
        spec.inside(self.holder.pid(), "-n")
    }

    async fn shell(&self, script: &str, args: &[&str]) -> Result<(), Error> {
        let words = ["-c", script, "sh"].into_iter().chain(args.iter().copied());
        let spec = Spec {
            name: "a shell at the line".into(),
            kind: Kind::Tool,
            program: "/bin/sh".into(),
            args: words.map(Into::into).collect(),
            env: Vec::new(),
            user: None,
            log: self.log.clone(),
        };
        run_tool(&self.watchdog, &spec, TIMEOUT).await
    }
}

impl super::Postgres {
    /// Cuts the line between instances and this server, until [`Postgres::heal_line`](super::Postgres::heal_line).
    ///
    /// # Panics
    /// If it has none of its own.
    pub async fn cut_line(&self, lost: Lost) {
        let line = self.line.as_ref().expect("a testbed with postgres_lines");
        let (pid, net) = (line.holder.pid(), &line.net);
        let requests = format!("ip neigh replace {net}.2 lladdr {NOBODY} dev {} nud permanent", line.link);
        let replies = format!("nsenter -t {pid} -n ip neigh replace {net}.1 lladdr {NOBODY} dev line nud permanent");
        let script = match lost {
            Lost::Requests => requests,
            Lost::Replies => replies,
            Lost::Both => format!("{requests} && {replies}"),
        };
        line.shell(&script, &[]).await.expect("the line can be cut");
    }

    /// Mends what was cut.
    ///
    /// # Panics
    /// If it has no line of its own.
    pub async fn heal_line(&self) {
        let line = self.line.as_ref().expect("a testbed with postgres_lines");
        let (pid, net, link) = (line.holder.pid(), &line.net, &line.link);
        // An entry that was not made for a cut is found anew.
        let script = format!("ip neigh del {net}.2 dev {link}; nsenter -t {pid} -n ip neigh del {net}.1 dev line; true");
        line.shell(&script, &[]).await.expect("the line can be mended");
    }

    /// Frames that the line has lost so far, either way.
    ///
    /// # Panics
    /// If it has no line of its own.
    #[must_use]
    pub fn lost_frames(&self) -> u64 {
        let line = self.line.as_ref().expect("a testbed with postgres_lines");
        let pid = line.holder.pid().to_string();
        let count = |program: &str, args: &[&str]| {
            let told = Command::new(program).args(args).stdin(Stdio::null()).output().ok()?;
            let links: serde_json::Value = serde_json::from_slice(&told.stdout).ok()?;
            links[0]["stats64"]["rx"]["otherhost"].as_u64()
        };
        let ours = count("ip", &["-j", "-s", "-s", "link", "show", "dev", &line.link]);
        let theirs = count("nsenter", &["-t", &pid, "-n", "ip", "-j", "-s", "-s", "link", "show", "dev", "line"]);
        ours.unwrap_or(0) + theirs.unwrap_or(0)
    }
}
