//! What to try while the demo runs.

use dedup_testbed::{Region, Testbed};

use super::screen::say;
use super::topics::Topic;

/// Prints where the regions are, and the same question twice: once in its home region, once in another.
pub(super) fn print(testbed: &Testbed) {
    for region in testbed.regions() {
        say(&format!("{}   {}/docs", region.name, region.instances[0].url()));
        say(&format!("     psql \"{}\"", region.postgres.dsn("postgres")));
        if let Some(redis) = &region.redis {
            say(&format!("     redis-cli -u {}", redis.url()));
        }
    }
    let [home, .., other] = testbed.regions() else {
        return;
    };
    say("\nAm I the first to handle this key? Ask once, ask again, ask in another region:");
    for region in [home, home, other] {
        say(&format!("  {}", question(region, &format!("{}:hello-1", home.name))));
    }
    say("");
}

fn question(region: &Region, key: &str) -> String {
    format!(
        "curl -s {}/v1/topics/{}/checks -H 'content-type: application/json' -d '{{\"key\":\"{key}\"}}'",
        region.instances[0].url(),
        Topic::Emails.name(),
    )
}
