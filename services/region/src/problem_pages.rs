//! The page behind each problem's `type`: what it means and what to do.

use crate::problem::Code;

/// What the caller should do about it.
pub fn advice(code: Code) -> &'static str {
    match code {
        Code::MalformedRequest => {
            "Send one JSON object (UTF-8, at most 16 levels deep, no member twice) of the shape that /docs shows. Nothing was changed."
        }
        Code::InvalidField => {
            "`pointer` names the field, `detail` what is allowed there (`min` and `max` where there is a range). Unknown fields are refused, so that a misspelt one is noticed. Nothing was changed."
        }
        Code::Unauthenticated => "Send `Authorization: Bearer <token>` with a token that the configuration knows.",
        Code::TopicNotPermitted => {
            "The topic is not granted to this caller, or there is none of this name; callers without the role `admin` are not told which. Ask an administrator."
        }
        Code::RoleNotPermitted => "The call needs a higher role (use < operate < admin). Ask an administrator.",
        Code::NotFound => "See /docs for the paths there are.",
        Code::TopicNotFound => "Create it with the PUT that `detail` shows. A topic holds the policy for its keys: window, lease.",
        Code::RecordNotFound => "There is no open claim of this key (and group): `state` says what there is. Nothing was changed.",
        Code::MethodNotAllowed => "See /docs for the methods of this path.",
        Code::RequestTimeout => "The body did not arrive in time; nothing was changed. Send it again.",
        Code::LeaseLost => {
            "Another owner has taken over, or the claim was released, forgotten or is past its time: stop the work, keep nothing of it, do not retry. `state`, `attempt` and `fence` say how the record stands."
        }
        Code::AlreadyCompleted => "The first outcome stands. Claim the key to read it.",
        Code::JobNotFound => "No home that could be asked just now has a job of this id.",
        Code::KeysNotKept => {
            "Records hold digests, not keys or topics. Only those of a topic with `keep_key: always` can be told apart later. `/records/forget-all` forgets the whole topic or a group."
        }
        Code::TopicInUse => "Wait until the windows of its records have passed. `homes` says where they are.",
        Code::VersionDiffers => "Read the topic again and repeat the PUT with its version.",
        Code::BatchTooLarge => "Split the batch; `max` is the most items of one. Nothing was applied.",
        Code::PayloadTooLarge => "Send less; `max` is the most bytes. Nothing was applied.",
        Code::UnsupportedMediaType => "Send `Content-Type: application/json`.",
        Code::UnknownRegion => "A key is <prefix>:<rest>; `known` lists the prefixes. Or give the topic a default_region.",
        Code::InvalidWindow => "`min` and `max` are the limits in milliseconds; \"forever\" is allowed too.",
        Code::Internal => "A fault of the service. If it was a claim, repeat it with the same request_id.",
        Code::Overloaded => "Nothing was changed. Wait `retry_after_ms`, then ask again; slow down if it goes on.",
        Code::KeyBusy => {
            "Nothing was changed. Somebody's transaction (an SQL caller) holds the key and has neither committed nor rolled back. Ask again after `retry_after_ms`."
        }
        Code::HomeUnavailable => {
            "Nothing was changed. Only the key's home may decide, and it cannot be reached. Leave the message with the broker and ask again later."
        }
        Code::StoreUnavailable => "Nothing was changed. The home's database refused; operators find the reason in the log.",
        Code::ClaimOutcomeUnknown => {
            "The call was sent and its reply was lost. Repeat it with the same request_id (any instance): you get the grant if it was yours, and the truth if not. With another request_id you would meet your own claim as somebody else's."
        }
    }
}

/// A small page.
pub fn page(code: Code) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{c}</title><style>body{{font:16px/1.5 sans-serif;max-width:42em;margin:3em auto;padding:0 1em}}</style>\
         <h1>{c}</h1><p><b>{status}</b> {title}</p><p>{advice}</p></html>\n",
        c = code.as_str(),
        status = code.status(),
        title = code.title(),
        advice = advice(code)
    )
}
