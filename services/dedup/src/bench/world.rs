//! The benchmark's own servers: one region with Postgres (fsync on), Redis and one service.

use std::time::Duration;

use anyhow::Context;
use dedup_client::{Client, TopicPolicy, Window};
use dedup_testbed::{Options, Region, Testbed};

/// One region, and a table for the peer.
pub struct World {
    testbed: Testbed,
    /// Topic of all questions.
    pub topic: &'static str,
}

impl World {
    /// Starts everything.
    pub async fn start() -> anyhow::Result<Self> {
        let mut options = Options::new(std::env::current_exe()?);
        options.regions = vec!["eu".into()];
        // Room for a million records beside what the rows need.
        options.extra_tables = "[local]\nbytes = 536870912\n[log]\nlevel = \"warn\"\n".into();
        let testbed = Testbed::start(options).await?;
        let world = Self { testbed, topic: "bench" };
        let client = Client::new(&world.region().instances[0].url())?.with_timeout(Duration::from_secs(30));
        let policy = TopicPolicy { window_ms: Some(Window::Ms(86_400_000)), ..TopicPolicy::default() };
        client.put_topic(world.topic, &policy).await.context("the topic could not be made")?;
        let owner = world.region().postgres.connect("postgres").await;
        owner.batch_execute("CREATE TABLE peer (key text PRIMARY KEY); CREATE TABLE peer_idle (key text PRIMARY KEY)").await?;
        Ok(world)
    }

    /// The region.
    pub fn region(&self) -> &Region {
        self.testbed.region("eu")
    }

    /// Port of the service.
    pub fn port(&self) -> u16 {
        self.region().instances[0].port()
    }

    /// Ends everything.
    pub async fn stop(self) -> anyhow::Result<()> {
        Ok(self.testbed.stop().await?)
    }

    /// What was measured against what.
    pub async fn versions(&self) -> anyhow::Result<String> {
        let owner = self.region().postgres.connect("postgres").await;
        let postgres: String = owner.query_one("SHOW server_version", &[]).await?.get(0);
        let fsync: String = owner.query_one("SHOW fsync", &[]).await?.get(0);
        let redis = super::peers::redis_version().await?;
        Ok(format!("Postgres {postgres}, fsync {fsync}; {redis}"))
    }
}
