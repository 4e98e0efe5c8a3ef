//! Topics in all homes: versions, repair, tombstones.

use std::collections::BTreeSet;
use std::time::Duration;

use dedup_testbed::{Mode, Testbed, wait_until};
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::api::{call, check, get, put, topic};
use crate::harness::{clocked, dedup_bin, options, run, url};
use crate::windows::span_ms;

/// A topic set on one instance is known to all at once; `If-Match` guards against lost updates; the home's policy decides.
/// Seen to fail with `If-Match` ignored, and with a PUT that leaves a home's window as it was.
#[test]
fn a_topic_has_one_policy_everywhere() {
    run(async {
        let (a, b) = (url("eu", 0).await, url("us", 1).await);
        let t = topic(&a, "everywhere").await;
        check(&b, &t, json!({"key": "us:k"})).await.is("first");
        // It asked the home of that key at once; of the other home's copy it hears a little later.
        wait_until("both homes' versions", Duration::from_secs(10), || async {
            let read = get(&b, &format!("/v1/topics/{t}")).await;
            let found = (read.body["version"].clone(), read.body["homes"].clone());
            if found == (json!(1), json!({"eu": 1, "us": 1})) { Ok(()) } else { Err(format!("{found:?}")) }
        })
        .await;
        let path = format!("/v1/topics/{t}");
        let with = |version: &'static str, window: u64| {
            let (b, path) = (&b, &path);
            async move {
                call(Method::PUT, b, path, Some(json!({"window_ms": window}).to_string().into_bytes()), &[("if-match", version)])
                    .await
                    .unwrap()
            }
        };
        with("\"7\"", 5_000).await.fails(412, "version-differs");
        assert_eq!(with("\"1\"", 5_000).await.body["version"], json!(2));
        let again = put(&b, &path, json!({"window_ms": 5_000})).await;
        assert_eq!((again.status, again.body["version"].clone()), (200, json!(2)), "the same again is no change: {again:?}");
        // The first instance still had version 1 in mind; the home does not let it decide by that.
        let new = check(&a, &t, json!({"key": "eu:short"})).await.is("first");
        assert_eq!(span_ms(&new.text("first_seen_at"), &new.text("expires_at")), 5_000, "the new window counts");
    });
}

/// A PUT while a home is away: 202, kept trying, and the home gets it when it is back, from any instance. `dedup topics apply` tells by its
/// exit code whether every home has what the file says.
/// Seen to fail without the repair.
#[test]
fn a_home_that_was_away_is_repaired() {
    run(async {
        let mut options = options(&["eu", "us"], 1);
        options.proxies = true;
        let testbed = Testbed::start(options).await.unwrap();
        let (eu, us) = (testbed.region("eu"), testbed.region("us"));
        let url = eu.instances[0].url();
        us.proxy.as_ref().unwrap().set_mode(Mode::Refuse);
        us.proxy.as_ref().unwrap().cut();
        wait_until("the home is seen to be down", Duration::from_secs(10), || async {
            let r = get(&url, "/v1/regions").await;
            if r.body["homes"][1]["state"] == json!("down") { Ok(()) } else { Err(format!("{r:?}")) }
        })
        .await;
        let set = put(&url, "/v1/topics/late", json!({"window_ms": 60_000})).await;
        assert_eq!((set.status, set.body["homes"].clone()), (202, json!({"eu": "applied", "us": "pending"})), "{set:?}");
        check(&url, "late", json!({"key": "eu:k"})).await.is("first");
        check(&url, "late", json!({"key": "us:k"})).await.fails(503, "home-unavailable");
        let file = std::env::temp_dir().join(format!("dedup-topics-{}.toml", std::process::id()));
        std::fs::write(&file, "[topics.filed]\nwindow_ms = 60000\n").unwrap();
        let apply = async || {
            let mut command = tokio::process::Command::new(dedup_bin());
            let out = command.args(["topics", "apply", "--url", &url]).arg(&file).output().await.unwrap();
            (out.status.code(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
        };
        for did in ["created", "unchanged"] {
            let (code, told, complaint) = apply().await;
            assert!(told.contains(did) && told.contains("us pending") && complaint.contains("goes on trying"), "{told}{complaint}");
            assert_eq!(code, Some(5), "{told}{complaint}");
        }
        us.proxy.as_ref().unwrap().set_mode(Mode::Pass);
        wait_until("the repair", Duration::from_secs(15), || async {
            let r = get(&url, "/v1/topics/late").await;
            if r.body["homes"]["us"] == json!(1) { Ok(()) } else { Err(format!("{r:?}")) }
        })
        .await;
        check(&url, "late", json!({"key": "us:k"})).await.is("first");
        check(&us.instances[0].url(), "late", json!({"key": "us:k"})).await.is("duplicate");
        wait_until("the file's topics are everywhere", Duration::from_secs(15), || async {
            let (code, told, _) = apply().await;
            if code == Some(0) && told.contains("us applied") { Ok(()) } else { Err(told) }
        })
        .await;
        std::fs::remove_file(&file).unwrap();
        testbed.stop().await.unwrap();
    });
}

/// Of changes that are made of the same version at once, at instances of all regions, one counts: with `If-Match` the others are refused, without it
/// each gets a version of its own, and none is told that a home is away.
/// Seen to fail with homes that take of two copies of one version the one with the higher stamp.
#[test]
fn one_of_several_changes_at_once_counts() {
    run(async {
        let urls = [url("eu", 0).await, url("eu", 1).await, url("us", 0).await, url("us", 1).await];
        let path = format!("/v1/topics/{}", topic(&urls[0], "at-once").await);
        let mut version = get(&urls[0], &path).await.body["version"].as_i64().unwrap();
        for round in 0..15 {
            for guarded in [true, false] {
                let wanted = version.to_string();
                let changes = (0..8).map(|caller| {
                    let (url, path, wanted) = (&urls[caller % urls.len()], &path, &wanted);
                    let body = json!({"window_ms": 100_000 + round * 100 + 10 * caller + usize::from(guarded)}).to_string().into_bytes();
                    let headers: Vec<(&str, &str)> = if guarded { vec![("if-match", wanted)] } else { Vec::new() };
                    async move { call(Method::PUT, url, path, Some(body), &headers).await.unwrap() }
                });
                let told = join_all(changes).await;
                let applied: BTreeSet<i64> = told.iter().filter(|r| r.status == 200).map(|r| r.body["version"].as_i64().unwrap()).collect();
                if guarded {
                    assert_eq!(told.iter().filter(|r| r.status == 200).count(), 1, "{told:?}");
                    told.iter().filter(|r| r.status != 200).for_each(|r| assert_eq!(r.text("code"), "version-differs", "{r:?}"));
                } else {
                    assert_eq!(applied.len(), 8, "{told:?}");
                }
                version = *applied.last().unwrap();
            }
        }
    });
}

/// DELETE is refused while records may live; afterwards a topic of the same name knows nothing of the old one.
/// Seen to fail with no topic ever said to be in use, and with the old generation kept by the next PUT.
#[test]
fn a_topic_is_deleted_only_when_its_windows_have_passed() {
    run(async {
        let mut clock = clocked().await;
        let url = clock.url(0);
        let t = crate::api::topic_with(&url, "del", json!({"window_ms": 10_000})).await;
        let path = format!("/v1/topics/{t}");
        let delete = || call(Method::DELETE, &url, &path, None, &[]);
        check(&url, &t, json!({"key": "eu:k"})).await.is("first");
        let used = delete().await.unwrap().fails(409, "topic-in-use");
        assert_eq!(used.body["homes"], json!(["eu"]));
        clock.forward(Duration::from_secs(5)).await;
        delete().await.unwrap().fails(409, "topic-in-use");
        check(&url, &t, json!({"key": "eu:k"})).await.is("duplicate");
        clock.forward(Duration::from_secs(10)).await;
        let gone = delete().await.unwrap();
        assert_eq!((gone.status, gone.body["version"].clone()), (200, json!(2)), "{gone:?}");
        check(&url, &t, json!({"key": "eu:k"})).await.fails(404, "topic-not-found");
        wait_until("the other instance hears of it", Duration::from_secs(5), || async {
            let r = check(&clock.url(1), &t, json!({"key": "eu:k"})).await;
            if r.status == 404 { Ok(()) } else { Err(format!("{r:?}")) }
        })
        .await;
        assert_eq!(put(&url, &path, json!({"window_ms": 10_000})).await.body["version"], json!(3));
        check(&url, &t, json!({"key": "eu:k"})).await.is("first");
        // Not only because the old record is past its window: the key is another one now.
        let owner = clock.testbed.region("eu").postgres.connect("dedup_owner").await;
        let sql = "SELECT count(*) FROM dedup.claims WHERE digest = dedup.digest_v1($1, $2, 'default', 0, 'eu:k')";
        for generation in [0i64, 1] {
            assert_eq!(owner.query_one(sql, &[&t, &generation]).await.unwrap().get::<_, i64>(0), 1, "generation {generation}");
        }
    });
}
