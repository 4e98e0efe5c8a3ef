//! The topics of the demo: one for each way of use.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use dedup_client::{Client, TopicPolicy, Window};
use dedup_testbed::Testbed;

const HOUR_MS: u64 = 3_600_000;
const EVERYWHERE_WITHIN: Duration = Duration::from_secs(30);

/// A stream of the demo.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Topic {
    /// Claim, work, complete with a result.
    Payments,
    /// One check a message.
    Emails,
    /// Checks in batches, most of them duplicates.
    Clicks,
}

impl Topic {
    /// In the order of the table.
    pub(super) const ALL: [Self; 3] = [Self::Payments, Self::Emails, Self::Clicks];

    /// Its name in the service.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Payments => "payments",
            Self::Emails => "emails",
            Self::Clicks => "clicks",
        }
    }

    /// How long its keys are remembered, milliseconds.
    fn window_ms(self) -> u64 {
        match self {
            Self::Payments => 7 * 24 * HOUR_MS,
            Self::Emails => 24 * HOUR_MS,
            Self::Clicks => HOUR_MS,
        }
    }
}

/// Registers the topics, and returns when every home has them.
pub(super) async fn put(testbed: &Testbed) -> anyhow::Result<()> {
    let client = Client::new(&testbed.regions()[0].instances[0].url())?;
    for topic in Topic::ALL {
        let policy = TopicPolicy { window_ms: Some(Window::Ms(topic.window_ms())), ..TopicPolicy::default() };
        put_everywhere(&client, topic, &policy).await.with_context(|| format!("cannot register the topic {}", topic.name()))?;
    }
    Ok(())
}

/// The service keeps trying the homes it did not reach; the same PUT tells how far it got.
async fn put_everywhere(client: &Client, topic: Topic, policy: &TopicPolicy) -> anyhow::Result<()> {
    let deadline = Instant::now() + EVERYWHERE_WITHIN;
    loop {
        let put = client.put_topic(topic.name(), policy).await?;
        if put.is_everywhere() {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "not in every home after {EVERYWHERE_WITHIN:?}: {:?}", put.homes);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
