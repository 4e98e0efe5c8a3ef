//! Stores survive what the testbed does to them, with what was acknowledged.

use std::time::Duration;

use crate::common::{PATIENCE, one_region};
use dedup_testbed::{Lost, Options, Postgres, Testbed, no_lines_here, wait_until};

async fn count(postgres: &Postgres) -> i64 {
    let client = postgres.connect("dedup_owner").await;
    client.query_one("SELECT count(*) FROM kept", &[]).await.expect("the table is there").get(0)
}

#[tokio::test]
async fn a_killed_postgres_starts_on_its_port_with_every_committed_row() {
    let testbed = one_region().await;
    let postgres = &testbed.region("eu").postgres;
    let (port, pid) = (postgres.port(), postgres.pid());
    let owner = postgres.connect("dedup_owner").await;
    owner.batch_execute("CREATE TABLE kept (n int); INSERT INTO kept VALUES (1), (2)").await.expect("the owner may write");
    postgres.kill9().await;
    assert!(owner.simple_query("SELECT 1").await.is_err(), "the session ended with the server");
    postgres.start().await.expect("it recovers");
    assert_eq!(count(postgres).await, 2);
    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
    postgres.stop_fast().await;
    postgres.start().await.expect("it starts after an orderly stop");
    assert_eq!(count(postgres).await, 2);
    testbed.stop().await.expect("all is removed");
}

#[tokio::test]
async fn postgres_is_durable_and_private() {
    let testbed = one_region().await;
    let client = testbed.region("eu").postgres.connect("dedup_owner").await;
    for (name, wanted) in [
        ("fsync", "on"),
        ("full_page_writes", "on"),
        ("synchronous_commit", "on"),
        ("listen_addresses", "127.0.0.1"),
        ("server_encoding", "UTF8"),
        ("TimeZone", "UTC"),
        ("password_encryption", "scram-sha-256"),
    ] {
        let row = client.query_one("SELECT current_setting($1)", &[&name]).await.expect("the setting exists");
        assert_eq!(row.get::<_, String>(0), wanted, "{name}");
    }
    let row = client.query_one("SELECT rolsuper, rolcreaterole FROM pg_roles WHERE rolname = 'dedup_owner'", &[]).await;
    let row = row.expect("the owner exists");
    assert_eq!((row.get::<_, bool>(0), row.get::<_, bool>(1)), (false, true));
    let wrong = testbed.region("eu").postgres.dsn("postgres").replace("password=", "password=x");
    assert!(tokio_postgres::connect(&wrong, tokio_postgres::NoTls).await.is_err(), "a wrong password is refused");
}

/// Each direction alone and both: nothing is answered while it lasts and everything afterwards, on the same connection, and who does not use the
/// line does not notice. In the end no link is left. Where the machine cannot do it, it says why.
#[tokio::test]
async fn a_line_is_cut_and_mended() {
    if let Some(why) = no_lines_here() {
        std::fs::write("/dev/stderr", format!("network namespaces are not possible here: {why}\n")).expect("stderr is open");
        return;
    }
    let mut options = Options::new("/nonexistent/dedup".into());
    options.regions = vec!["eu".into()];
    options.postgres_lines = true;
    let testbed = Testbed::start_stores(options).await.expect("the stores start");
    let postgres = &testbed.region("eu").postgres;
    let sure = postgres.connect("postgres").await;
    let dsn = postgres.dsn("postgres").replace(&postgres.host(), &postgres.host_for_instances());
    let (client, connection) = tokio_postgres::connect(&dsn, tokio_postgres::NoTls).await.expect("instances reach it");
    tokio::spawn(connection);
    for lost in [Lost::Requests, Lost::Replies, Lost::Both] {
        let before = postgres.lost_frames();
        postgres.cut_line(lost).await;
        let asked = client.query_one("SELECT 1", &[]);
        tokio::pin!(asked);
        assert!(tokio::time::timeout(Duration::from_millis(500), &mut asked).await.is_err(), "{lost:?}");
        sure.query_one("SELECT 1", &[]).await.expect("the other way is whole");
        postgres.heal_line().await;
        tokio::time::timeout(PATIENCE, asked).await.expect("it arrives after all").expect("it was only late");
        assert!(postgres.lost_frames() > before, "{lost:?}");
    }
    let host = postgres.host();
    let net = host.rsplit_once('.').expect("an address").0.to_owned();
    let links = || String::from_utf8(std::process::Command::new("ip").args(["-o", "addr"]).output().expect("it ran before").stdout);
    assert!(links().expect("text").contains(&net));
    testbed.stop().await.expect("all is removed");
    wait_until("the links are gone", PATIENCE, || async {
        if links().is_ok_and(|text| !text.contains(&net)) { Ok(()) } else { Err("still there".into()) }
    })
    .await;
}

#[tokio::test]
async fn a_frozen_postgres_answers_nobody_until_it_goes_on() {
    let testbed = one_region().await;
    let postgres = &testbed.region("eu").postgres;
    let client = postgres.connect("dedup_owner").await;
    postgres.sigstop().await;
    let asked = client.query_one("SELECT 1", &[]);
    tokio::pin!(asked);
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut asked).await.is_err(), "it is frozen");
    postgres.sigcont().await;
    let row = tokio::time::timeout(PATIENCE, asked).await.expect("it goes on").expect("the session lives");
    assert_eq!(row.get::<_, i32>(0), 1);
    postgres.sigstop().await;
    postgres.kill9().await;
    postgres.start().await.expect("a frozen one can be killed and started");
}

#[tokio::test]
async fn redis_starts_empty_on_its_port_and_wants_its_password() {
    let testbed = one_region().await;
    let redis = testbed.region("eu").redis.as_ref().expect("it is on by default");
    let (port, pid) = (redis.port(), redis.pid());
    assert!(redis.url().starts_with("redis://default:") && redis.url().ends_with(&port.to_string()));
    redis.kill9().await;
    redis.start().await.expect("it starts again");
    assert_eq!(redis.port(), port);
    assert_ne!(redis.pid(), pid);
    redis.sigstop().await;
    redis.sigcont().await;
    let answer = tokio::net::TcpStream::connect(("127.0.0.1", port)).await;
    let mut stream = answer.expect("it listens");
    tokio::io::AsyncWriteExt::write_all(&mut stream, b"PING\r\nQUIT\r\n").await.expect("it takes input");
    let mut text = String::new();
    tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.expect("it answers");
    assert!(text.starts_with("-NOAUTH"), "{text}");
}

#[tokio::test]
#[should_panic(expected = "the moon: not within 50ms; last seen: still half")]
async fn waiting_in_vain_tells_what_was_last_seen() {
    wait_until::<_, _, ()>("the moon", Duration::from_millis(50), || async { Err("still half".into()) }).await;
}
