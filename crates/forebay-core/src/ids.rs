//! Integers that mean different things are different types.

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A sample's index in its dataset: `0..len`.
    SampleId(u64)
);
id!(
    /// One of the parts that each sample of a dataset is read from, each with a locator of its own: `0..fields`.
    Field(u32)
);
id!(
    /// A step (one batch on every rank) within an epoch, from 0.
    Step(u64)
);
id!(
    /// An epoch, from 0. Part of the key of the permutation.
    Epoch(u64)
);
id!(
    /// One process of a distributed run: `0..world_size`.
    Rank(u32)
);
id!(
    /// How many ranks share an epoch; at least 1.
    WorldSize(u32)
);
