//! `dedup-chaos`: runs faults against real servers and has what callers were told judged.

#![expect(clippy::print_stdout, reason = "a command talks to people")]

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use dedup_chaos::{FAULTS, Gates, Plan, Report, SABOTAGES, fault, run, table};

/// Breaks a deployment while callers ask, and judges what they were told.
#[derive(Debug, Parser)]
#[command(name = "dedup-chaos", version)]
struct Args {
    /// Faults, or `all`; see --list
    #[arg(default_value = "all")]
    faults: Vec<String>,
    /// How long each fault strikes
    #[arg(long, default_value_t = 4)]
    seconds: u64,
    /// Go round the faults until this many minutes are over, with a new seed each time
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    /// What everything random is drawn from
    #[arg(long)]
    seed: Option<u64>,
    /// Workers that ask
    #[arg(long, default_value_t = 24)]
    workers: u32,
    /// The `dedup` executable (default: the one beside this program)
    #[arg(long)]
    dedup: Option<PathBuf>,
    /// Keep every history in this folder
    #[arg(long)]
    keep: Option<PathBuf>,
    /// Run deliberately broken services instead, each under the fault that shows it: names, or `all`; a run passes if the break is caught
    #[arg(long, num_args = 1.., value_name = "NAME")]
    sabotage: Vec<String>,
    /// List faults and broken services
    #[arg(long)]
    list: bool,
}

fn main() -> anyhow::Result<ExitCode> {
    let args = Args::parse();
    if args.list {
        for f in FAULTS {
            println!("{:16} {:4} {}", f.name, f.row, f.what);
        }
        for s in SABOTAGES {
            println!("{:24} {} (under {})", s.name, s.what, s.fault);
        }
        return Ok(ExitCode::SUCCESS);
    }
    tokio::runtime::Runtime::new()?.block_on(go(args))
}

/// What to run: fault, and how the service is broken.
fn chosen(args: &Args) -> anyhow::Result<Vec<(dedup_chaos::Fault, Option<dedup_chaos::Sabotage>)>> {
    if !args.sabotage.is_empty() {
        let all = args.sabotage.iter().any(|s| s == "all");
        let wanted = SABOTAGES.iter().filter(|s| all || args.sabotage.iter().any(|n| n == s.name));
        let with_fault = wanted.map(|s| fault(s.fault).map(|f| (f, Some(*s))).context("no such fault"));
        return with_fault.collect();
    }
    if args.faults.iter().any(|f| f == "all") {
        return Ok(FAULTS.iter().map(|f| (*f, None)).collect());
    }
    args.faults.iter().map(|name| fault(name).map(|f| (f, None)).with_context(|| format!("no fault {name}; see --list"))).collect()
}

async fn go(args: Args) -> anyhow::Result<ExitCode> {
    let beside = || Some(std::env::current_exe().ok()?.with_file_name("dedup"));
    let dedup = args.dedup.clone().or_else(beside).context("say where dedup is: --dedup")?;
    let mut seed = args.seed.unwrap_or_else(|| rand::random_range(1..1_000_000));
    let chosen = chosen(&args)?;
    if let Some(dir) = &args.keep {
        std::fs::create_dir_all(dir)?;
    }
    let began = Instant::now();
    let long = args.minutes.is_some() || args.seconds >= 30;
    let seconds = if args.minutes.is_some() { 60 } else { args.seconds };
    let mut reports: Vec<Report> = Vec::new();
    let mut failed = 0;
    let mut not_here: Vec<(dedup_chaos::Fault, String)> = Vec::new();
    for (fault, _) in &chosen {
        if let Some(why) = fault.not_here() {
            println!("{}: not possible here: {why}", fault.name);
            not_here.push((*fault, why));
        }
    }
    let chosen: Vec<_> = chosen.into_iter().filter(|(fault, _)| not_here.iter().all(|(f, _)| f.name != fault.name)).collect();
    // (What was asked for by name and nothing of it can be done is no pass.)
    anyhow::ensure!(!chosen.is_empty(), "nothing that was asked for is possible here");
    'rounds: loop {
        for (fault, sabotage) in &chosen {
            if args.minutes.is_some_and(|m| began.elapsed() > Duration::from_secs(m * 60)) {
                break 'rounds;
            }
            let plan = Plan {
                fault: *fault,
                seed,
                strikes_for: Duration::from_secs(seconds),
                workers: args.workers,
                dedup: dedup.clone(),
                keep: args.keep.clone(),
                sabotage: *sabotage,
                gates: if long { Gates::long() } else { Gates::smoke() },
            };
            match run(&plan).await {
                Ok(report) => {
                    failed += usize::from(!judged(&report, sabotage.as_ref(), began));
                    reports.push(report);
                }
                Err(error) => {
                    println!("{} with seed {seed}: {error:#}", fault.name);
                    failed += 1;
                }
            }
        }
        seed += 1;
        if args.minutes.is_none() {
            break;
        }
    }
    println!("\n{}", table(&reports, &not_here));
    let skipped = if not_here.is_empty() { String::new() } else { format!(", {} not possible here", not_here.len()) };
    println!("{} runs in {:.0} s, {failed} not as they should be{skipped}", reports.len(), began.elapsed().as_secs_f64());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says how a run went; a broken service passes if it was caught.
fn judged(report: &Report, sabotage: Option<&dedup_chaos::Sabotage>, began: Instant) -> bool {
    let o = &report.outcome;
    let caught = !report.passes();
    let good = sabotage.is_some() == caught;
    println!(
        "[{:>5.0} s] {:16} seed {:<7} {:>7} calls, {:>6} contested keys, {:>6} unknown, {:>5} take-overs, {:>4} violations {:?}  {}",
        began.elapsed().as_secs_f64(),
        sabotage.map_or(report.fault.name, |s| s.name),
        report.seed,
        o.calls,
        o.contested_keys,
        o.unknowns,
        o.takeovers,
        o.bad_keys,
        o.by_invariant,
        match (good, sabotage) {
            (true, None) => "ok",
            (true, Some(_)) => "caught",
            (false, Some(_)) => "NOT CAUGHT",
            (false, None) => "FAILED",
        }
    );
    if caught && (sabotage.is_none() || o.bad_keys == 0) {
        println!("{}", report.complaint());
    }
    good
}
