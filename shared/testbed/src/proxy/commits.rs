//! Enough of the Postgres protocol to tell a statement that commits from the rest, and its reply from another's.
//!
//! A call of an instance is Bind, Execute, Sync of a statement that was prepared before; an SQL caller's commit is a simple query or such a
//! call of `COMMIT`. Each Sync or simple query is answered by one ReadyForQuery, in order, so counting those tells whose reply comes.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use super::Fate;

/// Functions that change the home when an instance calls them.
const CHANGES: [&str; 4] = ["dedup.decide_v", "dedup.finish_v", "dedup.forget_v", "dedup.force_release_v"];

/// Cuts a stream into frames: a tag, a length, a body. The first frame of a client has no tag.
#[derive(Debug, Default)]
struct Frames {
    buffer: Vec<u8>,
    tagless: bool,
}

impl Frames {
    fn each(&mut self, chunk: &[u8], mut take: impl FnMut(u8, &[u8])) {
        self.buffer.extend_from_slice(chunk);
        let mut at = 0;
        loop {
            let rest = &self.buffer[at..];
            let head = if self.tagless { 0 } else { 1 };
            let Some(length) = rest.get(head..head + 4).and_then(|l| l.try_into().ok()).map(|l| u32::from_be_bytes(l) as usize) else {
                break;
            };
            let Some(body) = rest.get(head + 4..head + length.max(4)) else { break };
            take(if self.tagless { 0 } else { rest[0] }, body);
            at += head + length.max(4);
            self.tagless = false;
        }
        self.buffer.drain(..at);
    }
}

/// What a client sends.
#[derive(Debug)]
pub(super) struct Commits {
    postgres: bool,
    frames: Frames,
    /// Prepared statements that change something.
    changing: HashSet<Vec<u8>>,
    /// A change was bound since the last Sync.
    bound: bool,
    replies: Arc<Replies>,
}

/// What is to happen to the replies that are due, in order.
#[derive(Debug, Default)]
pub(super) struct Replies {
    due: Mutex<(Frames, VecDeque<Option<Fate>>)>,
}

impl Commits {
    pub(super) fn new(postgres: bool, replies: Arc<Replies>) -> Self {
        Self { postgres, frames: Frames { buffer: Vec::new(), tagless: true }, changing: HashSet::new(), bound: false, replies }
    }

    /// Reads along; `draw` is asked once for each call that may commit. Answers a fate that ends the connection now.
    pub(super) fn sent(&mut self, chunk: &[u8], mut draw: impl FnMut() -> Option<Fate>) -> Option<Fate> {
        let mut now = None;
        let mut due = self.replies.due.lock().unwrap_or_else(PoisonError::into_inner);
        let mut call = |due: &mut VecDeque<Option<Fate>>, changes: bool| {
            let fate = if changes { draw() } else { None };
            if fate == Some(Fate::DropCall) {
                now = fate;
            }
            due.push_back(fate);
        };
        if !self.postgres {
            // One reply at a time is all that the other protocols here need to be told apart.
            due.1.clear();
            call(&mut due.1, true);
            return now;
        }
        let Self { frames, changing, bound, .. } = self;
        frames.each(chunk, |tag, body| match tag {
            // The answer to the startup message and to the password ends with a ReadyForQuery, too.
            0 => due.1.push_back(None),
            b'P' => {
                let (name, query) = (word(body, 0), word(body, 1));
                if changes(query) {
                    changing.insert(name.to_vec());
                } else {
                    changing.remove(name);
                }
            }
            b'B' => *bound |= changing.contains(word(body, 1)),
            b'S' => {
                call(&mut due.1, *bound);
                *bound = false;
            }
            b'Q' => call(&mut due.1, changes(word(body, 0))),
            _ => {}
        });
        now
    }
}

impl Replies {
    /// Reads along what the server answers; tells what is to happen to it.
    pub(super) fn come(&self, chunk: &[u8]) -> Option<Fate> {
        let mut due = self.due.lock().unwrap_or_else(PoisonError::into_inner);
        let (frames, fates) = &mut *due;
        // Any piece of a reply that is to go wrong will do, and of a line that has no frames there is nothing but pieces.
        let mut next = fates.front().copied().flatten();
        frames.each(chunk, |tag, _| {
            next = next.or(fates.front().copied().flatten());
            if tag == b'Z' {
                fates.pop_front();
            }
        });
        if next == Some(Fate::DelayReply)
            && let Some(front) = fates.front_mut()
        {
            // Once is enough for a reply in several pieces.
            *front = None;
        }
        next
    }
}

fn changes(query: &[u8]) -> bool {
    let text = String::from_utf8_lossy(query);
    text.trim_start().get(..6).is_some_and(|t| t.eq_ignore_ascii_case("commit")) || CHANGES.iter().any(|c| text.contains(c))
}

/// The n-th zero-terminated text of a message.
fn word(body: &[u8], n: usize) -> &[u8] {
    body.split(|b| *b == 0).nth(n).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(tag: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap_or_default().to_be_bytes();
        let tag = if tag == 0 { vec![] } else { vec![tag] };
        [&tag[..], &length, body].concat()
    }

    #[test]
    fn only_calls_that_commit_are_drawn_for_and_their_own_replies_are_hit() {
        let replies = Arc::new(Replies::default());
        let mut commits = Commits::new(true, Arc::clone(&replies));
        let drawn = std::cell::Cell::new(0);
        let draw = || {
            drawn.set(drawn.get() + 1);
            Some(Fate::EatReply)
        };
        let sent = [
            frame(0, b"\0\x03\0\0user\0x\0\0"),
            frame(b'P', b"s1\0SELECT * FROM dedup.decide_v1($1)\0\0\0"),
            frame(b'P', b"s2\0SELECT * FROM dedup.pulse_v1()\0\0\0"),
            frame(b'S', b""),
            frame(b'B', b"\0s2\0\0\0"),
            frame(b'E', b"\0\0\0\0\0"),
            frame(b'S', b""),
        ]
        .concat();
        // Chunks end anywhere.
        for piece in sent.chunks(3) {
            assert_eq!(commits.sent(piece, draw), None);
        }
        assert_eq!(drawn.get(), 0);
        commits.sent(&[frame(b'B', b"\0s1\0\0\0"), frame(b'E', b"\0\0\0\0\0"), frame(b'S', b"")].concat(), draw);
        commits.sent(&frame(b'Q', b"COMMIT\0"), draw);
        assert_eq!(drawn.get(), 2);
        for _ in 0..3 {
            assert_eq!(replies.come(&frame(b'Z', b"I")), None, "replies to what commits nothing pass");
        }
        assert_eq!(replies.come(&frame(b'D', b"row")), Some(Fate::EatReply));
    }
}
