//! The JSON examples of the interface, read and written.

use serde_json::{from_str, json, to_value};

use crate::{
    Answer, Applied, Batch, BatchAnswer, Certainty, CheckRequest, ClaimRequest, CompleteRequest, Detail, Forgotten, Outcome, Problem,
    PutTopic, RecordRef, Settled, StoredResult, Tier, TopicPolicy, TopicView, Verdict, Window,
};

fn answer(text: &str) -> Answer {
    from_str(text).expect("an answer")
}

#[test]
fn a_claim_is_written_as_published() {
    let claim = ClaimRequest {
        group: Some("charge".into()),
        request_id: Some("9f6c".into()),
        fingerprint: Some("sha256:ab".into()),
        owner: Some("charge-7f9c".into()),
        lease_ms: Some(30_000),
        window_ms: Some(Window::Ms(86_400_000)),
        wait_ms: Some(2_000),
        ..ClaimRequest::new("eu:acme/idem-8e03")
    };
    let expected = json!({"key":"eu:acme/idem-8e03","group":"charge","request_id":"9f6c","fingerprint":"sha256:ab","owner":"charge-7f9c",
        "lease_ms":30000,"window_ms":86_400_000,"wait_ms":2000});
    assert_eq!(to_value(&claim).expect("json"), expected);
    assert_eq!(to_value(ClaimRequest::new("eu:a")).expect("json"), json!({"key":"eu:a"}), "what is absent is not written");
}

#[test]
fn a_window_is_a_number_or_forever() {
    for (window, text) in [(Window::Ms(1_000), "1000"), (Window::Forever, "\"forever\"")] {
        assert_eq!(serde_json::to_string(&window).expect("json"), text);
        assert_eq!(from_str::<Window>(text).expect("a window"), window);
    }
    assert!(from_str::<Window>("\"always\"").is_err());
}

#[test]
fn first_with_a_previous_attempt() {
    let first = answer(
        r#"{"verdict":"first","replayed":false,"certainty":"exact","tier":"warm","home_region":"eu","served_by":"us-1","key":"eu:acme/idem-8e03",
        "claim_token":"dc1.x","fence":"00001-0004711","attempt":2,"lease_expires_at":"2026-01-01T00:00:30Z","lease_ms_left":30000,
        "first_seen_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-08T00:00:00Z",
        "previous":{"attempt":1,"ended":"lapsed","owner":"charge-11aa","note":"psp charge sent","at":"2026-01-01T00:00:00Z"},"from_the_future":{"a":1}}"#,
    );
    assert!(first.is_first() && !first.replayed && !first.result_omitted);
    assert_eq!((first.certainty, first.tier), (Some(Certainty::Exact), Some(Tier::Warm)));
    assert_eq!((first.claim_token.as_deref(), first.attempt, first.lease_ms_left), (Some("dc1.x"), Some(2), Some(30_000)));
    assert_eq!(first.previous.expect("it had one").note.as_deref(), Some("psp charge sent"));
}

#[test]
fn in_progress_and_mismatch() {
    let held =
        answer(r#"{"verdict":"in_progress","fence":"1","owner":"charge-7f9c","attempt":2,"lease_ms_left":12000,"retry_after_ms":1000}"#);
    assert_eq!((held.verdict, held.retry_after_ms), (Verdict::InProgress, Some(1_000)));
    assert_eq!(answer(r#"{"verdict":"mismatch","first_seen_at":"2026-01-01T00:00:00Z"}"#).verdict, Verdict::Mismatch);
}

#[test]
fn a_duplicate_replays_its_result() {
    let text = r#"{"verdict":"duplicate","fence":"1","outcome":"succeeded","first_seen_at":"2026-01-01T00:00:00Z","completed_at":"2026-01-01T00:00:01Z",
        "expires_at":null,"fingerprint_checked":true,
        "result":{"media_type":"application/json","status":201,"headers":{"location":"/charges/1"},"body":"{\"id\":1}"}}"#;
    let duplicate = answer(text);
    assert_eq!((duplicate.outcome, duplicate.fingerprint_checked, duplicate.expires_at), (Some(Outcome::Succeeded), Some(true), None));
    let result = duplicate.result.expect("it has one");
    assert_eq!((result.status, result.headers["location"].as_str()), (Some(201), "/charges/1"));
    assert_eq!(result.bytes().expect("text").expect("a body"), b"{\"id\":1}");
}

#[test]
fn a_new_verdict_is_kept() {
    let verdict = answer(r#"{"verdict":"postponed"}"#).verdict;
    assert_eq!(verdict, Verdict::Other("postponed".into()));
    assert_eq!(verdict.to_string(), "postponed");
    assert_eq!(to_value(Verdict::InDoubt).expect("json"), json!("in_doubt"));
}

#[test]
fn a_problem_keeps_what_else_it_says() {
    let problem: Problem = from_str(
        r#"{"type":"/problems/claim-outcome-unknown","code":"claim-outcome-unknown","title":"?","status":503,"applied":"unknown",
        "retry":"same_request_id","retry_after_ms":200,"request_id":"9f6c"}"#,
    )
    .expect("a problem");
    assert_eq!((problem.code.as_str(), problem.applied.as_ref()), ("claim-outcome-unknown", Some(&Applied::Unknown)));
    assert_eq!(problem.extra["request_id"], "9f6c");
    assert!(problem.may_retry());
    assert!(!Problem { retry: Some("never".into()), ..problem.clone() }.may_retry());
    assert!(!Problem { status: 409, ..problem }.may_retry());
}

#[test]
fn a_batch_both_ways() {
    let batch =
        Batch { group: Some("etl".into()), detail: Some(Detail::Verdict), items: ["eu:a", "us:b", "eu:a"].map(CheckRequest::new).into() };
    assert_eq!(
        to_value(&batch).expect("json"),
        json!({"group":"etl","detail":"verdict","items":[{"key":"eu:a"},{"key":"us:b"},{"key":"eu:a"}]})
    );

    let answers: BatchAnswer = from_str(
        r#"{"results":[{"verdict":"first"},{"problem":{"code":"home-unavailable","applied":"no","retry_after_ms":500}},{"verdict":"duplicate","of_index":0}],
        "counts":{"first":1,"duplicate":1,"undecided":1}}"#,
    )
    .expect("answers");
    assert!(answers.results[0].as_result().expect("an answer").is_first());
    assert_eq!(answers.results[1].as_result().expect_err("a problem").code, "home-unavailable");
    assert_eq!(answers.results[2].as_result().expect("an answer").of_index, Some(0));
    assert_eq!(answers.counts["undecided"], 1);
}

#[test]
fn complete_both_ways() {
    let complete = CompleteRequest {
        claim_token: "dc1.x".into(),
        outcome: Outcome::Succeeded,
        result: Some(StoredResult::from_bytes("text/plain", b"ok")),
    };
    let expected = json!({"items":[{"claim_token":"dc1.x","outcome":"succeeded","result":{"media_type":"text/plain","body":"ok"}}]});
    assert_eq!(to_value(Batch::new(vec![complete])).expect("json"), expected);

    let settled: Settled = from_str(r#"{"state":"done","replayed":false,"result_stored":true}"#).expect("an answer");
    assert_eq!((settled.state.as_deref(), settled.result_stored), (Some("done"), Some(true)));
    let settled: BatchAnswer<Settled> =
        from_str(r#"{"results":[{"state":"done","replayed":true},{"problem":{"code":"lease-lost","status":409}}]}"#).expect("answers");
    assert!(settled.results[0].as_result().expect("an answer").replayed);
    assert_eq!(settled.results[1].as_result().expect_err("a problem").code, "lease-lost");
}

#[test]
fn bytes_that_are_no_text_survive() {
    let result = StoredResult::from_bytes("application/octet-stream", &[0xff, 0x00, 0x7f]);
    assert_eq!((result.body.as_deref(), result.body_base64.as_deref()), (None, Some("/wB/")));
    assert_eq!(result.bytes().expect("base64").expect("a body"), [0xff, 0x00, 0x7f]);
    assert_eq!(StoredResult::default().bytes().expect("nothing to decode"), None);
    assert!(StoredResult { body_base64: Some("?".into()), ..StoredResult::default() }.bytes().is_err());
}

#[test]
fn records_and_topics() {
    let record = RecordRef { reason: Some("test".into()), ..RecordRef::new("eu:a") };
    assert_eq!(to_value(&record).expect("json"), json!({"key":"eu:a","reason":"test"}));
    let forgotten: Forgotten = from_str(r#"{"removed":true,"regions":{"us":"done","ap":"pending"}}"#).expect("an answer");
    assert!(forgotten.removed && forgotten.regions["ap"] == "pending");

    let policy = TopicPolicy { window_ms: Some(Window::Forever), ..TopicPolicy::default() };
    assert_eq!(to_value(&policy).expect("json"), json!({"window_ms":"forever"}));
    let put: PutTopic = from_str(r#"{"version":3,"homes":{"eu":"applied","us":"pending"}}"#).expect("an answer");
    assert!(put.version == 3 && !put.is_everywhere());
    let view: TopicView = from_str(r#"{"topic":"payments","version":3,"window_ms":604800000,"on_home_loss":"reject"}"#).expect("a topic");
    assert_eq!((view.version, view.policy.window_ms), (Some(3), Some(Window::Ms(604_800_000))));
    assert_eq!(view.policy.other["on_home_loss"], "reject");
}
