//! What a problem looks like; for the OpenAPI document only. Problems are written by `crate::problem`.

use utoipa::ToSchema;

/// A problem (RFC 9457). More members may follow: `min`, `max`, `state`, `fence`, `known`, `request_id`, …
#[derive(ToSchema)]
#[schema(as = Problem)]
#[expect(dead_code, reason = "only its schema is used")]
pub struct ProblemBody {
    /// Path of the page that explains the code.
    #[schema(example = "/problems/invalid-field")]
    r#type: String,
    /// What to branch on.
    #[schema(example = "invalid-field")]
    code: String,
    /// One line for people.
    title: String,
    /// The HTTP status.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// What exactly, for people.
    detail: String,
    /// JSON pointer to the member of the body that is not valid.
    #[schema(nullable = false)]
    pointer: Option<String>,
    /// The parameter of the URL that is not valid.
    #[schema(nullable = false)]
    parameter: Option<String>,
    /// With 503: whether the call may have changed anything, `no` or `unknown`.
    #[schema(nullable = false)]
    applied: Option<String>,
    /// With 503: `any`, or `same_request_id`.
    #[schema(nullable = false)]
    retry: Option<String>,
    /// With 503: when to repeat, milliseconds.
    #[schema(nullable = false)]
    retry_after_ms: Option<u64>,
}
