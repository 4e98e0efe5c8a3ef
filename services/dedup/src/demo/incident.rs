//! The incident: for a minute the clients of one region repeat everything, as they do when their acknowledgements get lost.

use std::time::Duration;

use super::screen::say;
use super::world::World;

/// The region whose clients retry: the first.
const REGION: usize = 0;
/// First a past, or there would be nothing to be unusual against.
const AFTER: Duration = Duration::from_secs(45);
const LENGTH: Duration = Duration::from_secs(60);
/// Deliveries of a message beside the first, while it lasts.
pub(super) const REPEATS: usize = 8;

/// Lets it happen once.
pub(super) async fn happen(world: &World, region: &str) {
    tokio::time::sleep(AFTER).await;
    say(&format!("Incident: from now on the clients of {region} deliver every message {REPEATS} times again, for {} s", LENGTH.as_secs()));
    world.storm(Some(REGION));
    tokio::time::sleep(LENGTH).await;
    world.storm(None);
    say("Incident: over");
    std::future::pending().await
}
