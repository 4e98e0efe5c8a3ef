//! Calls against a small scripted server: what goes over the wire, and what is repeated.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use dedup_client::{Batch, CheckRequest, ClaimRequest, Client, Error, Outcome};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// What the server does with one request.
#[derive(Clone, Copy)]
enum Step {
    Reply(u16, &'static str),
    HangUp,
    Silence,
}

const FIRST: Step = Step::Reply(200, r#"{"verdict":"first","claim_token":"dc1.x"}"#);

/// Serves the steps in order, one connection each, and keeps what it was sent: the head, and the body.
struct Server {
    url: String,
    seen: Arc<Mutex<Vec<(String, String)>>>,
}

impl Server {
    async fn start(steps: &'static [Step]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&seen);
        tokio::spawn(async move {
            let mut silent = Vec::new();
            for step in steps {
                let (mut stream, _) = listener.accept().await.expect("a connection");
                let request = read(&mut stream).await;
                kept.lock().expect("not poisoned").push(request);
                match step {
                    Step::Reply(status, body) => {
                        let reply = format!("HTTP/1.1 {status} X\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}", body.len());
                        stream.write_all(reply.as_bytes()).await.expect("it is read");
                    }
                    Step::HangUp => drop(stream),
                    Step::Silence => silent.push(stream),
                }
            }
            std::future::pending::<()>().await;
        });
        Self { url, seen }
    }

    fn client(&self) -> Client {
        Client::new(&self.url).expect("a client")
    }

    fn seen(&self) -> Vec<(String, String)> {
        self.seen.lock().expect("not poisoned").clone()
    }

    fn request_ids(&self) -> Vec<String> {
        let id = |(_, body): &(String, String)| {
            serde_json::from_str::<Value>(body).expect("json")["request_id"].as_str().expect("an id").to_owned()
        };
        self.seen().iter().map(id).collect()
    }
}

async fn read(stream: &mut TcpStream) -> (String, String) {
    let mut text = String::new();
    loop {
        let mut buffer = [0; 4_096];
        let count = stream.read(&mut buffer).await.expect("a request");
        text.push_str(std::str::from_utf8(&buffer[..count]).expect("text"));
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok()).unwrap_or(0);
        if body.len() >= length {
            return (head.to_owned(), body.to_owned());
        }
    }
}

fn claim() -> ClaimRequest {
    ClaimRequest::new("eu:a")
}

#[tokio::test]
async fn a_lost_reply_is_asked_again_with_the_same_request_id() {
    let server = Server::start(&[Step::HangUp, FIRST]).await;
    assert!(server.client().claim("payments", &claim()).await.expect("an answer").is_first());
    let ids = server.request_ids();
    assert_eq!((ids.len(), ids[0].len(), &ids[0]), (2, 32, &ids[1]));
}

#[tokio::test]
async fn a_reply_that_never_comes_is_asked_again() {
    let server = Server::start(&[Step::Silence, FIRST]).await;
    let client = server.client().with_timeout(Duration::from_millis(200));
    assert!(client.claim("payments", &claim()).await.expect("an answer").is_first());
    assert_eq!(server.request_ids().len(), 2);
}

#[tokio::test]
async fn a_503_is_asked_again_once_and_then_told() {
    const BUSY: Step = Step::Reply(503, r#"{"code":"key-busy","status":503,"applied":"no","retry":"same_request_id","retry_after_ms":1}"#);
    let server = Server::start(&[BUSY, BUSY]).await;
    let error = server.client().check("payments", &CheckRequest::new("eu:a")).await.expect_err("it stays busy");
    assert_eq!(error.code(), Some("key-busy"));
    let ids = server.request_ids();
    assert_eq!((ids.len(), &ids[0]), (2, &ids[1]));
}

#[tokio::test]
async fn no_repeat_where_it_is_refused_or_switched_off() {
    const NEVER: Step = Step::Reply(503, r#"{"code":"draining","status":503,"applied":"no","retry":"never"}"#);
    let server = Server::start(&[NEVER]).await;
    assert_eq!(server.client().claim("t", &claim()).await.expect_err("refused").code(), Some("draining"));
    let server = Server::start(&[Step::HangUp]).await;
    let error = server.client().with_retries(0).claim("t", &claim()).await.expect_err("cut");
    assert!(matches!(error, Error::Http(_)), "{error:?}");
    assert_eq!(server.seen().len(), 1);
}

#[tokio::test]
async fn a_release_is_not_repeated_blindly() {
    let server = Server::start(&[Step::HangUp, Step::Reply(200, "{}")]).await;
    assert!(matches!(server.client().release("dc1.x", None).await, Err(Error::Http(_))));
    assert_eq!(server.seen().len(), 1, "a second release would be told lease-lost although the first was applied");
}

#[tokio::test]
async fn refusals_and_foreign_pages_are_problems() {
    const LOST: Step = Step::Reply(409, r#"{"code":"lease-lost","status":409,"state":"in_progress","fence":"00001-2"}"#);
    let server = Server::start(&[LOST, Step::Reply(502, "<html>bad gateway</html>"), Step::Reply(200, "<html>")]).await;
    let client = server.client();
    let lost = client.complete("dc1.x", Outcome::Succeeded, None).await.expect_err("refused");
    assert_eq!((lost.code(), &lost.problem().expect("a problem").extra["fence"]), (Some("lease-lost"), &Value::from("00001-2")));
    let page = client.complete("dc1.x", Outcome::Succeeded, None).await.expect_err("a proxy");
    assert_eq!((page.problem().expect("a problem").status, page.code()), (502, Some("")));
    assert!(matches!(client.complete("dc1.x", Outcome::Succeeded, None).await, Err(Error::Decode(_))));
}

#[tokio::test]
async fn paths_tokens_and_batches() {
    let server =
        Server::start(&[Step::Reply(200, r#"{"results":[{"verdict":"first"}],"counts":{"first":1}}"#), Step::Reply(204, "")]).await;
    let client = server.client().with_token("hush").expect("a token");
    assert!(!format!("{client:?}").contains("hush"));
    let batch = Batch::new(vec![CheckRequest::new("eu:a")]);
    assert_eq!(client.check_batch("a/b", &batch).await.expect("answers").results.len(), 1);
    client.delete_topic("clicks").await.expect("deleted");
    let seen = server.seen();
    assert!(seen[0].0.starts_with("POST /v1/topics/a%2Fb/checks/batch "), "{}", seen[0].0);
    assert!(seen[0].0.contains("authorization: Bearer hush"), "{}", seen[0].0);
    let body: Value = serde_json::from_str(&seen[0].1).expect("json");
    assert_eq!(body["items"][0]["request_id"].as_str().expect("an id").len(), 32);
    assert!(seen[1].0.starts_with("DELETE /v1/topics/clicks "));
    assert!(matches!(client.get_topic("..").await, Err(Error::Argument(_))));
}

#[tokio::test]
async fn not_ready_is_an_answer() {
    let server = Server::start(&[Step::Reply(503, r#"{"state":"starting"}"#), Step::Reply(200, "a_total 1\n")]).await;
    let readiness = server.client().readyz().await.expect("a report");
    assert!(!readiness.ready && readiness.report["state"] == "starting");
    assert_eq!(server.client().metrics_text().await.expect("text"), "a_total 1\n");
}

#[test]
fn addresses_are_judged_at_once() {
    for bad in ["", "127.0.0.1:8080", "ftp://a", "mailto:a"] {
        assert!(matches!(Client::new(bad), Err(Error::Argument(_))), "{bad}");
    }
    assert!(Client::new("https://dedup.example.net/under/a/path/").is_ok());
    assert!(Client::new("http://[::1]:1").expect("a client").with_token("a\nb").is_err());
}
