//! Regions put together.

use std::path::Path;
use std::sync::Arc;

use futures_util::future::try_join_all;

use crate::provision::{self, Deployment};
use crate::slot::Slot;
use crate::template::hex;
use crate::watchdog::Watchdog;
use crate::{Error, Janitor, Options, Postgres, Prometheus, Redis, Rules, Service};

/// Regions that run until this is dropped.
#[derive(Debug)]
pub struct Testbed {
    regions: Vec<Region>,
    prometheus: Option<Prometheus>,
    secret_hex: String,
    watchdog: Arc<Watchdog>,
}

/// One place of deployment.
#[derive(Debug)]
pub struct Region {
    /// Name of the region, its home and its prefix.
    pub name: String,
    /// The home of its keys.
    pub postgres: Postgres,
    /// Between the instances (of all regions) and the home, if asked for.
    pub proxy: Option<crate::Proxy>,
    /// Its standbys, if asked for.
    pub standbys: Vec<Postgres>,
    /// Its hot tier, unless switched off.
    pub redis: Option<Redis>,
    /// Between the instances and their Redis, if asked for.
    pub redis_proxy: Option<crate::Proxy>,
    /// The instances, in the order of their names; none after [`Testbed::start_stores`].
    pub instances: Vec<Service>,
    /// Its janitor, if asked for.
    pub janitor: Option<Janitor>,
}

impl Testbed {
    /// Starts stores, migrates the homes and starts the instances; returns when all are ready.
    ///
    /// # Errors
    /// The first failure; by then everything that had been started is gone again.
    pub async fn start(options: Options) -> Result<Self, Error> {
        let mut new = Self::start_stores(options.clone()).await?;
        let homes = provision::homes(&new.regions);
        let deployment = Deployment { homes: &homes, secret_hex: &new.secret_hex, options: &options, watchdog: &new.watchdog };
        try_join_all(new.regions.iter().map(|region| deployment.migrate(region))).await?;
        let instances = new.regions.iter().map(|region| deployment.serve(region));
        let instances = try_join_all(instances).await?;
        for (region, instances) in new.regions.iter_mut().zip(instances) {
            region.instances = instances;
        }
        if options.janitor {
            let janitors = try_join_all(new.regions.iter().map(|region| deployment.janitor(region))).await?;
            for (region, janitor) in new.regions.iter_mut().zip(janitors) {
                region.janitor = Some(janitor);
            }
        }
        Ok(new)
    }

    /// Starts Postgres and Redis only: each home has an empty database `dedup` and the role `dedup_owner`.
    ///
    /// # Errors
    /// The first failure; by then everything that had been started is gone again.
    pub async fn start_stores(options: Options) -> Result<Self, Error> {
        let watchdog = Arc::new(Watchdog::start()?);
        let secret_hex = options.secret_hex.clone().unwrap_or_else(|| hex(&rand::random::<[u8; 32]>()));
        let mut new = Self { regions: Vec::new(), prometheus: None, secret_hex, watchdog: Arc::clone(&watchdog) };
        let regions = options.regions.iter();
        let regions = regions.map(|name| provision::stores(name, &options, &watchdog));
        new.regions = try_join_all(regions).await?;
        Ok(new)
    }

    /// Starts a Prometheus that scrapes every instance each second and goes through its rules every `rules_s` seconds; it ends with the testbed.
    ///
    /// # Errors
    /// If it is not installed, or does not take the rules.
    pub async fn start_prometheus(&mut self, rules: &[Rules<'_>], rules_s: u32) -> Result<&Prometheus, Error> {
        let started = Prometheus::start(&self.regions, rules, rules_s, self.watchdog.dir(), &self.watchdog).await?;
        Ok(self.prometheus.insert(started))
    }

    /// All regions, in the order of the options.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// One region.
    ///
    /// # Panics
    /// If there is none of that name.
    #[must_use]
    pub fn region(&self, name: &str) -> &Region {
        self.regions.iter().find(|r| r.name == name).unwrap_or_else(|| panic!("this testbed has no region {name}"))
    }

    /// The folder with all data, configurations and logs; gone when this is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.watchdog.dir()
    }

    /// The deployment's secret: 64 hex digits.
    #[must_use]
    pub fn secret_hex(&self) -> &str {
        &self.secret_hex
    }

    /// Ends every process and removes the folder; returns when that is done. Dropping does the same, without telling.
    ///
    /// # Errors
    /// If something could not be removed.
    pub async fn stop(self) -> Result<(), Error> {
        self.thaw();
        let watchdog = Arc::clone(&self.watchdog);
        let closed = tokio::task::spawn_blocking(move || watchdog.close()).await;
        for slot in self.slots() {
            slot.ended().await?;
        }
        closed.map_err(|_| Error::Watchdog("could not be waited for"))?
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        let regions = self.regions.iter().flat_map(|region| {
            let stores = [Some(region.postgres.slot()), region.redis.as_ref().map(Redis::slot), region.janitor.as_ref().map(Janitor::slot)];
            let stores = stores.into_iter().flatten().chain(region.standbys.iter().map(Postgres::slot));
            stores.chain(region.instances.iter().map(Service::slot))
        });
        regions.chain(self.prometheus.iter().map(Prometheus::slot))
    }

    /// Frozen backends would hold up the end of their postmaster for 5 s.
    fn thaw(&self) {
        let nodes = |region: &'_ Region| region.standbys.iter().chain([&region.postgres]).for_each(Postgres::thaw);
        self.regions.iter().for_each(nodes);
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.thaw();
        self.watchdog.close().ok();
    }
}
