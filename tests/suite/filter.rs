//! `dedup filter`: the lines nobody has seen before, in their order, whatever dies on the way.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use dedup_testbed::{Testbed, wait_until};
use rand::seq::SliceRandom;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::harness::{dedup_bin, options, run, shared, url};

/// How a run ended.
#[derive(Debug)]
struct Ended {
    code: Option<i32>,
    out: String,
    err: String,
}

/// `dedup filter` on a topic of its own making.
fn command(url: &str, topic: &str, args: &[&str]) -> Command {
    let mut command = Command::new(dedup_bin());
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("DEDUP_")) {
        command.env_remove(name);
    }
    command.args(["filter", "--url", url, "--topic", topic, "--window", "1d"]).args(args).kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

async fn filter(url: &str, topic: &str, args: &[&str], input: impl AsRef<[u8]>) -> Ended {
    let mut child = command(url, topic, args).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.as_ref().to_vec();
    // One that stops early does not read all.
    let feed = tokio::spawn(async move { stdin.write_all(&input).await.ok() });
    let output = child.wait_with_output().await.unwrap();
    feed.await.unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
}

fn topic(name: &str) -> String {
    format!("{name}-{:08x}", rand::random::<u32>())
}

/// What a filter with an endless memory prints: the first line of each key.
fn first_occurrences<'a>(lines: impl IntoIterator<Item = &'a str>, key: impl Fn(&'a str) -> &'a str) -> String {
    let mut seen = HashSet::new();
    lines.into_iter().filter(|line| seen.insert(key(line))).flat_map(|line| [line, "\n"]).collect()
}

/// `count` events over a third as many ids, repeats near and far; no two lines are equal, so that it shows which line of a key was printed.
fn events(count: usize) -> String {
    let id = |n: usize| match n % 3 {
        0 => n,
        1 => n - 1,
        _ => rand::random_range(0..n) / 3 * 3,
    };
    (0..count).map(|n| format!("{{\"n\":{n},\"id\":\"{}\"}}\n", id(n))).collect()
}

fn id(event: &str) -> &str {
    event.split("\"id\":").nth(1).unwrap()
}

fn file(testbed: &Testbed, name: &str, text: &str) -> PathBuf {
    let path = testbed.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// A run over a file whose output can be watched while it runs.
struct Watched {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

impl Watched {
    fn start(testbed: &Testbed, topic: &str, input: &Path, args: &[&str]) -> Self {
        let name = format!("run-{:08x}", rand::random::<u32>());
        let (out, err) = (testbed.dir().join(format!("{name}.out")), testbed.dir().join(format!("{name}.err")));
        let mut command = command(&testbed.region("eu").instances[0].url(), topic, args);
        command.arg(input).stdin(Stdio::null());
        command.stdout(std::fs::File::create(&out).unwrap()).stderr(std::fs::File::create(&err).unwrap());
        Self { child: command.spawn().unwrap(), out, err }
    }

    fn out(&self) -> String {
        std::fs::read_to_string(&self.out).unwrap()
    }

    async fn printed(&self, bytes: usize) {
        wait_until("it prints", Duration::from_secs(30), || async {
            let out = self.out().len();
            if out >= bytes { Ok(()) } else { Err(format!("{out} bytes; {}", std::fs::read_to_string(&self.err).unwrap())) }
        })
        .await;
    }

    async fn end(mut self) -> Ended {
        let status = tokio::time::timeout(Duration::from_secs(90), self.child.wait()).await.unwrap().unwrap();
        Ended { code: status.code(), out: self.out(), err: std::fs::read_to_string(&self.err).unwrap() }
    }
}

/// The id a run said it has.
fn run_id(err: &str) -> String {
    err.split("run id: ").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or_else(|| panic!("no run id: {err}")).to_owned()
}

/// Attacks the whole of it with real text: this machine's package names, twice over and shuffled, come out as `sort -u` in the order of their
/// first occurrence; a second run prints nothing.
/// Seen to fail with blocks printed as they are answered (order), and with every run given the same run id (second run).
#[test]
fn package_names_come_out_once_and_in_order() {
    run(async {
        let listed = Command::new("dpkg-query").args(["-f", "${Package}\\n", "-W"]).output().await.unwrap();
        let listed = String::from_utf8(listed.stdout).unwrap();
        let mut names: Vec<&str> = listed.lines().chain(listed.lines()).collect();
        assert!(names.len() > 100, "{}", names.len());
        names.shuffle(&mut rand::rng());
        let input: String = names.iter().flat_map(|name| [*name, "\n"]).collect();
        let (url, topic) = (url("eu", 0).await, topic("packages"));
        let args = ["--region", "eu", "--batch", "20"];
        let first = filter(&url, &topic, &args, &input).await;
        assert_eq!(first.code, Some(0), "{}", first.err);
        assert_eq!(first.out, first_occurrences(names.iter().copied(), |name| name));
        let (mut printed, mut unique): (Vec<&str>, Vec<&str>) = (first.out.lines().collect(), names.clone());
        printed.sort_unstable();
        unique.sort_unstable();
        unique.dedup();
        assert_eq!(printed, unique);
        let summary = format!("{} lines: {} first, {} duplicates, 0 bad", names.len(), unique.len(), names.len() - unique.len());
        assert!(first.err.contains(&summary), "{}", first.err);
        let second = filter(&url, &topic, &args, &input).await;
        assert_eq!((second.code, second.out.as_str()), (Some(0), ""), "{}", second.err);
    });
}

/// Attacks the rule that a key is in one open request at a time: the many requests of one line each must not overtake each other, so the line
/// printed for a key is its first.
/// Seen to fail with the waiting for earlier lines of the same key taken out.
#[test]
fn the_printed_line_is_the_first_of_its_key() {
    run(async {
        let input: String = (0..4_000).map(|n| format!("{{\"n\":{n},\"id\":\"{}\"}}\n", n / 8)).collect();
        let args = ["--region", "eu", "--key", "/id", "--batch", "1", "--in-flight", "64"];
        let ended = filter(&url("eu", 1).await, &topic("racing"), &args, &input).await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert_eq!(ended.out, first_occurrences(input.lines(), id));
    });
}

/// Attacks byte exactness: ends of lines, blanks, a last line without an end; and that LF and CR LF make the same key.
/// Seen to fail with every line given an LF of its own.
#[test]
fn lines_come_out_byte_for_byte() {
    run(async {
        let (url, topic) = (url("eu", 0).await, topic("bytes"));
        let input = " a \r\na\n\"q\\\\\" é\na\r\neu:x\nlast";
        let ended = filter(&url, &topic, &["--region", "us", "-"], input).await;
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), " a \r\na\n\"q\\\\\" é\neu:x\nlast"), "{}", ended.err);
        let again = filter(&url, &topic, &[], "us:last\neu:last\nus:a\nus:eu:x\n").await;
        assert_eq!(again.out, "eu:last\n", "the keys are those with the region in front: {}", again.err);
    });
}

/// Attacks bad lines in both modes: they are named by number or passed on in their place, and never harm a neighbour.
/// Seen to fail with line numbers counted per block.
#[test]
fn bad_lines_are_reported_or_passed() {
    run(async {
        let url = url("eu", 0).await;
        let long = "x".repeat(600);
        let input = format!("eu:a\n\ntab\there\neu:b\n{long}\nxx:c\nno region\neu:a\n");
        let topic_name = topic("bad");
        let report = filter(&url, &topic_name, &["--batch", "2"], &input).await;
        assert_eq!((report.code, report.out.as_str()), (Some(3), "eu:a\neu:b\n"), "{}", report.err);
        let expected = [
            "line 2: it is blank",
            "line 3: its key has a control",
            "line 5: its key has 600",
            "line 6: the service",
            "line 7: the service",
        ];
        for expected in expected {
            assert!(report.err.contains(expected), "{expected}: {}", report.err);
        }
        assert!(report.err.contains("8 lines: 2 first, 1 duplicates, 5 bad"), "{}", report.err);
        let pass = filter(&url, &topic("bad"), &["--batch", "2", "--on-bad-line", "pass"], &input).await;
        let passed = format!("eu:a\n\ntab\there\neu:b\n{long}\nxx:c\nno region\n");
        assert_eq!((pass.code, pass.out), (Some(0), passed), "{}", pass.err);
        // Bytes that are no UTF-8 are passed as they are, too.
        let mut child = command(&url, &topic_name, &["--region", "eu", "--on-bad-line", "pass"]).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"\xff\xfe\n").await.unwrap();
        assert_eq!(child.wait_with_output().await.unwrap().stdout, b"\xff\xfe\n");
    });
}

/// Attacks NDJSON: the key is the value at the pointer, however deep and however the line is written; numbers keep all their digits.
/// Seen to fail with numbers read as floats.
#[test]
fn ndjson_is_keyed_by_a_pointer() {
    run(async {
        let good = [
            r#"{"msg":{"ids":["x","k1"]},"n":1}"#,
            r#"{ "msg" : {"ids":["y", "k\u0031"]} }"#,
            r#"{"msg":{"ids":[0,12345678901234567890123]}}"#,
            r#"{"msg":{"ids":[0,12345678901234567890124]}}"#,
            r#"{"msg":{"ids":[0,"12345678901234567890123"]}}"#,
        ];
        let bad = [r#"{"msg":{}}"#, r#"{"msg":{"ids":["x",null]}}"#, "{", "[]"];
        let input: String = good.iter().chain(&bad).flat_map(|line| [*line, "\n"]).collect();
        let ended = filter(&url("eu", 0).await, &topic("ndjson"), &["--region", "eu", "--key", "/msg/ids/1"], &input).await;
        let expected = format!("{}\n{}\n{}\n", good[0], good[2], good[3]);
        assert_eq!((ended.code, ended.out), (Some(3), expected), "{}", ended.err);
        assert!(ended.err.contains("line 8: it is not JSON"), "{}", ended.err);
    });
}

/// Attacks a crash of the filter: killed (−9) twice in the middle, with answers in flight, the resumed run prints exactly what an uninterrupted
/// one would have printed; and after that there is nothing new.
/// Seen to fail with a new run id for a resumed run (what was granted before the kill is lost).
#[test]
fn a_resumed_run_prints_what_an_uninterrupted_one_would_have() {
    run(async {
        let testbed = shared().await;
        let (topic, input) = (topic("resume"), events(30_000));
        let path = file(testbed, &topic, &input);
        let expected = first_occurrences(input.lines(), id);
        let mut args = vec!["--region", "eu", "--key", "/id", "--batch", "50", "--resume", "mine-1"];
        for share in [5, 2] {
            let mut broken = Watched::start(testbed, &topic, &path, &args);
            broken.printed(expected.len() / share).await;
            broken.child.kill().await.unwrap();
            let broken = broken.out();
            assert!(broken.len() < expected.len(), "it was killed too late to show anything");
            assert!(expected.starts_with(&broken), "what it printed is the beginning of the right output");
        }
        let resumed = Watched::start(testbed, &topic, &path, &args).end().await;
        assert_eq!(resumed.code, Some(0), "{}", resumed.err);
        assert!(resumed.out == expected, "{} bytes instead of {}: {}", resumed.out.len(), expected.len(), resumed.err);
        args.truncate(6);
        let stranger = Watched::start(testbed, &topic, &path, &args).end().await;
        assert_eq!((stranger.code, stranger.out.as_str()), (Some(0), ""), "{}", stranger.err);
    });
}

/// Attacks the service and its store: killed (−9) and restarted again and again under a run, the output is right to the byte.
/// Seen to fail with fresh request ids for repeated questions, and with only whole calls repeated but not single items.
#[test]
fn a_service_that_dies_and_comes_back_changes_nothing() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let region = testbed.region("eu");
        let (topic, input) = (topic("dying"), events(60_000));
        let path = file(&testbed, &topic, &input);
        let expected = first_occurrences(input.lines(), id);
        let watched = Watched::start(&testbed, &topic, &path, &["--region", "eu", "--key", "/id", "--batch", "50"]);
        for round in 1..=4 {
            watched.printed(expected.len() * round / 6).await;
            if round % 2 == 1 {
                region.instances[0].kill9().await;
                region.instances[0].start().await.unwrap();
            } else {
                region.postgres.kill9().await;
                region.postgres.start().await.unwrap();
            }
        }
        let ended = watched.end().await;
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        assert!(ended.out == expected, "{} bytes instead of {}: {}", ended.out.len(), expected.len(), ended.err);
        assert!(ended.err.contains("no answer yet") && ended.err.contains("answers again"), "the faults hit something: {}", ended.err);
        testbed.stop().await.unwrap();
    });
}

/// Attacks patience: a service that stays away ends the run with code 4, whole lines of the right output and the way to go on, which works.
/// Seen to fail with patience that starts anew at every failure (it never ends).
#[test]
fn a_service_that_stays_away_is_exit_code_4_and_can_be_resumed() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let instance = &testbed.region("eu").instances[0];
        let (topic, input) = (topic("gone"), events(30_000));
        let path = file(&testbed, &topic, &input);
        let expected = first_occurrences(input.lines(), id);
        let args = ["--region", "eu", "--key", "/id", "--batch", "50", "--retry-seconds", "1"];
        let watched = Watched::start(&testbed, &topic, &path, &args);
        watched.printed(expected.len() / 3).await;
        instance.kill9().await;
        let gone = watched.end().await;
        assert_eq!(gone.code, Some(4), "{}", gone.err);
        assert!(expected.starts_with(&gone.out) && gone.out.ends_with('\n') && gone.out.len() < expected.len());
        let run_id = run_id(&gone.err);
        assert!(gone.err.contains(&format!("to go on: the same command and input with --resume {run_id}")), "{}", gone.err);
        // Nobody there from the start is the same.
        let nobody = Watched::start(&testbed, &topic, &path, &args).end().await;
        assert_eq!((nobody.code, nobody.out.as_str()), (Some(4), ""), "{}", nobody.err);
        instance.start().await.unwrap();
        let resumed = Watched::start(&testbed, &topic, &path, &[&args[..], &["--resume", &run_id]].concat()).end().await;
        assert_eq!(resumed.code, Some(0), "{}", resumed.err);
        assert!(resumed.out == expected, "{} bytes instead of {}: {}", resumed.out.len(), expected.len(), resumed.err);
        testbed.stop().await.unwrap();
    });
}

/// Attacks slow inputs and Ctrl-C: a line is answered while more may come, and SIGINT ends with 130, the lines so far, and the way to go on.
/// Seen to fail with blocks that wait until they are full.
#[test]
fn a_slow_input_is_answered_at_once_and_ctrl_c_ends_it() {
    run(async {
        let mut child = command(&url("eu", 0).await, &topic("slow"), &["--region", "eu"]).spawn().unwrap();
        let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut answer = [0; 4];
        for line in [b"one\n", b"two\n"] {
            stdin.write_all(line).await.unwrap();
            tokio::time::timeout(Duration::from_secs(20), stdout.read_exact(&mut answer)).await.expect("it is answered at once").unwrap();
            assert_eq!(&answer, line);
        }
        let pid = child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        let ended = tokio::time::timeout(Duration::from_secs(10), child.wait_with_output()).await.expect("it ends").unwrap();
        let err = String::from_utf8(ended.stderr).unwrap();
        assert_eq!(ended.status.code(), Some(130), "{err}");
        assert!(err.contains(&format!("--resume {}", run_id(&err))) && err.contains("2 lines: 2 first"), "{err}");
    });
}

/// Attacks mistakes of the caller: each ends with code 1 and a reason, before a line is printed.
/// Seen to fail with every problem repeated until patience ends.
#[test]
fn mistakes_end_at_once_with_a_reason() {
    run(async {
        let url = url("eu", 0).await;
        let existing = topic("mistakes");
        filter(&url, &existing, &["--region", "eu"], "seen\n").await;
        let cases: [(&[&str], &str); 4] = [
            (&["--region", "xx"], "unknown-region"),
            (&["--region", "eu", "--group", ""], "group"),
            (&["--region", "eu", "/nowhere/at/all"], "/nowhere/at/all cannot be read"),
            (&["--region", "eu", "/"], "is a folder"),
        ];
        for (args, reason) in cases {
            let ended = filter(&url, &existing, args, "a\n").await;
            assert_eq!((ended.code, ended.out.as_str()), (Some(1), ""), "{args:?}: {}", ended.err);
            assert!(ended.err.contains(reason), "{args:?}: {}", ended.err);
        }
        let missing = Command::new(dedup_bin())
            .args(["filter", "--url", &url, "--topic", &topic("missing"), "--region", "eu"])
            .stdin(Stdio::null())
            .output()
            .await
            .unwrap();
        let err = String::from_utf8(missing.stderr).unwrap();
        assert_eq!(missing.status.code(), Some(1), "{err}");
        assert!(err.contains("--window"), "{err}");
    });
}
