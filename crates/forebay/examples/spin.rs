//! What the processors themselves give to many threads, for `benchmarks/scaling.py`: arithmetic in registers, without
//! memory, system calls or anything shared but a counter. What this loses from one thread to many is the machine's:
//! clocks that sink when all processors work, processors that are halves of one core, other tenants of the machine.
//!
//! `spin UNITS THREADS EPOCHS` prints one JSON line like `kernel`; a unit takes about as long as a picture.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use forebay::{Error, Result};

mod turns;

const USAGE: &str = "expected: spin UNITS THREADS EPOCHS";
const TURNS: u64 = 200_000;

fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [units, threads, epochs] = arguments.as_slice() else { return Err(Error::config(USAGE)) };
    let number = |text: &str| text.parse::<u64>().map_err(|error| Error::config(USAGE).with_source(error));
    let (units, threads) = (number(units)?, number(threads)?);
    pass(units, threads); // warms up
    turns::take_turns(epochs, USAGE, |epochs| {
        let (started, usage) = (Instant::now(), turns::Usage::now());
        pass(units * epochs, threads);
        let (seconds, usage) = (started.elapsed().as_secs_f64(), usage.since());
        Ok(format!(r#"{{"images": {}, "seconds": {seconds}, {usage}}}"#, units * epochs))
    })
}

/// All threads take the next unit from one counter until there is none.
fn pass(units: u64, threads: u64) {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while next.fetch_add(1, Relaxed) < units {
                    unit();
                }
            });
        }
    });
}

/// So many chains that do not wait for each other that the multiplier never rests: a processor that is half of a core
/// shows.
fn unit() {
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15;
    let mut chains = black_box([1u64, 2, 3, 4, 5, 6, 7, 8]);
    for _ in 0..TURNS {
        for chain in &mut chains {
            let product = u128::from(*chain) * FACTOR;
            *chain = product as u64 ^ (product >> 64) as u64;
        }
    }
    black_box(chains);
}
