//! The servers of one run, and which of a home's nodes is the primary.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use dedup_testbed::{Postgres, Proxy, Region, Service, Testbed};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::record::Recorder;

/// What a fault works on.
#[derive(Debug)]
pub struct Rig {
    pub testbed: Testbed,
    pub recorder: Arc<Recorder>,
    pub dedup: PathBuf,
    pub scratch: PathBuf,
    /// Index of the first home's primary among its nodes.
    primary: AtomicUsize,
    /// How far each home's clock was moved, ms.
    shifts: Mutex<BTreeMap<String, i64>>,
    pub evidence: Mutex<BTreeMap<&'static str, u64>>,
    /// In front of the instances, if callers come through proxies.
    pub fronts: Vec<Proxy>,
}

impl Rig {
    pub fn new(testbed: Testbed, recorder: Arc<Recorder>, dedup: PathBuf, scratch: PathBuf, fronts: Vec<Proxy>) -> Self {
        Self {
            testbed,
            recorder,
            dedup,
            scratch,
            primary: AtomicUsize::new(0),
            shifts: Mutex::default(),
            evidence: Mutex::default(),
            fronts,
        }
    }

    /// The region whose home is broken.
    pub fn home(&self) -> &Region {
        &self.testbed.regions()[0]
    }

    /// The home's nodes: the first primary, then its standbys.
    pub fn nodes(&self) -> Vec<&Postgres> {
        std::iter::once(&self.home().postgres).chain(&self.home().standbys).collect()
    }

    pub fn primary_index(&self) -> usize {
        self.primary.load(Ordering::SeqCst)
    }

    pub fn set_primary(&self, n: usize) {
        self.primary.store(n, Ordering::SeqCst);
    }

    /// The node that takes writes now.
    pub fn primary(&self) -> &Postgres {
        self.nodes()[self.primary_index()]
    }

    pub fn proxy(&self) -> &Proxy {
        self.home().proxy.as_ref().expect("this fault asked for proxies")
    }

    pub fn instances(&self) -> Vec<&Service> {
        self.testbed.regions().iter().flat_map(|r| &r.instances).collect()
    }

    pub fn any_instance(&self, rng: &mut StdRng) -> &Service {
        let all = self.instances();
        all[rng.random_range(0..all.len())]
    }

    /// Notes that something really happened.
    pub fn saw(&self, what: &'static str, n: u64) {
        *self.evidence.lock().expect("no panic while held").entry(what).or_default() += n;
    }

    /// Notes what there is by now.
    pub fn found(&self, what: &'static str, n: u64) {
        self.evidence.lock().expect("no panic while held").insert(what, n);
    }

    /// Moves a home's clock, for good and at once, as the owner of its one clock function.
    pub async fn shift_clock(&self, region: &Region, by_ms: i64) -> anyhow::Result<()> {
        let total = {
            let mut shifts = self.shifts.lock().expect("no panic while held");
            let total = shifts.entry(region.name.clone()).or_default();
            *total += by_ms;
            *total
        };
        let sql = format!(
            "CREATE OR REPLACE FUNCTION dedup.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE \
             AS $$ SELECT clock_timestamp() + interval '{total} milliseconds' $$"
        );
        region.postgres.connect("dedup_owner").await.batch_execute(&sql).await?;
        Ok(())
    }
}
