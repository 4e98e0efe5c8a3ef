//! Processor time of processes, from `/proc`.

/// Seconds of user and system time of a process so far; 0 if it is gone.
pub fn of_process(pid: u32) -> f64 {
    // Fields 14 and 15 after the parenthesised name, in clock ticks of 1/100 s on every Linux that Debian ships.
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return 0.0 };
    let Some((_, rest)) = stat.rsplit_once(") ") else { return 0.0 };
    let fields: Vec<f64> = rest.split(' ').map(|f| f.parse().unwrap_or(0.0)).collect();
    (fields.get(11).unwrap_or(&0.0) + fields.get(12).unwrap_or(&0.0)) / 100.0
}

/// The same over a process and its living children: a Postgres with its backends.
pub fn of_family(pid: u32) -> f64 {
    let children = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children: f64 = children.filter(|child| parent(*child) == Some(pid)).map(of_process).sum();
    of_process(pid) + children
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
