//! REST client of the deduplication service, for Rust consumers.
//!
//! The rule of repeats: each question carries a random *request id*, made here where it is absent, and a repeat after a lost reply carries
//! the same one. So a repeat gets the grant it already has, never a second one. Never derive a request id from the message: a worker that
//! was given up and its successor would then share one grant.
//!
//! # Claim, work, complete
//!
//! What happens when the worker dies: this is the row **"REST claim → effect → complete"**. Before the effect: redone after the lease.
//! Between effect and record: the effect is done again. So it happens *at least once, by one owner at a time*. A store that refuses an older
//! [`Answer::fence`] keeps a late former owner out; only a unique key on the effect itself makes it happen once.
//!
//! ```no_run
//! use dedup_client::{ClaimRequest, Client, Outcome, StoredResult, Verdict};
//!
//! # fn charge(_fence: Option<&str>) -> Result<String, String> { Ok(String::new()) }
//! # async fn handle() -> Result<(), dedup_client::Error> {
//! let client = Client::new("http://127.0.0.1:8080")?;
//! let claim = ClaimRequest { lease_ms: Some(30_000), ..ClaimRequest::new("eu:acme/idem-8e03") };
//! let answer = client.claim("payments", &claim).await?;
//! match (&answer.verdict, &answer.claim_token) {
//!     (Verdict::First, Some(token)) => match charge(answer.fence.as_deref()) {
//!         Ok(receipt) => {
//!             let result = StoredResult::from_bytes("application/json", receipt.as_bytes());
//!             client.complete(token, Outcome::Succeeded, Some(result)).await?;
//!         }
//!         // Nothing happened: give the key back now instead of letting the lease run out.
//!         Err(why) => _ = client.release(token, Some(&why)).await?,
//!     },
//!     (Verdict::Duplicate, _) => { /* done before: replay answer.result */ }
//!     // in_progress: ask again after answer.retry_after_ms; mismatch: the same key with another payload
//!     _ => {}
//! }
//! # Ok(())
//! # }
//! ```

mod client;
mod error;
mod open_enum;
mod wire;

pub use client::Client;
pub use error::{Error, Result};
pub use wire::admin::{PutTopic, Readiness, TopicPolicy, TopicView, Topics};
pub use wire::answer::{Answer, Certainty, Previous, Tier, Verdict};
pub use wire::batch::{Batch, BatchAnswer, BatchItem, Detail};
pub use wire::bulk::{ForgetAll, ForgetJob, ForgottenAll, Job, JobInHome, JobStarted};
pub use wire::operators::{Audit, AuditEntry, ClaimFilter, ForceReleased, OpenClaim, OpenClaims};
pub use wire::problem::{Applied, Problem};
pub use wire::record::{Forgotten, Lookup, RecordRef};
pub use wire::request::{CheckRequest, ClaimRequest, Window};
pub use wire::result::StoredResult;
pub use wire::settle::{CompleteRequest, ExtendRequest, Outcome, ReleaseRequest, Settled};

/// A fresh request id: 32 hexadecimal digits, random. Make your own with it where you want to ask again later than a call lasts.
#[must_use]
pub fn new_request_id() -> String {
    uuid::Uuid::new_v4().simple().to_string()
}
