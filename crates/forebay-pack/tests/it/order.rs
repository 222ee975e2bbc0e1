//! The same bytes, whatever the number of threads; another order where one was asked for.

use forebay_pack::{Coding, Pack, Recoding};

use crate::Ends;

#[test]
fn any_number_of_threads_makes_the_same_bytes() {
    let ends = Ends::of_pictures(3, 40);
    ends.put("source/class1/bad.ppm", b"P6 24 18 255\nshort");
    let recoding = Some(Recoding { max_side: Some(16), format: Some(Coding::Jpeg), quality: 90 });
    for (shuffle, recoding) in [(None, None), (Some(7), recoding)] {
        let mut first = None;
        for threads in [1, 2, 3, 16] {
            let target = ends.path("target");
            let pack = Pack { threads: Some(threads), shuffle, recoding, ..ends.pack() };
            let packed = pack.run(&mut |_| {}).unwrap();
            assert_eq!((packed.packed, packed.failed), (120, 1));
            let mut made = ends.target();
            // What says when something failed, and how long it took to decode, differs.
            made.remove(std::path::Path::new("forebay-ledger.jsonl")).unwrap();
            made.remove(std::path::Path::new("forebay-pack.json")).unwrap();
            assert!(made == *first.get_or_insert_with(|| made.clone()), "{threads} threads");
            std::fs::remove_dir_all(target).unwrap();
        }
    }
}

#[test]
fn a_shuffle_is_another_order_of_the_same_samples() {
    let ends = Ends::of_pictures(2, 50);
    ends.run(&ends.pack());
    let (plain, mut sorted) = (ends.members(), Vec::new());
    for seed in [1, 2] {
        std::fs::remove_dir_all(ends.path("target")).unwrap();
        ends.run(&Pack { shuffle: Some(seed), ..ends.pack() });
        let mut members = ends.members();
        assert_ne!(members, plain);
        members.sort();
        sorted.push(members);
    }
    let mut expected = plain;
    expected.sort();
    assert_eq!(sorted, [expected.clone(), expected]);
}

#[test]
fn a_bad_sample_moves_no_other_one_to_another_shard() {
    let ends = Ends::of_pictures(2, 40);
    let pack = ends.pack();
    let whole = ends.run(&pack).shards;
    std::fs::remove_dir_all(ends.path("target")).unwrap();
    let path = ends.path("source/class0/0020.ppm");
    let size = std::fs::metadata(&path).unwrap().len() as usize;
    std::fs::write(&path, vec![0; size]).unwrap();
    let packed = pack.run(&mut |_| {}).unwrap();
    assert_eq!((packed.packed, packed.failed, packed.failures.len()), (79, 1, 1));
    assert_eq!(packed.shards.len(), whole.len());
    let fewer: Vec<_> = whole.iter().zip(&packed.shards).filter(|(one, other)| one != other).collect();
    let [((_, _, before), (_, _, after))] = fewer[..] else { panic!("{fewer:?}") };
    assert_eq!(*after, before - 1);
}
