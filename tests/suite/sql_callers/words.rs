//! What is hashed, signed and parsed in both languages.

use dedup_core::{
    ClaimToken, Digest, Fence, Fingerprint, HomeId, HomeSpec, HomeTable, Key, KeyError, RequestId, Secret, StoredResult, Topic,
};
use rand::RngExt;
use uuid::Uuid;

use super::code;
use crate::harness::{run, shared};

/// Hashes, tokens and keys are made alike in Rust and in SQL: one table, and random texts.
/// Seen to fail with a tag of 16 bytes, with base64 that ignores trailing bits, and with blanks that are ASCII only.
#[test]
fn words_are_made_alike_in_rust_and_sql() {
    run(async {
        let testbed = shared().await;
        let owner = testbed.region("eu").postgres.connect("dedup_owner").await;
        let secret = Secret::parse_hex(testbed.secret_hex()).unwrap();
        let home = |name: &str| HomeSpec { name: name.into(), region: name.into(), prefixes: vec![name.into()] };
        let homes = HomeTable::new(vec![home("eu"), home("us")]).unwrap();
        let mut texts: Vec<String> = ["a", "r-1", "\u{e9}\u{4e2d}\u{1f600}", " x ", "0"].map(str::to_owned).to_vec();
        texts.extend((0..60).map(|i| (0..=i % 40).map(|_| char::from(rand::rng().random_range(0x20..0x7f_u8))).collect()));
        for (i, text) in texts.iter().enumerate() {
            let sql = "SELECT dedup.request_of(request_outer, request_inner, $1) FROM dedup.home";
            let hash: i64 = owner.query_one(sql, &[text]).await.unwrap().get(0);
            assert_eq!(hash, RequestId::parse(text, 128).unwrap().hash(&secret).get(), "{text:?}");
            if let Ok(fingerprint) = Fingerprint::parse(text, &secret) {
                let sql = "SELECT dedup.fingerprint_of(fingerprint_outer, fingerprint_inner, $1) FROM dedup.home";
                let hash: i32 = owner.query_one(sql, &[text]).await.unwrap().get(0);
                assert_eq!(hash, Fingerprint::to_stored(Some(fingerprint)), "{text:?}");
            }
            let (digest, fence) = (Uuid::from_u128(rand::random()), rand::random::<i64>() & i64::MAX);
            let topic = Topic::parse(&"t-".repeat(i + 1)).unwrap();
            let token = ClaimToken { home: HomeId(0), topic, digest: Digest(digest), fence: Fence(fence) };
            let theirs: String =
                owner.query_one("SELECT dedup.claim_token($1, $2, $3)", &[&token.topic.as_str(), &digest, &fence]).await.unwrap().get(0);
            assert_eq!(theirs, token.to_text(&secret, &homes));
            let row = owner.query_one("SELECT topic, digest, fence FROM dedup.read_token($1)", &[&theirs]).await.unwrap();
            assert_eq!((row.get::<_, String>(0), row.get(1), row.get(2)), (token.topic.as_str().to_owned(), digest, fence));
            let foreign = ClaimToken { home: HomeId(1), ..token }.to_text(&secret, &homes);
            assert_eq!(code(&owner.query("SELECT dedup.read_token($1)", &[&foreign]).await.unwrap_err()), "DD012");
            let at = rand::rng().random_range(4..theirs.len());
            let mut forged = theirs.clone().into_bytes();
            forged[at] = if forged[at] == b'A' { b'B' } else { b'A' };
            let forged = String::from_utf8(forged).unwrap();
            assert_eq!(code(&owner.query("SELECT dedup.read_token($1)", &[&forged]).await.unwrap_err()), "DD011", "{theirs} {forged}");
            let shown: String = owner.query_one("SELECT dedup.fence_text($1)", &[&fence]).await.unwrap().get(0);
            assert_eq!(shown, Fence(fence).to_string());
        }
        for text in ["", "dc1.", "dc1.AAAA", "dc1.A", "dc2.AAAA", "x", "dc1.=", &format!("dc1.{}", "A".repeat(4000))] {
            assert_eq!(code(&owner.query("SELECT dedup.read_token($1)", &[&text]).await.unwrap_err()), "DD011", "{text}");
        }
        for (status, media, body) in [(None, None, None), (Some(201), Some("a/b"), Some(b"x".to_vec())), (Some(100), None, Some(vec![]))] {
            let ours = StoredResult {
                status,
                media_type: media.map(str::to_owned),
                headers: "{\"a\":\"b\"}".into(),
                body: body.clone(),
                omitted: false,
                keep_until_ms: None,
            };
            let sql = "SELECT dedup.result_hash($1, $2, dedup.headers_text('{\"a\": \"b\"}'), $3)";
            let hash: Uuid = owner.query_one(sql, &[&status.map(i32::from), &media, &body]).await.unwrap().get(0);
            assert_eq!(hash, ours.hash());
        }

        let long = |n: usize| "x".repeat(n);
        let keys = [
            "",
            " ",
            "\u{a0}",
            "\u{3000}\u{2003}",
            "\t",
            "k",
            ":k",
            "eu:",
            "eu: ",
            "eu:\u{a0}",
            "xx:",
            "eu:a",
            "eu:eu:x",
            "eu: a ",
            "EU:a",
            " eu:a",
            "us:1",
            "urn:x",
            "a b:c",
            "http://x",
            "eu:a\u{85}b",
            "eu:a\u{7f}",
            "eu:\u{1}",
            "a\u{9f}",
            "eu:\u{e9}",
            "eu:\u{1f600}",
            "é:x",
            "::",
            "eu:\u{200b}",
            "\u{200b}",
        ];
        let long = [
            format!("eu:{}", long(509)),
            format!("eu:{}", long(510)),
            long(509),
            long(510),
            format!("eu:{}", "é".repeat(254)),
            format!("eu:{}", "é".repeat(255)),
        ];
        for default in [None, Some("eu"), Some("us")] {
            for key in keys.iter().copied().chain(long.iter().map(String::as_str)) {
                let sql = "SELECT dedup.full_key($1, $2, '{eu}')";
                let theirs = owner.query_one(sql, &[&key, &default]).await.map(|r| r.get::<_, String>(0));
                match (Key::parse(key, 512, default, &homes), theirs) {
                    (Ok(ours), Ok(theirs)) => assert_eq!((ours.home(), ours.as_str()), (HomeId(0), theirs.as_str()), "{key:?} {default:?}"),
                    (Ok(ours), Err(error)) => {
                        // Another home's, or one that may be: where a default region leaves it open, SQL wants it in full.
                        let unclear = default.is_some() && key.split_once(':').is_some_and(|(p, _)| p != "eu" && !p.is_empty());
                        assert!(code(&error) == "DD012" && (ours.home() == HomeId(1) || unclear), "{key:?} {default:?} {error}");
                    }
                    (Err(KeyError::UnknownPrefix(_)), Err(error)) => {
                        assert!(["DD011", "DD012"].contains(&code(&error)), "{key:?} {default:?} {error}")
                    }
                    (Err(ours), Err(error)) => {
                        assert!(["DD011", "DD012"].contains(&code(&error)), "{key:?} {default:?} {ours} {error}");
                    }
                    (Err(ours), Ok(theirs)) => panic!("{key:?} {default:?}: refused in Rust ({ours}), {theirs} in SQL"),
                }
            }
        }
    });
}
