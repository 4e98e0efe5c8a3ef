//! The ends of a claim: complete, release, extend.

use super::Client;
use super::send::Repeat;
use crate::{Batch, BatchAnswer, CompleteRequest, ExtendRequest, Outcome, ReleaseRequest, Result, Settled, StoredResult};

impl Client {
    /// The work is done. Completing again with the same outcome and result is a success too.
    ///
    /// # Errors
    /// Code `lease-lost` if somebody else took over, `already-completed` if it was completed otherwise; see [`Error`](crate::Error).
    pub async fn complete(&self, claim_token: &str, outcome: Outcome, result: Option<StoredResult>) -> Result<Settled> {
        let request = CompleteRequest { claim_token: claim_token.to_owned(), outcome, result };
        self.answer(self.post(&["v1", "claims", "complete"], &request, Repeat::Always)?).await
    }

    /// Completes many.
    ///
    /// # Errors
    /// Of the call as a whole; an item's problem is in its place.
    pub async fn complete_batch(&self, items: Vec<CompleteRequest>) -> Result<BatchAnswer<Settled>> {
        self.answer(self.post(&["v1", "claims", "complete", "batch"], &Batch::new(items), Repeat::Always)?).await
    }

    /// The work was not done; the key may be claimed again at once. The next attempt is shown the note.
    ///
    /// # Errors
    /// Code `lease-lost` if the claim has ended; see [`Error`](crate::Error).
    pub async fn release(&self, claim_token: &str, note: Option<&str>) -> Result<Settled> {
        let request = ReleaseRequest { claim_token: claim_token.to_owned(), note: note.map(str::to_owned) };
        self.answer(self.post(&["v1", "claims", "release"], &request, Repeat::IfNotApplied)?).await
    }

    /// Releases many.
    ///
    /// # Errors
    /// Of the call as a whole; an item's problem is in its place.
    pub async fn release_batch(&self, items: Vec<ReleaseRequest>) -> Result<BatchAnswer<Settled>> {
        self.answer(self.post(&["v1", "claims", "release", "batch"], &Batch::new(items), Repeat::IfNotApplied)?).await
    }

    /// The work takes longer: the lease counts from now. `lease_ms`: milliseconds; `None` = the topic's lease.
    ///
    /// # Errors
    /// Code `lease-lost` if the claim has ended: stop working; see [`Error`](crate::Error).
    pub async fn extend(&self, claim_token: &str, lease_ms: Option<u64>, note: Option<&str>) -> Result<Settled> {
        let request = ExtendRequest { claim_token: claim_token.to_owned(), lease_ms, note: note.map(str::to_owned) };
        self.answer(self.post(&["v1", "claims", "extend"], &request, Repeat::Always)?).await
    }

    /// Extends many.
    ///
    /// # Errors
    /// Of the call as a whole; an item's problem is in its place.
    pub async fn extend_batch(&self, items: Vec<ExtendRequest>) -> Result<BatchAnswer<Settled>> {
        self.answer(self.post(&["v1", "claims", "extend", "batch"], &Batch::new(items), Repeat::Always)?).await
    }
}
