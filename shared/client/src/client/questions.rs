//! Check and claim, and looking without asking.

use bytes::Bytes;
use serde::Serialize;

use super::Client;
use super::send::Repeat;
use crate::wire::request::Identified;
use crate::{Answer, Batch, BatchAnswer, CheckRequest, ClaimRequest, Forgotten, Lookup, RecordRef, Result};

impl Client {
    /// "Am I the first?", in one step: a first marks the key done.
    ///
    /// # Errors
    /// See [`Error`](crate::Error); so for all calls.
    pub async fn check(&self, topic: &str, request: &CheckRequest) -> Result<Answer> {
        let call = self.post(&["v1", "topics", topic, "checks"], &request.identified(), Repeat::Always)?;
        self.answer(call).await
    }

    /// Many checks in one call.
    ///
    /// # Errors
    /// Of the call as a whole; an item's problem is in its place.
    pub async fn check_batch(&self, topic: &str, batch: &Batch<CheckRequest>) -> Result<BatchAnswer> {
        let call = self.post(&["v1", "topics", topic, "checks", "batch"], &identified(batch), Repeat::Always)?;
        self.answer(call).await
    }

    /// Claims a key: a first comes with a claim token and a lease.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn claim(&self, topic: &str, request: &ClaimRequest) -> Result<Answer> {
        let call = self.post(&["v1", "topics", topic, "claims"], &request.identified(), Repeat::Always)?;
        self.answer(call.waiting(request.wait_ms)).await
    }

    /// Many claims in one call.
    ///
    /// # Errors
    /// Of the call as a whole; an item's problem is in its place.
    pub async fn claim_batch(&self, topic: &str, batch: &Batch<ClaimRequest>) -> Result<BatchAnswer> {
        let call = self.post(&["v1", "topics", topic, "claims", "batch"], &identified(batch), Repeat::Always)?;
        let wait_ms = batch.items.iter().filter_map(|item| item.wait_ms).max();
        self.answer(call.waiting(wait_ms)).await
    }

    /// Posts a body of your own making (JSON) and gives the answer as it came, for callers to whom an allocation per item matters. It is
    /// repeated like a check, so every item must carry a request id.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn post_raw(&self, path: &[&str], body: Bytes) -> Result<Bytes> {
        self.send(&self.post_bytes(path, body, Repeat::Always)?).await
    }

    /// What is known of a record, and why; claims nothing.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn lookup(&self, topic: &str, record: &RecordRef) -> Result<Lookup> {
        let call = self.post(&["v1", "topics", topic, "records", "lookup"], record, Repeat::Always)?;
        self.answer(call).await
    }

    /// Forgets a record in every tier and region; [`RecordRef::reason`] must be given.
    ///
    /// # Errors
    /// See [`Error`](crate::Error).
    pub async fn forget(&self, topic: &str, record: &RecordRef) -> Result<Forgotten> {
        let call = self.post(&["v1", "topics", topic, "records", "forget"], record, Repeat::IfNotApplied)?;
        self.answer(call).await
    }
}

/// The batch with an id on every item, so that a repeat of the call repeats each item.
fn identified<T: Identified + Serialize>(batch: &Batch<T>) -> Batch<T> {
    Batch {
        group: batch.group.clone(),
        detail: batch.detail,
        items: batch.items.iter().map(|item| item.identified().into_owned()).collect(),
    }
}
