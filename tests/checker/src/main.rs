//! `dedup-check FILE…`: judges recorded histories again, for instance with a checker that has learnt something new.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command talks to people")]

use std::io::BufReader;
use std::process::ExitCode;

use dedup_checker::{Histories, Limits, check, read_history};

fn main() -> ExitCode {
    let files: Vec<String> = std::env::args().skip(1).collect();
    if files.is_empty() || files.iter().any(|f| f.starts_with('-')) {
        eprintln!(
            "usage: dedup-check HISTORY.jsonl…\n\nexit code: 0 all promises kept · 1 one was broken · 2 not decided, or a file cannot be read"
        );
        return ExitCode::from(2);
    }
    let mut worst = 0;
    for file in files {
        worst = worst.max(match judge(&file) {
            Ok(code) => code,
            Err(why) => {
                eprintln!("{file}: {why}");
                2
            }
        });
    }
    ExitCode::from(worst)
}

fn judge(file: &str) -> Result<u8, String> {
    let opened = std::fs::File::open(file).map_err(|e| e.to_string())?;
    let all = Histories::new(read_history(BufReader::new(opened))?)?;
    let outcome = check(&all, Limits::default());
    println!(
        "{file}: {} keys ({} contested), {} calls, {} unknown, {} take-overs, {} keys searched, {} undecided, {} keys broken {:?}{}",
        outcome.keys,
        outcome.contested_keys,
        outcome.calls,
        outcome.unknowns,
        outcome.takeovers,
        outcome.searched,
        outcome.undecided,
        outcome.bad_keys,
        outcome.by_invariant,
        if outcome.complete { "" } else { "; the keys were not read at the end" },
    );
    if let Some(shown) = &outcome.shown {
        println!("{shown}");
    }
    Ok(if outcome.bad_keys > 0 {
        1
    } else if outcome.passes() {
        0
    } else {
        2
    })
}
