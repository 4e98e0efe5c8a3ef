//! How hard the janitor works.

use std::time::{Duration, Instant};

/// It rests for as long as it worked: a machine without a core to spare is the questions', and nothing waits for an archive. (A filter is built in
/// one go: until a sealed segment has one, every question looks into it.)
pub(super) struct Pace(Instant);

/// At most: whatever made a step longer than that is over.
const REST: Duration = Duration::from_secs(10);

impl Pace {
    pub fn new() -> Self {
        Self(Instant::now())
    }

    /// To be called between small steps.
    pub async fn rest(&mut self) {
        tokio::time::sleep(self.0.elapsed().min(REST)).await;
        self.0 = Instant::now();
    }
}
