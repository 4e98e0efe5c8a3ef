//! One run: servers, callers, fault, healing, settling, reading, judging.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use anyhow::Context;
use dedup_checker::{Answer, Call, Histories, Kind, Limits, Line, Out, Verdict, check};
use dedup_testbed::{Options, Proxy, Testbed};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use crate::caller::Net;
use crate::faults::{Fault, Fronts};
use crate::record::{Recorder, write};
use crate::report::{Gates, Report};
use crate::rig::Rig;
use crate::sabotage::Sabotage;
use crate::topics::Place;
use crate::work::{Mix, World, settle, worker};
use crate::{sabotage, sql, topics};

/// What to do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Which fault.
    pub fault: Fault,
    /// What everything random is drawn from.
    pub seed: u64,
    /// How long the fault strikes.
    pub strikes_for: Duration,
    /// Workers.
    pub workers: u32,
    /// The executable under test.
    pub dedup: PathBuf,
    /// Where the history is kept; without it only that of a failed run is, in the folder for temporary files.
    pub keep: Option<PathBuf>,
    /// Break the service on purpose.
    pub sabotage: Option<Sabotage>,
    /// What must have happened.
    pub gates: Gates,
}

const WARM_UP: Duration = Duration::from_millis(1500);
/// After the last fault has healed, calls must succeed again within this.
const RECOVERY: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_millis(1500);
const SETTLING: Duration = Duration::from_secs(20);
/// What a run may take beside its strikes; more means that something hangs.
const RUN_SLACK: Duration = Duration::from_secs(100);

/// Carries it out.
///
/// # Errors
/// If the servers cannot be started or healed: nothing is then known of the promises.
pub async fn run(plan: &Plan) -> anyhow::Result<Report> {
    let began = Instant::now();
    let fault = plan.fault;
    let recorder = Arc::new(Recorder::new(plan.seed, fault.name, fault.steady, fault.archived_after_ms));
    let mut options = Options::new(plan.dedup.clone());
    options.regions = vec!["eu".into(), "us".into()];
    options.proxies = true;
    let scratch = std::env::temp_dir().join(format!("dedup-chaos-{}-{}", std::process::id(), plan.seed));
    std::fs::create_dir_all(&scratch)?;
    (fault.prepare)(&mut options, &scratch)?;
    if let Some(sabotage) = plan.sabotage {
        options.env.extend(sabotage.env());
        options.instance_env.push(("eu-1".into(), "DEDUP_SABOTAGE_SKEW_MS".into(), "700".into()));
    }
    let testbed = Testbed::start(options).await.context("the testbed does not start")?;
    if let Some(sabotage) = plan.sabotage {
        sabotage::apply(&testbed, sabotage).await?;
    }
    let whole = with_servers(plan, testbed, recorder, scratch.clone(), began);
    let report = match tokio::time::timeout(plan.strikes_for + RUN_SLACK, whole).await {
        Ok(report) => report,
        Err(_) => Err(anyhow::anyhow!("the run did not end")),
    };
    std::fs::remove_dir_all(&scratch).ok();
    report
}

async fn make_topics(testbed: &Testbed) -> anyhow::Result<()> {
    let http = {
        dedup_client::Client::new("http://127.0.0.1:1")?;
        reqwest::Client::builder().no_proxy().build()?
    };
    for (name, put) in topics::all() {
        let url = format!("{}/v1/topics/{name}", testbed.regions()[0].instances[0].url());
        let body = put.to_string();
        let put = || http.put(&url).header("content-type", "application/json").body(body.clone()).send();
        // A home whose standbys have yet to confirm it takes nothing for a moment.
        let until = Instant::now() + Duration::from_secs(15);
        let mut answer = put().await?;
        while answer.status() != 200 && Instant::now() < until {
            sleep(Duration::from_millis(200)).await;
            answer = put().await?;
        }
        anyhow::ensure!(answer.status() == 200, "the topic {name} cannot be made: {}", answer.text().await?);
    }
    Ok(())
}

async fn with_servers(plan: &Plan, testbed: Testbed, recorder: Arc<Recorder>, scratch: PathBuf, began: Instant) -> anyhow::Result<Report> {
    let fault = plan.fault;
    make_topics(&testbed).await?;
    let instances: Vec<_> = testbed.regions().iter().flat_map(|r| &r.instances).collect();
    let mut fronts = Vec::new();
    let mut nodes: Vec<(String, String)> = instances.iter().map(|i| (i.name().to_owned(), i.url())).collect();
    if fault.fronts == Fronts::Instances {
        for (instance, node) in instances.iter().zip(&mut nodes) {
            let front = Proxy::start(instance.port()).await?;
            node.1 = format!("http://127.0.0.1:{}", front.port());
            fronts.push(front);
        }
    }
    if fault.fronts == Fronts::SecondInstance {
        // The second instance reaches the first node by a line of its own.
        let (home, second) = (&testbed.regions()[0], instances[1]);
        let line = Proxy::start_postgres(home.postgres.port()).await?;
        let common = home.proxy.as_ref().context("this fault has proxies")?.port();
        let text = std::fs::read_to_string(second.config_path())?.replace(&common.to_string(), &line.port().to_string());
        std::fs::write(second.config_path(), text)?;
        second.sigterm_and_wait(Duration::from_secs(10)).await;
        second.start().await?;
        fronts.push(line);
    }
    let net = Net::new(nodes, Arc::clone(&recorder), 1500)?;
    let homes = testbed.regions().iter().map(|r| r.name.clone()).collect();
    let all: Vec<_> = std::iter::once(&testbed.regions()[0].postgres).chain(&testbed.regions()[0].standbys).collect();
    let ports = all.iter().map(|p| p.port().to_string()).collect::<Vec<_>>().join(",");
    let hosts = all.iter().map(|p| p.host()).collect::<Vec<_>>().join(",");
    let password = testbed.regions()[0].postgres.password().to_owned();
    let dsn = format!(
        "host={hosts} port={ports} user=dedup_caller password={password} dbname=dedup target_session_attrs=read-write connect_timeout=2"
    );
    let callers = sql::Callers::new(dsn, testbed.regions()[0].name.clone());
    let mut mix = Mix::default();
    (fault.mix)(&mut mix);
    let world = Arc::new(World::new(net.clone(), mix, homes, plan.seed, callers));
    let rig = Rig::new(testbed, Arc::clone(&recorder), plan.dedup.clone(), scratch, fronts);

    let workers: Vec<_> = (0..plan.workers).map(|me| tokio::spawn(worker(Arc::clone(&world), me))).collect();
    let extra = tokio::spawn(extra_callers(fault, Arc::clone(&world)));
    sleep(WARM_UP).await;
    let (healthy, asked) = recorder.success(0, recorder.now());
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = asked as f64 / WARM_UP.as_secs_f64();

    let mut rng = StdRng::seed_from_u64(plan.seed);
    let until = Instant::now() + plan.strikes_for;
    let mut strikes = 0;
    while strikes == 0 || Instant::now() < until {
        rig.recorder.mark(format!("{}: strike {strikes}", fault.name));
        (fault.strike)(&rig, &mut rng, strikes).await.with_context(|| format!("strike {strikes} of {}", fault.name))?;
        strikes += 1;
        sleep(Duration::from_millis(rng.random_range(100..500))).await;
    }
    recorder.mark("all is healed");
    world.healed.store(true, Ordering::Relaxed);
    sleep(RECOVERY).await;
    let from = recorder.now();
    sleep(MEASURED).await;
    // Calls of the last moment may still be under way, so the span ends before them.
    let to = recorder.now();
    world.stop.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.context("a worker panicked")?;
    }
    extra.await.context("a caller panicked")?;
    let recovered = recorder.success(from, to);
    let unsettled = settle(&world, SETTLING).await;
    let read = read_all(&rig, &world).await;
    if read.is_ok() && unsettled == 0 {
        recorder.end();
    }
    let idle = idle_in_transaction(&rig).await.unwrap_or(-1);
    let evidence = rig.evidence.lock().expect("no panic while held").clone();
    let Rig { testbed, .. } = rig;
    testbed.stop().await.ok();

    let lines = recorder.take();
    let mut odd = recorder.odds();
    odd.extend(needless(fault, &lines));
    let path = plan.keep.clone().map(|dir| dir.join(format!("{}-{}.jsonl", fault.name, plan.seed)));
    if let Some(path) = &path {
        write(path, &lines)?;
    }
    let failed_at = std::env::temp_dir().join(format!("dedup-history-{}-{}.jsonl", fault.name, plan.seed));
    let copy = path.is_none().then(|| lines.clone());
    let histories = Histories::new(lines).map_err(|e| anyhow::anyhow!("the history contradicts itself: {e}"))?;
    let outcome = check(&histories, Limits::default());
    let mut report = Report {
        fault,
        seed: plan.seed,
        seconds: began.elapsed().as_secs_f64(),
        strikes,
        rate,
        healthy: healthy > 0,
        recovered,
        unsettled,
        stubborn: world.stubborn.load(Ordering::Relaxed),
        idle_in_transaction: idle,
        evidence,
        odd,
        read_error: read.err().map(|e| format!("{e:#}")),
        outcome,
        missing: Vec::new(),
        history: path,
    };
    report.missing = plan.gates.missing(&report);
    if let (false, Some(lines)) = (report.passes(), copy) {
        write(&failed_at, &lines)?;
        report.history = Some(failed_at);
    }
    Ok(report)
}

/// Where open transactions are all that is wrong, only keys that are held may be refused, and nobody because of another's key.
fn needless(fault: Fault, lines: &[Line]) -> Option<String> {
    if !fault.home_is_well {
        return None;
    }
    let of_the_home =
        |line: &&Line| matches!(line, Line::Return(back) if matches!(&back.out, Out::No(code) if code == "store-unavailable"));
    let answers = lines.iter().filter(|line| matches!(line, Line::Return(_))).count();
    let refused = lines.iter().filter(of_the_home).count();
    // (Deadlocks that three repetitions did not settle are such answers, too.)
    (refused * 500 > answers).then(|| format!("{refused} of {answers} calls were told store-unavailable by a home that was well"))
}

/// Callers beside the workers, where they are the fault.
async fn extra_callers(fault: Fault, world: Arc<World>) {
    let Some(beside) = fault.beside else { return };
    let mut rng = StdRng::seed_from_u64(world.seed ^ 0xE57A);
    let mut round = 0;
    while !world.healed.load(Ordering::Relaxed) {
        round += 1;
        beside(&world, &mut rng, round).await;
    }
}

/// Reads every key from its home's primary, as the last word of the history.
async fn read_all(rig: &Rig, world: &World) -> anyhow::Result<()> {
    let keys: Vec<Place> = world.keys.lock().expect("no panic while held").iter().cloned().collect();
    for region in rig.testbed.regions() {
        let postgres = if region.name == rig.home().name { rig.primary() } else { &region.postgres };
        let owner = postgres.connect("dedup_owner").await;
        let prefix = format!("{}:", region.name);
        let own: Vec<&Place> = keys.iter().filter(|place| place.key.starts_with(&prefix)).collect();
        for chunk in own.chunks(500) {
            read_chunk(&owner, &world.net.recorder, chunk, &region.name).await?;
        }
    }
    Ok(())
}

async fn read_chunk(owner: &tokio_postgres::Client, recorder: &Recorder, places: &[&Place], home: &str) -> anyhow::Result<()> {
    let call = |place: &&Place| recorder.call(Call::new(Kind::Read, 10_000, home, place.recorded()));
    let ops: Vec<u64> = places.iter().map(call).collect();
    let topics: Vec<&str> = places.iter().map(|place| place.topic).collect();
    let groups: Vec<&str> = places.iter().map(|place| place.group()).collect();
    let keys: Vec<&str> = places.iter().map(|place| place.key.as_str()).collect();
    let rows = owner
        .query(
            "SELECT x.n, dedup.fence_text(l.fence), l.meta & 7, dedup.now_ms(), l.expires, c.hit
             FROM unnest($1::text[], $2::text[], $3::text[]) WITH ORDINALITY x(topic, grp, key, n)
             JOIN dedup.topics t ON t.name = x.topic
             CROSS JOIN LATERAL dedup.digest_v1(x.topic, t.generation, x.grp, coalesce((t.groups ->> x.grp)::bigint, 0), x.key) d(digest)
             LEFT JOIN LATERAL (SELECT l.* FROM dedup.look(ARRAY[d.digest], dedup.live_segments('{}'), '{}', '{}') l
               ORDER BY dedup.now_ms() >= CASE WHEN l.meta & 7 IN (1, 2) THEN greatest(l.expires, l.ends) ELSE l.expires END,
                 CASE l.meta & 7 WHEN 3 THEN 0 WHEN 4 THEN 2 ELSE 1 END, l.fence DESC LIMIT 1) l ON true
             LEFT JOIN LATERAL dedup.look_cold(d.digest, coalesce(dedup.live_archives('{}'), '{}'), dedup.now_ms()) c ON l.fence IS NULL
             ORDER BY x.n",
            &[&topics, &groups, &keys],
        )
        .await
        .context("the final reading")?;
    for (op, row) in ops.into_iter().zip(rows) {
        let archived: Option<i32> = row.get(5);
        let verdict = match (row.get::<_, Option<i32>>(2), archived) {
            (None, Some(2)) => anyhow::bail!("an archive cannot be read"),
            (None, Some(1)) | (Some(3), _) => Verdict::Duplicate,
            (None, _) => Verdict::Absent,
            (Some(4), _) => Verdict::Released,
            (Some(_), _) => Verdict::InProgress,
        };
        let mut answer = Answer::new(verdict);
        answer.fence = row.get::<_, Option<String>>(1).unwrap_or_default();
        answer.seen = Some(row.get(3));
        answer.cold = archived == Some(1);
        recorder.back(op, Out::Ok(answer));
    }
    Ok(())
}

/// Sessions of the service that were left inside a transaction.
async fn idle_in_transaction(rig: &Rig) -> anyhow::Result<i64> {
    let root = rig.primary().connect("postgres").await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'dedup_svc' AND state LIKE 'idle in transaction%'";
    Ok(root.query_one(sql, &[]).await?.get(0))
}
