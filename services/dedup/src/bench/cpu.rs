//! Processor time of processes, from `/proc`.

/// Seconds of user and system time of a process so far; 0 if it is gone.
pub fn of_process(pid: u32) -> f64 {
    ticks(pid, 11..13)
}

/// Sum of some fields after the parenthesised name, as seconds: user and system time of the process (11, 12) and of its ended children
/// (13, 14), in clock ticks of 1/100 s on every Linux that Debian ships.
fn ticks(pid: u32, fields: std::ops::Range<usize>) -> f64 {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0.0 };
    let Some((_, rest)) = stat.rsplit_once(") ") else { return 0.0 };
    rest.split(' ').skip(fields.start).take(fields.len()).map(|f| f.parse().unwrap_or(0.0)).sum::<f64>() / 100.0
}

/// The same over a process and its children, those that ended too: a Postgres with its backends.
pub fn of_family(pid: u32) -> f64 {
    let children = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children: f64 = children.filter(|child| parent(*child) == Some(pid)).map(of_process).sum();
    ticks(pid, 11..15) + children
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Resident memory of a process, bytes.
pub fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    line.and_then(|l| l.trim().trim_end_matches(" kB").trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}
