//! What dies during a run: the filter, the service, the home.

use dedup_testbed::Testbed;

use super::runs::{Watched, events, file, first_occurrences, id, run_id, topic};
use crate::harness::{options, run, shared};

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
