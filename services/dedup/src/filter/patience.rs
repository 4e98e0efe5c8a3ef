//! How long and how often a service that does not answer is asked again.

use std::time::Duration;

use dedup_client::{Error, Problem};
use tokio::time::Instant;

use super::screen::Screen;
use super::stop::Stop;
use crate::commands::connect::explained;

/// First pause between two attempts.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
/// Longest pause between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The patience with one question.
#[derive(Debug)]
pub struct Patience<'a> {
    screen: &'a Screen,
    limit: Duration,
    pause: Duration,
    /// When it ends; counted from the first attempt that failed.
    until: Option<Instant>,
}

/// Why an attempt failed.
#[derive(Debug)]
pub struct Failure {
    pub why: String,
    pub retry_after_ms: Option<u64>,
}

impl<'a> Patience<'a> {
    pub fn new(screen: &'a Screen, limit: Duration) -> Self {
        Self { screen, limit, pause: PAUSE_FIRST, until: None }
    }

    /// Waits before the next attempt. The last one is made when patience ends.
    pub async fn wait(&mut self, failure: Failure) -> Result<(), Stop> {
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + self.limit);
        if now >= until {
            return Err(Stop::Gone(failure.why));
        }
        self.screen.trouble(&failure.why, self.limit);
        let asked = Duration::from_millis(failure.retry_after_ms.unwrap_or(0)).min(PAUSE_MAX);
        // Many filters wait for the same service: they should not come back in step.
        let pause = self.pause.max(asked).mul_f64(rand::random_range(0.5..1.5));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        tokio::time::sleep_until((now + pause).min(until)).await;
        Ok(())
    }

    /// Something was answered: patience begins anew.
    pub fn renew(&mut self) {
        self.until = None;
        self.pause = PAUSE_FIRST;
    }
}

/// Whether the same question may be answered later. The request ids make asking again safe, so everything that is not the caller's mistake
/// is asked again: lost replies, overload, faults of the service, pages of a proxy whose service is away.
pub fn may_pass(problem: &Problem) -> bool {
    problem.status >= 500 || matches!(problem.status, 408 | 429)
}

/// A failed call as something to wait out, or as the end.
pub fn failure(error: Error) -> Result<Failure, Stop> {
    let retry_after_ms = match &error {
        Error::Http(error) if !error.is_builder() => None,
        Error::Problem(problem) if may_pass(problem) => problem.retry_after_ms,
        _ => return Err(Stop::Fatal(explained(error))),
    };
    let why = match &error {
        Error::Http(cause) => format!("{error}: {cause}"),
        _ => explained(error).to_string(),
    };
    Ok(Failure { why, retry_after_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_callers_mistakes_end_a_run_at_once() {
        let problem = |status: u16| Problem { status, ..Problem::default() };
        for passing in [408, 429, 500, 502, 503, 504] {
            assert!(may_pass(&problem(passing)), "{passing}");
            assert!(failure(Error::Problem(Box::new(problem(passing)))).is_ok());
        }
        for lasting in [400, 401, 403, 404, 413, 415, 422] {
            assert!(!may_pass(&problem(lasting)), "{lasting}");
            assert!(matches!(failure(Error::Problem(Box::new(problem(lasting)))), Err(Stop::Fatal(_))));
        }
        assert!(matches!(failure(Error::Decode("a page".to_owned())), Err(Stop::Fatal(_))));
    }

    #[tokio::test]
    async fn patience_ends_after_its_limit_and_is_renewed_by_an_answer() {
        let screen = Screen::hidden();
        let mut patience = Patience::new(&screen, Duration::from_millis(300));
        let failed = || Failure { why: "away".to_owned(), retry_after_ms: None };
        let begun = Instant::now();
        patience.wait(failed()).await.expect("the first failure is waited out");
        patience.renew();
        while patience.wait(failed()).await.is_ok() {}
        assert!(begun.elapsed() >= Duration::from_millis(350), "{:?}", begun.elapsed());
        assert!(matches!(patience.wait(failed()).await, Err(Stop::Gone(why)) if why == "away"));
    }
}
