//! The JSON of a batch of checks, written and read without an allocation per line.

use bytes::Bytes;
use dedup_client::Problem;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::block::Block;
use super::run_id::{RUN_ID_CHARS_MAX, RunId};

/// Most bytes of an item beside its key: names, quotes, and a request id (`f1-`, the run, a line number, 16 digits, dashes).
pub const ITEM_BYTES: usize = r#"{"key":"","request_id":""},"#.len() + 3 + RUN_ID_CHARS_MAX + 1 + 20 + 1 + 16;

const TAIL: &[u8] = b"]}";

/// What all batches of a run begin with.
#[derive(Debug)]
pub struct Head(Vec<u8>);

impl Head {
    pub fn new(group: Option<&str>) -> serde_json::Result<Self> {
        let mut head = Vec::from(b"{");
        if let Some(group) = group {
            head.extend_from_slice(b"\"group\":");
            serde_json::to_writer(&mut head, group)?;
            head.push(b',');
        }
        head.extend_from_slice(br#""detail":"verdict","items":["#);
        Ok(Self(head))
    }
}

#[derive(Serialize)]
struct Item<'a> {
    key: &'a str,
    request_id: &'a str,
}

/// The questions of one block, as JSON.
#[derive(Debug)]
pub struct Request {
    body: Bytes,
    head_bytes: usize,
    /// Where each item ends in the body; a comma follows all but the last.
    ends: Vec<usize>,
}

impl Request {
    /// Asks about the lines at `asking` (indexes into the block, rising).
    pub fn new(head: &Head, run: &RunId, block: &Block, asking: &[usize]) -> serde_json::Result<Self> {
        let mut body = Vec::with_capacity(head.0.len() + block.items_bytes + TAIL.len());
        body.extend_from_slice(&head.0);
        let mut ends = Vec::with_capacity(asking.len());
        let mut wanted = asking.iter().peekable();
        let mut request_id = String::new();
        for (index, line, key) in block.keyed() {
            if wanted.next_if(|wanted| **wanted == index).is_none() {
                continue;
            }
            if !ends.is_empty() {
                body.push(b',');
            }
            run.write_request_id(block.number(index), line.digest, &mut request_id);
            serde_json::to_writer(&mut body, &Item { key, request_id: &request_id })?;
            ends.push(body.len());
        }
        body.extend_from_slice(TAIL);
        Ok(Self { body: body.into(), head_bytes: head.0.len(), ends })
    }

    /// How many items it has.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// The body that asks about the items at `open` only (rising), in the very same words.
    pub fn body(&self, open: &[usize]) -> Bytes {
        if open.len() == self.len() {
            return self.body.clone();
        }
        let mut body = self.body[..self.head_bytes].to_vec();
        for (nth, item) in open.iter().enumerate() {
            if nth > 0 {
                body.push(b',');
            }
            let start = item.checked_sub(1).map_or(self.head_bytes, |before| self.ends[before] + 1);
            body.extend_from_slice(&self.body[start..self.ends[*item]]);
        }
        body.extend_from_slice(TAIL);
        body.into()
    }
}

/// The answer to a batch. Members that do not matter here are skipped.
#[derive(Debug, Deserialize)]
pub struct Reply<'a> {
    #[serde(borrow)]
    pub results: Vec<ItemReply<'a>>,
}

/// The answer to one item: a verdict or a problem.
#[derive(Debug, Deserialize)]
pub struct ItemReply<'a> {
    pub verdict: Option<Word>,
    #[serde(borrow)]
    problem: Option<&'a RawValue>,
}

impl ItemReply<'_> {
    /// Why it has no verdict.
    pub fn problem(&self) -> Problem {
        self.problem.and_then(|raw| serde_json::from_str(raw.get()).ok()).unwrap_or_default()
    }
}

/// The verdicts as far as a filter tells them apart. One that works on a key by a claim is before us too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    First,
    #[serde(other)]
    NotFirst,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filter::block::{Fate, Line};

    fn block(keys: &[&str]) -> Block {
        let mut block = Block { first_line: 10, ..Block::default() };
        for key in keys {
            block.keys.push_str(key);
            block.lines.push(Line { text_bytes: 0, key_bytes: key.len(), digest: 1 << 64, fate: Fate::Undecided });
        }
        block
    }

    fn text(body: &Bytes) -> &str {
        std::str::from_utf8(body).expect("UTF-8")
    }

    #[test]
    fn a_subset_is_asked_in_the_same_words() {
        let head = Head::new(Some("g\"1")).expect("JSON");
        let run = RunId::parse("r").expect("an id");
        // The second line is bad, the third waits for somebody else.
        let request = Request::new(&head, &run, &block(&["eu:a", "", "eu:w", "eu:\"b\\", "eu:c"]), &[0, 3, 4]).expect("JSON");
        let item = |key: &str, line: u64| format!(r#"{{"key":"{key}","request_id":"f1-r-{line}-0000000000000001"}}"#);
        let (a, b, c) = (item("eu:a", 10), item(r#"eu:\"b\\"#, 13), item("eu:c", 14));
        let head = r#"{"group":"g\"1","detail":"verdict","items":["#;
        assert_eq!(text(&request.body(&[0, 1, 2])), format!("{head}{a},{b},{c}]}}"));
        assert_eq!(text(&request.body(&[0, 2])), format!("{head}{a},{c}]}}"));
        assert_eq!(text(&request.body(&[1])), format!("{head}{b}]}}"));
        assert_eq!(request.len(), 3);
    }

    #[test]
    fn no_item_is_larger_than_counted() {
        let run = RunId::parse(&"x".repeat(RUN_ID_CHARS_MAX)).expect("an id");
        let mut block = block(&["k", "k"]);
        block.first_line = u64::MAX - 1;
        let request = Request::new(&Head(Vec::new()), &run, &block, &[0, 1]).expect("JSON");
        assert!(request.body.len() - TAIL.len() <= 2 * (ITEM_BYTES + 1));
    }

    #[test]
    fn replies_are_read_tolerantly() {
        let text = r#"{"results":[{"verdict":"first","new":1},{"verdict":"duplicate"},{"verdict":"of tomorrow"},
            {"problem":{"code":"key-busy","status":503,"detail":"\"held\""}},{}],"counts":{"first":1}}"#;
        let reply: Reply<'_> = serde_json::from_str(text).expect("JSON");
        let words: Vec<Option<Word>> = reply.results.iter().map(|item| item.verdict).collect();
        assert_eq!(words, [Some(Word::First), Some(Word::NotFirst), Some(Word::NotFirst), None, None]);
        assert_eq!((reply.results[3].problem().code.as_str(), reply.results[3].problem().status), ("key-busy", 503));
        assert_eq!(reply.results[4].problem(), Problem::default());
    }
}
