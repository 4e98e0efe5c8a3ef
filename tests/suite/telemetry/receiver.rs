//! A collector of our own: OTLP over HTTP, decoded and kept.

use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::Metric;
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// What came in.
#[derive(Default)]
pub struct Received {
    pub metrics: Vec<(Resource, Vec<Metric>)>,
    pub spans: Vec<(Resource, Span)>,
}

/// A collector that listens until it is dropped.
pub struct Collector {
    port: u16,
    pub received: Arc<Mutex<Received>>,
    listening: JoinHandle<()>,
}

impl Drop for Collector {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let received = Arc::<Mutex<Received>>::default();
        let into = Arc::clone(&received);
        let listening = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let into = Arc::clone(&into);
                tokio::spawn(async move { serve(stream, &into).await });
            }
        });
        Self { port, received, listening }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.received.lock().unwrap().spans.iter().map(|(_, span)| span.clone()).collect()
    }
}

/// Requests of one connection, until it ends.
async fn serve(stream: TcpStream, into: &Mutex<Received>) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match stream.read_line(&mut head).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let lower = head.to_lowercase();
        let length = lower.lines().find_map(|l| l.strip_prefix("content-length: ")).map_or(0, |n| n.trim().parse().unwrap());
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        assert!(lower.contains("content-type: application/x-protobuf"), "{head}");
        {
            let mut received = into.lock().unwrap();
            if head.starts_with("POST /v1/metrics ") {
                for pushed in ExportMetricsServiceRequest::decode(body.as_slice()).unwrap().resource_metrics {
                    let metrics = pushed.scope_metrics.into_iter().flat_map(|s| s.metrics).collect();
                    received.metrics.push((pushed.resource.unwrap(), metrics));
                }
            } else {
                assert!(head.starts_with("POST /v1/traces "), "{head}");
                for pushed in ExportTraceServiceRequest::decode(body.as_slice()).unwrap().resource_spans {
                    let resource = pushed.resource.unwrap();
                    received.spans.extend(pushed.scope_spans.into_iter().flat_map(|s| s.spans).map(|s| (resource.clone(), s)));
                }
            }
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n";
        if stream.get_mut().write_all(answer).await.is_err() {
            return;
        }
    }
}

/// An attribute as text.
pub fn attribute(attributes: &[KeyValue], name: &str) -> Option<String> {
    let value = attributes.iter().find(|a| a.key == name)?.value.clone()?.value?;
    Some(match value {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(n) => n.to_string(),
        other => format!("{other:?}"),
    })
}
