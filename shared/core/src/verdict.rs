//! Verdicts, operations and tiers: the closed sets of words that answers and labels use.

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }
        impl $name {
            /// Every one, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// Its word in the API and in labels.
            pub fn as_str(self) -> &'static str { match self { $(Self::$variant => $word),+ } }
        }
    };
}

words! {
    /// The answer to "am I the first?".
    Verdict {
        /// Yes: do the work.
        First = "first",
        /// No: it was done before.
        Duplicate = "duplicate",
        /// Somebody else is at it.
        InProgress = "in_progress",
        /// The key was used with another payload.
        Mismatch = "mismatch",
    }
}

words! {
    /// What was asked.
    Op {
        /// One-shot "first?".
        Check = "check",
        /// First phase of three.
        Claim = "claim",
        /// Records the outcome.
        Complete = "complete",
        /// Gives the claim back.
        Release = "release",
        /// Prolongs the lease.
        Extend = "extend",
    }
}

words! {
    /// Where the answer was found.
    Tier {
        /// In this process.
        Local = "local",
        /// In the region's Redis.
        Hot = "hot",
        /// In the home's Postgres.
        Warm = "warm",
        /// In the home's archive.
        Cold = "cold",
    }
}
