//! Is the home fit to answer? What is not is refused by name: another secret, a program too old, weak durability (design section 6).

use std::time::Duration;

use dedup_testbed::{Testbed, wait_until};
use serde_json::json;

use crate::api::{check, get, topic};
use crate::harness::{options, run};

/// A home that may forget what it acknowledged stops the start, and the message names the setting; with permission it is used all the same.
/// Seen to fail without the look at the settings.
#[test]
fn weak_durability_stops_the_start_unless_allowed() {
    run(async {
        for (setting, value) in [("fsync", "off"), ("full_page_writes", "off"), ("synchronous_commit", "local")] {
            let mut options = options(&["eu"], 1);
            options.postgres_settings = vec![(setting.into(), value.into())];
            let error = Testbed::start(options.clone())
                .await
                .err()
                .map(|e| e.to_string())
                .unwrap_or_else(|| panic!("{setting} = {value} was accepted"));
            assert!(error.contains(setting) && error.contains("allow_weak_durability"), "{error}");
            options.extra_config = "allow_weak_durability = true".into();
            let testbed = Testbed::start(options).await.unwrap();
            let url = testbed.region("eu").instances[0].url();
            let t = topic(&url, "weak").await;
            check(&url, &t, json!({"key": "eu:k"})).await.is("first");
            testbed.stop().await.unwrap();
        }
    });
}

/// A home with another secret, or one that needs a newer program, gives no verdicts here and stops nobody else; as the own home it stops
/// the start.
/// Seen to fail without the look at the secret, at `min_client`, at the name, and at the prefixes: four builds.
#[test]
fn homes_of_another_secret_or_a_newer_schema_are_refused() {
    run(async {
        let testbed = Testbed::start(options(&["eu", "us"], 1)).await.unwrap();
        let (eu, us) = (testbed.region("eu"), testbed.region("us"));
        let url = eu.instances[0].url();
        let t = topic(&url, "fit").await;
        check(&url, &t, json!({"key": "us:0"})).await.is("first");
        let owner = us.postgres.connect("dedup_owner").await;
        let kept: (Vec<u8>, i32) = {
            let row = owner.query_one("SELECT secret_id, min_client FROM dedup.home", &[]).await.unwrap();
            (row.get(0), row.get(1))
        };
        for (change, says) in [
            ("UPDATE dedup.home SET secret_id = decode('0102030405060708', 'hex')", "another secret"),
            ("UPDATE dedup.home SET min_client = 99", "99"),
            ("UPDATE dedup.home SET name = 'mars'", "mars"),
            ("UPDATE dedup.home SET prefixes = '{us,ca}'", "prefixes"),
        ] {
            owner.batch_execute(change).await.unwrap();
            eu.instances[0].kill9().await;
            eu.instances[0].start().await.unwrap();
            let seen = get(&url, "/v1/regions").await;
            let why = seen.body["homes"][1]["why"].as_str().unwrap_or_default().to_owned();
            assert!(seen.body["homes"][1]["state"] == json!("down") && why.contains(says), "{change}: {seen:?}");
            check(&url, &t, json!({"key": "us:k"})).await.fails(503, "home-unavailable");
            check(&url, &t, json!({"key": format!("eu:{says}")})).await.is("first");
            if says == "another secret" {
                // The instance of that home has no secret of its own: it takes the home's.
                let restore = "UPDATE dedup.home SET secret_id = $1";
                owner.execute(restore, &[&kept.0]).await.unwrap();
                continue;
            }
            us.instances[0].kill9().await;
            let error = us.instances[0].start().await.expect_err("the own home is not fit").to_string();
            assert!(error.contains(says), "{error}");
            let restore = "UPDATE dedup.home SET secret_id = $1, min_client = $2, name = 'us', prefixes = '{us}'";
            owner.execute(restore, &[&kept.0, &kept.1]).await.unwrap();
        }
        us.instances[0].start().await.unwrap();
        wait_until("the home is used again", Duration::from_secs(10), || async {
            let r = check(&url, &t, json!({"key": "us:k"})).await;
            if r.status == 200 { Ok(r.is("first")) } else { Err(format!("{r:?}")) }
        })
        .await;
        testbed.stop().await.unwrap();
    });
}

/// While an instance runs, a home that turns out to be another one (its secret changed under it) changes nothing: each call carries who it
/// is meant for.
/// Seen to fail with a `decide_v1` that does not compare who it is meant for.
#[test]
fn a_call_that_reaches_another_home_does_nothing() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let url = testbed.region("eu").instances[0].url();
        let t = topic(&url, "other").await;
        check(&url, &t, json!({"key": "eu:0"})).await.is("first");
        let owner = testbed.region("eu").postgres.connect("dedup_owner").await;
        let home: uuid::Uuid = owner.query_one("SELECT home_id FROM dedup.home", &[]).await.unwrap().get(0);
        owner.batch_execute("UPDATE dedup.home SET home_id = gen_random_uuid()").await.unwrap();
        let refused = check(&url, &t, json!({"key": "eu:1"})).await.fails(503, "home-unavailable");
        assert_eq!(refused.body["applied"], json!("no"));
        let rows: i64 = owner.query_one("SELECT count(*) FROM dedup.claims", &[]).await.unwrap().get(0);
        assert_eq!(rows, 1);
        owner.execute("UPDATE dedup.home SET home_id = $1", &[&home]).await.unwrap();
        wait_until("the home is itself again", Duration::from_secs(10), || async {
            let r = check(&url, &t, json!({"key": "eu:1"})).await;
            if r.status == 200 { Ok(r.is("first")) } else { Err(format!("{r:?}")) }
        })
        .await;
        testbed.stop().await.unwrap();
    });
}

/// Durability that is weakened while the service runs is noticed, and so is a primary older than one already seen; a raised epoch ends what
/// caches believe and lifts fences.
/// Seen to fail with durability only looked at when connecting, with an older primary listened to, and with cached values of another
/// incarnation believed.
#[test]
fn a_home_that_changes_under_the_service_is_noticed() {
    run(async {
        let testbed = Testbed::start(options(&["eu"], 1)).await.unwrap();
        let eu = testbed.region("eu");
        let url = eu.instances[0].url();
        let t = topic(&url, "weaker").await;
        let first = check(&url, &t, json!({"key": "eu:k"})).await.is("first");
        let (root, owner) = (eu.postgres.connect("postgres").await, eu.postgres.connect("dedup_owner").await);
        let answers = async |key: &str, status: u16| {
            wait_until("the service notices", Duration::from_secs(10), || async {
                // A new key each time: what is cached is answered whatever the home does.
                let r = check(&url, &t, json!({"key": format!("{key}-{}", rand::random::<u64>())})).await;
                if r.status == status { Ok(r) } else { Err(format!("{r:?}")) }
            })
            .await
        };
        root.batch_execute("ALTER SYSTEM SET synchronous_commit = off").await.unwrap();
        root.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        answers("eu:1", 503).await.fails(503, "home-unavailable");
        root.batch_execute("ALTER SYSTEM RESET synchronous_commit").await.unwrap();
        root.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        answers("eu:2", 200).await;

        check(&url, &t, json!({"key": "eu:k"})).await.is("duplicate");
        owner.batch_execute("UPDATE dedup.home SET epoch = epoch + 1").await.unwrap();
        let later = answers("eu:3", 200).await;
        assert!(later.text("fence")[..5] > first.text("fence")[..5], "{later:?}");
        assert_eq!(
            check(&url, &t, json!({"key": "eu:k"})).await.is("duplicate").text("tier"),
            "warm",
            "what was cached before counts no more"
        );

        // As an old primary would look that nobody told of the promotion.
        owner.batch_execute("UPDATE dedup.home SET epoch = epoch - 1").await.unwrap();
        let refused = check(&url, &t, json!({"key": "eu:4"})).await;
        assert_eq!(refused.status, 503, "{refused:?}");
        answers("eu:5", 503).await;
        owner.batch_execute("UPDATE dedup.home SET epoch = epoch + 1").await.unwrap();
        answers("eu:6", 200).await;
        testbed.stop().await.unwrap();
    });
}
