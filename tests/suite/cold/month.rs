//! A month in which every day's keys become an archive, against an oracle (P1, P2; cases C1–C4, J1, L4).

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Cold, number};
use crate::api::{post, topic_with};
use crate::harness::run;

const DAY_MS: i64 = 86_400_000;

/// 31 daily segments on a shifted clock, in another time zone, windows from hours to for ever, questions of any age throughout, forgets:
/// each verdict agrees with an oracle that knows when each key was first seen and until when it counts (in the archive at most a day
/// longer).
/// Seen to fail with windows' ends rounded down in the archive, with ends in it that are not looked at, and with its tombstones that are not.
#[test]
fn a_month_of_days_agrees_with_an_oracle() {
    run(async {
        // `make soak` takes a year with more keys.
        let (days, keys_a_day) = (number("DEDUP_DAYS", 31), number("DEDUP_KEYS_A_DAY", 600));
        let mut cold = Cold::start("warm_ms = 172800000\ndrop_margin_ms = 0\n").await;
        // A clock is a moment, whatever a session calls it.
        for zone in ["Asia/Kolkata", "America/New_York"] {
            cold.owner().await.batch_execute(&format!("ALTER DATABASE dedup SET timezone = '{zone}'")).await.unwrap();
        }
        let url = cold.url();
        let t = topic_with(&url, "month", json!({"window_ms": 7 * DAY_MS})).await;
        // One ends between two questions: an archive that rounds it the wrong way is caught.
        let three_and_more = 3 * DAY_MS + DAY_MS / 24;
        let windows = [json!(DAY_MS / 4), json!(DAY_MS), json!(three_and_more), json!(7 * DAY_MS), json!(20 * DAY_MS), json!("forever")];
        // Until when each key counts, by our own clock of days; the last answer's word counts.
        let mut until: HashMap<usize, i64> = HashMap::new();
        let mut now = 0_i64;
        let mut keys = 0;
        let (mut firsts, mut duplicates, mut late) = (0, 0, 0);
        for day in 0..days {
            let mut asked: Vec<usize> = (keys..keys + keys_a_day).collect();
            keys += keys_a_day;
            asked.extend((0..keys_a_day).map(|_| rand::random_range(0..keys)));
            asked.sort_unstable();
            asked.dedup();
            for some in asked.chunks(1_000) {
                let items: Vec<Value> =
                    some.iter().map(|k| json!({"key": format!("eu:{k}"), "window_ms": windows[k % windows.len()]})).collect();
                let reply = post(&url, &format!("/v1/topics/{t}/checks/batch"), json!({"items": items})).await;
                for (k, answer) in some.iter().zip(reply.body["results"].as_array().unwrap()) {
                    let window = windows[k % windows.len()].as_i64();
                    let told = until.get(k).copied();
                    match answer["verdict"].as_str().unwrap_or_else(|| panic!("{answer}")) {
                        "first" => {
                            // Ten minutes are more than this test takes in real time.
                            assert!(
                                told.is_none_or(|end| end <= now + 600_000),
                                "day {day}: key {k} was given again while it counts: {answer}"
                            );
                            until.insert(*k, window.map_or(i64::MAX, |w| now + w));
                            firsts += 1;
                        }
                        "duplicate" => {
                            let end = told.unwrap_or_else(|| panic!("day {day}: key {k} was never seen: {answer}"));
                            // Exact while it is warm; from the archive at most a base segment late.
                            let slack = if answer["tier"] == "cold" { DAY_MS + 600_000 } else { 600_000 };
                            assert!(end > now - slack, "day {day}: key {k} still counts, {} ms too long: {answer}", now - end);
                            late += usize::from(end <= now);
                            duplicates += 1;
                        }
                        other => panic!("day {day}: key {k}: {other}"),
                    }
                }
            }
            // Forget some of any age: they are free at once.
            for _ in 0..3 {
                let k = rand::random_range(0..keys);
                let body = json!({"key": format!("eu:{k}"), "reason": "oracle"});
                assert_eq!(post(&url, &format!("/v1/topics/{t}/records/forget"), body).await.status, 200);
                until.remove(&k);
                let body = json!({"key": format!("eu:{k}"), "window_ms": windows[k % windows.len()]});
                post(&url, &format!("/v1/topics/{t}/checks"), body).await.is("first");
                until.insert(k, windows[k % windows.len()].as_i64().map_or(i64::MAX, |w| now + w));
            }
            cold.forward(Duration::from_secs(86_400)).await;
            now += DAY_MS;
            if day % 2 == 0 {
                cold.settled().await;
            }
            if day % 5 == 0 {
                cold.loaded().await;
            }
        }
        cold.settled().await;
        let archives = cold.archives().await;
        assert!((2..=12).contains(&archives), "{:?}", cold.segments().await);
        assert!(
            // Of a year's keys most have been forgotten when they are asked for again.
            firsts > keys && duplicates > keys / if days > 31 { 8 } else { 3 },
            "{firsts} first, {duplicates} duplicates, {late} of them within the archive's rounding"
        );
        cold.testbed.stop().await.unwrap();
    });
}
