//! What a reply means for each item.

use super::*;

fn asker(own_prefix: bool) -> Asker {
    let client = Client::new("http://127.0.0.1:1").expect("an address");
    Asker { client, topic: "t".to_owned(), retry: Duration::ZERO, own_prefix }
}

fn problem(text: &str) -> String {
    format!(r#"{{"problem":{text}}}"#)
}

#[test]
fn only_what_has_no_answer_stays_open() {
    let busy = problem(r#"{"code":"key-busy","status":503,"retry_after_ms":100,"detail":"held"}"#);
    let long = problem(r#"{"code":"invalid-field","status":400,"pointer":"/key","detail":"key is too long"}"#);
    let body = format!(r#"{{"results":[{{"verdict":"duplicate"}},{busy},{long}]}}"#);
    let mut open = vec![1, 4, 5];
    let mut fates = vec![Fate::Undecided; 6];
    let failed = asker(true).read(body.as_bytes(), &mut open, &mut fates).expect("nothing fatal").expect("one is open");
    assert_eq!((failed.why.as_str(), failed.retry_after_ms), ("key-busy: held", Some(100)));
    assert_eq!(open, [4]);
    assert_eq!((&fates[1], &fates[4]), (&Fate::Duplicate, &Fate::Undecided));
    assert_eq!(fates[5], Fate::Bad(Bad::Refused("invalid-field: key is too long".into())));
    let rest = asker(true).read(br#"{"results":[{"verdict":"first"}]}"#, &mut open, &mut fates).expect("nothing fatal");
    assert!(rest.is_none() && open.is_empty() && fates[4] == Fate::First);
}

#[test]
fn an_unknown_region_is_the_lines_fault_only_if_the_line_named_it() {
    let body = format!(r#"{{"results":[{}]}}"#, problem(r#"{"code":"unknown-region","status":422,"pointer":"/key"}"#));
    let mut fates = vec![Fate::Undecided];
    assert!(asker(false).read(body.as_bytes(), &mut vec![0], &mut fates).is_ok());
    assert!(matches!(fates[0], Fate::Bad(_)));
    assert!(matches!(asker(true).read(body.as_bytes(), &mut vec![0], &mut fates), Err(Stop::Fatal(_))));
}

#[test]
fn other_problems_and_odd_replies_end_the_run() {
    let missing = format!(r#"{{"results":[{}]}}"#, problem(r#"{"code":"topic-not-found","status":404}"#));
    let group = format!(r#"{{"results":[{}]}}"#, problem(r#"{"code":"invalid-field","status":400,"pointer":"/group"}"#));
    for body in [missing.as_str(), group.as_str(), r#"{"results":[]}"#, r#"{"results":[{}]}"#, "<html>", ""] {
        let read = asker(false).read(body.as_bytes(), &mut vec![0], &mut [Fate::Undecided]);
        assert!(matches!(read, Err(Stop::Fatal(_))), "{body}");
    }
}
