//! `[[homes]]`: the Postgres that owns each prefix.

use std::collections::BTreeMap;

use secrecy::SecretString;
use serde::Deserialize;

use super::check::{Checker, LABEL, REGION};

/// One home: a region's Postgres and the key prefixes it owns. The table is the same in all regions.
#[derive(Clone, Debug)]
pub struct HomeConfig {
    /// `name`: shown as `home_region` in answers and labels, `[a-z0-9-]{1,32}`, unique. Required.
    pub name: String,
    /// `region`: the region it stands in, `[a-z0-9-]{1,32}`. Required.
    pub region: String,
    /// `prefixes`: what its keys begin with, before the colon; each `[A-Za-z0-9._-]{1,32}`, unique over all homes, at least one.
    pub prefixes: Vec<String>,
    /// `postgres`: `host=… port=… user=… dbname=…`; never with a password. Required.
    pub postgres: String,
    /// From the environment variable [`HomeConfig::password_env`] names; `None` = Postgres asks for none.
    pub password: Option<SecretString>,
    /// `connections`: connections this instance keeps to the home, 1..=32. Default 4.
    pub connections: usize,
    /// `queue_items`: items that may wait for the home before callers are told `overloaded`, 1..=1,000,000. Default 20,000.
    pub queue_items: usize,
}

impl HomeConfig {
    /// The environment variable that holds this home's password: `DEDUP_HOME_<NAME>_PASSWORD`, upper case, `-` as `_`.
    #[must_use]
    pub fn password_env(&self) -> String {
        format!("DEDUP_HOME_{}_PASSWORD", self.name.to_ascii_uppercase().replace('-', "_"))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawHome {
    name: String,
    region: String,
    prefixes: Vec<String>,
    postgres: String,
    connections: Option<i64>,
    queue_items: Option<i64>,
}

pub(super) fn check(raw: Vec<RawHome>, own_region: &str, env: &impl Fn(&str) -> Option<String>, check: &mut Checker) -> Vec<HomeConfig> {
    let mut names = BTreeMap::new();
    let mut prefixes = BTreeMap::new();
    let mut homes = Vec::with_capacity(raw.len());
    for (at, raw) in raw.into_iter().enumerate() {
        let path = format!("homes[{at}]");
        if let Some(first) = names.insert(raw.name.clone(), at) {
            check.note(format!("{path}.name"), format!("{:?} is the name of homes[{first}] already; names are unique", raw.name));
        }
        for prefix in &raw.prefixes {
            if let Some(first) = prefixes.insert(prefix.clone(), at) {
                check.note(format!("{path}.prefixes"), format!("{prefix:?} is owned by homes[{first}] already; a prefix has one home"));
            }
        }
        homes.push(raw.check(&path, env, check));
    }
    // A region that is missing is a mistake of its own already.
    if homes.is_empty() {
        check.note("homes", "is required: at least one [[homes]], the own region's");
    } else if !own_region.is_empty() && !homes.iter().any(|home| home.region == own_region) {
        check.note("homes", format!("no home has region = {own_region:?}; at least one [[homes]] must be of the instance's own region"));
    }
    homes
}

impl RawHome {
    fn check(self, path: &str, env: &impl Fn(&str) -> Option<String>, check: &mut Checker) -> HomeConfig {
        check.name(&format!("{path}.name"), &self.name, 32, REGION);
        check.name(&format!("{path}.region"), &self.region, 32, REGION);
        if self.prefixes.is_empty() {
            check.note(format!("{path}.prefixes"), "is required: at least one prefix, each 1 to 32 characters of A-Z a-z 0-9 . _ -");
        }
        for prefix in &self.prefixes {
            check.name(&format!("{path}.prefixes"), prefix, 32, LABEL);
        }
        let mut home = HomeConfig {
            name: self.name,
            region: self.region,
            prefixes: self.prefixes,
            postgres: self.postgres,
            password: None,
            connections: check.number(&format!("{path}.connections"), self.connections, 4, 1..=32),
            queue_items: check.number(&format!("{path}.queue_items"), self.queue_items, 20_000, 1..=1_000_000),
        };
        let password_env = home.password_env();
        if let Err(why) = postgres(&home.postgres, &password_env) {
            check.note(format!("{path}.postgres"), why);
        }
        home.password = env(&password_env).map(SecretString::from);
        home
    }
}

/// Judges the connection text by its keywords only, and never quotes it: a password may stand in it.
fn postgres(text: &str, password_env: &str) -> Result<(), String> {
    const SHAPE: &str = "write \"host=… port=… user=… dbname=…\"";
    if text.trim().is_empty() {
        return Err(format!("is required; {SHAPE}"));
    }
    let keywords = keywords(text).ok_or_else(|| format!("is not in keyword=value form; {SHAPE}"))?;
    if keywords.iter().any(|keyword| keyword.eq_ignore_ascii_case("password")) {
        return Err(format!("must not contain a password; set it in the environment as {password_env}"));
    }
    for needed in ["host", "user", "dbname"] {
        if !keywords.iter().any(|keyword| keyword == needed) {
            return Err(format!("lacks {needed}; {SHAPE}"));
        }
    }
    match text.parse::<tokio_postgres::Config>() {
        Ok(_) => Ok(()),
        Err(why) => Err(std::error::Error::source(&why).map_or_else(|| why.to_string(), |cause| format!("is not valid: {cause}"))),
    }
}

/// The keywords of a libpq connection text (`keyword = value`, values bare or in single quotes, backslash escapes); `None` if it is none.
fn keywords(text: &str) -> Option<Vec<String>> {
    let mut rest = text.trim_start();
    let mut keywords = Vec::new();
    while !rest.is_empty() {
        let (keyword, value) = rest.split_once('=')?;
        let keyword = keyword.trim_end();
        if keyword.is_empty() || !keyword.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_') {
            return None;
        }
        keywords.push(keyword.to_owned());
        rest = after_value(value.trim_start())?.trim_start();
    }
    Some(keywords)
}

fn after_value(text: &str) -> Option<&str> {
    let quoted = text.starts_with('\'');
    let mut chars = text.char_indices().skip(usize::from(quoted));
    while let Some((at, char)) = chars.next() {
        match char {
            '\\' => _ = chars.next()?,
            '\'' if quoted => return text.get(at + 1..),
            char if !quoted && char.is_whitespace() => return text.get(at..),
            _ => {}
        }
    }
    if quoted { None } else { Some("") }
}
