//! The bytes of a cached value: version, facts, result, MAC.
//!
//! Layout (integers big-endian): version u8 = 2 · home id 16 · incarnation i32 · as_of i64 · fence i64 · request i64 · fingerprint i32 ·
//! first_seen i64 · expires i64 · ends i64 · meta i32 · [status i16 (−1 none) · omitted u8 · keep until i64 (−1 none) · media (u32 len + bytes, len u32::MAX = none) ·
//! headers (same) · body (same)] if meta says there is a result · MAC 16 over digest ‖ all before.

use std::sync::Arc;

use dedup_core::{Digest, Fence, Fingerprint, Record, RequestHash, Secret, State, StoredResult};
use subtle_eq::ct_eq;
use uuid::Uuid;

use crate::cached::Cached;

const VERSION: u8 = 2;

/// Encodes a value for one digest.
pub fn encode(digest: &Digest, cached: &Cached, secret: &Secret) -> Vec<u8> {
    let r = &cached.record;
    let mut out = Vec::with_capacity(128 + r.result.as_ref().map_or(0, |x| x.weight()));
    out.push(VERSION);
    out.extend_from_slice(cached.home_id.as_bytes());
    out.extend_from_slice(&cached.incarnation.to_be_bytes());
    out.extend_from_slice(&cached.as_of.to_be_bytes());
    out.extend_from_slice(&r.fence.0.to_be_bytes());
    out.extend_from_slice(&r.request.map_or(0, RequestHash::get).to_be_bytes());
    out.extend_from_slice(&Fingerprint::to_stored(r.fingerprint).to_be_bytes());
    out.extend_from_slice(&r.first_seen_ms.to_be_bytes());
    out.extend_from_slice(&r.expires_ms.to_be_bytes());
    out.extend_from_slice(&r.ends_ms.to_be_bytes());
    out.extend_from_slice(&r.pack_meta().to_be_bytes());
    if let Some(x) = &r.result {
        out.extend_from_slice(&x.status.unwrap_or(-1).to_be_bytes());
        out.push(u8::from(x.omitted));
        out.extend_from_slice(&x.keep_until_ms.unwrap_or(-1).to_be_bytes());
        for part in [x.media_type.as_ref().map(String::as_bytes), Some(x.headers.as_bytes()), x.body.as_deref()] {
            let len = part.map_or(u32::MAX, |p| u32::try_from(p.len()).expect("results are limited to a few MiB"));
            out.extend_from_slice(&len.to_be_bytes());
            out.extend_from_slice(part.unwrap_or_default());
        }
    }
    let mac = secret.cache_mac(&[digest.as_bytes(), &out]);
    out.extend_from_slice(&mac);
    out
}

/// Decodes a value; `None` for anything this deployment did not write for this very digest.
pub fn decode(digest: &Digest, bytes: &[u8], secret: &Secret) -> Option<Cached> {
    let (signed, mac) = bytes.split_at_checked(bytes.len().checked_sub(16)?)?;
    if !ct_eq(&secret.cache_mac(&[digest.as_bytes(), signed]), mac) {
        return None;
    }
    let mut at = signed;
    let [version] = take::<1>(&mut at)?;
    if version != VERSION {
        return None;
    }
    let home_id = Uuid::from_bytes(take(&mut at)?);
    let incarnation = i32::from_be_bytes(take(&mut at)?);
    let as_of = i64::from_be_bytes(take(&mut at)?);
    let fence = Fence(i64::from_be_bytes(take(&mut at)?));
    let request = RequestHash::from_stored(i64::from_be_bytes(take(&mut at)?));
    let fingerprint = Fingerprint::from_stored(i32::from_be_bytes(take(&mut at)?));
    let first_seen_ms = i64::from_be_bytes(take(&mut at)?);
    let expires_ms = i64::from_be_bytes(take(&mut at)?);
    let ends_ms = i64::from_be_bytes(take(&mut at)?);
    let (state, outcome, one_shot, has_result, attempt) = Record::unpack_meta(i32::from_be_bytes(take(&mut at)?))?;
    if state != State::Done {
        return None;
    }
    let result = if has_result {
        let status = i16::from_be_bytes(take(&mut at)?);
        let [omitted] = take::<1>(&mut at)?;
        let keep_until_ms = Some(i64::from_be_bytes(take(&mut at)?)).filter(|ms| *ms >= 0);
        let mut part = || {
            let len = u32::from_be_bytes(take(&mut at)?);
            if len == u32::MAX {
                return Some(None);
            }
            let (part, rest) = at.split_at_checked(usize::try_from(len).ok()?)?;
            at = rest;
            Some(Some(part.to_vec()))
        };
        let media_type = part()?.map(String::from_utf8).transpose().ok()?;
        let headers = String::from_utf8(part()?.unwrap_or_default()).ok()?;
        let body = part()?;
        let status = (status >= 0).then_some(status);
        Some(Arc::new(StoredResult { status, media_type, headers, body, omitted: omitted == 1, keep_until_ms }))
    } else {
        None
    };
    if !at.is_empty() {
        return None;
    }
    let record = Record { fence, request, fingerprint, state, outcome, one_shot, attempt, first_seen_ms, expires_ms, ends_ms, result };
    Some(Cached { record: Arc::new(record), as_of, home_id, incarnation })
}

fn take<const N: usize>(at: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = at.split_first_chunk::<N>()?;
    *at = rest;
    Some(*head)
}

mod subtle_eq {
    use subtle::ConstantTimeEq;

    pub fn ct_eq(a: &[u8], b: &[u8]) -> bool {
        a.ct_eq(b).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dedup_core::Outcome;

    fn value() -> Cached {
        let result = StoredResult {
            status: Some(201),
            media_type: Some("a/b".into()),
            headers: "{}".into(),
            body: Some((0..=255).collect()),
            omitted: false,
            keep_until_ms: Some(7),
        };
        Cached {
            record: Arc::new(Record {
                fence: Fence(9),
                request: RequestHash::from_stored(5),
                fingerprint: Fingerprint::from_stored(6),
                state: State::Done,
                outcome: Outcome::Failed,
                one_shot: false,
                attempt: 3,
                first_seen_ms: 1,
                expires_ms: 2,
                ends_ms: 3,
                result: Some(Arc::new(result)),
            }),
            as_of: 4,
            home_id: Uuid::from_u128(1),
            incarnation: 2,
        }
    }

    #[test]
    fn only_the_very_bytes_for_the_very_digest_are_believed() {
        let secret = Secret::new([3; 32]);
        let (a, b) = (Digest(Uuid::from_u128(1)), Digest(Uuid::from_u128(2)));
        let bytes = encode(&a, &value(), &secret);
        let back = decode(&a, &bytes, &secret).expect("own bytes");
        assert_eq!(back.record, value().record);
        assert_eq!((back.as_of, back.home_id, back.incarnation), (4, Uuid::from_u128(1), 2));
        assert!(decode(&b, &bytes, &secret).is_none(), "swapped between keys");
        assert!(decode(&a, &bytes, &Secret::new([4; 32])).is_none(), "another deployment");
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(decode(&a, &bad, &secret).is_none(), "byte {at}");
            assert!(decode(&a, &bytes[..at], &secret).is_none(), "cut at {at}");
        }
    }
}
