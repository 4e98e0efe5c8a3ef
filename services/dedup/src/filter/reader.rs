//! Reads and splits the input on a thread of its own: a slow pipe must not hold up answers.

use std::io::{self, Read};
use std::thread;

use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use super::block::{Block, Fate, Line};
use super::line::{KeyRule, without_end};
use super::request::ITEM_BYTES;

/// Asked of the input at a time.
const READ_BYTES: usize = 256 << 10;
/// A longer line would not fit into any promise about memory.
const LINE_BYTES_MAX: usize = 16 << 20;
/// Blocks that wait for the asking side.
const BLOCKS_WAITING: usize = 2;

/// The input, block by block.
#[derive(Debug)]
pub struct Input {
    blocks: mpsc::Receiver<io::Result<Block>>,
    /// Taken from the channel, but too large to go with the block before it.
    ahead: Option<io::Result<Block>>,
    lines_max: usize,
}

impl Input {
    /// Starts reading blocks of at most `lines_max` lines.
    pub fn start(source: impl Read + Send + 'static, rule: KeyRule, lines_max: usize) -> io::Result<Self> {
        let (sender, blocks) = mpsc::channel(BLOCKS_WAITING);
        let work = move || {
            let mut splitter = Splitter::new(rule, lines_max);
            // The other side is gone when the filter stops early: nobody is left to tell.
            if let Err(error) = splitter.read(source, |block| sender.blocking_send(Ok(block)).is_ok()) {
                sender.blocking_send(Err(error)).ok();
            }
        };
        thread::Builder::new().name("filter-input".to_owned()).spawn(work)?;
        Ok(Self { blocks, ahead: None, lines_max })
    }

    /// The next lines: what has been read by now, up to a full block, so that a slow input is asked at once and a fast one in large batches.
    /// Safe to cancel.
    pub async fn next(&mut self) -> Option<io::Result<Block>> {
        let first = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.blocks.recv().await?,
        };
        let Ok(mut block) = first else { return Some(first) };
        while let Ok(next) = self.blocks.try_recv() {
            match next {
                Ok(more) if block.has_room(more.lines.len(), more.text.len(), more.items_bytes, self.lines_max) => block.append(more),
                other => {
                    self.ahead = Some(other);
                    break;
                }
            }
        }
        Some(Ok(block))
    }
}

/// Cuts bytes into lines and lines into blocks.
struct Splitter {
    rule: KeyRule,
    lines_max: usize,
    line: u64,
    block: Block,
}

impl Splitter {
    fn new(rule: KeyRule, lines_max: usize) -> Self {
        Self { rule, lines_max, line: 0, block: Block::default() }
    }

    /// Reads to the end, or until nobody takes the blocks any more.
    fn read(&mut self, mut source: impl Read, mut take: impl FnMut(Block) -> bool) -> io::Result<()> {
        let mut buffer = Vec::new();
        loop {
            let kept = buffer.len();
            buffer.resize(kept + READ_BYTES, 0);
            let count = read_some(&mut source, &mut buffer[kept..])?;
            buffer.truncate(kept + count);
            let ended = count == 0;
            let whole = if ended { buffer.len() } else { buffer.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1) };
            for line in buffer[..whole].split_inclusive(|byte| *byte == b'\n') {
                if let Some(full) = self.push(line)
                    && !take(full)
                {
                    return Ok(());
                }
            }
            buffer.drain(..whole);
            // What is there goes out before the next read, which may last.
            if !self.block.lines.is_empty() && !take(std::mem::take(&mut self.block)) {
                return Ok(());
            }
            if ended {
                return Ok(());
            }
            if buffer.len() > LINE_BYTES_MAX {
                let text = format!("line {} has more than {} MiB", self.line + 1, LINE_BYTES_MAX >> 20);
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
        }
    }

    /// Adds a line; answers the block before it if it did not fit in there.
    fn push(&mut self, line: &[u8]) -> Option<Block> {
        let keys = self.block.keys.len();
        let appended = self.rule.append(without_end(line), &mut self.block.keys);
        let key = &self.block.keys[keys..];
        let escaped = key.bytes().filter(|byte| matches!(byte, b'"' | b'\\')).count();
        let (key_bytes, items_bytes, digest, fate) = match appended {
            Ok(bytes) => (bytes, ITEM_BYTES + bytes + escaped, digest(key), Fate::Undecided),
            Err(bad) => (0, 0, 0, Fate::Bad(bad)),
        };
        let full = if self.block.has_room(1, line.len(), items_bytes, self.lines_max) {
            None
        } else {
            let keys = self.block.keys.split_off(keys);
            Some(std::mem::replace(&mut self.block, Block { keys, ..Block::default() }))
        };
        self.line += 1;
        if self.block.lines.is_empty() {
            self.block.first_line = self.line;
        }
        self.block.text.extend_from_slice(line);
        self.block.items_bytes += items_bytes;
        self.block.lines.push(Line { text_bytes: line.len(), key_bytes, digest, fate });
        full
    }
}

/// Reads what is there; 0 at the end.
fn read_some(source: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match source.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// The first 128 bits of the key's SHA-256.
fn digest(key: &str) -> u128 {
    let hash = Sha256::digest(key.as_bytes());
    hash.iter().take(16).fold(0, |sum, byte| (sum << 8) | u128::from(*byte))
}

#[cfg(test)]
mod tests;
