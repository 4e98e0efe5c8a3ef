//! The topic a run works on: there, or made.

use std::time::Duration;

use dedup_client::{Client, Error, TopicPolicy, Window};

use super::patience::{Patience, failure};
use super::screen::Screen;
use super::stop::Stop;

/// Makes sure that the topic exists, and answers its default region. `window`: what it is made with where it is missing; an existing topic
/// keeps its own.
pub async fn ensure(
    client: &Client,
    topic: &str,
    window: Option<Window>,
    retry: Duration,
    screen: &Screen,
) -> Result<Option<String>, Stop> {
    let mut patience = Patience::new(screen, retry);
    loop {
        let error = match ensure_once(client, topic, window, screen).await {
            Ok(done) => {
                screen.answered();
                return done;
            }
            Err(error) => error,
        };
        patience.wait(failure(error)?).await?;
    }
}

async fn ensure_once(client: &Client, topic: &str, window: Option<Window>, screen: &Screen) -> Result<Result<Option<String>, Stop>, Error> {
    match (client.get_topic(topic).await, window) {
        (Ok(view), Some(window)) if view.policy.window_ms != Some(window) => {
            screen.say(&format!("topic {topic} exists; its own window counts, not --window"));
            Ok(Ok(view.policy.default_region))
        }
        (Ok(view), _) => Ok(Ok(view.policy.default_region)),
        (Err(error), Some(window)) if error.code() == Some("topic-not-found") => {
            let put = client.put_topic(topic, &TopicPolicy { window_ms: Some(window), ..TopicPolicy::default() }).await?;
            let pending = if put.is_everywhere() { "" } else { " (not yet in all regions)" };
            screen.say(&format!("topic {topic} made{pending}"));
            Ok(Ok(None))
        }
        (Err(error), None) if error.code() == Some("topic-not-found") => {
            Ok(Err(Stop::Fatal(anyhow::anyhow!("there is no topic {topic}; --window (for instance 7d) would make it"))))
        }
        (Err(error), _) => Err(error),
    }
}

/// Parses `7d`, `24h`, `15m`, `90s` or `forever`.
///
/// # Errors
/// In words.
pub fn parse_window(text: &str) -> Result<Window, String> {
    if text == "forever" {
        return Ok(Window::Forever);
    }
    let wrong = || "it is a number with d, h, m or s behind it, or \"forever\"".to_owned();
    let (unit_at, unit) = text.char_indices().next_back().ok_or_else(wrong)?;
    let unit_ms = match unit {
        'd' => 86_400_000,
        'h' => 3_600_000,
        'm' => 60_000,
        's' => 1_000,
        _ => return Err(wrong()),
    };
    let digits = &text[..unit_at];
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number.checked_mul(unit_ms).map(Window::Ms).ok_or_else(|| "it is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_have_units() {
        for (text, ms) in [("7d", 604_800_000), ("24h", 86_400_000), ("15m", 900_000), ("90s", 90_000), ("0s", 0)] {
            assert_eq!(parse_window(text), Ok(Window::Ms(ms)), "{text}");
        }
        assert_eq!(parse_window("forever"), Ok(Window::Forever));
        for bad in ["", "d", "7", "7 d", "-7d", "+7d", "1.5h", "7w", "7é", "99999999999999999d"] {
            assert!(parse_window(bad).is_err(), "{bad}");
        }
    }
}
