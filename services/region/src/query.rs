//! The query of a URL: each parameter known, once, and valid. No key ever stands there.

use actix_web::HttpRequest;
use actix_web::web::Query;

use crate::problem::{Code, Problem};

/// The parameters of one request.
pub struct Params {
    pairs: Vec<(String, String)>,
}

impl Params {
    /// Reads them; a name that is not `known`, or stands there twice, is refused.
    pub fn read(request: &HttpRequest, known: &[&str]) -> Result<Self, Problem> {
        let pairs = Query::<Vec<(String, String)>>::from_query(request.query_string());
        let pairs = pairs.map_err(|_| Problem::new(Code::MalformedRequest, "the query of the URL cannot be read"))?.into_inner();
        for (i, (name, _)) in pairs.iter().enumerate() {
            if !known.contains(&name.as_str()) {
                // Not echoed: somebody may have put a key there.
                return Err(Problem::new(Code::InvalidField, format!("the query knows only the parameters {}", known.join(", "))));
            }
            if pairs.iter().take(i).any(|(other, _)| other == name) {
                return Err(parameter(name, "stands there twice"));
            }
        }
        Ok(Self { pairs })
    }

    /// A parameter; one without a value counts as absent.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, v)| v.as_str())
    }

    /// `limit`: how many entries a page may have, 1 to 1,000; 100 if absent.
    pub fn limit(&self) -> Result<usize, Problem> {
        const MAX: usize = 1000;
        let Some(text) = self.get("limit") else { return Ok(100) };
        text.parse()
            .ok()
            .filter(|n| (1..=MAX).contains(n))
            .ok_or_else(|| parameter("limit", format_args!("must be between 1 and {MAX}")).with("min", 1).with("max", MAX))
    }
}

/// A parameter that is not valid.
pub fn parameter(name: &str, what: impl std::fmt::Display) -> Problem {
    Problem::new(Code::InvalidField, format!("the parameter {name} {what}")).with("parameter", name)
}
