//! Splitting: whole lines, byte for byte, whatever the pieces in which they arrive.

use super::*;

/// Gives its bytes in pieces of `piece`.
struct Pieces<'a> {
    bytes: &'a [u8],
    piece: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.piece.min(self.bytes.len()).min(buffer.len());
        let (now, later) = self.bytes.split_at(count);
        buffer[..count].copy_from_slice(now);
        self.bytes = later;
        Ok(count)
    }
}

fn blocks(bytes: &[u8], piece: usize, lines_max: usize) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut splitter = Splitter::new(KeyRule::new(Some("eu"), None), lines_max);
    let read = splitter.read(Pieces { bytes, piece }, |block| {
        blocks.push(block);
        true
    });
    read.expect("it can be read");
    blocks
}

#[test]
fn every_byte_and_number_survives_any_cut() {
    let input = b"a\nbb\r\n\n\xff\nccc\n\nlast";
    for piece in 1..=input.len() {
        for lines_max in 1..5 {
            let blocks = blocks(input, piece, lines_max);
            let text: Vec<u8> = blocks.iter().flat_map(|block| block.text.clone()).collect();
            assert_eq!(text, input);
            assert!(blocks.iter().all(|block| (1..=lines_max).contains(&block.lines.len())));
            let keyed: Vec<(u64, String)> =
                blocks.iter().flat_map(|block| block.keyed().map(|(index, _, key)| (block.number(index), key.to_owned()))).collect();
            let expected = [(1, "eu:a"), (2, "eu:bb"), (5, "eu:ccc"), (7, "eu:last")];
            assert_eq!(keyed, expected.map(|(number, key)| (number, key.to_owned())), "piece {piece}, lines_max {lines_max}");
        }
    }
}

#[test]
fn a_block_is_never_larger_than_a_request_may_be() {
    let line = format!("{}\n", "\"".repeat(500));
    let blocks = blocks(line.repeat(3_000).as_bytes(), READ_BYTES, 1_000);
    assert_eq!(blocks.iter().map(|block| block.lines.len()).sum::<usize>(), 3_000);
    assert!(blocks.iter().all(|block| block.items_bytes <= 960 << 10));
    assert!(blocks.iter().any(|block| block.lines.len() > 500), "and not much smaller");
}

#[test]
fn an_endless_line_is_an_error_and_not_a_matter_of_memory() {
    let mut splitter = Splitter::new(KeyRule::new(None, None), 500);
    let error = splitter.read(io::repeat(b'x'), |_| true).expect_err("endless");
    assert!(error.to_string().contains("line 1 "), "{error}");
}

#[tokio::test]
async fn small_blocks_go_together_up_to_a_full_one() {
    let (sender, receiver) = mpsc::channel(9);
    let mut input = Input { blocks: receiver, ahead: None, lines_max: 5 };
    for block in blocks(b"1\n2\n3\n4\n5\n6\n7\n", 4, 2) {
        sender.send(Ok(block)).await.expect("room");
    }
    sender.send(Err(io::ErrorKind::Other.into())).await.expect("room");
    drop(sender);
    let mut seen = Vec::new();
    while let Some(Ok(block)) = input.next().await {
        seen.push((block.first_line, String::from_utf8(block.text).expect("text")));
    }
    assert_eq!(seen, [(1, "1\n2\n3\n4\n".to_owned()), (5, "5\n6\n7\n".to_owned())], "the error came after all lines");
}
