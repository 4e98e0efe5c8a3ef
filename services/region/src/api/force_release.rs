//! Ending somebody's open claim.

use actix_web::web::{Data, Path, Payload};
use actix_web::{HttpRequest, HttpResponse};
use dedup_runtime::config::Role;
use dedup_store::{Deed, ForceReleased};

use super::ok;
use super::opening::{Opened, open};
use crate::parse::{check_reason, parse_group, parse_key};
use crate::problem::{Code, Problem};
use crate::service::Service;
use crate::wire::{ForceReleaseRequest, ForceReleasedBody};

/// Ends an open claim of whoever holds it, its lease alive or lapsed: the next claim anywhere is `first`. The holder is not told until its
/// next call, which is `lease-lost`: make sure that its work has stopped. Audited.
#[utoipa::path(post, path = "/v1/topics/{topic}/records/force-release", tag = "operators", params(("topic" = String, Path,)), request_body = ForceReleaseRequest,
    responses((status = 200, body = ForceReleasedBody), (status = 404, description = "record-not-found: no open claim; `state` says what there is (problem+json)"), (status = "4XX", description = "a caller's mistake (problem+json)"), (status = 503, description = "the home cannot be asked (problem+json)")))]
pub async fn force_release(
    request: HttpRequest,
    path: Path<String>,
    payload: Payload,
    service: Data<Service>,
) -> Result<HttpResponse, Problem> {
    let Opened { caller, deadline, asked, policy } = open::<ForceReleaseRequest>(&service, &request, payload, &path, Role::Operate).await?;
    let ladder = &service.ladder;
    let key = parse_key(&asked.key, &service.limits, &policy, ladder.table())?;
    let group = parse_group(asked.group.as_deref())?;
    let reason = check_reason(&asked.reason)?;
    let deed = Deed { actor: &caller.name, reason, topic: &policy.topic, group: &group };
    let done = ladder.force_release(&key, &deed, deadline).await.map_err(|refusal| service.refused(&caller, &policy.topic, refusal))?;
    match done {
        ForceReleased::Released { attempt, fence, owner } => Ok(ok(&ForceReleasedBody {
            state: "released",
            key: key.as_str().to_owned(),
            group: group.as_str().to_owned(),
            home_region: ladder.table().get(key.home()).name.clone(),
            attempt,
            fence: fence.to_string(),
            owner,
        })),
        ForceReleased::NotOpen { state } => {
            Err(Problem::new(Code::RecordNotFound, "there is no open claim of this key").with("state", state))
        }
    }
}
