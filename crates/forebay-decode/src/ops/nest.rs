//! Transforms made of transforms: `Compose`, `RandomApply`, `RandomChoice` and `RandomOrder`.
//!
//! Each nested op has its own random stream, derived from the outer op's stream and its position in the list: which of
//! them run, and in which order, does not change what any other draws.

use forebay_core::{Error, Result, Rng};

use super::check::Check;
use super::table::args;
use super::transform::Transform;
use super::{Buffers, Form, Op, Sizes};
use crate::Value;

impl Op {
    /// The nesting limit: a top-level transform has depth 1.
    pub const MAX_DEPTH: usize = 32;

    /// How many transforms a pipeline may have, including nested ones.
    pub const MAX_COUNT: usize = 4096;

    /// The transforms in this one.
    pub fn inner(&self) -> &[Self] {
        match self {
            Self::Compose { transforms }
            | Self::RandomApply { transforms, .. }
            | Self::RandomChoice { transforms, .. }
            | Self::RandomOrder { transforms } => transforms,
            _ => &[],
        }
    }
}

/// Refuses ops that are nested too deep or too many. Other code may then recurse.
pub(crate) fn check_limits(ops: &[Op]) -> Result<()> {
    let (mut level, mut depth, mut count) = (ops.iter().collect::<Vec<_>>(), 1, ops.len());
    while !level.is_empty() {
        if depth > Op::MAX_DEPTH {
            let message = format!("transform: expected at most {} levels of transforms, got more", Op::MAX_DEPTH);
            return Err(Error::config(message));
        }
        count += level.iter().map(|op| op.inner().len()).sum::<usize>();
        if count > Op::MAX_COUNT {
            let message = format!("transform: expected at most {} transforms, got more", Op::MAX_COUNT);
            return Err(Error::config(message));
        }
        level = level.into_iter().flat_map(Op::inner).collect();
        depth += 1;
    }
    Ok(())
}

/// The same list with each `Compose` replaced by its ops, so that they are planned and fused.
pub(crate) fn flatten(ops: Vec<Op>) -> Vec<Op> {
    let parts = ops.into_iter().flat_map(|op| match op {
        Op::Compose { transforms } => flatten(transforms),
        op => vec![op],
    });
    parts.collect()
}

fn check_filled(ops: &[Op], check: &mut Check<'_>) {
    check.expect(!ops.is_empty(), || "expected at least one transform, got none".into());
}

/// One after the other.
fn check_list(ops: &[Op], form: Form, check: &mut Check<'_>) -> Form {
    ops.iter().enumerate().fold(form, |form, (position, op)| check.inner(position, op, form))
}

/// What is known about a value that is one of both.
fn either(one: Form, other: Form, check: &mut Check<'_>) -> Form {
    one.join(other).unwrap_or_else(|| {
        check.expect(false, || {
            format!("expected the same kind of value whatever is chosen, got {} or {}", one.name(), other.name())
        });
        other
    })
}

fn charge_list(ops: &[Op], mut sizes: Sizes) -> Option<(u64, Sizes)> {
    let mut most = 0;
    for op in ops {
        let (bytes, made) = op.charge(sizes)?;
        (most, sizes) = (most.max(bytes), made);
    }
    Some((most, sizes))
}

/// Applies the op at this position of a list; `rng` is the list's stream.
fn apply_one(ops: &[Op], position: usize, value: Value, rng: &Rng, buffers: &mut Buffers) -> Result<Value> {
    ops[position].apply(value, &mut rng.fork(position as u64), buffers)
}

fn apply_list(ops: &[Op], value: Value, rng: &Rng, buffers: &mut Buffers) -> Result<Value> {
    (0..ops.len()).try_fold(value, |value, position| apply_one(ops, position, value, rng, buffers))
}

impl Transform for args::Compose<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check_list(self.transforms, form, check)
    }

    fn charge(&self, sizes: Sizes) -> Option<(u64, Sizes)> {
        charge_list(self.transforms, sizes)
    }

    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        apply_list(self.transforms, value, rng, buffers)
    }
}

impl Transform for args::RandomApply<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check_filled(self.transforms, check);
        check.probability(*self.p);
        let after = check_list(self.transforms, form, check);
        // If it is always or never applied, there is no choice.
        if *self.p <= 0.0 {
            form
        } else if *self.p >= 1.0 {
            after
        } else {
            either(form, after, check)
        }
    }

    fn charge(&self, sizes: Sizes) -> Option<(u64, Sizes)> {
        let (most, made) = charge_list(self.transforms, sizes)?;
        Some((most, sizes.and(made)))
    }

    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        if rng.chance(*self.p) { apply_list(self.transforms, value, rng, buffers) } else { Ok(value) }
    }
}

impl args::RandomChoice<'_> {
    /// A place in the list, by the weights.
    fn choose(&self, rng: &mut Rng) -> usize {
        let mut rest = rng.unit() * self.p.iter().sum::<f64>();
        for (position, weight) in self.p.iter().enumerate() {
            if rest < *weight {
                return position;
            }
            rest -= weight;
        }
        // Rounding left a little more than the sum of all weights.
        self.p.iter().rposition(|weight| *weight > 0.0).unwrap_or(0)
    }
}

impl Transform for args::RandomChoice<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        let (count, p) = (self.transforms.len(), self.p);
        check_filled(self.transforms, check);
        check.expect(p.len() == count, || format!("expected {count} numbers as p, got {}", p.len()));
        let sum = p.iter().sum::<f64>();
        let fine = p.iter().all(|weight| *weight >= 0.0) && sum > 0.0 && sum.is_finite();
        check.expect(fine, || format!("expected p of 0 or more with a sum above 0, got {p:?}"));
        let mut made = None;
        for (position, op) in self.transforms.iter().enumerate() {
            let after = check.inner(position, op, form);
            made = Some(made.map_or(after, |made| either(made, after, check)));
        }
        made.unwrap_or(form)
    }

    fn charge(&self, sizes: Sizes) -> Option<(u64, Sizes)> {
        let (first, others) = self.transforms.split_first()?;
        let (mut most, mut made) = first.charge(sizes)?;
        for op in others {
            let (bytes, sizes) = op.charge(sizes)?;
            (most, made) = (most.max(bytes), made.and(sizes));
        }
        Some((most, made))
    }

    fn apply(&self, value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let position = self.choose(rng);
        apply_one(self.transforms, position, value, rng, buffers)
    }
}

impl Transform for args::RandomOrder<'_> {
    fn check(&self, form: Form, check: &mut Check<'_>) -> Form {
        check_filled(self.transforms, check);
        // If each op keeps a channel count or a size, so does every order of them; otherwise it is unknown.
        let mut made = form;
        for (position, op) in self.transforms.iter().enumerate() {
            let after = check.inner(position, op, form);
            made = either(made, after, check);
        }
        made
    }

    fn charge(&self, sizes: Sizes) -> Option<(u64, Sizes)> {
        // In the order of the list, with any of them left out. Not every order is tried, which would be too many, but
        // an op that enlarges a picture counts for all that follow it.
        let (mut most, mut sizes) = (0, sizes);
        for op in self.transforms {
            let (bytes, made) = op.charge(sizes)?;
            (most, sizes) = (most.max(bytes), sizes.and(made));
        }
        Some((most, sizes))
    }

    fn apply(&self, mut value: Value, rng: &mut Rng, buffers: &mut Buffers) -> Result<Value> {
        let mut order: Vec<usize> = (0..self.transforms.len()).collect();
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64 + 1) as usize);
        }
        for position in order {
            value = apply_one(self.transforms, position, value, rng, buffers)?;
        }
        Ok(value)
    }
}

#[cfg(test)]
mod tests;
