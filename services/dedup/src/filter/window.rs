//! The lines between input and output: which keys are being asked about, who waits for whom, what may be printed next.
//!
//! Architecture invariant: a key is asked about by one line at a time, the earliest one without an answer. So a later line can never be told
//! `first` in the place of an earlier one, whatever is lost, repeated or overtaken on the way.

use std::collections::{HashMap, VecDeque};

use super::block::{Block, Fate};
use super::line::Bad;

/// Most bytes of lines on their way.
const TEXT_BYTES_MAX: usize = 64 << 20;

/// A line in the window: its block's number, its index in there.
type Place = (u64, usize);

/// The blocks on their way, in input order.
#[derive(Debug)]
pub struct Window {
    blocks: VecDeque<Waiting>,
    /// Number of the block at the front.
    front: u64,
    /// Digests of the keys that are being asked about, with the later lines that wait for the answer.
    open: HashMap<u128, Vec<Place>>,
    lines: usize,
    text_bytes: usize,
    lines_max: usize,
}

#[derive(Debug)]
struct Waiting {
    block: Block,
    undecided: usize,
}

impl Window {
    /// Takes new blocks while it has fewer lines than `lines_max`.
    pub fn new(lines_max: usize) -> Self {
        Self { blocks: VecDeque::new(), front: 0, open: HashMap::new(), lines: 0, text_bytes: 0, lines_max }
    }

    pub fn is_empty(&self) -> bool {
        self.blocks.is_empty()
    }

    pub fn has_room(&self) -> bool {
        self.lines < self.lines_max && self.text_bytes < TEXT_BYTES_MAX
    }

    /// Takes the next block. Answers its number and which of its lines are to be asked about; all others are bad, or wait for these or for
    /// lines of earlier blocks.
    pub fn admit(&mut self, block: Block) -> (u64, Vec<usize>) {
        let number = self.front + self.blocks.len() as u64;
        let mut asking = Vec::with_capacity(block.lines.len());
        let mut undecided = 0;
        for (index, line) in block.lines.iter().enumerate().filter(|(_, line)| line.fate == Fate::Undecided) {
            undecided += 1;
            let mut is_new = false;
            let waiting = self.open.entry(line.digest).or_insert_with(|| {
                is_new = true;
                Vec::new()
            });
            if is_new {
                asking.push(index);
            } else {
                waiting.push((number, index));
            }
        }
        self.lines += block.lines.len();
        self.text_bytes += block.text.len();
        self.blocks.push_back(Waiting { block, undecided });
        (number, asking)
    }

    /// A block that is still in the window.
    pub fn block(&self, number: u64) -> Option<&Block> {
        self.blocks.get(self.position(number)?).map(|waiting| &waiting.block)
    }

    /// The answer to one line, and so to all that wait for it: they are its duplicates, or as bad.
    pub fn settle(&mut self, place: Place, fate: Fate) {
        let Some(digest) = self.set(place, fate.clone()) else { return };
        let shared = match fate {
            Fate::Bad(bad) => Fate::Bad(bad),
            _ => Fate::Duplicate,
        };
        for waiting in self.open.remove(&digest).unwrap_or_default() {
            self.set(waiting, shared.clone());
        }
    }

    fn set(&mut self, (number, index): Place, fate: Fate) -> Option<u128> {
        let position = self.position(number)?;
        let waiting = self.blocks.get_mut(position)?;
        let line = waiting.block.lines.get_mut(index)?;
        debug_assert_eq!(line.fate, Fate::Undecided, "a line is decided once");
        line.fate = fate;
        waiting.undecided -= 1;
        Some(line.digest)
    }

    /// The block at the front, once all of it is decided.
    pub fn pop(&mut self) -> Option<Block> {
        if self.blocks.front()?.undecided > 0 {
            return None;
        }
        let waiting = self.blocks.pop_front()?;
        self.front += 1;
        self.lines -= waiting.block.lines.len();
        self.text_bytes -= waiting.block.text.len();
        Some(waiting.block)
    }

    fn position(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.front)?).ok()
    }
}

/// What a decided block prints, and its bad lines with their numbers. `pass_bad`: bad lines are printed too.
pub fn output(block: &Block, pass_bad: bool) -> (Vec<u8>, Vec<(u64, &Bad)>) {
    let mut text = Vec::new();
    let mut bad_lines = Vec::new();
    for (index, (line, bytes)) in block.texts().enumerate() {
        match &line.fate {
            Fate::First => text.extend_from_slice(bytes),
            Fate::Duplicate | Fate::Undecided => {}
            Fate::Bad(bad) => {
                bad_lines.push((block.number(index), bad));
                if pass_bad {
                    text.extend_from_slice(bytes);
                }
            }
        }
    }
    (text, bad_lines)
}

#[cfg(test)]
mod tests;
