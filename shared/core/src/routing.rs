//! The table of homes: which prefix is owned by which home.

/// Index of a home in the [`HomeTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HomeId(pub u16);

/// One home: a Postgres that is the authority for the keys of its prefixes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HomeSpec {
    /// Name of the home, shown as `home_region` in answers and labels.
    pub name: String,
    /// Region it stands in.
    pub region: String,
    /// Prefixes of the keys it owns.
    pub prefixes: Vec<String>,
}

/// A prefix that no home owns.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no home owns the prefix; known are: {known}")]
pub struct RouteError {
    /// Known prefixes, comma-separated.
    pub known: String,
}

/// All homes of the deployment; the same in every instance of every region.
#[derive(Debug, Clone)]
pub struct HomeTable {
    homes: Vec<HomeSpec>,
    prefixes: Vec<(Box<str>, HomeId)>,
}

impl HomeTable {
    /// Builds the table; `Err` names a prefix that two homes claim.
    pub fn new(homes: Vec<HomeSpec>) -> Result<Self, String> {
        let mut prefixes: Vec<(Box<str>, HomeId)> = Vec::new();
        for (i, home) in homes.iter().enumerate() {
            for prefix in &home.prefixes {
                if prefixes.iter().any(|(p, _)| **p == **prefix) {
                    return Err(prefix.clone());
                }
                prefixes.push((prefix.as_str().into(), HomeId(u16::try_from(i).expect("far fewer homes than 65,536"))));
            }
        }
        Ok(Self { homes, prefixes })
    }

    /// The home that owns `prefix`. A deployment has a handful, so a scan beats a map.
    pub fn home_of(&self, prefix: &str) -> Result<HomeId, RouteError> {
        self.prefixes
            .iter()
            .find(|(p, _)| **p == *prefix)
            .map(|(_, home)| *home)
            .ok_or_else(|| RouteError { known: self.known_prefixes().join(", ") })
    }

    /// Every prefix, in the order of the table.
    pub fn known_prefixes(&self) -> Vec<&str> {
        self.prefixes.iter().map(|(p, _)| &**p).collect()
    }

    /// The homes with their ids.
    pub fn iter(&self) -> impl Iterator<Item = (HomeId, &HomeSpec)> {
        self.homes.iter().enumerate().map(|(i, h)| (HomeId(u16::try_from(i).expect("far fewer homes than 65,536")), h))
    }

    /// One home.
    pub fn get(&self, id: HomeId) -> &HomeSpec {
        &self.homes[usize::from(id.0)]
    }

    /// Number of homes.
    pub fn len(&self) -> usize {
        self.homes.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.homes.is_empty()
    }
}
