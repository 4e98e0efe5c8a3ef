//! Times inside a segment: 4 bytes each, relative to the segment's origin. The same as `dedup.t_in` and `dedup.t_out` in SQL.

/// "Forever", as a time in milliseconds.
pub const FOREVER_MS: i64 = i64::MAX;

const FINE: i64 = 1 << 30;

/// Milliseconds from the origin within ±2³⁰ (12.4 days), whole seconds beyond. Rounded away from the origin, so that an end is never early
/// and a beginning never late; saturates after 34 years.
pub fn encode_time(origin_ms: i64, t_ms: i64) -> i32 {
    if t_ms == FOREVER_MS {
        return i32::MAX;
    }
    let delta = t_ms - origin_ms;
    let v = if delta >= FINE {
        (FINE + (delta - FINE + 999) / 1000).min(i64::from(i32::MAX) - 1)
    } else if delta < -FINE {
        (-FINE - (-delta - FINE + 999) / 1000).max(i64::from(i32::MIN))
    } else {
        delta
    };
    i32::try_from(v).expect("limited to i32 above")
}

/// Inverse of [`encode_time`], up to its rounding.
pub fn decode_time(origin_ms: i64, v: i32) -> i64 {
    let v64 = i64::from(v);
    if v == i32::MAX {
        FOREVER_MS
    } else if v64 >= FINE {
        origin_ms + FINE + (v64 - FINE) * 1000
    } else if v64 < -FINE {
        origin_ms - FINE + (v64 + FINE) * 1000
    } else {
        origin_ms + v64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ends_are_never_early_and_at_most_a_second_late(delta in 0..400i64 * 86_400_000) {
            let t = 1_700_000_000_000 + delta;
            let back = decode_time(1_700_000_000_000, encode_time(1_700_000_000_000, t));
            prop_assert!(back >= t && back < t + 1000);
            if delta < FINE { prop_assert_eq!(back, t); }
        }

        #[test]
        fn beginnings_are_never_late(delta in 0..400i64 * 86_400_000) {
            let t = 1_700_000_000_000 - delta;
            let back = decode_time(1_700_000_000_000, encode_time(1_700_000_000_000, t));
            prop_assert!(back <= t && back > t - 1000);
        }
    }

    #[test]
    fn forever_stays() {
        assert_eq!(decode_time(5, encode_time(5, FOREVER_MS)), FOREVER_MS);
    }
}
