//! What operators ask of a home, and what it answers.

use dedup_core::{Fence, Group, Topic};
use uuid::Uuid;

/// How a claim that is not done stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenState {
    /// Its lease is alive.
    InProgress,
    /// Its lease is over and nobody has taken over.
    Lapsed,
    /// Given back; the next claim is `first`.
    Released,
}

impl OpenState {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::InProgress, Self::Lapsed, Self::Released];

    /// Its word in the API and in the home.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Lapsed => "lapsed",
            Self::Released => "released",
        }
    }

    /// The state of a word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|s| s.as_str() == word)
    }
}

/// A claim that is not done.
#[derive(Debug, Clone)]
pub struct OpenClaim {
    /// Topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// The key, where the topic keeps it.
    pub key: Option<String>,
    /// Who claimed.
    pub owner: Option<String>,
    /// Note of the last extension or release.
    pub note: Option<String>,
    /// How it stands.
    pub state: OpenState,
    /// Fence of its grant.
    pub fence: Fence,
    /// Its number.
    pub attempt: i32,
    /// Home time of the grant, ms.
    pub first_seen_ms: i64,
    /// End of the window, ms.
    pub expires_ms: i64,
    /// End of the lease, or when it was released, ms.
    pub ends_ms: i64,
    /// Home time of the look, ms.
    pub at_ms: i64,
}

/// A place in a home's order of open claims: (topic id, digest).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenAt {
    /// The home's own number of the topic.
    pub topic_id: i32,
    /// Digest of the last record looked at.
    pub digest: Uuid,
}

impl OpenAt {
    /// Before everything.
    pub const START: Self = Self { topic_id: 0, digest: Uuid::nil() };
}

/// Some open claims of one home.
#[derive(Debug, Clone)]
pub struct OpenPage {
    /// In the home's order.
    pub claims: Vec<OpenClaim>,
    /// Where to go on; `None`: that was all.
    pub next: Option<OpenAt>,
}

/// What a forced release found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ForceReleased {
    /// The claim was ended.
    Released {
        /// Its number.
        attempt: i32,
        /// Fence of the grant that was ended; no longer current.
        fence: Fence,
        /// Who held it.
        owner: Option<String>,
    },
    /// There is no open claim, but something else: `absent`, `expired`, `done`, `released` or `issued`.
    NotOpen {
        /// The word.
        state: String,
    },
}

/// A deed that was written down.
#[derive(Debug, Clone)]
pub struct AuditEntry {
    /// The home's own number; rises.
    pub id: i64,
    /// Home time, ms.
    pub at_ms: i64,
    /// Who.
    pub actor: String,
    /// What: `forget`, `force-release`.
    pub action: String,
    /// Topic.
    pub topic: String,
    /// Group.
    pub group: String,
    /// Which record, without telling its key.
    pub digest: Uuid,
    /// Why.
    pub reason: String,
}

/// A deed about one record: who does it, and why.
#[derive(Debug, Clone, Copy)]
pub struct Deed<'a> {
    /// Caller.
    pub actor: &'a str,
    /// For the audit trail.
    pub reason: &'a str,
    /// Topic of the record.
    pub topic: &'a Topic,
    /// Group of the record.
    pub group: &'a Group<'a>,
}

/// How far a forget has come in one region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    /// Which.
    pub region: String,
    /// Every instance of it that the home hears of has read past the forget.
    pub done: bool,
    /// Instances the home has not heard of for 10 s, and which did not end in good order: down (they hold nothing then), or cut off.
    pub unheard: Vec<String>,
}

/// What a forget did.
#[derive(Debug, Clone)]
pub struct Forgotten {
    /// A live record was removed.
    pub removed: bool,
    /// Per region, by name.
    pub regions: Vec<Spread>,
}

/// What forgetting a topic or group did.
#[derive(Debug, Clone)]
pub struct ForgottenAll {
    /// The generation that counts now, of the topic or of the group.
    pub generation: i64,
    /// Home name → done (else: kept trying).
    pub homes: Vec<(String, bool)>,
    /// Caches, for the homes where it is done.
    pub regions: Vec<Spread>,
}

/// A job that forgets what was first seen within a range of time.
#[derive(Debug, Clone)]
pub struct JobSpec {
    /// Chosen by the caller, so that asking again does not begin another.
    pub id: Uuid,
    /// Topic.
    pub topic: Topic,
    /// Group; `None`: all.
    pub group: Option<String>,
    /// First seen from here on, ms.
    pub from_ms: i64,
    /// And before this, ms.
    pub to_ms: i64,
    /// Only counts.
    pub dry_run: bool,
}

/// How beginning a job went in one home.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobStarted {
    /// It is there.
    Queued,
    /// The home has no such topic (yet).
    NoTopic,
    /// The topic does not keep its keys, so its records cannot be told from others.
    KeysNotKept,
}

/// A job as one home has it.
#[derive(Debug, Clone)]
pub struct JobView {
    /// What it is to do.
    pub spec: JobSpec,
    /// `queued`, `running` or `done`.
    pub state: String,
    /// Records looked at.
    pub looked: i64,
    /// Of them, those that were meant (and, unless it is a dry run, forgotten).
    pub matched: i64,
    /// Home time, ms.
    pub created_ms: i64,
    /// Home time of the latest progress, ms.
    pub changed_ms: i64,
}
