//! The window: one question per key, answers in any order, output in input order.

use super::*;
use crate::filter::block::Line;

/// A block whose lines are `key\n`; an empty key makes a bad line.
fn block(first_line: u64, keys: &[&str]) -> Block {
    let mut block = Block { first_line, ..Block::default() };
    for key in keys {
        block.text.extend_from_slice(format!("{key}\n").as_bytes());
        block.keys.push_str(key);
        let digest = key.bytes().fold(0, |sum, byte| (sum << 8) | u128::from(byte));
        let fate = if key.is_empty() { Fate::Bad(Bad::Blank) } else { Fate::Undecided };
        block.lines.push(Line { text_bytes: key.len() + 1, key_bytes: key.len(), digest, fate });
    }
    block
}

fn printed(window: &mut Window, pass_bad: bool) -> String {
    let mut all = Vec::new();
    while let Some(block) = window.pop() {
        all.extend(output(&block, pass_bad).0);
    }
    String::from_utf8(all).expect("text")
}

#[test]
fn equal_keys_wait_for_the_earliest_and_are_its_duplicates() {
    let mut window = Window::new(100);
    assert_eq!(window.admit(block(1, &["a", "b", "a"])), (0, vec![0, 1]));
    assert_eq!(window.admit(block(4, &["b", "c", "a"])), (1, vec![1]));
    assert_eq!(window.admit(block(7, &["a"])), (2, vec![]), "nothing to ask, and still in the window");
    window.settle((1, 1), Fate::First);
    window.settle((0, 0), Fate::First);
    assert_eq!(printed(&mut window, false), "", "b is open at the front");
    window.settle((0, 1), Fate::Duplicate);
    assert_eq!(printed(&mut window, false), "a\nc\n");
    assert!(window.is_empty());
    assert_eq!(window.admit(block(8, &["a"])), (3, vec![0]), "a key whose line was answered is asked about again");
}

#[test]
fn a_waiting_line_may_belong_to_a_block_that_has_not_left() {
    let mut window = Window::new(100);
    window.admit(block(1, &["x"]));
    window.admit(block(2, &["a"]));
    window.admit(block(3, &["a", "d"]));
    window.settle((2, 1), Fate::First);
    window.settle((1, 0), Fate::First);
    assert_eq!(printed(&mut window, false), "", "x is open");
    window.settle((0, 0), Fate::First);
    assert_eq!(printed(&mut window, false), "x\na\nd\n");
}

#[test]
fn bad_lines_are_named_in_place_and_shared_by_equal_keys() {
    let mut window = Window::new(100);
    let refused = Bad::Refused("unknown-region".into());
    window.admit(block(1, &["q", "", "k", "q"]));
    window.settle((0, 2), Fate::First);
    window.settle((0, 0), Fate::Bad(refused.clone()));
    let block = window.pop().expect("all decided");
    let (text, bad_lines) = output(&block, false);
    assert_eq!(text, b"k\n");
    assert_eq!(bad_lines, [(1, &refused), (2, &Bad::Blank), (4, &refused)]);
    assert_eq!(output(&block, true).0, b"q\n\nk\nq\n");
}

#[test]
fn it_is_bounded_by_lines_and_bytes() {
    let mut window = Window::new(3);
    window.admit(block(1, &["a", "b"]));
    assert!(window.has_room());
    window.admit(block(3, &["a"]));
    assert!(!window.has_room());
    window.settle((0, 0), Fate::First);
    window.settle((0, 1), Fate::First);
    assert_eq!(printed(&mut window, false), "a\nb\n");
    assert!(window.has_room() && window.is_empty());
    let mut large = block(4, &["l"]);
    large.text = vec![b'l'; TEXT_BYTES_MAX];
    window.admit(large);
    assert!(!window.has_room());
}

#[test]
fn any_order_of_answers_prints_the_first_occurrences() {
    // A small exhaustive-ish walk: 400 shuffles of answers to the same three blocks.
    for _ in 0..400 {
        let mut window = Window::new(100);
        let mut open = Vec::new();
        for (first_line, keys) in [(1, ["a", "b", "c"]), (4, ["b", "d", "a"]), (7, ["e", "e", "c"])] {
            let (number, asking) = window.admit(block(first_line, &keys));
            open.extend(asking.into_iter().map(|index| (number, index)));
        }
        let mut text = String::new();
        while !open.is_empty() {
            window.settle(open.swap_remove(rand::random_range(0..open.len())), Fate::First);
            text += &printed(&mut window, false);
        }
        assert_eq!(text, "a\nb\nc\nd\ne\n");
    }
}
