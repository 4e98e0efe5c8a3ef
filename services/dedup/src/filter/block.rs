//! A run of lines on their way through the filter, in input order.

use super::line::Bad;

/// Most bytes of lines in one block.
const TEXT_BYTES_MAX: usize = 4 << 20;
/// Most bytes of a block's items as JSON: below the service's limit of 1 MiB a request.
const ITEMS_BYTES_MAX: usize = 960 << 10;

/// What became of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// Not known yet.
    Undecided,
    /// Printed.
    First,
    /// Left out.
    Duplicate,
    /// Nobody can say.
    Bad(Bad),
}

/// One line of a [`Block`]. Lengths instead of positions, so that blocks can be put behind one another.
#[derive(Debug)]
pub struct Line {
    /// With its end.
    pub text_bytes: usize,
    /// 0 for a bad line.
    pub key_bytes: usize,
    /// First 128 bits of the key's SHA-256; 0 for a bad line.
    pub digest: u128,
    /// What became of it.
    pub fate: Fate,
}

/// Lines with their bytes and keys in two buffers: a line costs no allocation of its own.
#[derive(Debug, Default)]
pub struct Block {
    /// Number of the first line in the input, from 1.
    pub first_line: u64,
    /// The lines as they came, ends included.
    pub text: Vec<u8>,
    /// The keys, one after the other.
    pub keys: String,
    /// The lines.
    pub lines: Vec<Line>,
    /// At most so many bytes will its items have as JSON.
    pub items_bytes: usize,
}

impl Block {
    /// Whether so much more fits.
    pub fn has_room(&self, lines: usize, text_bytes: usize, items_bytes: usize, lines_max: usize) -> bool {
        self.lines.is_empty()
            || (self.lines.len() + lines <= lines_max
                && self.text.len() + text_bytes <= TEXT_BYTES_MAX
                && self.items_bytes + items_bytes <= ITEMS_BYTES_MAX)
    }

    /// Puts the lines that follow in the input behind these.
    pub fn append(&mut self, mut next: Self) {
        self.text.append(&mut next.text);
        self.keys.push_str(&next.keys);
        self.lines.append(&mut next.lines);
        self.items_bytes += next.items_bytes;
    }

    /// The number of a line in the input.
    pub fn number(&self, index: usize) -> u64 {
        self.first_line + index as u64
    }

    /// Index, line and key of each line that has one.
    pub fn keyed(&self) -> impl Iterator<Item = (usize, &Line, &str)> {
        let mut rest = self.keys.as_str();
        self.lines.iter().enumerate().filter(|(_, line)| line.key_bytes > 0).map(move |(index, line)| {
            let (key, after) = rest.split_at(line.key_bytes);
            rest = after;
            (index, line, key)
        })
    }

    /// Line and text of each.
    pub fn texts(&self) -> impl Iterator<Item = (&Line, &[u8])> {
        let mut rest = self.text.as_slice();
        self.lines.iter().map(move |line| {
            let (text, after) = rest.split_at(line.text_bytes);
            rest = after;
            (line, text)
        })
    }
}
