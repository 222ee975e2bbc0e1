use std::collections::HashMap;

use forebay_core::{Kind, hash_words};
use proptest::prelude::*;

use super::*;
use crate::content_hash;

/// A header of these numbers, with its checksum.
fn header(file_bytes: u64, [block_bytes, run_blocks, groups, regions, parity]: [u32; 5]) -> Vec<u8> {
    let mut bytes = [b"FBPARITY".as_slice(), &1_u32.to_le_bytes(), &[0; 4], &file_bytes.to_le_bytes()].concat();
    bytes.extend([block_bytes, run_blocks, groups, regions, parity].iter().flat_map(|word| word.to_le_bytes()));
    bytes.resize(56, 0);
    let sum = content_hash(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// A layout of few small blocks.
fn small(file_bytes: u64, run_blocks: u32, groups: u32, regions: u32, parity: u32) -> Option<ParityLayout> {
    ParityLayout::parse(&header(file_bytes, [512, run_blocks, groups, regions, parity])).ok()
}

fn content(file_bytes: u64, seed: u64) -> Vec<u8> {
    (0..file_bytes).map(|at| hash_words(&[seed, at]) as u8).collect()
}

/// Record and parity of every group.
fn encode(layout: &ParityLayout, content: &[u8]) -> Vec<(GroupRecord, Vec<u8>)> {
    let encode = |group| {
        let mut encoder = GroupEncoder::new(layout, group).unwrap();
        for run in layout.runs_of(group) {
            encoder.add(&content[run.bytes.start as usize..run.bytes.end as usize]).unwrap();
        }
        let (record, parity) = encoder.finish().unwrap();
        (GroupRecord::parse(layout, group, &record).unwrap(), parity)
    };
    (0..layout.group_count()).map(encode).collect()
}

/// Repairs a group without the blocks and the parity blocks that `is_lost` names; of these, garbage is offered.
fn repair(
    layout: &ParityLayout,
    content: &[u8],
    (record, parity): &(GroupRecord, Vec<u8>),
    is_lost: impl Fn(u32) -> bool,
    is_parity_lost: impl Fn(u32) -> bool,
) -> Option<Vec<MadeBlock>> {
    let mut repair = GroupRepair::new(layout, record).unwrap();
    for number in 0..record.block_count() {
        let range = layout.block_range(layout.block_of(record.group(), number));
        let mut block = content[range.start as usize..range.end as usize].to_vec();
        if is_lost(number) {
            block[number as usize % (range.end - range.start) as usize] ^= 1;
        }
        assert_eq!(repair.offer(number, &block).unwrap(), !is_lost(number));
    }
    for (number, block) in (0..).zip(parity.chunks(layout.block_bytes() as usize)) {
        let mut block = block.to_vec();
        block[0] ^= u8::from(is_parity_lost(number));
        assert_eq!(repair.offer_parity(number, &block).unwrap(), !is_parity_lost(number));
    }
    repair.finish().unwrap()
}

#[test]
fn the_geometry_is_of_bounded_groups_whatever_the_size() {
    for file_bytes in [1, 4096, 4097, 1 << 20, 8 << 20, 62 << 20, 64 << 20, (1 << 30) + 5, 37 << 30, 1 << 45] {
        for fraction in [0.001, 0.02, 0.06, 0.5, 1.0] {
            let layout = ParityLayout::new(file_bytes, fraction).unwrap();
            assert_eq!(ParityLayout::parse(&layout.header()), Ok(layout));
            assert!(layout.work_bytes() <= 32 << 20, "{layout:?} takes {}", layout.work_bytes());
            let share = layout.parity_blocks() as f64 / f64::from(layout.group_blocks(0));
            assert!(share >= fraction, "{layout:?}");
            assert!(share < fraction * 1.2 + 0.01 || file_bytes < 2 << 20, "{layout:?}: {share}");
            let checksums = 0.005 * file_bytes as f64 + 4096.0;
            let expected = fraction.max(0.002) * 1.2 * file_bytes as f64 + 3.0 * 4096.0 + checksums;
            assert!(layout.sidecar_bytes() as f64 <= expected, "{layout:?}: {}", layout.sidecar_bytes());
        }
    }
    assert_eq!(ParityLayout::new(0, 0.02).unwrap_err().kind(), Kind::Undecodable);
    for fraction in [0.0, -1.0, 1.5, f64::NAN] {
        assert_eq!(ParityLayout::new(1 << 20, fraction).unwrap_err().kind(), Kind::Config);
    }
}

#[test]
fn two_percent_carry_a_lost_mebibyte_wherever_it_is() {
    let layout = ParityLayout::new(1 << 30, 0.02).unwrap();
    for seed in 0..1000 {
        let start = hash_words(&[seed]) % ((1 << 30) - (1 << 20));
        let mut lost: HashMap<u64, u64> = HashMap::new();
        for (group, run) in layout.runs_around(&(start..start + (1 << 20))) {
            let blocks = start / 4096..(start + (1 << 20)).div_ceil(4096);
            let both = run.blocks.start.max(blocks.start)..run.blocks.end.min(blocks.end);
            *lost.entry(group).or_default() += both.end - both.start;
        }
        assert!(lost.values().all(|lost| *lost <= layout.parity_blocks().into()), "{start}: {lost:?}");
    }
}

#[test]
fn headers_that_say_the_impossible_are_refused() {
    let good = header(1 << 20, [512, 4, 4, 2, 5]);
    let layout = ParityLayout::parse(&good).unwrap();
    assert_eq!(layout.header().as_slice(), good);
    let mut wrong: Vec<(Vec<u8>, &str)> = vec![
        (good[..63].to_vec(), "ends in its header"),
        (vec![0; 64], "does not begin as"),
        ([&good[..20], &[1], &good[21..]].concat(), "wrong checksum"),
    ];
    let huge = u32::MAX;
    for (file_bytes, numbers, why) in [
        (0, [512, 4, 4, 2, 5], "file_bytes"),
        (u64::MAX, [512, 4, 4, 2, 5], "file_bytes"),
        (1 << 20, [0, 4, 4, 2, 5], "block_bytes"),
        (1 << 20, [513, 4, 4, 2, 5], "block_bytes"),
        (1 << 20, [1 << 20, 4, 4, 2, 5], "block_bytes"),
        (1 << 20, [512, 0, 4, 2, 5], "run_blocks"),
        (1 << 20, [512, huge, 4, 2, 5], "run_blocks"),
        (1 << 20, [65_536, 1024, 4, 2, 5], "run_bytes"),
        (1 << 20, [512, 4, 0, 2, 5], "groups"),
        (1 << 20, [512, 4, huge, 2, 5], "groups"),
        (1 << 12, [512, 4, 4, 1, 1], "groups"),
        (1 << 20, [512, 4, 4, 0, 5], "regions"),
        (1 << 20, [512, 4, 4, huge, 5], "regions"),
        (1 << 20, [512, 4, 4, 2, 0], "parity_blocks"),
        (1 << 20, [512, 4, 4, 2, huge], "parity_blocks"),
        (1 << 48, [512, 4, 4, 1, 5], "group_blocks"),
        (1 << 31, [65_536, 16, 1, 1, 1000], "work_bytes"),
    ] {
        wrong.push((header(file_bytes, numbers), why));
    }
    for (bytes, why) in wrong {
        let error = ParityLayout::parse(&bytes).unwrap_err();
        assert!(error.contains(why), "{error} (expected {why})");
    }
    let mut newer = header(1 << 20, [512, 4, 4, 2, 5]);
    newer[8] = 2;
    let sum = content_hash(&newer[..56]);
    newer[56..].copy_from_slice(&sum.to_le_bytes());
    assert!(ParityLayout::parse(&newer).unwrap_err().contains("of another version (expected 1, got 2)"));
}

#[test]
fn a_record_is_of_its_group_and_of_nothing_else() {
    let layout = small(40 * 512 + 7, 2, 3, 2, 4).unwrap();
    let content = content(layout.file_bytes(), 1);
    let made = encode(&layout, &content);
    for (record, _) in &made {
        let bytes = record.to_bytes(&layout);
        assert_eq!(bytes.len() as u64, layout.record_bytes());
        assert_eq!(GroupRecord::parse(&layout, record.group(), &bytes).as_ref(), Some(record));
        assert_eq!(GroupRecord::parse(&layout, (record.group() + 1) % layout.group_count(), &bytes), None);
        assert_eq!(GroupRecord::parse(&layout, record.group(), &bytes[1..]), None);
        for place in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[place] ^= 4;
            assert_eq!(GroupRecord::parse(&layout, record.group(), &flipped), None, "byte {place}");
        }
    }
}

#[test]
fn parity_that_is_not_the_blocks_own_gives_nothing() {
    let layout = small(20 * 512, 1, 1, 1, 3).unwrap();
    let (one, two) = (content(layout.file_bytes(), 1), content(layout.file_bytes(), 2));
    let (made, other) = (encode(&layout, &one).remove(0), encode(&layout, &two).remove(0));
    // The checksums of one file and the parity of another, with checksums that fit it.
    let words = |record: &GroupRecord| record.to_bytes(&layout);
    let mut forged = words(&made.0)[..20 * 8].to_vec();
    forged.extend_from_slice(&words(&other.0)[20 * 8..23 * 8]);
    let sum = xxhash_rust::xxh3::xxh3_64_with_seed(&forged, 0);
    forged.extend_from_slice(&sum.to_le_bytes());
    let forged = GroupRecord::parse(&layout, 0, &forged).unwrap();
    assert_eq!(repair(&layout, &one, &(forged, other.1), |number| number == 7, |_| false), None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_block_is_in_one_group_and_every_place_of_the_sidecar_is_of_one_thing(
        file_bytes in 1_u64..200_000, run_blocks in 1_u32..9, groups in 1_u32..7, regions in 1_u32..5, parity in 1_u32..9,
    ) {
        let Some(layout) = small(file_bytes, run_blocks, groups, regions, parity) else {
            // Too few runs for so many groups.
            let runs = file_bytes.div_ceil(512).div_ceil(run_blocks.into());
            let group_blocks = runs.div_ceil(regions.into()).div_ceil(groups.into()) * u64::from(run_blocks);
            let group_blocks = group_blocks.min(file_bytes.div_ceil(512));
            prop_assert!(runs < u64::from(groups) * u64::from(regions) || u64::from(parity) > group_blocks);
            return Ok(());
        };
        let mut seen = vec![0; layout.block_count() as usize];
        let mut places = vec![0..PARITY_HEADER_BYTES, layout.sidecar_bytes() - PARITY_HEADER_BYTES..layout.sidecar_bytes()];
        for group in 0..layout.group_count() {
            let mut next = 0;
            for run in layout.runs_of(group) {
                prop_assert_eq!(run.first, next);
                for block in run.blocks.clone() {
                    prop_assert_eq!(layout.block_of(group, next), block);
                    seen[block as usize] += 1;
                    next += 1;
                }
                prop_assert_eq!(run.bytes.end, layout.block_range(run.blocks.end - 1).end);
                let around: Vec<_> = layout.runs_around(&(run.bytes.start..run.bytes.start + 1)).collect();
                prop_assert_eq!(around, vec![(group, run)]);
            }
            prop_assert_eq!(next, layout.group_blocks(group));
            prop_assert!(next > 0);
            places.extend(layout.record_ranges(group));
            places.push(layout.parity_range(group, 0..parity));
        }
        prop_assert!(seen.iter().all(|times| *times == 1));
        places.sort_by_key(|place| place.start);
        prop_assert!(places.windows(2).all(|pair| pair[0].end == pair[1].start), "{:?}", places);
        prop_assert_eq!((places[0].start, places[places.len() - 1].end), (0, layout.sidecar_bytes()));
    }

    #[test]
    fn as_many_lost_blocks_as_there_is_parity_are_made_again_and_one_more_is_refused(
        blocks in 1_u64..70, last in 1_u64..=512, groups in 1_u32..4, parity in 1_u32..12, seed in any::<u64>(),
    ) {
        let file_bytes = (blocks - 1) * 512 + last;
        let Some(layout) = small(file_bytes, 2, groups, 1, parity) else { return Ok(()) };
        let content = content(file_bytes, seed);
        for made in encode(&layout, &content) {
            let count = made.0.block_count();
            // A random order: the first of it are lost, blocks and parity blocks alike.
            let mut order: Vec<u32> = (0..count + parity).collect();
            order.sort_by_key(|number| hash_words(&[seed, u64::from(*number), made.0.group()]));
            for lost_count in 0..=(parity + 1).min(count + parity) {
                let lost = &order[..lost_count as usize];
                let expected: Vec<_> = lost.iter().filter(|number| **number < count).copied().collect();
                let repaired = repair(&layout, &content, &made, |n| lost.contains(&n), |n| lost.contains(&(count + n)));
                if lost_count > parity && !expected.is_empty() {
                    prop_assert_eq!(repaired, None);
                    continue;
                }
                let mut repaired = repaired.expect("no more is lost than there is parity");
                let mut expected: Vec<_> = expected.iter().map(|n| layout.block_of(made.0.group(), *n)).collect();
                repaired.sort();
                expected.sort_unstable();
                prop_assert_eq!(repaired.len(), expected.len());
                for ((block, bytes), expected) in repaired.iter().zip(expected) {
                    let range = layout.block_range(*block);
                    prop_assert_eq!(*block, expected);
                    prop_assert_eq!(&bytes[..], &content[range.start as usize..range.end as usize]);
                }
            }
        }
    }
}
