//! Processes as the kernel shows them, and signals to them.

use std::process::{Command, Stdio};

use crate::Error;

/// When a process started, in clock ticks since boot: with its id, this names one process for ever.
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    field(&stat(pid)?, 22)?.parse().ok()
}

/// Whether that very process still runs (a zombie has ended).
pub(crate) fn runs(pid: u32, start: u64) -> bool {
    stat(pid).is_some_and(|s| field(&s, 22).and_then(|f| f.parse().ok()) == Some(start) && !matches!(field(&s, 3), Some("Z" | "X")))
}

/// Direct children of a process with their start, for Postgres: its backends leave the postmaster's process group.
pub(crate) fn children(parent: u32) -> Vec<(u32, u64)> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = stat(pid)?;
            let ppid: u32 = field(&stat, 4)?.parse().ok()?;
            (ppid == parent).then_some(())?;
            Some((pid, field(&stat, 22)?.parse().ok()?))
        })
        .collect()
}

/// Sends a signal through the shell's own `kill`: the safe way without a line of `unsafe`.
/// Processes that ended meanwhile are no error.
pub(crate) fn signal(name: &str, pids: &[u32]) -> Result<(), Error> {
    if pids.is_empty() {
        return Ok(());
    }
    Command::new("/bin/sh")
        .args(["-c", "s=$1; shift; kill -\"$s\" \"$@\" 2>/dev/null; :", "kill", name])
        .args(pids.iter().map(u32::to_string))
        .stdin(Stdio::null())
        .status()
        .map(drop)
        .map_err(Error::io("run /bin/sh to send a signal"))
}

fn stat(pid: u32) -> Option<String> {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()
}

/// Field `n` of proc(5)'s `stat`, counted from 1, for n ≥ 3. The name in field 2 may hold spaces and parentheses.
fn field(stat: &str, n: usize) -> Option<&str> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(n - 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_counted_after_the_last_parenthesis() {
        let stat = "42 (a) b (c)) S 7 1 1 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 987654 0";
        assert_eq!(field(stat, 3), Some("S"));
        assert_eq!(field(stat, 4), Some("7"));
        assert_eq!(field(stat, 22), Some("987654"));
    }

    #[test]
    fn this_process_runs_and_an_older_one_with_its_id_does_not() {
        let me = std::process::id();
        let start = start_ticks(me).expect("this process has a stat file");
        assert!(runs(me, start));
        assert!(!runs(me, start - 1));
    }
}
