//! A home of the own region, as import and export open it: logged in as the janitor, with the secret that its digests are made with.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, bail, ensure};
use dedup_core::{Digest, DigestScope, Group, HomeTable, Key, Secret, Topic};
use dedup_store::{HomeTopic, Janitor, home_secret};

use super::config;

/// Most bytes of a key.
const KEY_BYTES_MAX: usize = 512;

/// The home.
pub struct OwnHome {
    /// Its name.
    pub name: String,
    /// The connection.
    pub janitor: Janitor,
    /// Home time when it was opened, ms.
    pub home_ms: i64,
    /// How its digests are made.
    pub scopes: Scopes,
}

impl OwnHome {
    /// Opens the home that `name` names, or the region's only one.
    pub async fn open(config: &config::ConfigArgs, name: Option<&str>) -> anyhow::Result<Self> {
        let config = config.load()?;
        let own: Vec<_> = config.own_homes().filter(|h| name.is_none_or(|name| name == h.name)).collect();
        let [home] = own.as_slice() else { bail!("--home must name one home of this region") };
        let table = HomeTable::new(config.homes.iter().map(config::spec).collect())
            .map_err(|p| anyhow::anyhow!("the prefix {p:?} is owned by two homes"))?;
        let secret = match config::secret(&config) {
            Some(secret) => secret,
            None => {
                let login = login(home.password.is_some(), &home.password_env());
                let why = || format!("home {} as its own user, for the secret of its digests ({login})", home.name);
                home_secret(&config::target(home)?).await.with_context(why)?.context("the home has no secret yet: run `dedup migrate`")?
            }
        };
        let login = login(config.janitor.password.is_some(), "DEDUP_JANITOR_PASSWORD");
        let why = || format!("home {} as the janitor ({login})", home.name);
        let janitor = dedup_janitor::connect(&config, home).await.with_context(why)?;
        ensure!(janitor.secret_id() == secret.id(), "the home was made with another secret than DEDUP_SECRET");
        let (topics, home_ms) = janitor.topics().await?;
        let scopes = Scopes::new(secret, table, home.name.clone(), topics)?;
        Ok(Self { name: home.name.clone(), janitor, home_ms, scopes })
    }
}

/// Where a password comes from, for whoever was refused.
fn login(is_set: bool, variable: &str) -> String {
    format!("password: {variable}{}", if is_set { "" } else { ", which is not set" })
}

/// The identity of keys in one home: the only place of the two commands that computes a digest.
pub struct Scopes {
    secret: Secret,
    table: HomeTable,
    home: String,
    topics: HashMap<String, (HomeTopic, Topic)>,
    /// By topic and group.
    made: HashMap<String, HashMap<String, DigestScope>>,
}

impl Scopes {
    fn new(secret: Secret, table: HomeTable, home: String, topics: Vec<HomeTopic>) -> anyhow::Result<Self> {
        let mut new = Self { secret, table, home, topics: HashMap::new(), made: HashMap::new() };
        new.renew(topics)?;
        Ok(new)
    }

    /// Takes the topics as they are now.
    pub fn renew(&mut self, topics: Vec<HomeTopic>) -> anyhow::Result<()> {
        let named = |topic: HomeTopic| Ok((topic.name.clone(), (topic.clone(), Topic::parse(&topic.name)?)));
        self.topics = topics.into_iter().map(named).collect::<anyhow::Result<_>>()?;
        self.made.clear();
        Ok(())
    }

    /// The home's topic of this name.
    pub fn topic(&self, name: &str) -> anyhow::Result<&HomeTopic> {
        let known = self.topics.get(name).with_context(|| format!("there is no topic {name} in home {}", self.home))?;
        Ok(&known.0)
    }

    /// Whether these are the topic's generation and its groups' here; `None`: the home does not know the topic.
    pub fn has_generation(&self, topic: &str, generation: i64, groups: Option<&BTreeMap<String, i64>>) -> Option<bool> {
        let same_groups = |known: &HomeTopic| groups.map_or(known.groups.is_empty(), |groups| *groups == known.groups);
        self.topics.get(topic).map(|(known, _)| known.generation == generation && same_groups(known))
    }

    /// The digest of a key and its topic's number; `None`: it is a key of another home.
    pub fn digest(&mut self, topic: &str, group: &str, key: &str) -> anyhow::Result<Option<(i32, Digest)>> {
        let (known, parsed) = self.topics.get(topic).with_context(|| format!("there is no topic {topic} in home {}", self.home))?;
        let key = Key::parse(key, KEY_BYTES_MAX, known.default_region.as_deref(), &self.table).context("the key cannot be taken")?;
        if self.table.get(key.home()).name != self.home {
            return Ok(None);
        }
        if let Some(scope) = self.made.get(topic).and_then(|groups| groups.get(group)) {
            return Ok(Some((known.id, scope.digest(&key))));
        }
        let own = Group::parse(group).context("the group cannot be taken")?;
        let scope = DigestScope::new(&self.secret, parsed, known.generation, &own, known.groups.get(group).copied().unwrap_or(0));
        let digest = scope.digest(&key);
        self.made.entry(topic.to_owned()).or_default().insert(group.to_owned(), scope);
        Ok(Some((known.id, digest)))
    }
}
