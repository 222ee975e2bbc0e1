//! What a position costs in each kind of order, and what the blocks of an epoch cost: the numbers of decisions/0041.
//!
//! `cargo run --locked --release --package forebay-core --example order_cost`

#![allow(clippy::print_stdout, reason = "a program that prints its result")]

use std::hint::black_box;
use std::num::NonZeroU64;
use std::time::Instant;

use forebay_core::{Blocks, Epoch, EpochOrder, OrderKind, Plan, Result, WorldSize, hash_words};

/// Positions per measurement.
const POSITIONS: u64 = 10_000;
/// Measurements, of which the fastest counts: others share the processor with what else runs.
const ROUNDS: usize = 300;

fn main() -> Result<()> {
    println!(
        "{:>10} {:>8} {:>7}  {:<26}{:>12}{:>12}{:>12}",
        "samples", "blocks", "window", "order", "in order", "at random", "per epoch"
    );
    // ImageNet's size in shards of about 1,000; small blocks; a hundred million samples in small blocks; 2⁴⁰.
    for (len, block_len, window) in [
        (1_281_167, 1_000, 16),
        (1_281_167, 1_000, 1),
        (1_281_167, 16, 64),
        (100_000_000, 1_000, 64),
        (1 << 40, 1 << 20, 16),
    ] {
        let count = len / block_len;
        let window = NonZeroU64::new(window).unwrap_or(NonZeroU64::MIN);
        let equal = Blocks::new((0..count).map(|block| length(len, count, block)))?;
        let uneven = Blocks::new(uneven(len, count))?;
        for (name, order) in [
            ("global", OrderKind::Global),
            ("shard-local, equal blocks", OrderKind::ShardLocal { blocks: equal, window }),
            ("shard-local, uneven blocks", OrderKind::ShardLocal { blocks: uneven, window }),
        ] {
            let plan = Plan { len, batch_size: 1, world_size: WorldSize(1), order, drop_last: false, seed: 1 };
            let epoch_order = plan.epoch_order(Epoch(0));
            let in_order = fastest(ROUNDS, || positions(&epoch_order, |step| len / 3 + step % (len / 3)));
            let random = fastest(ROUNDS, || positions(&epoch_order, |step| hash_words(&[step]) % len));
            let epoch = fastest(10, || {
                let start = Instant::now();
                black_box(plan.epoch_order(Epoch(black_box(1))));
                start.elapsed().as_secs_f64() * 1e3
            });
            println!("{len:>10} {count:>8} {window:>7}  {name:<26}{in_order:>9.1} ns{random:>9.1} ns{epoch:>9.3} ms");
        }
    }
    Ok(())
}

/// The length of one of `count` blocks that are as equal as `len` allows.
fn length(len: u64, count: u64, block: u64) -> u64 {
    len / count + u64::from(block < len % count)
}

/// Lengths from 1 to twice the mean.
fn uneven(len: u64, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |block| {
        // Neighbours give each other what they have more or less than the mean.
        let spare = hash_words(&[block / 2]) % (len / count);
        match block % 2 {
            _ if block == count - 1 => length(len, count, block),
            0 if block + 2 == count => length(len, count, block),
            0 => length(len, count, block) - spare,
            _ => length(len, count, block) + spare,
        }
    })
}

/// Nanoseconds per position.
fn positions(order: &EpochOrder, position: impl Fn(u64) -> u64) -> f64 {
    let start = Instant::now();
    for step in 0..POSITIONS {
        black_box(order.at(position(step)));
    }
    start.elapsed().as_secs_f64() * 1e9 / POSITIONS as f64
}

fn fastest(rounds: usize, mut measure: impl FnMut() -> f64) -> f64 {
    (0..rounds).map(|_| measure()).fold(f64::INFINITY, f64::min)
}
