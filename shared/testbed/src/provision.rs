//! The steps from nothing to running regions: stores, migration, instances.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{try_join, try_join_all};

use crate::config::{self, Home, Instance};
use crate::process::{Spec, run_tool};
use crate::watchdog::{Kind, Watchdog};
use crate::{Error, Janitor, Options, Postgres, Redis, Region, Service, user};

const MIGRATE_TIMEOUT: Duration = Duration::from_secs(120);

/// What all instances of a testbed have in common.
#[derive(Debug)]
pub(crate) struct Deployment<'a> {
    pub(crate) homes: &'a [Home],
    pub(crate) secret_hex: &'a str,
    pub(crate) options: &'a Options,
    pub(crate) watchdog: &'a Arc<Watchdog>,
}

/// The table of homes, the same in every configuration.
pub(crate) fn homes(regions: &[Region]) -> Vec<Home> {
    let home = |region: &Region| Home {
        name: region.name.clone(),
        nodes: std::iter::once(match &region.proxy {
            Some(proxy) => ("127.0.0.1".into(), proxy.port()),
            None => (region.postgres.host_for_instances(), region.postgres.port()),
        })
        .chain(region.standbys.iter().map(|standby| (standby.host_for_instances(), standby.port())))
        .collect(),
        password: region.postgres.password().into(),
    };
    regions.iter().map(home).collect()
}

/// Starts a region's Postgres and Redis.
pub(crate) async fn stores(name: &str, options: &Options, watchdog: &Arc<Watchdog>) -> Result<Region, Error> {
    let dir = watchdog.dir().join(name);
    std::fs::create_dir(&dir).map_err(Error::io(format!("make the folder {}", dir.display())))?;
    // A primary that waits for standbys cannot even be set up before there are any.
    let (later, settings): (Vec<_>, Vec<_>) =
        options.postgres_settings.iter().cloned().partition(|(name, _)| options.standbys > 0 && name == "synchronous_standby_names");
    let postgres = Postgres::create(name, &dir, &settings, options, watchdog);
    let redis = async {
        match options.redis {
            true => Redis::create(name, &dir, &options.redis_args, watchdog).await.map(Some),
            false => Ok(None),
        }
    };
    let (postgres, redis) = try_join(postgres, redis).await?;
    let proxy = if options.proxies { Some(crate::Proxy::start_postgres(postgres.port()).await?) } else { None };
    let mut standbys = Vec::new();
    for n in 1..=options.standbys {
        standbys
            .push(Postgres::create_standby(&format!("{name}, standby {n}"), &dir.join(format!("standby-{n}")), &postgres, watchdog).await?);
    }
    for (name, value) in &later {
        for node in std::iter::once(&postgres).chain(&standbys) {
            node.set(name, value).await?;
        }
    }
    let redis_proxy = match &redis {
        Some(redis) if options.redis_proxies => Some(crate::Proxy::start(redis.port()).await?),
        _ => None,
    };
    Ok(Region { name: name.into(), proxy, postgres, standbys, redis, redis_proxy, instances: Vec::new(), janitor: None })
}

impl Deployment<'_> {
    /// Runs `dedup migrate` on the region's home, and makes the login roles.
    pub(crate) async fn migrate(&self, region: &Region) -> Result<(), Error> {
        let Self { homes, options, .. } = self;
        let dir = self.watchdog.dir().join(&region.name);
        let config = dir.join("migrate.toml");
        let instance = Instance { region: region.name.clone(), name: format!("{}-migrate", region.name), redis_port: None };
        let text = config::text(&instance, 0, homes, &options.extra_config, &options.extra_tables);
        user::private_file(&config, &text, None)?;
        let mut env =
            vec![("DEDUP_OWNER_PASSWORD".into(), region.postgres.password().into()), ("DEDUP_SECRET".into(), self.secret_hex.into())];
        env.extend_from_slice(&options.env);
        let spec = Spec {
            name: format!("dedup migrate of {}", region.name),
            kind: Kind::Tool,
            program: options.dedup_bin.clone(),
            args: ["migrate", "--config"]
                .map(Into::into)
                .into_iter()
                .chain([config.into(), "--owner".into(), "dedup_owner".into()])
                .collect(),
            env,
            user: None,
            log: dir.join("migrate.log"),
        };
        run_tool(self.watchdog, &spec, MIGRATE_TIMEOUT).await?;
        region.postgres.create_login_roles().await
    }

    /// Starts the region's janitor.
    pub(crate) async fn janitor(&self, region: &Region) -> Result<Janitor, Error> {
        let Self { homes, options, .. } = self;
        let dir = self.watchdog.dir().join(&region.name);
        let mut env = vec![("DEDUP_JANITOR_PASSWORD".into(), region.postgres.password().into())];
        env.extend_from_slice(&options.env);
        Janitor::create(&region.name, &dir, homes, env, options, self.watchdog).await
    }

    /// Starts the region's instances.
    pub(crate) async fn serve(&self, region: &Region) -> Result<Vec<Service>, Error> {
        let Self { homes, options, .. } = self;
        let dir = self.watchdog.dir().join(&region.name);
        let mut env: Vec<(String, String)> = homes.iter().map(|home| (home.password_variable(), home.password.clone())).collect();
        if let Some(redis) = &region.redis {
            env.push(("DEDUP_REDIS_PASSWORD".into(), redis.password().into()));
        }
        env.extend_from_slice(&options.env);
        let names = (1..=options.instances).map(|n| Instance {
            region: region.name.clone(),
            name: format!("{}-{n}", region.name),
            redis_port: region.redis_proxy.as_ref().map(crate::Proxy::port).or(region.redis.as_ref().map(Redis::port)),
        });
        let (dir, env) = (dir.as_path(), &env);
        try_join_all(names.map(|instance| async move {
            let own = options.instance_env.iter().filter(|(name, ..)| *name == instance.name).map(|(_, k, v)| (k.clone(), v.clone()));
            let env = env.iter().cloned().chain(own).collect();
            Service::create(&instance, dir, homes, env, options, self.watchdog).await
        }))
        .await
    }
}
