//! Fences: numbers that rise with every change of owner and never repeat.

/// (epoch, timeline, counter) in one positive 64-bit integer: 8, 11 and 44 bits. Shown as fixed-width text that sorts as the number does,
/// so that any store can refuse an older one by comparing strings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fence(pub i64);

/// A text that is no fence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("is not a fence (EEEEE-TTTTT-CCCCCCCCCCCCCC)")]
pub struct FenceError;

const COUNTER_BITS: u32 = 44;
const TIMELINE_BITS: u32 = 11;

impl Fence {
    /// Raised by an operator after a restore that made no new timeline.
    pub fn epoch(self) -> i64 {
        self.0 >> (COUNTER_BITS + TIMELINE_BITS)
    }

    /// The home's Postgres timeline at the grant: rises with every promotion.
    pub fn timeline(self) -> i64 {
        (self.0 >> COUNTER_BITS) & ((1 << TIMELINE_BITS) - 1)
    }

    /// The home's own counter.
    pub fn counter(self) -> i64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }

    /// Parses the text form.
    pub fn parse(text: &str) -> Result<Self, FenceError> {
        let mut parts = text.split('-').map(|p| if p.bytes().all(|b| b.is_ascii_digit()) { p.parse::<i64>().ok() } else { None });
        let (Some(Some(epoch)), Some(Some(timeline)), Some(Some(counter)), None) = (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(FenceError);
        };
        let fits = epoch < 1 << 8 && timeline < 1 << TIMELINE_BITS && counter < 1 << COUNTER_BITS;
        let fence = Self((epoch << (COUNTER_BITS + TIMELINE_BITS)) | (timeline << COUNTER_BITS) | counter);
        if fits && text.len() == 26 { Ok(fence) } else { Err(FenceError) }
    }
}

impl std::fmt::Display for Fence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:05}-{:05}-{:014}", self.epoch(), self.timeline(), self.counter())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn text_sorts_as_the_number_and_parses_back(a in 0..i64::MAX, b in 0..i64::MAX) {
            let (a, b) = (Fence(a), Fence(b));
            prop_assert_eq!(a.cmp(&b), a.to_string().cmp(&b.to_string()));
            prop_assert_eq!(Fence::parse(&a.to_string()), Ok(a));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "1-1-1", "00001-00001", "00256-00001-00000000000001", "00001-00001-0000000000000x", "00001-00001--0000000000001"] {
            assert_eq!(Fence::parse(text), Err(FenceError), "{text}");
        }
    }
}
