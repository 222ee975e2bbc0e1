//! The resume point: a few numbers and the identity of what they belong to.

use serde::{Deserialize, Serialize};

use crate::{Books, Epoch, Error, Kind, OrderKind, Origin, Plan, Result, SamplingIdentity, Step};

/// What a state is bound to. Two datasets with equal identity have the same samples in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetIdentity {
    /// Samples.
    pub samples: u64,
    /// Classes.
    pub classes: u64,
    /// Hash of every sample's relative path and label, in order.
    pub fingerprint: String,
}

/// What a shard-local order depends on beside the seed. Another window or other blocks give another order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardLocalIdentity {
    /// The most blocks that are mixed with each other.
    pub window: u64,
    /// Blocks of the dataset.
    pub blocks: u64,
    /// Hash of the lengths of all blocks, in order.
    pub fingerprint: String,
}

impl ShardLocalIdentity {
    fn of(kind: &OrderKind) -> Option<Self> {
        let OrderKind::ShardLocal { blocks, window } = kind else { return None };
        let fingerprint = format!("{:016x}", blocks.fingerprint());
        Some(Self { window: window.get(), blocks: blocks.block_count(), fingerprint })
    }

    fn describe(kind: Option<&Self>) -> String {
        let Some(Self { window, blocks, fingerprint }) = kind else { return "none".into() };
        format!("windows of {window} of {blocks} blocks (fingerprint of their lengths {fingerprint:?})")
    }
}

/// Where the consumer is: what was handed to the user counts, not what was prefetched.
///
/// Small, JSON, the same on every rank but for the books. It can be loaded on any number of ranks and threads.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Version of this format.
    pub version: u32,
    /// Version of the order: permutation, substitutes and random streams.
    pub order: u32,
    /// The dataset it belongs to.
    pub dataset: DatasetIdentity,
    /// The seed of the order.
    pub seed: u64,
    /// Whether epochs are permuted.
    pub shuffle: bool,
    /// How, if by blocks and not by one permutation of all samples. Absent otherwise, as in states written before
    /// there was such an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard_local: Option<ShardLocalIdentity>,
    /// Which samples an epoch has, if not every one once. Absent otherwise, as in states written before there were such orders.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingIdentity>,
    /// Whether an incomplete last step is left out.
    pub drop_last: bool,
    /// Per rank, when it was taken (informative: another one may load it).
    pub batch_size: u64,
    /// When it was taken (informative: another one may load it).
    pub world_size: u32,
    /// The epoch.
    pub epoch: Epoch,
    /// Steps made in the epoch.
    pub step: Step,
    /// Positions of the epoch's global order consumed.
    pub position: u64,
    /// The books of the epoch so far, on the rank that took the state.
    pub books: Books,
}

fn sampling_of(kind: &OrderKind) -> Option<SamplingIdentity> {
    match kind {
        OrderKind::Sampled { sampling, .. } => Some(SamplingIdentity::of(sampling)),
        _ => None,
    }
}

impl State {
    /// The format written by this version.
    pub const VERSION: u32 = 1;
    /// The order computed by this version; changes only if the same seed would give another order.
    pub const ORDER: u32 = 1;

    /// The state of a loader with this plan.
    pub fn new(plan: &Plan, dataset: DatasetIdentity, epoch: Epoch, at: Origin, books: Books) -> Self {
        Self {
            version: Self::VERSION,
            order: Self::ORDER,
            dataset,
            seed: plan.seed,
            shuffle: plan.order.is_shuffled(),
            shard_local: ShardLocalIdentity::of(&plan.order),
            sampling: sampling_of(&plan.order),
            drop_last: plan.drop_last,
            batch_size: plan.batch_size,
            world_size: plan.world_size.0,
            epoch,
            step: at.step,
            position: at.position,
            books,
        }
    }

    /// Reads a state; hostile until parsed.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| {
            Error::new(Kind::StateMismatch, format!("the state is not JSON: {error}")).with_source(error)
        })?;
        match value.get("version").and_then(serde_json::Value::as_u64) {
            Some(version) if version == u64::from(Self::VERSION) => {}
            found => {
                let found = found.map_or("none".to_owned(), |version| version.to_string());
                return Err(Error::new(
                    Kind::StateMismatch,
                    format!("the state has another format version (expected {}, got {found})", Self::VERSION),
                ));
            }
        }
        serde_json::from_value(value).map_err(|error| {
            Error::new(Kind::StateMismatch, format!("the state is not one of forebay's: {error}")).with_source(error)
        })
    }

    /// The state as JSON.
    pub fn to_json(&self) -> Result<String> {
        serde_json::to_string(self)
            .map_err(|error| Error::internal("the state could not be written").with_source(error))
    }

    /// Refuses a state of another dataset or order, with everything that differs.
    pub fn check(&self, plan: &Plan, dataset: &DatasetIdentity) -> Result<Origin> {
        let mut differences = Vec::new();
        let mut compare = |name: &str, loader: &dyn std::fmt::Display, state: &dyn std::fmt::Display| {
            let (loader, state) = (loader.to_string(), state.to_string());
            if loader != state {
                differences.push(format!("{name}: this loader has {loader}, the state {state}"));
            }
        };
        compare("order version", &Self::ORDER, &self.order);
        compare("samples", &dataset.samples, &self.dataset.samples);
        compare("classes", &dataset.classes, &self.dataset.classes);
        compare("fingerprint of paths and labels", &dataset.fingerprint, &self.dataset.fingerprint);
        compare("seed", &plan.seed, &self.seed);
        compare("shuffle", &plan.order.is_shuffled(), &self.shuffle);
        let describe = ShardLocalIdentity::describe;
        let shard_local = ShardLocalIdentity::of(&plan.order);
        compare("shard-local order", &describe(shard_local.as_ref()), &describe(self.shard_local.as_ref()));
        let (describe, sampling) = (SamplingIdentity::describe, sampling_of(&plan.order));
        compare("sampling", &describe(sampling.as_ref()), &describe(self.sampling.as_ref()));
        compare("drop_last", &plan.drop_last, &self.drop_last);
        let Books { planned, delivered, replaced, skipped, .. } = self.books;
        let handled = delivered.checked_add(replaced).and_then(|sum| sum.checked_add(skipped));
        if handled != Some(planned) {
            differences.push(format!("books: expected them to balance, got {:?}", self.books));
        }
        // Far beyond any run, and far from where arithmetic would overflow.
        for (name, value) in
            [("epoch", self.epoch.0), ("step", self.step.0), ("position", self.position), ("books", planned)]
        {
            if value > 1 << 60 {
                differences.push(format!("{name}: expected at most 2^60, got {value}"));
            }
        }
        if !differences.is_empty() {
            return Err(Error::new(
                Kind::StateMismatch,
                format!("the state belongs to another dataset or order: {}", differences.join("; ")),
            ));
        }
        Ok(Origin { step: self.step, position: self.position })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Balanced, Blocks, Mixture, Sampling, Weighted, WorldSize};

    fn fixture() -> (Plan, DatasetIdentity, State) {
        let plan = with_order(OrderKind::Global);
        let dataset = DatasetIdentity { samples: 10, classes: 2, fingerprint: "ab".into() };
        let state =
            State::new(&plan, dataset.clone(), Epoch(1), Origin { step: Step(2), position: 4 }, Books::default());
        (plan, dataset, state)
    }

    #[test]
    fn survives_json_and_is_accepted_by_its_own_loader() {
        let (plan, dataset, state) = fixture();
        let back = State::from_json(&state.to_json().unwrap()).unwrap();
        assert_eq!(back, state);
        assert_eq!(back.check(&plan, &dataset).unwrap(), Origin { step: Step(2), position: 4 });
    }

    #[test]
    fn refuses_another_dataset_and_says_everything_that_differs() {
        let (plan, dataset, state) = fixture();
        let other = DatasetIdentity { samples: 9, fingerprint: "cd".into(), ..dataset };
        let error = state.check(&Plan { seed: 4, len: 9, ..plan }, &other).unwrap_err();
        assert_eq!(error.kind(), Kind::StateMismatch);
        for part in ["samples: this loader has 9, the state 10", "seed: this loader has 4, the state 3", "cd"] {
            assert!(error.to_string().contains(part), "{error}");
        }
    }

    #[test]
    fn refuses_what_is_not_a_state() {
        let (plan, dataset, state) = fixture();
        let unbalanced = Books { planned: 5, delivered: u64::MAX, replaced: u64::MAX, ..Books::default() };
        assert!(State { books: unbalanced, ..state.clone() }.check(&plan, &dataset).is_err());
        assert!(State { epoch: Epoch(u64::MAX), ..state }.check(&plan, &dataset).is_err());
        for text in ["", "null", "{}", "[1]", r#"{"version":99}"#, r#"{"version":1,"epoch":"x"}"#] {
            assert_eq!(State::from_json(text).unwrap_err().kind(), Kind::StateMismatch, "{text}");
        }
    }

    /// A plan in an order of this kind.
    fn with_order(order: OrderKind) -> Plan {
        Plan { len: 10, batch_size: 2, world_size: WorldSize(1), order, drop_last: false, seed: 3 }
    }

    fn shard_local(lengths: &[u64], window: u64) -> OrderKind {
        let blocks = Blocks::new(lengths.iter().copied()).unwrap();
        OrderKind::ShardLocal { blocks, window: window.try_into().unwrap() }
    }

    fn sampled(sampling: Sampling) -> OrderKind {
        OrderKind::Sampled { sampling, is_shuffled: true }
    }

    fn mixture(weights: &[(u64, [f64; 2])], is_shuffled: bool) -> OrderKind {
        let weights: Vec<_> = weights.iter().map(|(start, weights)| (*start, weights.to_vec())).collect();
        OrderKind::Sampled { sampling: Sampling::Mixture(Mixture::new(&[6, 4], 10, &weights).unwrap()), is_shuffled }
    }

    #[test]
    fn the_state_of_a_mixture_never_changes() {
        let (_, dataset, _) = fixture();
        let plan = with_order(mixture(&[(0, [0.7, 0.3])], true));
        let text = State::new(&plan, dataset, Epoch(1), Origin::default(), Books::default()).to_json().unwrap();
        let expected =
            r#""shuffle":true,"sampling":{"kind":"mixture","samples":10,"fingerprint":"9c7079e5b806df06"},"drop_last""#;
        assert!(text.contains(expected), "{text}");
    }

    #[test]
    fn an_epoch_is_resumed_in_the_kind_of_order_it_began_in() {
        let (_, dataset, _) = fixture();
        let kinds = [
            OrderKind::Sequential,
            OrderKind::Global,
            shard_local(&[5, 5], 1),
            shard_local(&[5, 5], 2),
            shard_local(&[4, 6], 1),
            shard_local(&[5, 5, 0], 1),
            mixture(&[(0, [0.7, 0.3])], true),
            mixture(&[(0, [0.7, 0.3])], false),
            mixture(&[(0, [0.3, 0.7])], true),
            mixture(&[(0, [0.7, 0.3]), (9, [0.5, 0.5])], true),
            sampled(Sampling::Weighted(Weighted::new(&[1.0; 10], 10, true).unwrap())),
            sampled(Sampling::Weighted(Weighted::new(&[1.0; 10], 10, false).unwrap())),
            sampled(Sampling::Weighted(Weighted::new(&[1.0; 10], 11, true).unwrap())),
            sampled(Sampling::Balanced(Balanced::new(&[0, 1, 0, 1, 0, 1, 0, 1, 0, 1], 10).unwrap())),
            sampled(Sampling::Balanced(Balanced::new(&[0, 0, 1, 1, 0, 1, 0, 1, 0, 1], 10).unwrap())),
        ];
        for (taken, kind) in kinds.iter().enumerate() {
            let at = Origin { step: Step(2), position: 4 };
            let state = State::new(&with_order(kind.clone()), dataset.clone(), Epoch(1), at, Books::default());
            let state = State::from_json(&state.to_json().unwrap()).unwrap();
            for (loaded, kind) in kinds.iter().enumerate() {
                let result = state.check(&with_order(kind.clone()), &dataset);
                assert_eq!(result.is_ok(), taken == loaded, "{taken} as {loaded}: {result:?}");
            }
        }
    }

    #[test]
    fn the_kinds_of_order_are_named_in_the_refusal() {
        let (global, dataset, state) = fixture();
        let blocks = with_order(shard_local(&[4, 6], 2));
        let message = state.check(&blocks, &dataset).unwrap_err().to_string();
        let expected = "shard-local order: this loader has windows of 2 of 2 blocks (fingerprint of their lengths";
        assert!(message.contains(expected) && message.ends_with("the state none"), "{message}");
        let state = State::new(&blocks, dataset.clone(), Epoch(0), Origin::default(), Books::default());
        let message = state.check(&global, &dataset).unwrap_err().to_string();
        assert!(message.contains("shard-local order: this loader has none, the state windows of 2"), "{message}");
    }

    #[test]
    fn states_of_other_orders_are_written_as_before() {
        let (_, _, state) = fixture();
        let text = state.to_json().unwrap();
        let expected = concat!(
            r#"{"version":1,"order":1,"dataset":{"samples":10,"classes":2,"fingerprint":"ab"},"seed":3,"shuffle":true,"#,
            r#""drop_last":false,"batch_size":2,"world_size":1,"epoch":1,"step":2,"position":4,"books":"#,
        );
        assert!(text.starts_with(expected), "{text}");
    }

    #[test]
    fn the_fingerprint_of_blocks_never_changes() {
        let shard_local = ShardLocalIdentity::of(&shard_local(&[4, 0, 6], 2)).unwrap();
        assert_eq!(shard_local, ShardLocalIdentity { window: 2, blocks: 3, fingerprint: "3f6321ccb19a4abf".into() });
    }
}
