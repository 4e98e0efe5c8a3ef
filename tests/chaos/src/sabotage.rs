//! Services broken on purpose: each must be caught. Some are changes of the home's functions, made by their owner in the testbed's own
//! homes; the others are in the program, behind the feature `sabotage`, which no release has.

use anyhow::{Context, ensure};
use dedup_testbed::Testbed;

/// One way to break it.
#[derive(Debug, Clone, Copy)]
pub struct Sabotage {
    /// Its name.
    pub name: &'static str,
    /// What is broken.
    pub what: &'static str,
    /// The fault under which it shows.
    pub fault: &'static str,
    /// Function, text to find, text to put in its place; none: it is in the program.
    edits: &'static [(&'static str, &'static str, &'static str)],
}

const LOCK: &str = "PERFORM pg_advisory_xact_lock_shared(1684366453, 1);";

/// All of them.
pub const SABOTAGES: &[Sabotage] = &[
    Sabotage { name: "no-unique-index", what: "segments have no unique index", fault: "none", edits: &[] },
    Sabotage {
        name: "loser-is-first",
        what: "an insert that changed zero rows is taken for a grant",
        fault: "none",
        edits: &[
            ("decide_v1", "GET DIAGNOSTICS v_fresh = ROW_COUNT;", "v_fresh := v_asked;"),
            (
                "decide_one",
                "CONTINUE WHEN NOT FOUND;   -- somebody",
                "IF NOT FOUND THEN f.fence := p_fence | nextval('dedup.fence_counter'); END IF; -- somebody",
            ),
            (
                "decide_rows",
                "facts := facts || coalesce(v_new, '{}');",
                "SELECT v_new || array_agg((1, a.digest, p_fence | nextval('dedup.fence_counter'), a.request, a.fp, v_now, dedup.after(v_now, a.window_ms), v_now + a.lease_ms, 257, v_now)::dedup.fact) INTO v_new \
                 FROM unnest(p_asks) a WHERE (v_seen IS NULL OR NOT a.n = ANY (v_seen)) AND NOT EXISTS (SELECT 1 FROM unnest(v_new) g WHERE g.digest = a.digest); facts := facts || coalesce(v_new, '{}');",
            ),
        ],
    },
    Sabotage {
        name: "rotation-without-lock",
        what: "claims do not take the rotation lock",
        fault: "rotation-long",
        edits: &[("decide_v1", LOCK, ""), ("ask_one", LOCK, "")],
    },
    Sabotage {
        name: "complete-by-key",
        what: "ends do not look at the fence",
        fault: "service-stall",
        edits: &[
            ("finish_one", "r.fence <> p_fence OR r.meta & 16 <> 0", "r.meta & 16 <> 0"),
            ("finish_one", "AND c.fence = p_fence AND c.meta = r.meta", "AND c.meta = r.meta"),
        ],
    },
    Sabotage {
        name: "fence-not-raised",
        what: "fences go down",
        fault: "none",
        edits: &[
            ("decide_v1", "v_fence | nextval('dedup.fence_counter')", "v_fence | (10000000 - nextval('dedup.fence_counter'))"),
            ("decide_one", "p_fence | nextval('dedup.fence_counter')", "p_fence | (10000000 - nextval('dedup.fence_counter'))"),
            ("decide_rows", "p_fence | nextval('dedup.fence_counter')", "p_fence | (10000000 - nextval('dedup.fence_counter'))"),
        ],
    },
    Sabotage {
        name: "short-memory",
        what: "records are forgotten after half a second",
        fault: "none",
        edits: &[(
            "judge_v1",
            "THEN greatest(expires, ends) ELSE expires END THEN 1",
            "THEN greatest(expires, ends) ELSE least(expires, ends + 500) END THEN 1",
        )],
    },
    Sabotage {
        name: "early-takeover",
        what: "a lease is over 300 ms early",
        fault: "none",
        edits: &[("judge_v1", "WHEN now < ends THEN 8", "WHEN now < ends - 300 THEN 8")],
    },
    Sabotage {
        name: "own-claim-unknown",
        what: "the request id that was granted is not kept",
        fault: "ack-eater",
        edits: &[("decide_v1", "i.request, v_layout.current_segment", "i.request # 1, v_layout.current_segment")],
    },
    Sabotage { name: "application-clock", what: "each instance judges by a clock of its own", fault: "none", edits: &[] },
    Sabotage { name: "unknown-is-no", what: "an unknown outcome is called a failure", fault: "ack-eater", edits: &[] },
    Sabotage { name: "followers-inherit", what: "who waited behind a first is first, too", fault: "hot-key", edits: &[] },
    Sabotage { name: "caches-in-progress", what: "open claims are cached", fault: "none", edits: &[] },
    Sabotage { name: "back-fill-after-forget", what: "what was forgotten is still believed in caches", fault: "none", edits: &[] },
    Sabotage { name: "warnings-ignored", what: "a success with a warning counts", fault: "cancel-sync", edits: &[] },
    Sabotage {
        name: "cancel-on-timeout",
        what: "calls that take too long are cancelled, and then believed",
        fault: "cancel-sync",
        edits: &[],
    },
    Sabotage {
        name: "unconfirmed-answers",
        what: "a primary answers without its standbys' word",
        fault: "old-primary",
        edits: &[("confirmed_v1", "IF current_setting('synchronous_standby_names') = '' THEN", "IF true THEN")],
    },
    Sabotage {
        name: "held-key-stalls",
        what: "a held key is waited for with its whole batch",
        fault: "caller-tx",
        edits: &[(
            "decide_rows",
            "EXCEPTION WHEN lock_not_available THEN\n    -- Somebody's",
            "EXCEPTION WHEN division_by_zero THEN\n    -- Somebody's",
        )],
    },
];

impl Sabotage {
    pub(crate) fn env(&self) -> Vec<(String, String)> {
        vec![("DEDUP_SABOTAGE".into(), self.name.into())]
    }

    /// Whether it needs a program that was built with the feature `sabotage`.
    #[must_use]
    pub fn in_program(&self) -> bool {
        self.edits.is_empty() && self.name != "no-unique-index"
    }
}

pub(crate) async fn apply(testbed: &Testbed, sabotage: Sabotage) -> anyhow::Result<()> {
    for region in testbed.regions() {
        let owner = region.postgres.connect("dedup_owner").await;
        for (function, from, to) in sabotage.edits {
            let sql = "SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'dedup' AND p.proname = $1";
            let text: String = owner.query_one(sql, &[function]).await.with_context(|| format!("dedup.{function}"))?.get(0);
            ensure!(text.contains(from), "dedup.{function} no longer contains {from:?}");
            owner.batch_execute(&text.replace(from, to)).await?;
        }
        match sabotage.name {
            "no-unique-index" => {
                owner
                    .batch_execute(
                        "DO $$ DECLARE r record; BEGIN
                           FOR r IN SELECT i.indexrelid::regclass AS idx, i.indrelid::regclass AS tab FROM pg_index i JOIN pg_inherits h ON h.inhrelid = i.indrelid
                               WHERE h.inhparent = 'dedup.claims'::regclass LOOP
                             EXECUTE format('DROP INDEX %s', r.idx);
                             EXECUTE format('CREATE INDEX ON %s (digest)', r.tab);
                           END LOOP; END $$",
                    )
                    .await?;
            }
            "application-clock" => {
                // The program says how far its own clock is off.
                owner
                    .batch_execute(
                        "CREATE OR REPLACE FUNCTION dedup.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
                           SELECT clock_timestamp() + coalesce(current_setting('dedup.skew', true), '0')::int * interval '1 ms' $$",
                    )
                    .await?;
            }
            _ => {}
        }
    }
    Ok(())
}
