//! Every tier's bytes and the ladder over them: local (moka), hot (Redis), warm (the home's Postgres).
//!
//! Architecture invariant: SQL and Redis are spoken here and nowhere else. The home alone says `first`; the tiers above it only ever hold
//! committed, immutable facts ([`cached`]), so losing one costs latency and never a verdict.

mod ask;
mod cached;
mod chain;
mod doctor;
mod home;
mod hot;
mod janitor;
mod ladder;
mod local;
mod metrics;
mod operators;
mod postgres;
mod refusal;
mod sabotage;
mod segments;
mod topics;
mod trace;

pub use ask::{Answer, Ask, Basis, Finish, FinishAnswer, FinishOp, Looked, Previous, Texts};
pub use chain::chain;
pub use doctor::{Finding, Grade, HomeProbe, HomeReport, home_secret, probe_home, probe_redis};
pub use home::{Around, Figures, FilterHealth, HomeFigures, HomeHealth, HomeSettings, Homes, SegmentFigures, TopicCopy};
pub use hot::{HotFigures, HotHealth, HotSettings, HotTier};
pub use janitor::{
    ExportScope, Exported, ExportedId, ExportedRecord, HomeTopic, Import, ImportRow, Janitor, JanitorError, JanitorSettings, KeptKey,
    Loaded, Round,
};
pub use ladder::{Ladder, LookedUp, Query, Request, TierReport};
pub use local::{LocalHealth, LocalTier};
pub use metrics::StoreMetrics;
pub use operators::{
    AuditEntry, Deed, ForceReleased, Forgotten, ForgottenAll, JobSpec, JobStarted, JobView, OpenAt, OpenClaim, OpenPage, OpenState, Spread,
};
pub use postgres::{
    CLIENT_VERSION, ConnectError, Hello, HomeProblem, MigrateError, Migrated, PgTarget, SCHEMA_VERSION, ask_home, check_home, connect_once,
    migrate, raise_epoch,
};
pub use refusal::{Applied, Refusal, RefusalKind};
pub use segments::SegmentInfo;
pub use topics::{DeleteOutcome, ForgotAll, PutOutcome, PutTopic, TopicSpec, Topics, TopicsError};
