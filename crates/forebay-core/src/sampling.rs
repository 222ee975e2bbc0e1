//! Orders in which an epoch is not every sample once: mixtures of sources, weighted draws, classes in equal parts.

mod balanced;
mod weighted;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use balanced::Balanced;
pub use weighted::Weighted;

use crate::mixture::MixtureOrder;
use crate::sampling::balanced::BalancedOrder;
use crate::{Epoch, Mixture};

/// Which samples an epoch has, and in which order. What all of them give is a pure function of (seed, epoch, position).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sampling {
    /// Several sources in given proportions.
    Mixture(Mixture),
    /// By a weight for each sample.
    Weighted(Weighted),
    /// Every class equally often.
    Balanced(Balanced),
}

impl Sampling {
    /// Positions in an epoch.
    pub fn samples(&self) -> u64 {
        match self {
            Self::Mixture(mixture) => mixture.samples(),
            Self::Weighted(weighted) => weighted.samples(),
            Self::Balanced(balanced) => balanced.samples(),
        }
    }

    /// How many samples there are to choose from.
    pub fn sample_count(&self) -> u64 {
        match self {
            Self::Mixture(mixture) => mixture.sample_count(),
            Self::Weighted(weighted) => weighted.sample_count(),
            Self::Balanced(balanced) => balanced.sample_count(),
        }
    }

    pub(crate) fn order(&self, seed: u64, epoch: Epoch, is_shuffled: bool) -> SamplingOrder {
        match self {
            Self::Mixture(mixture) => SamplingOrder::Mixture(mixture.order(seed, epoch, is_shuffled)),
            Self::Weighted(weighted) if weighted.has_replacement() => {
                SamplingOrder::Drawn { weighted: weighted.clone(), seed, epoch }
            }
            Self::Weighted(weighted) => SamplingOrder::Chosen(weighted.chosen(seed, epoch).into()),
            Self::Balanced(balanced) => SamplingOrder::Balanced(balanced.order(seed, epoch)),
        }
    }

    /// A substitute for a sample: of the same source, by the same weights, of the same class. `None` where there is no other
    /// one like it.
    pub(crate) fn substitute(&self, key: u64, original: u64) -> Option<u64> {
        match self {
            Self::Mixture(mixture) => {
                let (first, count) = mixture.source_of(original);
                other_of(key, count, original - first).map(|place| first + place)
            }
            Self::Weighted(weighted) => weighted.other(key, original),
            Self::Balanced(balanced) => balanced.other(key, original),
        }
    }
}

/// One of `0..count` that is not `place`.
fn other_of(key: u64, count: u64, place: u64) -> Option<u64> {
    let others = count.checked_sub(1).filter(|others| *others > 0)?;
    let drawn = crate::hash::scale(key, others);
    Some(drawn + u64::from(drawn >= place))
}

/// The order of one epoch.
#[derive(Clone, Debug)]
pub(crate) enum SamplingOrder {
    Mixture(MixtureOrder),
    Drawn { weighted: Weighted, seed: u64, epoch: Epoch },
    Chosen(Arc<[u32]>),
    Balanced(BalancedOrder),
}

impl SamplingOrder {
    pub(crate) fn at(&self, position: u64) -> u64 {
        match self {
            Self::Mixture(order) => order.at(position),
            Self::Drawn { weighted, seed, epoch } => weighted.drawn(*seed, *epoch, position),
            Self::Chosen(samples) => samples[position as usize].into(),
            Self::Balanced(order) => order.at(position),
        }
    }
}

/// What such an order depends on beside the seed: part of the state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplingIdentity {
    /// "mixture", "weighted" or "balanced".
    pub kind: String,
    /// Positions in an epoch.
    pub samples: u64,
    /// A hash of weights, lengths, classes and where they change.
    pub fingerprint: String,
}

impl SamplingIdentity {
    pub(crate) fn of(sampling: &Sampling) -> Self {
        let (kind, fingerprint) = match sampling {
            Sampling::Mixture(mixture) => ("mixture", mixture.fingerprint()),
            Sampling::Weighted(weighted) => ("weighted", weighted.fingerprint()),
            Sampling::Balanced(balanced) => ("balanced", balanced.fingerprint()),
        };
        Self { kind: kind.to_owned(), samples: sampling.samples(), fingerprint: format!("{fingerprint:016x}") }
    }

    pub(crate) fn describe(identity: Option<&Self>) -> String {
        let Some(Self { kind, samples, fingerprint }) = identity else { return "none".into() };
        format!("{kind} with {samples} samples in an epoch (fingerprint of its weights {fingerprint:?})")
    }
}
