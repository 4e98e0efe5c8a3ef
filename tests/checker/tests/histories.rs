//! The checker bites: hand-made histories with one thing wrong are each caught by the invariant that names it, and good ones that look
//! suspicious pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should stop there")]

use std::time::Duration;

use dedup_checker::{Answer, Call, Found, Histories, Kind, Limits, Line, Out, Return, Verdict, check, key_order, key_violations};

/// One call a line: `KIND WHO SENT BACK OUTCOME name=value…`. WHO is the request of a question and the fence of an end's token.
fn lines(text: &str) -> Vec<Line> {
    let mut lines = vec![Line::Run { seed: 7, name: "by hand".into(), steady: false, archived_after_ms: None }];
    for (op, line) in text.lines().map(str::trim).filter(|l| !l.is_empty()).enumerate() {
        let mut words = line.split_whitespace();
        let mut next = || words.next().unwrap_or_else(|| panic!("too short: {line}"));
        let kind = match next() {
            "check" => Kind::Check,
            "claim" => Kind::Claim,
            "complete" => Kind::Complete,
            "release" => Kind::Release,
            "extend" => Kind::Extend,
            "forget" => Kind::Forget,
            "forget-all" => Kind::ForgetAll,
            "read" => Kind::Read,
            other => panic!("no such kind: {other}"),
        };
        let who = next().to_owned();
        let (sent, back): (u64, u64) = (next().parse().unwrap(), next().parse().unwrap());
        let outcome = next();
        let (verdict, replayed) = match outcome {
            "first" => (Verdict::First, false),
            "again" => (Verdict::First, true),
            "dup" => (Verdict::Duplicate, false),
            "busy" => (Verdict::InProgress, false),
            "mismatch" => (Verdict::Mismatch, false),
            "done" => (Verdict::Completed, false),
            "done-again" => (Verdict::Completed, true),
            "released" => (Verdict::Released, false),
            "released-again" => (Verdict::Released, true),
            "extended" => (Verdict::Extended, false),
            "lost" => (Verdict::LeaseLost, false),
            "already" => (Verdict::AlreadyCompleted, false),
            "forgotten" => (Verdict::Forgotten, false),
            "absent" | "no" | "unknown" => (Verdict::Absent, false),
            other => panic!("no such outcome: {other}"),
        };
        let mut answer = Answer { replayed, ..Answer::new(verdict) };
        let question = matches!(kind, Kind::Check | Kind::Claim);
        let mut call = Call {
            op: op as u64,
            at: sent,
            request: if question { who.clone() } else { String::new() },
            token: if matches!(kind, Kind::Complete | Kind::Release | Kind::Extend) { who } else { String::new() },
            lease_ms: if kind == Kind::Claim { 1000 } else { 0 },
            ..Call::new(kind, 0, "eu-1", if kind == Kind::ForgetAll { "t/g/" } else { "t/g/eu:k" }.into())
        };
        for pair in words {
            if pair == "cold" {
                answer.cold = true;
                continue;
            }
            let (name, value) = pair.split_once('=').unwrap();
            match name {
                "fence" => answer.fence = value.into(),
                "seen" => answer.seen = Some(value.parse().unwrap()),
                "exp" => answer.expires = Some(value.parse().unwrap()),
                "lease" => answer.lease_end = Some(value.parse().unwrap()),
                "res" if kind == Kind::Complete => call.result = value.into(),
                "res" => answer.result = value.into(),
                "keep" => call.keep_ms = Some(value.parse().unwrap()),
                "fp" => call.fp = value.into(),
                "of" => answer.of_index = Some(value.parse().unwrap()),
                "batch" => {
                    let (batch, index) = value.split_once('.').unwrap();
                    call.batch = Some((batch.parse().unwrap(), index.parse().unwrap()));
                }
                other => panic!("no such part: {other}"),
            }
        }
        let out = match outcome {
            "no" => Out::No("home-unavailable".into()),
            "unknown" => Out::Unknown("claim-outcome-unknown".into()),
            _ => Out::Ok(answer),
        };
        lines.push(Line::Call(call));
        lines.push(Line::Return(Return { op: op as u64, at: back, out }));
    }
    lines.push(Line::End { at: u64::MAX });
    lines
}

fn judge(text: &str) -> Histories {
    Histories::new(lines(text)).unwrap()
}

const GRANT: &str = "claim r1 0 10 first fence=f1 seen=0 lease=1000 exp=90000";
const DONE: &str = "claim r1 0 10 first fence=f1 seen=0 lease=1000 exp=90000
                    complete f1 20 30 done res=a";

/// (invariant that must name it, what is wrong, history). `{g}` is a grant to r1, `{d}` that and its completion.
const BAD: &[(&str, &str, &str)] = &[
    // I1: one first
    ("I1", "two firsts side by side", "{g}\nclaim r2 0 10 first fence=f2 seen=1 lease=1001 exp=90001"),
    ("I1", "a first during a lease", "{g}\nclaim r2 20 30 first fence=f2 seen=500 lease=1500 exp=90500"),
    ("I1", "one fence for two requests", "{g}\nclaim r2 20 30 first fence=f1 seen=0 lease=1000 exp=90000"),
    ("I1", "a first a millisecond before the lease ended", "{g}\nclaim r2 20 30 first fence=f2 seen=999 lease=1999 exp=90999"),
    (
        "I1",
        "a take-over in spite of an extension",
        "{g}\nextend f1 20 30 extended lease=2000\nclaim r2 40 50 first fence=f2 seen=1500 lease=2500 exp=91500",
    ),
    (
        "I1",
        "a release asked for only afterwards",
        "{g}\nclaim r2 20 30 first fence=f2 seen=20 lease=1020 exp=90020\nrelease f1 40 50 released",
    ),
    ("I1", "a release that was refused", "{g}\nrelease f1 15 18 no\nclaim r2 20 30 first fence=f2 seen=20 lease=1020 exp=90020"),
    (
        "I1",
        "a take-over after a renewed lease",
        "{g}\nclaim r1 20 30 again fence=f1 seen=0 lease=3000 exp=90000\nclaim r2 40 50 first fence=f2 seen=2000 lease=3000 exp=92000",
    ),
    // I2: no phantom
    ("I2", "a duplicate of nobody", "check r1 0 10 dup fence=f1"),
    ("I2", "in progress, of a claim that failed", "claim r1 0 10 no\nclaim r2 20 30 busy fence=f1"),
    ("I2", "a duplicate of a check that failed", "check r1 0 10 no\ncheck r2 20 30 dup fence=f1"),
    ("I2", "in progress before the owner asked", "claim r2 0 5 busy fence=f1\nclaim r1 10 20 first fence=f1 seen=10 lease=1010 exp=90000"),
    ("I2", "a duplicate of a claim that nobody completed", "{g}\nclaim r2 20 30 dup fence=f1"),
    ("I2", "one unknown call cannot own two fences", "claim r1 0 10 unknown\nclaim r2 20 30 busy fence=f1\nclaim r3 40 50 busy fence=f2"),
    ("I2", "a refusal without a name, of nobody", "check r1 0 10 dup"),
    ("I2", "the final reading shows a record nobody asked for", "claim r1 0 10 no\nread - 100 110 busy fence=f1 seen=100"),
    // I3: no lost claim
    ("I3", "an acknowledged check is gone", "check r1 0 10 first fence=f1 seen=0 exp=90000\nread - 100 110 absent seen=100"),
    ("I3", "a lapsed claim is gone within its window", "{g}\nread - 9000 9010 absent seen=9000"),
    ("I3", "an acknowledged claim is gone", "{g}\nread - 100 110 absent seen=100"),
    ("I3", "an acknowledged completion is gone", "{d}\nread - 100 110 busy fence=f1 seen=100"),
    ("I3", "an acknowledged release is gone", "{g}\nrelease f1 20 30 released\nread - 100 110 busy fence=f1 seen=100"),
    (
        "I3",
        "an older owner is back",
        "{g}\nrelease f1 20 30 released\nclaim r2 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nread - 100 110 busy fence=f1 seen=100",
    ),
    // I4: fences rise
    (
        "I4",
        "a lower fence after a higher one",
        "claim r1 0 10 first fence=f5 seen=0 lease=1000 exp=90000\nrelease f5 20 30 released\nclaim r2 40 50 first fence=f3 seen=40 lease=1040 exp=90040",
    ),
    (
        "I4",
        "a lower fence after a lapse",
        "claim r1 0 10 first fence=f5 seen=0 lease=1000 exp=90000\nclaim r2 2000 2010 first fence=f4 seen=2000 lease=3000 exp=92000",
    ),
    (
        "I4",
        "a lower fence after a forget",
        "check r1 0 10 first fence=f9 seen=0 exp=90000\nforget - 20 30 forgotten\ncheck r2 40 50 first fence=f1 seen=40 exp=90040",
    ),
    // I5: fenced end
    ("I5", "two completions", "{d}\ncomplete f1 40 50 done res=b"),
    (
        "I5",
        "a completion by the old owner",
        "{g}\nclaim r2 2000 2010 first fence=f2 seen=2000 lease=3000 exp=92000\ncomplete f1 2020 2030 done res=a",
    ),
    (
        "I5",
        "a release by the old owner",
        "{g}\nclaim r2 2000 2010 first fence=f2 seen=2000 lease=3000 exp=92000\nrelease f1 2020 2030 released",
    ),
    ("I5", "an extension after the completion", "{d}\nextend f1 40 50 extended lease=3000"),
    ("I5", "a release after the completion", "{d}\nrelease f1 40 50 released"),
    ("I5", "a completion after the release", "{g}\nrelease f1 20 30 released\ncomplete f1 40 50 done res=a"),
    ("I5", "a result that nobody gave", "{d}\nclaim r2 40 50 dup fence=f1 res=zzz"),
    ("I5", "a lease lost to nobody", "{g}\ncomplete f1 5000 5010 lost res=a"),
    ("I5", "completed before by nobody", "{g}\ncomplete f1 20 30 already res=a"),
    ("I5", "a completion after a forget", "{g}\nforget - 20 30 forgotten\ncomplete f1 40 50 done res=a"),
    // I6: real time
    ("I6", "in progress after the release", "{g}\nrelease f1 20 30 released\nclaim r2 40 50 busy fence=f1"),
    ("I6", "in progress after the completion", "{d}\nclaim r2 40 50 busy fence=f1"),
    (
        "I6",
        "an old duplicate after the forget, and a new owner",
        "{d}\nforget - 40 60 forgotten\nclaim r2 50 60 first fence=f2 seen=60 lease=1060 exp=90060\nclaim r3 70 80 dup fence=f1 res=a",
    ),
    (
        "I6",
        "in progress by the owner before the forget that is under way",
        "{g}\nforget - 40 90 forgotten\nclaim r2 50 60 first fence=f2 seen=60 lease=1060 exp=90060\nclaim r3 70 80 busy fence=f1",
    ),
    ("I6", "a duplicate after the forget", "{d}\nforget - 40 50 forgotten\nclaim r2 60 70 dup fence=f1 res=a"),
    (
        "I6",
        "the old owner after the new one was known",
        "{g}\nclaim r2 2000 2010 first fence=f2 seen=2000 lease=3000 exp=92000\nclaim r3 2020 2030 busy fence=f1",
    ),
    // I7: stable retry
    ("I7", "the owner is taken for somebody else", "{g}\nclaim r1 20 30 busy fence=f1"),
    ("I7", "a check's repetition is called a duplicate", "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r1 20 30 dup fence=f1"),
    ("I7", "granted as new twice", "{g}\nclaim r1 20 30 first fence=f1 seen=0 lease=1000 exp=90000"),
    ("I7", "another first-seen time for the same grant", "{g}\nclaim r1 20 30 again fence=f1 seen=5 lease=1000 exp=90000"),
    ("I7", "another payload is called a duplicate", "check r1 0 10 first fence=f1 seen=0 exp=90000 fp=a\ncheck r2 20 30 dup fence=f1 fp=b"),
    ("I7", "a mismatch of equal payloads", "check r1 0 10 first fence=f1 seen=0 exp=90000 fp=a\ncheck r2 20 30 mismatch fp=a"),
    // I8: batches
    (
        "I8",
        "two firsts in a batch",
        "check r1 0 10 first fence=f1 seen=0 exp=90000 batch=1.0\ncheck r2 0 10 first fence=f2 seen=0 exp=90000 batch=1.4",
    ),
    ("I8", "not the lowest", "check r1 0 10 dup fence=f1 batch=1.2 of=5\ncheck r2 0 10 first fence=f1 seen=0 exp=90000 batch=1.5"),
    (
        "I8",
        "a duplicate of the wrong item",
        "check r1 0 10 first fence=f1 seen=0 exp=90000 batch=1.2\ncheck r2 0 10 dup fence=f1 batch=1.5 of=1",
    ),
    // I9: memory
    (
        "I9",
        "a check forgotten within its window",
        "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r2 500 510 first fence=f2 seen=500 exp=90500",
    ),
    ("I9", "a completed claim given again", "{d}\nclaim r2 2000 2010 first fence=f2 seen=2000 lease=3000 exp=92000"),
    (
        "I9",
        "a window that ended a millisecond early",
        "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r2 500 510 first fence=f2 seen=89999 exp=99999",
    ),
    // A whole group is forgotten
    ("I6", "a duplicate after its group was forgotten", "{d}\nforget-all - 40 50 forgotten\nclaim r2 60 70 dup fence=f1 res=a"),
    ("I6", "in progress after its group was forgotten", "{g}\nforget-all - 20 30 forgotten\nclaim r2 60 70 busy fence=f1"),
    ("I5", "a completion after its group was forgotten", "{g}\nforget-all - 20 30 forgotten\ncomplete f1 40 50 done res=a"),
    (
        "I5",
        "a repetition of no completion, after its group was forgotten",
        "{g}\nforget-all - 20 30 forgotten\ncomplete f1 40 50 done-again res=a",
    ),
    ("I5", "an extension after its group was forgotten", "{g}\nforget-all - 20 30 forgotten\nextend f1 40 50 extended lease=3000"),
    (
        "I9",
        "given again after a refusal to forget the group",
        "{d}\nforget-all - 40 50 no\nclaim r2 60 70 first fence=f2 seen=60 lease=1060 exp=90060",
    ),
    (
        "I9",
        "given again before anybody had its group forgotten",
        "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r2 20 30 first fence=f2 seen=20 exp=90020\nforget-all - 40 50 forgotten",
    ),
    (
        "I1",
        "given twice after its group was forgotten once",
        "{g}\nforget-all - 20 30 forgotten\nclaim r2 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nclaim r3 60 70 first fence=f3 seen=60 lease=1060 exp=90060",
    ),
    (
        "I3",
        "what was claimed after its group was forgotten is gone",
        "{g}\nforget-all - 20 30 forgotten\nclaim r2 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nread - 100 110 absent seen=100",
    ),
    (
        "order",
        "given twice though its group was forgotten once at most",
        "{g}\nforget-all - 20 30 unknown\nclaim r2 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nclaim r3 60 70 first fence=f3 seen=60 lease=1060 exp=90060",
    ),
    // Answers of the archive
    ("I2", "the archive names a fence", "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r2 20 30 dup fence=f1 cold"),
    ("I2", "a first from the archive", "check r1 0 10 first fence=f1 seen=0 exp=90000 cold"),
    ("I2", "in progress from the archive", "{g}\nclaim r2 20 30 busy cold"),
    ("I2", "an open claim in the archive", "{g}\nclaim r2 20 30 dup cold"),
    ("I2", "an archived record of nobody", "check r1 0 10 no\ncheck r2 20 30 dup cold"),
    ("I6", "from the archive after the forget", "{d}\nforget - 40 50 forgotten\nclaim r2 60 70 dup cold"),
    ("I6", "from the archive after its group was forgotten", "{d}\nforget-all - 40 50 forgotten\nclaim r2 60 70 dup cold"),
    (
        "I6",
        "an earlier window is back from the archive",
        "check r1 0 10 first fence=f1 seen=0 exp=1000\nclaim r2 1100 1110 first fence=f2 seen=1100 lease=2100 exp=2200\nrelease f2 1120 1130 released\nclaim r3 1140 1150 dup cold",
    ),
    (
        "I9",
        "a first within the window of what is archived",
        "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r2 20 30 dup cold exp=91000\ncheck r3 40 50 first fence=f2 seen=40 exp=90040",
    ),
    ("I5", "a completion lost where nothing is archived", "{d}\ncomplete f1 40 50 lost res=a"),
    ("I3", "at the end the archive has what nobody completed", "{g}\nread - 100 110 dup cold seen=100"),
    // Only an order of the calls shows it
    (
        "order",
        "two unknown releases cannot free a key three times",
        "{g}\nrelease f1 20 30 unknown\nclaim r2 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nclaim r3 60 70 busy fence=f2\nclaim r1 80 90 again fence=f1 seen=0 lease=1000 exp=90000",
    ),
    (
        "order",
        "a completion between a take-over and its own refusal",
        "{g}\ncomplete f1 1000 2000 done res=a\nclaim r2 1000 2000 first fence=f2 seen=1500 lease=2500 exp=91500\nclaim r3 1000 2000 dup fence=f1 res=a\nclaim r4 2100 2110 busy fence=f2",
    ),
    ("order", "released and completed at once", "{g}\nrelease f1 20 100 released\ncomplete f1 20 100 done res=a"),
    (
        "order",
        "a renewal that a take-over overlooked",
        "{g}\nclaim r2 1000 1100 first fence=f2 seen=1000 lease=2000 exp=91000\nclaim r1 1000 1100 again fence=f1 seen=0 lease=2050 exp=90000\nclaim r3 1120 1130 busy fence=f2",
    ),
];

/// (why it is right, history)
const GOOD: &[(&str, &str)] = &[
    (
        "a take-over after the lapse",
        "{g}\nclaim r2 2000 2010 first fence=f2 seen=2000 lease=3000 exp=92000\ncomplete f1 2020 2030 lost res=a\ncomplete f2 2040 2050 done res=b\nclaim r3 2060 2070 dup fence=f2 res=b",
    ),
    ("the lease lapsed and nobody took over", "{g}\ncomplete f1 5000 5010 done res=a"),
    (
        "a lost reply, settled by the same request",
        "claim r1 0 10 unknown\nclaim r2 20 30 busy fence=f1\nclaim r1 40 50 again fence=f1 seen=5 lease=1005 exp=90005",
    ),
    (
        "a lost reply that the service settled by itself",
        "claim r1 0 10 again fence=f1 seen=5 lease=1005 exp=90005\ncomplete f1 20 30 done res=a",
    ),
    ("an unknown call that never happened", "claim r1 0 10 unknown\nclaim r2 20 30 first fence=f2 seen=20 lease=1020 exp=90020"),
    (
        "an unknown call that happens late",
        "claim r1 0 10 unknown\nclaim r2 20 30 first fence=f1 seen=20 lease=1020 exp=90020\nrelease f1 40 50 released\nclaim r3 60 70 busy fence=f2",
    ),
    (
        "an unknown completion that counted",
        "{g}\ncomplete f1 20 30 unknown res=a\nclaim r2 40 50 dup fence=f1 res=a\ncomplete f1 60 70 done-again res=a",
    ),
    (
        "an unknown release that counted",
        "{g}\nrelease f1 20 30 unknown\nclaim r2 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nrelease f1 60 70 lost",
    ),
    ("overlapping questions, one first", "claim r1 0 100 busy fence=f2\nclaim r2 0 90 first fence=f2 seen=50 lease=1050 exp=90050"),
    ("a release repeated", "{g}\nrelease f1 20 30 released\nrelease f1 40 50 released-again\nread - 100 110 released fence=f1 seen=100"),
    ("a new window", "check r1 0 10 first fence=f1 seen=0 exp=1000\ncheck r2 1100 1110 first fence=f2 seen=1000 exp=2000"),
    ("forgotten, then new", "{d}\nforget - 40 50 forgotten\nclaim r2 60 70 first fence=f2 seen=60 lease=1060 exp=90060"),
    ("a duplicate while the forget is under way", "{d}\nforget - 40 90 forgotten\nclaim r2 60 70 dup fence=f1 res=a"),
    (
        "a duplicate from a cache while the forget is under way, after the home had given the key anew",
        "{d}\nforget - 40 90 forgotten\nclaim r2 50 60 first fence=f2 seen=60 lease=1060 exp=90060\nclaim r3 70 80 dup fence=f1 res=a",
    ),
    (
        "an unknown claim whose window is over",
        "claim r1 0 5 unknown\nclaim r2 1 10 busy fence=f1 seen=1 exp=3001\nclaim r1 9000 9010 first fence=f2 seen=9000 lease=10000 exp=12000",
    ),
    (
        "a claim that was granted without a reply, lapsed, and was told of its successor",
        "claim r1 0 2000000000 busy fence=f2 seen=1100\nclaim r2 5 2000000000 first fence=f2 seen=1100 lease=2100 exp=91100\nclaim r3 10 20 busy fence=f1 seen=1 exp=90001",
    ),
    (
        "forgotten with its group, then new, and the old token ends nothing",
        "{g}\nforget-all - 20 30 forgotten\ncomplete f1 40 50 lost res=a\nclaim r2 60 70 first fence=f2 seen=60 lease=1060 exp=90060",
    ),
    (
        "a group forgotten before the key was asked for",
        "forget-all - 20 30 forgotten\nclaim r1 40 50 first fence=f1 seen=40 lease=1040 exp=90040\nclaim r2 60 70 busy fence=f1",
    ),
    (
        "a completion from before its group was forgotten is still known as done",
        "{d}\nforget-all - 40 50 forgotten\ncomplete f1 60 70 done-again res=a\nclaim r2 80 90 first fence=f2 seen=80 lease=1080 exp=90080\nread - 100 110 busy fence=f2 seen=100",
    ),
    (
        "the same, when somebody has claimed the key since",
        "{d}\nforget-all - 40 50 forgotten\nclaim r2 60 70 first fence=f2 seen=60 lease=1060 exp=90060\ncomplete f1 80 90 done-again res=a\nread - 100 110 busy fence=f2 seen=100",
    ),
    (
        "an open claim removed after its window",
        "claim r1 0 10 first fence=f1 seen=0 lease=1000 exp=3000\nread - 9000 9010 absent seen=9000",
    ),
    ("a duplicate while its group is being forgotten", "{d}\nforget-all - 40 90 forgotten\nclaim r2 60 70 dup fence=f1 res=a"),
    (
        "a group that may be forgotten later",
        "{d}\nforget-all - 40 50 unknown\nclaim r2 60 70 dup fence=f1 res=a\nclaim r3 80 90 first fence=f2 seen=80 lease=1080 exp=90080",
    ),
    (
        "the archive knows neither fence nor request",
        "check r1 0 10 first fence=f1 seen=0 exp=90000\ncheck r2 20 30 dup cold exp=91000\ncheck r1 40 50 dup cold exp=91000\nread - 100 110 dup cold seen=100",
    ),
    ("a completed claim in the archive", "{d}\nclaim r2 40 50 dup cold res=a\nread - 100 110 dup cold seen=100"),
    ("a batch with a repeated key", "check r1 0 10 first fence=f1 seen=0 exp=90000 batch=1.2\ncheck r2 0 10 dup fence=f1 batch=1.5 of=2"),
    ("another payload is a mismatch", "check r1 0 10 first fence=f1 seen=0 exp=90000 fp=a\ncheck r2 20 30 mismatch fp=b"),
    ("completed before with another result", "{d}\ncomplete f1 40 50 already res=b"),
    ("a renewed lease", "{g}\nclaim r1 1500 1510 again fence=f1 seen=0 lease=2500 exp=90000\nclaim r2 1600 1610 busy fence=f1 lease=2500"),
    (
        "a refused call changed nothing",
        "claim r1 0 10 no\nclaim r1 20 30 first fence=f1 seen=20 lease=1020 exp=90020\nread - 100 110 busy fence=f1 seen=100",
    ),
];

fn full(text: &str) -> String {
    text.replace("{g}", GRANT).replace("{d}", DONE)
}

#[test]
fn each_bad_history_is_caught_by_the_invariant_that_names_it() {
    assert!(BAD.len() >= 50);
    let mut wrong = Vec::new();
    for (invariant, what, text) in BAD {
        let all = judge(&full(text));
        let outcome = check(&all, Limits::default());
        let shown = outcome.shown.clone().unwrap_or_default();
        if !outcome.by_invariant.contains_key(invariant) || outcome.passes() || !shown.contains("seed 7") || !shown.contains("broken: ") {
            wrong.push(format!("{invariant} {what}: {:?}\n{shown}", outcome.by_invariant));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), BAD.len(), wrong.join("\n"));
}

#[test]
fn good_histories_pass() {
    for (why, text) in GOOD {
        let outcome = check(&judge(&full(text)), Limits::default());
        assert!(outcome.passes(), "{why}: {:?}\n{}", outcome.by_invariant, outcome.shown.unwrap_or_default());
    }
}

/// The search alone finds double firsts too: the layers check each other.
#[test]
fn the_search_agrees_on_first_and_end() {
    for (invariant, what, text) in BAD.iter().filter(|(i, ..)| ["I1", "I5", "I9"].contains(i)) {
        let all = judge(&full(text));
        let ops = all.keys.values().next().unwrap();
        if *what == "a result that nobody gave" || *what == "completed before by nobody" || *what == "a completion after a forget" {
            continue;
        }
        assert_eq!(key_order(ops, Duration::from_secs(1)), Found::None, "{invariant} {what}");
        assert!(!key_violations(ops).is_empty());
    }
}

/// Where nobody moves a clock, a lease lasts as long by the recorder's clock as by the home's.
#[test]
fn a_lease_that_only_a_wrong_clock_ended_is_caught() {
    let text =
        "claim r1 0 10 first fence=f1 seen=0 lease=1000 exp=90000\nclaim r2 20 300000000 first fence=f2 seen=1000 lease=2000 exp=91000";
    for (steady, broken) in [(false, 0), (true, 1)] {
        let mut all = judge(text);
        all.steady = steady;
        assert_eq!(check(&all, Limits::default()).bad_keys, broken, "steady: {steady}");
    }
    // The attempt that was granted is the one whose outcome its caller did not learn, long before it was told `first` again.
    let told_late = "claim r1 0 900000000 unknown\nclaim r1 900000001 910000000 again fence=f1 seen=0 lease=1000 exp=90000
        claim r2 1100000000 1200000000 first fence=f2 seen=1100 lease=2100 exp=91100\nread x 1300000000 1400000000 busy fence=f2";
    let mut all = judge(told_late);
    all.steady = true;
    assert_eq!(check(&all, Limits::default()).bad_keys, 0);
}

/// A stored result is told for as long as its topic says, and no longer.
#[test]
fn a_result_told_too_short_or_too_long_is_caught() {
    let told = |when: &str| format!("{GRANT}\ncomplete f1 20 30 done res=a keep=1000\nclaim r2 {when}");
    for (steady, when, broken) in [
        (true, "40 50 dup fence=f1", 1),
        (false, "40 50 dup fence=f1", 0),
        (true, "40 50 dup fence=f1 res=a", 0),
        (true, "1900000000 1900000010 dup fence=f1 res=a", 1),
        (true, "1900000000 1900000010 dup fence=f1", 0),
        (true, "990000000 1010000000 dup fence=f1", 0),
        (true, "990000000 1010000000 dup fence=f1 res=a", 0),
    ] {
        let mut all = judge(&told(when));
        all.steady = steady;
        let outcome = check(&all, Limits::default());
        assert_eq!((outcome.bad_keys, outcome.by_invariant.contains_key("I9")), (broken, broken > 0), "steady: {steady}, {when}");
    }
}

/// Only where a janitor archives, and only after its time, a completion may be lost though it counted.
#[test]
fn a_completion_is_lost_to_the_archive_only() {
    let text = full("{d}\ncomplete f1 2000000000 2000000010 lost res=a");
    for (archived_after_ms, broken) in [(None, 1), (Some(3000), 1), (Some(1500), 0)] {
        let mut lines = lines(&text);
        lines[0] = Line::Run { seed: 7, name: "by hand".into(), steady: true, archived_after_ms };
        let outcome = check(&Histories::new(lines).unwrap(), Limits::default());
        assert_eq!(outcome.bad_keys, broken, "{archived_after_ms:?}");
    }
}

/// A search without time, a history that was cut off and one whose keys were not read at the end prove nothing.
#[test]
fn what_is_not_decided_does_not_pass() {
    let mut text = full("{g}");
    for i in 0..200 {
        text += &format!("\nclaim x{i} 20 {} busy fence=f1", 3000 + i);
    }
    let outcome = check(&judge(&text), Limits::default());
    assert_eq!((outcome.bad_keys, outcome.undecided), (0, 1));
    assert!(!outcome.passes());

    let mut cut = lines(&full("{d}"));
    cut.pop();
    let outcome = check(&Histories::new(cut).unwrap(), Limits::default());
    assert!(outcome.bad_keys == 0 && !outcome.passes());

    let many: String = (0..30).map(|i| format!("claim u{i} 20 30 unknown\nrelease f1 20 3000 unknown\n")).collect();
    let text = format!("{GRANT}\n{many}claim z 40 50 first fence=f2 seen=40 lease=1040 exp=90040\nclaim y 60 70 dup fence=f1 res=zz");
    let all = judge(&text);
    assert_eq!(key_order(all.keys.values().next().unwrap(), Duration::ZERO), Found::Undecided);
}

/// A history is written and read back without loss.
#[test]
fn a_history_survives_being_written() {
    let lines = lines(&full(BAD[0].2));
    let text: Vec<String> = lines.iter().map(|l| serde_json::to_string(l).unwrap()).collect();
    assert_eq!(dedup_checker::read_history(text.join("\n").as_bytes()).unwrap(), lines);
}
