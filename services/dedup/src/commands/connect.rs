//! How the commands that ask a running instance reach it.

use anyhow::{Context, anyhow};
use dedup_client::{Client, Error};
use serde_json::Value;

use super::config::variable;

/// Exit code if all went well but a home has yet to take it. (2 is for wrong options; 3 and 4 are words of `dedup filter`.)
pub const PENDING: u8 = 5;

const TOKEN_ENV: &str = "DEDUP_TOKEN";

/// Which instance to ask, as whom.
#[derive(Debug, clap::Args)]
pub struct ConnectArgs {
    /// Base URL of an instance
    #[arg(long, env = "DEDUP_URL", default_value = "http://127.0.0.1:8080", value_name = "URL")]
    url: String,
    /// The environment variable that holds the bearer token (default: DEDUP_TOKEN, if it is set)
    #[arg(long, value_name = "NAME")]
    token_env: Option<String>,
}

impl ConnectArgs {
    /// A client of that instance.
    pub fn client(&self) -> anyhow::Result<Client> {
        let client = Client::new(&self.url).context("--url")?;
        let token = match &self.token_env {
            // Whoever names a variable means it: calling without a token would only look like a wrong one.
            Some(name) => Some(variable(name).with_context(|| format!("{name} is not set"))?),
            None => variable(TOKEN_ENV),
        };
        Ok(match token {
            Some(token) => client.with_token(&token)?,
            None => client,
        })
    }
}

/// The error with what the service said about it in words.
pub fn explained(error: Error) -> anyhow::Error {
    let Some(problem) = error.problem() else {
        return error.into();
    };
    let words = problem.detail.as_ref().or(problem.title.as_ref());
    let text = words.map_or_else(|| error.to_string(), |words| format!("{error}: {words}"));
    match problem.applied.as_ref().map(ToString::to_string).as_deref() {
        Some("unknown") => anyhow!("{text} (it may have been applied)"),
        Some(_) | None => anyhow!(text),
    }
}

/// A JSON value as a table shows it: text without quotes, nothing as `-`.
pub fn shown(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}
