//! `dedup filter`: lines in, the lines nobody has seen before out.
//!
//! The input is read by one thread ([`reader`]) into blocks of lines with their keys. The [`window`] holds the blocks on their way and says
//! which keys to ask about; [`asker`] asks, several blocks at a time; and what is decided leaves in input order by another thread
//! ([`output`]). All memory is bounded by the window.

mod args;
mod asker;
mod block;
mod line;
mod output;
mod patience;
mod pointer;
mod reader;
mod request;
mod run_id;
mod screen;
mod stop;
mod topic;
mod window;

use std::cell::Cell;
use std::io;
use std::process::ExitCode;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::signal::unix::{Signal, SignalKind, signal};

pub use self::args::FilterArgs;
use self::args::OnBadLine;
use self::asker::Asker;
use self::block::{Block, Fate};
use self::line::KeyRule;
use self::output::Output;
use self::reader::Input;
use self::request::{Head, Request};
use self::run_id::RunId;
use self::screen::{Screen, Tally};
use self::stop::Stop;
use self::window::Window;

/// Lines in the window for each line that can be asked about at once: others wait for an earlier line, or to be printed in order.
const WINDOW_FACTOR: usize = 4;
/// Exit code when all is filtered, but for lines that were bad.
const BAD_LINES: u8 = 3;

/// Runs it; the exit code tells how it ended.
///
/// # Errors
/// If it cannot begin: no such file, an address that is none.
pub async fn run(args: FilterArgs) -> anyhow::Result<ExitCode> {
    let mut signals = Signals::new()?;
    let (source, input_bytes) = args.open()?;
    let client = args.connect.client()?.with_retries(0);
    let screen = Screen::new(args.quiet, input_bytes);
    let run = args.resume.clone().unwrap_or_else(RunId::random);
    screen.say(&format!("run id: {}; repeat with --resume {} after a crash", run.as_str(), run.as_str()));
    let output = Output::start(io::stdout())?;
    let rule = KeyRule::new(args.region.as_deref(), args.key.clone());
    let mut tally = Tally::default();
    let begun = Cell::new(false);
    let work = async {
        let default_region = topic::ensure(&client, &args.topic, args.window, args.retry(), &screen).await?;
        begun.set(true);
        // Then `a` and `eu:a` may be one key, which only the service can tell; of one request the earlier line wins.
        let in_flight = if args.region.is_none() && default_region.is_some() { 1 } else { args.in_flight };
        let input = Input::start(source, rule, args.batch).map_err(|error| Stop::Fatal(error.into()))?;
        let asker = Asker { client, topic: args.topic.clone(), retry: args.retry(), own_prefix: args.region.is_some() };
        Filter { args: &args, in_flight, run: &run, asker, screen: &screen, output: &output, tally: &mut tally }.drive(input).await
    };
    let ended = tokio::select! {
        ended = work => ended,
        stop = signals.next() => Err(stop),
    };
    let written = tokio::select! {
        written = output.finish() => written.map_err(Stop::Output),
        // Nobody takes the rest, and the user will not wait for it.
        stop = signals.next() => Err(stop),
    };
    screen.summary(&tally);
    match written.and(ended) {
        Ok(()) => Ok(ExitCode::from(if tally.bad > 0 && args.on_bad_line == OnBadLine::Report { BAD_LINES } else { 0 })),
        Err(stop) => {
            let resume =
                if begun.get() { format!("; to go on: the same command and input with --resume {}", run.as_str()) } else { String::new() };
            screen.say(&format!("{}{resume}", stop.why()));
            Ok(ExitCode::from(stop.code()))
        }
    }
}

/// One run at work.
struct Filter<'a> {
    args: &'a FilterArgs,
    /// Requests at a time.
    in_flight: usize,
    run: &'a RunId,
    asker: Asker,
    screen: &'a Screen,
    output: &'a Output,
    tally: &'a mut Tally,
}

impl Filter<'_> {
    /// Asks about all of the input. When it stops early, what was printed is the beginning of the right output.
    async fn drive(self, mut input: Input) -> Result<(), Stop> {
        let head = Head::new(self.args.group.as_deref()).map_err(|error| Stop::Fatal(error.into()))?;
        let mut window = Window::new(self.args.batch * self.in_flight * WINDOW_FACTOR);
        let asker = &self.asker;
        let screen = self.screen;
        let mut requests = FuturesUnordered::new();
        // How the input ended, once it has.
        let mut ended: Option<io::Result<()>> = None;
        loop {
            while let Some(block) = window.pop() {
                emit(&block, self.args.on_bad_line, screen, self.output, self.tally).await?;
            }
            if let Some(ended) = &mut ended
                && window.is_empty()
            {
                return std::mem::replace(ended, Ok(())).map_err(|error| Stop::Fatal(anyhow::Error::from(error).context("the input")));
            }
            let wants_lines = ended.is_none() && requests.len() < self.in_flight && window.has_room();
            tokio::select! {
                Some(answer) = requests.next(), if !requests.is_empty() => {
                    let (number, asking, fates): (u64, Vec<usize>, Result<Vec<Fate>, Stop>) = answer;
                    for (index, fate) in asking.into_iter().zip(fates?) {
                        window.settle((number, index), fate);
                    }
                }
                block = input.next(), if wants_lines => match block {
                    Some(Ok(block)) => {
                        let (number, asking) = window.admit(block);
                        if let Some(block) = window.block(number).filter(|_| !asking.is_empty()) {
                            let request = Request::new(&head, self.run, block, &asking).map_err(|error| Stop::Fatal(error.into()))?;
                            requests.push(async move { (number, asking, asker.ask(&request, screen).await) });
                        }
                    }
                    Some(Err(error)) => ended = Some(Err(error)),
                    None => ended = Some(Ok(())),
                },
            }
        }
    }
}

/// Prints a decided block and counts it.
async fn emit(block: &Block, on_bad_line: OnBadLine, screen: &Screen, output: &Output, tally: &mut Tally) -> Result<(), Stop> {
    let (text, bad_lines) = window::output(block, on_bad_line == OnBadLine::Pass);
    if on_bad_line == OnBadLine::Report {
        for (number, bad) in bad_lines {
            screen.say(&format!("line {number}: {bad}"));
        }
    }
    if !output.write(text).await {
        return Err(Stop::Output(io::ErrorKind::BrokenPipe.into()));
    }
    for line in &block.lines {
        match line.fate {
            Fate::First => tally.first += 1,
            Fate::Duplicate | Fate::Undecided => tally.duplicates += 1,
            Fate::Bad(_) => tally.bad += 1,
        }
    }
    tally.lines += block.lines.len() as u64;
    tally.text_bytes += block.text.len() as u64;
    screen.progress(tally);
    Ok(())
}

/// SIGINT and SIGTERM, which from now on no longer end the process by themselves.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Signal(2),
            _ = self.terminate.recv() => Stop::Signal(15),
        }
    }
}
