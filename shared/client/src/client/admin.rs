//! Topics and the state of the service.

use reqwest::Method;
use serde_json::Value;

use super::Client;
use super::send::Repeat;
use crate::{Error, PutTopic, Readiness, Result, TopicPolicy, TopicView, Topics};

impl Client {
    /// Sets a topic's policy in all homes; see [`PutTopic::is_everywhere`].
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn put_topic(&self, topic: &str, policy: &TopicPolicy) -> Result<PutTopic> {
        self.answer(self.put(&["v1", "topics", topic], policy)?).await
    }

    /// A topic's policy.
    ///
    /// # Errors
    /// Code `topic-not-found`; see [`Error`].
    pub async fn get_topic(&self, topic: &str) -> Result<TopicView> {
        self.answer(self.call(Method::GET, &["v1", "topics", topic], Repeat::Always)?).await
    }

    /// Deletes a topic.
    ///
    /// # Errors
    /// Code `topic-in-use` while it has live records; see [`Error`].
    pub async fn delete_topic(&self, topic: &str) -> Result<()> {
        let call = self.call(Method::DELETE, &["v1", "topics", topic], Repeat::IfNotApplied)?;
        self.send(&call).await.map(drop)
    }

    /// The topics the caller may see.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn list_topics(&self) -> Result<Topics> {
        self.answer(self.call(Method::GET, &["v1", "topics"], Repeat::Always)?).await
    }

    /// Health per home and tier, as the service tells it.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn regions(&self) -> Result<Value> {
        self.answer(self.call(Method::GET, &["v1", "regions"], Repeat::Always)?).await
    }

    /// Whether the instance can answer. Where it has an admin listener, make a client of that address.
    ///
    /// # Errors
    /// No reply, or one that is no readiness report.
    pub async fn readyz(&self) -> Result<Readiness> {
        let (status, body, _) = self.exchange(&self.call(Method::GET, &["readyz"], Repeat::Always)?).await?;
        let report = serde_json::from_slice(&body).map_err(|error| Error::Decode(format!("{status}: {error}")))?;
        Ok(Readiness { ready: status.is_success(), report })
    }

    /// The metrics in Prometheus' text format. Where the instance has an admin listener, make a client of that address.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn metrics_text(&self) -> Result<String> {
        let body = self.send(&self.call(Method::GET, &["metrics"], Repeat::Always)?).await?;
        String::from_utf8(body.into()).map_err(|error| Error::Decode(error.to_string()))
    }
}
