//! Asks about one block's keys until each has an answer.

use std::time::Duration;

use dedup_client::{Client, Problem};

use super::block::Fate;
use super::line::Bad;
use super::patience::{Failure, Patience, failure, may_pass};
use super::request::{Reply, Request, Word};
use super::screen::Screen;
use super::stop::Stop;

/// What all questions of a run have in common.
#[derive(Debug)]
pub struct Asker {
    pub client: Client,
    pub topic: String,
    /// How long the service may be away.
    pub retry: Duration,
    /// Whether the keys' prefix was given by an option: one that no region owns is then no matter of the line.
    pub own_prefix: bool,
}

impl Asker {
    /// The fate of each item. What fails is asked again with the same request ids; an item that has its answer is not.
    pub async fn ask(&self, request: &Request, screen: &Screen) -> Result<Vec<Fate>, Stop> {
        let mut fates = vec![Fate::Undecided; request.len()];
        let mut open: Vec<usize> = (0..request.len()).collect();
        let mut patience = Patience::new(screen, self.retry);
        loop {
            let path = ["v1", "topics", &self.topic, "checks", "batch"];
            let failed = match self.client.post_raw(&path, request.body(&open)).await {
                Ok(body) => {
                    let asked = open.len();
                    let failed = self.read(&body, &mut open, &mut fates)?;
                    if open.len() < asked {
                        patience.renew();
                        screen.answered();
                    }
                    failed
                }
                Err(error) => Some(failure(error)?),
            };
            match failed {
                Some(failed) => patience.wait(failed).await?,
                None => return Ok(fates),
            }
        }
    }

    /// Takes what a reply decides; what it does not stays open, with the last reason.
    fn read(&self, body: &[u8], open: &mut Vec<usize>, fates: &mut [Fate]) -> Result<Option<Failure>, Stop> {
        let reply: Reply<'_> =
            serde_json::from_slice(body).map_err(|error| Stop::Fatal(anyhow::anyhow!("the reply cannot be understood: {error}")))?;
        if reply.results.len() != open.len() {
            let (results, asked) = (reply.results.len(), open.len());
            return Err(Stop::Fatal(anyhow::anyhow!("the service gave {results} results for {asked} items")));
        }
        let mut failed = None;
        let mut still_open = Vec::new();
        for (item, result) in open.iter().zip(&reply.results) {
            fates[*item] = match result.verdict {
                Some(Word::First) => Fate::First,
                Some(Word::NotFirst) => Fate::Duplicate,
                None => match self.judge(&result.problem())? {
                    Ok(fate) => fate,
                    Err(failure) => {
                        failed = Some(failure);
                        still_open.push(*item);
                        continue;
                    }
                },
            };
        }
        *open = still_open;
        Ok(failed)
    }

    /// One item's problem: the line's own, something that may pass, or the end.
    fn judge(&self, problem: &Problem) -> Result<Result<Fate, Failure>, Stop> {
        let words = problem.detail.as_ref().or(problem.title.as_ref()).unwrap_or(&problem.code);
        let why = format!("{}: {words}", problem.code);
        if may_pass(problem) {
            return Ok(Err(Failure { why, retry_after_ms: problem.retry_after_ms }));
        }
        let is_of_the_line = problem.pointer.as_deref() == Some("/key") && !(self.own_prefix && problem.code == "unknown-region");
        if is_of_the_line {
            return Ok(Ok(Fate::Bad(Bad::Refused(why.into()))));
        }
        Err(Stop::Fatal(anyhow::anyhow!("the service refused an item: {why}")))
    }
}

#[cfg(test)]
mod tests;
