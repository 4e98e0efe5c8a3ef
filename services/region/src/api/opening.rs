//! How a call about records of a topic begins.

use std::sync::Arc;
use std::time::Instant;

use actix_web::HttpRequest;
use actix_web::web::Payload;
use dedup_core::TopicPolicy;
use dedup_runtime::config::Role;
use serde::de::DeserializeOwned;

use crate::auth::Caller;
use crate::body;
use crate::problem::Problem;
use crate::service::Service;

/// Who asks, until when, for what, of which topic.
pub struct Opened<T> {
    pub caller: Caller,
    pub deadline: Instant,
    pub asked: T,
    pub policy: Arc<TopicPolicy>,
}

/// Checks in the documented order: the caller, the body's shape, the topic.
pub async fn open<T: DeserializeOwned>(
    service: &Service,
    request: &HttpRequest,
    payload: Payload,
    topic: &str,
    role: Role,
) -> Result<Opened<T>, Problem> {
    let caller = service.callers.identify(request)?;
    caller.needs(role)?;
    let deadline = service.deadline_of(request)?;
    let asked = body::parse(&body::read(request, payload, service.limits.body_bytes).await?, service.limits.json_depth)?;
    let policy = service.topic(&caller, topic).await?;
    Ok(Opened { caller, deadline, asked, policy })
}
