//! What every handler needs: the ladder, the callers, the limits, the counters, and whether the process takes questions.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use actix_web::HttpRequest;
use dedup_core::{Limits, Topic, TopicPolicy};
use dedup_runtime::Traces;
use dedup_runtime::metrics::Metrics;
use dedup_store::{Ladder, Refusal, RefusalKind};

use crate::auth::{Caller, Callers};
use crate::metrics::Decisions;
use crate::problem::{Code, Problem};
use crate::waiting::Waiting;

/// The life of the process, as `/readyz` tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not every home was tried yet.
    Starting,
    /// Takes questions.
    Serving,
    /// Finishes what it has.
    Draining,
}

/// Shared by all handlers of all workers.
pub struct Service {
    pub region: String,
    pub instance: String,
    pub ladder: Ladder,
    pub callers: Callers,
    pub limits: Limits,
    pub deadline: Duration,
    pub decisions: Arc<Decisions>,
    pub metrics: Metrics,
    pub metrics_on: bool,
    pub metrics_open: bool,
    /// Where requests are traced, if they are.
    pub traces: Option<Traces>,
    pub waiting: Waiting,
    /// When the process began to serve.
    pub started: Instant,
    phase: AtomicU8,
}

/// Everything a [`Service`] is made of.
pub struct Parts {
    pub region: String,
    pub instance: String,
    pub ladder: Ladder,
    pub callers: Callers,
    pub limits: Limits,
    pub deadline: Duration,
    pub decisions: Arc<Decisions>,
    pub metrics: Metrics,
    /// `/metrics` is there at all.
    pub metrics_on: bool,
    /// `/metrics` is for everybody (no callers are configured).
    pub metrics_open: bool,
    pub traces: Option<Traces>,
}

impl Service {
    pub fn new(parts: Parts) -> Self {
        let Parts { region, instance, ladder, callers, limits, deadline, decisions, metrics, metrics_on, metrics_open, traces } = parts;
        Self {
            region,
            instance,
            ladder,
            callers,
            limits,
            deadline,
            decisions,
            metrics,
            metrics_on,
            metrics_open,
            traces,
            waiting: Waiting::default(),
            started: Instant::now(),
            phase: AtomicU8::new(0),
        }
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Relaxed) {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Draining,
        }
    }

    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Relaxed);
    }

    /// When the question must be answered: the configured deadline, which the caller may shorten.
    pub fn deadline_of(&self, request: &HttpRequest) -> Result<Instant, Problem> {
        Ok(Instant::now() + self.time_of(request)?)
    }

    /// How long answering may take.
    pub fn time_of(&self, request: &HttpRequest) -> Result<Duration, Problem> {
        Ok(self.own_deadline_of(request)?.map_or(self.deadline, |own| own.min(self.deadline)))
    }

    /// What the caller's header asks for, if it is there.
    pub fn own_deadline_of(&self, request: &HttpRequest) -> Result<Option<Duration>, Problem> {
        const HEADER: &str = "dedup-deadline-ms";
        let Some(value) = request.headers().get(HEADER) else { return Ok(None) };
        let ms = value.to_str().ok().and_then(|v| v.trim().parse::<u64>().ok()).filter(|ms| *ms >= 1);
        let ms = ms.ok_or_else(|| {
            Problem::new(Code::InvalidField, "the header Dedup-Deadline-Ms must be a whole number of milliseconds, at least 1")
        })?;
        Ok(Some(Duration::from_millis(ms)))
    }

    /// The topic of a path, with its policy.
    pub async fn topic(&self, caller: &Caller, name: &str) -> Result<Arc<TopicPolicy>, Problem> {
        let topic = parse_topic(name)?;
        caller.needs_topic(&topic)?;
        let found = self.ladder.topics().find(&topic).await.map_err(Problem::refusal)?;
        found.ok_or_else(|| caller.missing_topic(&topic))
    }

    /// What a refusal means to this caller.
    pub fn refused(&self, caller: &Caller, topic: &Topic, refusal: Refusal) -> Problem {
        match refusal.kind {
            RefusalKind::TopicUnknown => caller.missing_topic(topic),
            _ => Problem::refusal(refusal),
        }
    }
}

/// Parses the topic of a path.
pub fn parse_topic(name: &str) -> Result<Topic, Problem> {
    Topic::parse(name).map_err(|e| Problem::field("/topic", e))
}
