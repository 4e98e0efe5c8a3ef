//! At-least-once consumers: each function is the life of one message, or of one batch, with its mishaps.

use std::time::Duration;

use dedup_client::new_request_id;

use super::ask::{Answer, Completion, Verdict};
use super::incident::REPEATS;
use super::topics::Topic;
use super::world::World;

/// Short, so that a crash is taken over while one watches.
const LEASE: Duration = Duration::from_secs(2);
/// Part of the deliveries the broker makes again although they were handled: it missed the acknowledgement.
const REDELIVERED: f64 = 0.3;
/// Part of the messages that reach two consumers at the same time.
const TWINS: f64 = 0.05;
/// Part of the claims whose worker dies at work.
const CRASHES: f64 = 0.02;
/// Part of the clicks that are new; the rest was seen before.
const NEW_CLICKS: f64 = 0.35;

/// A message of `payments`: claim, work, complete.
pub(super) async fn payment(world: &World) {
    let region = world.any_region();
    let key = world.new_key(region, "pay");
    if rand::random_bool(TWINS) {
        tokio::join!(payment_deliveries(world, region, &key), payment_deliveries(world, world.any_region(), &key));
    } else {
        payment_deliveries(world, region, &key).await;
    }
}

/// A message of `emails`: one check, then the effect.
pub(super) async fn email(world: &World) {
    let region = world.any_region();
    let key = world.new_key(region, "mail");
    let deliver = |region| check(world, region, &key);
    if rand::random_bool(TWINS) {
        tokio::join!(deliver(region), deliver(world.any_region()));
    } else {
        deliver(region).await;
    }
    let mut repeats = if world.storms(region) { REPEATS } else { 0 };
    while repeats > 0 && world.pause(some_ms(10, 100)).await {
        repeats -= 1;
        deliver(region).await;
    }
    while rand::random_bool(REDELIVERED) && world.pause(some_ms(10, 1_500)).await {
        deliver(world.region_of_redelivery(region)).await;
    }
}

/// A batch of `clicks`, mostly duplicates; now and then all of it comes again.
pub(super) async fn clicks(world: &World, size: usize) {
    let region = world.any_region();
    let keys: Vec<String> = (0..size).map(|_| click(world, region)).collect();
    check_batch(world, region, &keys).await;
    let mut repeats = if world.storms(region) { REPEATS } else { 0 };
    while repeats > 0 && world.pause(some_ms(10, 100)).await {
        repeats -= 1;
        check_batch(world, region, &keys).await;
    }
    while rand::random_bool(REDELIVERED) && world.pause(some_ms(10, 1_500)).await {
        check_batch(world, world.region_of_redelivery(region), &keys).await;
    }
}

/// Delivers until the broker believes that the message was handled.
async fn payment_deliveries(world: &World, first_region: usize, key: &str) {
    let mut region = first_region;
    loop {
        let pause = match payment_delivery(world, region, key).await {
            Delivery::Acknowledged if rand::random_bool(REDELIVERED) => some_ms(10, 1_500),
            Delivery::Acknowledged => return,
            Delivery::Again(pause) => pause,
        };
        if !world.pause(pause).await {
            return;
        }
        region = world.region_of_redelivery(region);
    }
}

/// What the broker sees of a delivery.
enum Delivery {
    Acknowledged,
    Again(Duration),
}

async fn payment_delivery(world: &World, region: usize, key: &str) -> Delivery {
    let (at, request_id) = ((region, Topic::Payments), &new_request_id());
    let question = || world.instance(region).claim(Topic::Payments, key, request_id, LEASE);
    world.maybe_lose_reply(question()).await;
    match world.ask(at, (key, request_id), question).await {
        Some(Answer { verdict: Verdict::First { grant, .. }, .. }) => {
            if rand::random_bool(CRASHES) {
                // The worker is gone. The broker delivers again; the next one has to wait for the lease to lapse.
                return Delivery::Again(some_ms(100, 500));
            }
            tokio::time::sleep(some_ms(1, 30)).await;
            complete(world, region, key, grant.attempt, grant.claim_token.as_deref()).await
        }
        Some(Answer { verdict: Verdict::InProgress { retry_after }, .. }) => Delivery::Again(retry_after),
        Some(Answer { verdict: Verdict::Duplicate, .. }) | None => Delivery::Acknowledged,
    }
}

async fn complete(world: &World, region: usize, key: &str, attempt: u32, claim_token: Option<&str>) -> Delivery {
    let at = (region, Topic::Payments);
    let Some(claim_token) = claim_token else {
        world.trouble(at, "a claim was granted without a token".into());
        return Delivery::Acknowledged;
    };
    let result = format!("{{\"receipt\":\"{key}\",\"attempt\":{attempt}}}");
    let call = || world.instance(region).complete(claim_token, &result);
    world.maybe_lose_reply(call()).await;
    match world.persist(at, call).await {
        Some((Completion::Done, _)) => world.oracle.completed(key, attempt),
        // Whoever took over completes it.
        Some((Completion::LeaseLost, _)) => {}
        None => return Delivery::Again(LEASE),
    }
    Delivery::Acknowledged
}

async fn check(world: &World, region: usize, key: &str) {
    let request_id = &new_request_id();
    let question = || world.instance(region).check(Topic::Emails, key, request_id);
    world.maybe_lose_reply(question()).await;
    world.ask((region, Topic::Emails), (key, request_id), question).await;
}

async fn check_batch(world: &World, region: usize, keys: &[String]) {
    let at = (region, Topic::Clicks);
    let mut open: Vec<(String, String)> = keys.iter().map(|key| (key.clone(), new_request_id())).collect();
    world.maybe_lose_reply(world.instance(region).check_batch(Topic::Clicks, &open)).await;
    let mut rounds_left = 10;
    while !open.is_empty() && rounds_left > 0 {
        rounds_left -= 1;
        let call = || world.instance(region).check_batch(Topic::Clicks, &open);
        let Some((answers, took)) = world.persist(at, call).await else {
            break;
        };
        let decided = answers.iter().flatten().map(|answer| (&answer.verdict, answer.tier));
        world.stats.answered(region, Topic::Clicks, took, decided);
        // Only what was not decided is asked again, each item with its request id.
        let mut pause = Duration::ZERO;
        let mut still_open = Vec::new();
        for ((key, request_id), answer) in open.into_iter().zip(answers) {
            match answer {
                Ok(answer) => world.oracle.told(&key, &request_id, &answer.verdict),
                Err(undecided) => {
                    world.trouble(at, undecided.why);
                    pause = pause.max(undecided.again_after.unwrap_or_default());
                    still_open.push((key, request_id));
                }
            }
        }
        open = still_open;
        if !open.is_empty() {
            tokio::time::sleep(pause).await;
        }
    }
    open.iter().for_each(|(key, _)| world.oracle.never_told(key));
}

fn click(world: &World, region: usize) -> String {
    match world.recent_click() {
        Some(key) if !rand::random_bool(NEW_CLICKS) => key,
        _ => {
            let key = world.new_key(region, "click");
            world.remember_click(key.clone());
            key
        }
    }
}

fn some_ms(least: u64, below: u64) -> Duration {
    Duration::from_millis(rand::random_range(least..below))
}
