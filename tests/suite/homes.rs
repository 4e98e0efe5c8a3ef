//! Routing and isolation of homes (P9; cases T1, T2): the prefix names the home, only the home decides, and one dead home fails only its
//! own questions.

use std::time::{Duration, Instant};

use dedup_testbed::{Mode, Testbed, wait_until};
use serde_json::{Value, json};

use crate::api::{check, claim, get, post, topic};
use crate::harness::{options, run, url};

/// Case T1: any instance answers for any home, directly; a batch mixes homes and is answered in request order.
/// Seen to fail with answers put together home by home instead of in the order asked.
#[test]
fn case_t1_any_instance_answers_for_any_home() {
    run(async {
        let (eu, us) = (url("eu", 0).await, url("us", 0).await);
        let t = topic(&eu, "t1").await;
        let first = claim(&eu, &t, json!({"key": "us:k", "lease_ms": 60_000})).await.is("first");
        assert_eq!((first.text("home_region"), first.text("served_by")), ("us".into(), "eu-1".into()));
        let there = claim(&us, &t, json!({"key": "us:k"})).await.is("in_progress");
        assert_eq!(there.text("fence"), first.text("fence"));
        let items: Vec<Value> = (0..200).map(|k| json!({"key": format!("{}:{k}", ["eu", "us", "xx"][k % 3])})).collect();
        let path = format!("/v1/topics/{t}/checks/batch");
        // A third of them are known before, so that an answer in another's place shows.
        let known: Vec<&Value> = (0..200).filter(|k| k % 7 < 3 && k % 3 < 2).map(|k| &items[k]).collect();
        assert_eq!(post(&eu, &path, json!({"items": known})).await.body["counts"]["first"], json!(known.len()));
        let batch = post(&us, &path, json!({"items": items})).await;
        for (k, result) in batch.body["results"].as_array().unwrap().iter().enumerate() {
            match k % 3 {
                2 => assert_eq!(result["problem"]["code"], json!("unknown-region")),
                _ => {
                    let verdict = if k % 7 < 3 { "duplicate" } else { "first" };
                    assert_eq!((&result["verdict"], &result["key"]), (&json!(verdict), &items[k]["key"]), "{k}");
                }
            }
        }
    });
}

/// Cases T1, T2 and P9: a dead home gives no verdict for its keys, leaves nothing elsewhere, and neither slows nor fails other homes.
/// Seen to fail with a build that decides a dead home's keys in its own Postgres.
#[test]
fn case_t1_t2_p9_a_dead_home_fails_only_its_own_keys() {
    run(async {
        let mut options = options(&["eu", "us"], 1);
        options.proxies = true;
        let testbed = Testbed::start(options).await.unwrap();
        let (eu, us) = (testbed.region("eu"), testbed.region("us"));
        let (here, there) = (eu.instances[0].url(), us.instances[0].url());
        let t = topic(&here, "dead").await;
        let local = |n: usize, tag: &'static str| {
            let (here, t) = (&here, &t);
            async move {
                let mut times = Vec::new();
                for k in 0..n {
                    let began = Instant::now();
                    check(here, t, json!({"key": format!("eu:{tag}-{k}")})).await.is("first");
                    times.push(began.elapsed());
                }
                times.sort();
                times[n / 2]
            }
        };
        local(50, "warm-up").await;
        let normal = local(200, "normal").await;
        let proxy = us.proxy.as_ref().unwrap();
        let opened = proxy.accepted();
        // Silence first: the home neither answers nor refuses.
        proxy.set_mode(Mode::LoseRequests);
        let mixed = json!({"items": [{"key": "eu:a"}, {"key": "us:a"}, {"key": "eu:b"}]});
        let batch = post(&here, &format!("/v1/topics/{t}/checks/batch"), mixed).await;
        let words: Vec<&Value> = batch.body["results"]
            .as_array()
            .unwrap()
            .iter()
            .map(|r| if r["verdict"].is_null() { &r["problem"]["code"] } else { &r["verdict"] })
            .collect();
        assert!(words[0] == "first" && words[2] == "first", "{batch:?}");
        assert!(words[1] == "claim-outcome-unknown" || words[1] == "home-unavailable", "{batch:?}");
        // Then dead.
        proxy.set_mode(Mode::Refuse);
        proxy.cut();
        wait_until("the home is seen to be down", Duration::from_secs(15), || async {
            let r = get(&here, "/v1/regions").await;
            if r.body["homes"][1]["state"] == json!("down") { Ok(()) } else { Err(format!("{r:?}")) }
        })
        .await;
        let began = Instant::now();
        let refused = check(&here, &t, json!({"key": "us:k"})).await.fails(503, "home-unavailable");
        assert_eq!(refused.body["applied"], json!("no"));
        assert!(refused.body["request_id"].is_string());
        assert!(began.elapsed() < Duration::from_secs(1));
        let while_dead = local(200, "dead").await;
        assert!(while_dead < normal * 2 + Duration::from_millis(2), "local checks took {while_dead:?}, before {normal:?}");
        assert!(get(&here, "/readyz").await.status == 200, "it can answer for its own keys");
        let retries = proxy.accepted() - opened;
        assert!(retries < 60, "a dead home is not hammered: {retries} attempts");
        // Nothing was decided in its place: the key is new in its home, and known to nobody here.
        let owner = eu.postgres.connect("dedup_owner").await;
        let foreign = owner
            .query_one("SELECT count(*) FROM dedup.claims WHERE digest = dedup.digest_v1($1, 0, 'default', 0, 'us:k')", &[&t])
            .await
            .unwrap();
        assert_eq!(foreign.get::<_, i64>(0), 0);
        proxy.set_mode(Mode::Pass);
        wait_until("the home is back", Duration::from_secs(10), || async {
            let r = check(&there, &t, json!({"key": "us:k"})).await;
            if r.status == 200 { Ok(r.is("first")) } else { Err(format!("{r:?}")) }
        })
        .await;
        testbed.stop().await.unwrap();
    });
}

/// Case T2: questions about local keys open no connection to another region.
/// Seen to fail with a question that first reads the topics of every home, and with one that has a connection opened to each.
#[test]
fn case_t2_local_questions_stay_local() {
    run(async {
        let mut options = options(&["eu", "us"], 1);
        options.proxies = true;
        let testbed = Testbed::start(options).await.unwrap();
        let here = testbed.region("eu").instances[0].url();
        let t = topic(&here, "t2").await;
        let proxy = testbed.region("us").proxy.as_ref().unwrap();
        // The proxy counts every instance; the other region's own must not be taken for this one.
        testbed.region("us").instances[0].kill9().await;
        proxy.set_delay(Duration::from_millis(150));
        let before = proxy.accepted();
        let began = Instant::now();
        for k in 0..200 {
            claim(&here, &t, json!({"key": format!("eu:{k}")})).await.is("first");
            let took = began.elapsed();
            assert!(took < Duration::from_secs(20), "no local question may wait for the line to the other region: {took:?} after {k}");
        }
        assert_eq!(proxy.accepted(), before);
        testbed.stop().await.unwrap();
    });
}

/// A home next door that is busy stays next door: questions to it share calls, where each call to a distant one goes by itself. What its pulse
/// takes says how busy it is.
/// Seen to fail with distances taken from the pulse.
#[test]
fn a_busy_home_is_not_a_distant_one() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let (eu, owner) = (testbed.region("eu"), testbed.region("eu").postgres.connect("dedup_owner").await);
        let pulse: String = owner.query_one("SELECT pg_get_functiondef('dedup.pulse_v1'::regproc)", &[]).await.unwrap().get(0);
        let busy = pulse.replacen("$function$", "$function$ SELECT pg_sleep(0.01);", 1);
        assert_ne!(busy, pulse);
        owner.batch_execute(&busy).await.unwrap();
        eu.instances[0].kill9().await;
        eu.instances[0].start().await.unwrap();
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(1100)).await;
            let regions = get(&eu.instances[0].url(), "/v1/regions").await;
            let home =
                regions.body["homes"].as_array().unwrap().iter().find(|r| r["name"] == "eu").unwrap_or_else(|| panic!("{regions:?}"));
            let told = home["round_trip_ms"].as_f64().unwrap_or_else(|| panic!("{regions:?}"));
            assert!(told < 10.0, "{told} ms, and a pulse takes 10");
        }
        testbed.stop().await.unwrap();
    });
}

/// The room of a home that came back opens within a second; one that was never away has all of it from the start: a service just started takes
/// ten thousand questions at once. Seen to fail with a build that took the first time for a return: most of the batches were told `overloaded`.
#[test]
fn a_home_that_was_never_away_has_all_its_room_at_once() {
    run(async {
        let mut options = options(&["eu"], 1);
        options.redis = false;
        let testbed = Testbed::start(options).await.unwrap();
        let here = testbed.region("eu").instances[0].url();
        let t = topic(&here, "room").await;
        let path = format!("/v1/topics/{t}/checks/batch");
        let batches = (0..10).map(|b| {
            let items: Vec<Value> = (0..1000).map(|k| json!({"key": format!("eu:{b}-{k}")})).collect();
            post(&here, &path, json!({"detail": "verdict", "items": items}))
        });
        for answer in futures_util::future::join_all(batches).await {
            assert_eq!(answer.body["counts"], json!({"first": 1000}), "{}", answer.body["results"][0]);
        }
        testbed.stop().await.unwrap();
    });
}
