//! Postgres: connections, calls, the meaning of its errors, migrations. All SQL of the service is below here and in `migrations/`.

mod calls;
mod connect;
mod hello;
mod job_calls;
mod migrate;
mod operator_calls;
mod outcome;
mod rows;
mod segment_calls;
mod topic_calls;

pub(crate) use calls::{
    Called, Decided, Identity, Pulse, call_decide, call_doubt, call_finish, call_forget, call_forgets, call_heartbeat, call_lookup,
    call_pulse, prepare_decide, prepare_finish,
};
pub use connect::{ConnectError, PgTarget, connect_once};
pub(crate) use connect::{Feed, Line, Lines, open_feed};
pub(crate) use hello::call_hello;
pub use hello::{CLIENT_VERSION, Hello, HomeProblem, SCHEMA_VERSION, ask_home, check_home};
pub(crate) use job_calls::{call_job, call_start_job};
pub use migrate::{MigrateError, Migrated, migrate, raise_epoch};
pub(crate) use operator_calls::{
    FeedRow, OpenQuery, call_audit, call_feed_gone, call_feed_seen, call_feeds, call_force_release, call_gauges, call_open_claims,
};
pub(crate) use outcome::CallError;
pub(crate) use segment_calls::{FilterRow, call_filter_chunk, call_filters, call_segments};
pub(crate) use topic_calls::{Raised, TopicRow, call_put_topic, call_raise_generation, call_topic_in_use, call_topics};
