//! Pictures that are kept decoded: the same batches, and fewer reads.

use std::sync::Arc;

use forebay::{
    Config, Detail, Interpolation, Kind, Loader, OnError, Op, Pipeline, Rank, ResizeTo, Source, TextRecipe, WorldSize,
};
use forebay_store::testing::Scripted;

use crate::fixture::{crop, epoch, pictures, source};

const COUNT: usize = 42;
/// Of a picture of 9 × 7 pixels, and of its entry.
const PICTURE_BYTES: u64 = 9 * 7 * 3 + 128;

fn config(decoded_cache_bytes: Option<u64>) -> Config {
    Config {
        batch_size: 4,
        shuffle: true,
        seed: 3,
        on_error: OnError::Replace,
        decoded_cache_bytes,
        ..Config::default()
    }
}

/// A validation pipeline: all of it is fixed.
fn centre() -> Pipeline {
    let size = ResizeTo::Edge(6);
    let resize = Op::Resize { size, interpolation: Interpolation::Bicubic, max_size: None, antialias: true };
    Pipeline::new(vec![resize, Op::CenterCrop { size: 5.into() }, Op::ToTensor]).unwrap()
}

fn loader(pipeline: Pipeline, config: Config) -> (Loader, Arc<Scripted<forebay_store::testing::Memory>>) {
    let store = Arc::new(Scripted::new(pictures(COUNT, true)));
    (Loader::new(source(store.clone(), pipeline), config).unwrap(), store)
}

#[test]
fn batches_are_the_same_and_kept_pictures_are_not_read_again() {
    for pipeline in [crop, centre] {
        for limit_bytes in [0, PICTURE_BYTES - 1, 7 * PICTURE_BYTES, 1 << 20] {
            for (cpu_threads, world) in [(1, 1), (5, 1), (2, 3)] {
                let config = |limit| Config {
                    cpu_threads,
                    world_size: WorldSize(world),
                    rank: Rank(world - 1),
                    ..config(limit)
                };
                let ((plain, _), (cached, store)) =
                    (loader(pipeline(), config(None)), loader(pipeline(), config(Some(limit_bytes))));
                let same_epoch =
                    || assert_eq!(epoch(&cached), epoch(&plain), "{limit_bytes} bytes, {cpu_threads} threads");
                same_epoch();
                cached.close(); // nothing is prefetched: what is read from now on belongs to later epochs
                let reads = store.total_reads();
                (0..2).for_each(|_| same_epoch());
                cached.close();
                let stats = cached.stats().decoded_cache.unwrap();
                assert!(stats.bytes <= limit_bytes && stats.limit_bytes == limit_bytes, "{stats:?}");
                assert_eq!(stats.hits > 0, stats.samples > 0, "{stats:?}");
                if limit_bytes == 1 << 20 && world == 1 {
                    // All but the three damaged ones, which are in quarantine.
                    assert_eq!(stats.samples, COUNT as u64 - 3, "{stats:?}");
                    assert_eq!(store.total_reads(), reads);
                    assert!(stats.saved_read_bytes > 0 && !stats.saved_decode.is_zero(), "{stats:?}");
                }
            }
        }
    }
}

#[test]
fn a_state_of_a_cached_run_is_one_of_any_run() {
    let (plain, _) = loader(crop(), config(None));
    let whole = epoch(&plain);
    let (cached, _) = loader(crop(), config(Some(1 << 20)));
    let mut run = cached.epoch().unwrap();
    for _ in 0..5 {
        run.next().unwrap().unwrap();
    }
    let state = cached.state();
    for limit in [None, Some(1 << 20)] {
        let (other, _) = loader(crop(), config(limit));
        other.load_state(&state).unwrap();
        assert_eq!(epoch(&other), whole[20..]);
    }
}

#[test]
fn what_cannot_be_kept_is_refused() {
    let store = Arc::new(Scripted::new(pictures(4, false)));
    let refused = |source| Loader::new(source, config(Some(1 << 20))).err().unwrap();
    let error = refused(source(store.clone(), crop().with_detail(Detail::Fast)));
    assert_eq!(error.kind(), Kind::Config);
    assert!(error.to_string().contains("decode=\"fast\""), "{error}");
    let pictures = source(store.clone(), crop());
    let error = refused(Source { recipe: Arc::new(TextRecipe::default()), ..pictures });
    assert!(error.to_string().contains("expected pictures for \"decoded\""), "{error}");
    // All of it is fixed: what `fast` made is what is kept.
    assert!(Loader::new(source(store, centre().with_detail(Detail::Fast)), config(Some(1 << 20))).is_ok());
}
