//! Archives and other files with samples, the indexes of them, and the records in them.

use std::sync::Arc;

use forebay_core::{Element, Epoch, Result, Rng, SampleId, hash_words, masked_crc};
use forebay_decode::{
    BytesRecipe, Endian, ExampleRecord, FeatureKind, Fields, HeadedArrayRecipe, Op, Pipeline, PixelsRecipe, RawRecipe,
    Recipe, RecordFormat, RecordRecipe, Sample, Scratch, SizedRecord, Value, WantedFeature, features,
};
use forebay_format::{
    ArrowScanner, Directory, FileIndex, FileScanner, Listed, PageTable, ParquetScanner, RangeScanner, SHARD_RULE,
    ShardIndex, TableScanner, TarScanner, TfRecordScanner, litdata_elements, parquet_schema, read_index, read_wds2idx,
};

/// Parts lie inside of the archive, have their checksum, and are the same for pieces of any size. Where bytes are looked at
/// again, it is not without end.
pub(crate) fn tar(bytes: &[u8]) {
    let whole = scan(bytes, |rest| rest);
    assert_eq!(whole, scan(bytes, |rest| 1 + hash_words(&[rest as u64]) as usize % 1500), "in pieces");
    let Ok(index) = whole else { return };
    check(&index, bytes.len() as u64, |part| {
        let own = &bytes[part.range.start as usize..part.range.end as usize];
        assert!(part.is(own) && (part.hash.is_some() || part.lost.is_some()), "a part with another checksum");
    });
    let mut written = Vec::new();
    index.write(&mut written);
    assert_eq!(ShardIndex::parse(&mut &*written, bytes.len() as u64), Some(index));
}

/// The index, or the message of its error.
fn scan(bytes: &[u8], piece: impl Fn(usize) -> usize) -> std::result::Result<ShardIndex, String> {
    let mut scanner = TarScanner::new(bytes.len() as u64);
    let mut fed = 0;
    while let Some(position) = scanner.position() {
        let rest = &bytes[position as usize..];
        let taken = &rest[..piece(rest.len()).min(rest.len())];
        let before = (position, fed);
        scanner.feed(taken).map_err(|error| error.to_string())?;
        // What is looked at again is at most the archive once more, and 16 MiB.
        fed += scanner.position().map_or(taken.len() as u64, |now| now.saturating_sub(before.0));
        assert!(fed <= 3 * bytes.len() as u64 + (32 << 20), "{fed} bytes read");
    }
    scanner.finish().map_err(|error| error.to_string())
}

/// Every part of every sample, by its field.
fn check(index: &ShardIndex, size_bytes: u64, part_is_good: impl Fn(&forebay_format::Part)) {
    for sample in 0..index.len() {
        index.write_key(sample, &mut String::new());
        let annotation = index.annotation(sample, index.fields_of(sample));
        assert!(annotation.is_none() || (index.has_hashes() && index.has_annotations()), "of nothing");
        for field in index.fields_of(sample) {
            let (_, part) = index.find(sample, &[*field]).expect("a field that the sample has");
            assert!(part.range.start <= part.range.end && part.range.end <= size_bytes, "beyond the end: {part:?}");
            part_is_good(&part);
        }
    }
}

/// What is accepted lies inside of its file. As it is, and with the right checksum: that is no secret.
pub(crate) fn index(bytes: &[u8]) {
    let sealed = [bytes, &xxhash_rust::xxh3::xxh3_64(bytes).to_le_bytes()].concat();
    for content in [bytes, &sealed] {
        for (version, index) in read_index::<ShardIndex>(SHARD_RULE, content).unwrap_or_default() {
            check(&index, index.pages().map_or(version.size_bytes, |pages| pages.end()), |_| {});
        }
    }
}

/// What is accepted lies inside of the archive.
pub(crate) fn wds2idx(bytes: &[u8]) {
    for size_bytes in [10_240, u64::MAX] {
        if let Ok(index) = read_wds2idx(bytes, size_bytes) {
            check(&index, size_bytes, |_| {});
        }
    }
}

/// Records lie inside of the chunk, and one behind the end of the table.
pub(crate) fn chunk_table(bytes: &[u8]) {
    ranged(TableScanner::new(bytes.len() as u64, Listed { samples: 3, size_bytes: Some(99) }), bytes);
}

/// Frames lie inside of the file, one behind the other.
pub(crate) fn tfrecord(bytes: &[u8]) {
    let index = ranged(TfRecordScanner::new(bytes.len() as u64), bytes);
    let mut end = 0;
    for sample in 0..index.len() {
        let (_, part) = index.find(sample, &[0]).expect("a record that is there");
        assert!(part.range.start >= end, "records that overlap");
        end = part.range.end;
    }
}

/// Values lie inside of the file or of its pages, and have their checksums; pages are unpacked as they were when the index was made.
pub(crate) fn parquet_shard(bytes: &[u8]) {
    let size_bytes = bytes.len() as u64;
    let Ok(Ok(schema)) = parquet_schema(size_bytes, bytes) else { return };
    let fields: Vec<_> = schema.read_fields().cloned().collect();
    if fields.is_empty() {
        return;
    }
    let mut scanner = ParquetScanner::new(size_bytes, fields.into());
    let mut reads = 0;
    while let Some(range) = scanner.next_range() {
        assert!(!range.is_empty() && range.end <= size_bytes, "{range:?} of {size_bytes}");
        if scanner.feed(&bytes[range.start as usize..range.end as usize]).is_err() {
            return;
        }
        reads += 1;
        assert!(reads <= 10 + bytes.len() / 8, "{reads} reads");
    }
    let index = scanner.finish().expect("every byte that was asked for was given");
    let nothing = PageTable::default();
    let pages = index.pages().map_or(&nothing, |pages| &**pages);
    let mut unpacked: Vec<Vec<u8>> = Vec::new();
    for page in 0..pages.page_count() {
        let packed = pages.packed_range(page);
        let dictionary = pages.dictionary(page).map(|page| &*unpacked[page]);
        let content: Vec<u8> = pages
            .unpack(page, &bytes[packed.start as usize..packed.end as usize], dictionary)
            .expect("it was unpacked");
        unpacked.push(content);
    }
    let all = unpacked.concat();
    check(&index, size_bytes + all.len() as u64, |part| {
        let own = part.range.start as usize..part.range.end as usize;
        let content = match part.range.end <= size_bytes {
            true => &bytes[own],
            false => &all[own.start - bytes.len()..own.end - bytes.len()],
        };
        assert!(part.lost.is_some() || part.hash.is_some() && part.is(content), "another value: {part:?}");
    });
    let mut written = Vec::new();
    index.write(&mut written);
    assert_eq!(ShardIndex::parse(&mut &*written, size_bytes).as_ref(), Some(&index));
}

/// Values lie inside of the file, and there are no more of them than it has bits.
pub(crate) fn arrow(bytes: &[u8]) {
    let Ok(index) = try_ranged(ArrowScanner::new(bytes.len() as u64), bytes) else { return };
    let values: usize = (0..index.len()).map(|sample| index.fields_of(sample).len()).sum();
    assert!(values <= 8 * bytes.len(), "{values} values in {} bytes", bytes.len());
}

fn ranged<S: RangeScanner<Index = ShardIndex>>(scanner: S, bytes: &[u8]) -> ShardIndex {
    try_ranged(scanner, bytes).expect("no error of bytes")
}

fn try_ranged<S: RangeScanner<Index = ShardIndex>>(mut scanner: S, bytes: &[u8]) -> Result<ShardIndex> {
    let mut reads = 0;
    while let Some(range) = scanner.next_range() {
        assert!(!range.is_empty() && range.end <= bytes.len() as u64, "{range:?} of {}", bytes.len());
        scanner.feed(&bytes[range.start as usize..range.end as usize])?;
        reads += 1;
        assert!(reads <= 2 + bytes.len() / 16, "{reads} reads");
    }
    let index = scanner.finish()?;
    check(&index, bytes.len() as u64, |_| {});
    let mut written = Vec::new();
    index.write(&mut written);
    assert_eq!(ShardIndex::parse(&mut &*written, bytes.len() as u64).as_ref(), Some(&index));
    Ok(index)
}

/// Its files are below it, and its fields have names that differ.
pub(crate) fn shard_directory(bytes: &[u8]) {
    let Ok(directory) = Directory::read(bytes) else { return };
    assert!(!directory.files.is_empty());
    for (name, _) in &directory.files {
        assert!(!name.starts_with('/') && !name.split('/').any(|part| part == ".."), "{name:?} leads out of it");
    }
}

/// Fields of records are as long as they say, whatever they are.
pub(crate) fn record(bytes: &[u8]) {
    let pipeline = Arc::new(Pipeline::new(vec![Op::ToTensor]).expect("a pipeline"));
    let recipes: [Arc<dyn Recipe>; 5] = [
        Arc::new(PixelsRecipe::new(pipeline)),
        Arc::new(HeadedArrayRecipe::mds(None, None)),
        Arc::new(HeadedArrayRecipe::litdata(litdata_elements(true), Endian::Little)),
        Arc::new(HeadedArrayRecipe::litdata(litdata_elements(false), Endian::Big)),
        Arc::new(BytesRecipe),
    ];
    // As they are, and as the second field of a record.
    for recipe in recipes {
        make(&*recipe, bytes);
        let format = Arc::new(SizedRecord::new(vec![None, Some(1), None], vec![2]));
        make(&RecordRecipe::new(format, vec![("field".to_owned(), recipe)]).expect("a recipe"), bytes);
    }
}

/// Features are found in any bytes, and numbers in them are no more than those can hold. Checksums are put right: they are no secret.
pub(crate) fn example(bytes: &[u8]) {
    let length = (bytes.len() as u64).to_le_bytes();
    let frame = [&length[..], &masked_crc(&length).to_le_bytes(), bytes, &masked_crc(bytes).to_le_bytes()].concat();
    let mut wanted = Vec::new();
    let seen = features(&frame, &mut |feature| {
        let kind = feature.list.map_or(FeatureKind::Bytes, |(kind, _)| kind);
        let _malformed = (feature.len(), feature.first_bytes());
        wanted.push(WantedFeature { names: vec![feature.name.to_owned()], kind, is_single: wanted.len() % 2 == 0 });
    });
    wanted.truncate(8);
    if seen.is_err() || wanted.is_empty() {
        return;
    }
    let numbers = |element| RawRecipe::of_any_length(Vec::new(), element, Endian::Little).expect("a recipe");
    let column = |(at, wanted): (usize, &WantedFeature)| {
        let recipe: Arc<dyn Recipe> = match wanted.kind {
            FeatureKind::Bytes => Arc::new(BytesRecipe),
            FeatureKind::Floats => Arc::new(numbers(Element::F32)),
            FeatureKind::Integers => Arc::new(numbers(Element::I64)),
        };
        (at.to_string(), recipe)
    };
    let columns = wanted.iter().enumerate().map(column).collect();
    let format: Arc<dyn RecordFormat> = Arc::new(ExampleRecord::new(wanted));
    make(&RecordRecipe::new(format, columns).expect("a recipe"), &frame);
}

/// Makes a sample, which takes no more memory than was charged for it, eight times the numbers in it at most.
fn make(recipe: &dyn Recipe, bytes: &[u8]) {
    let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
    let charged = recipe.memory_bytes(Fields(&[bytes]), scratch);
    let sample = Sample { fields: Fields(&[bytes]), path: &|| "record".into(), rng, scratch, slot: None };
    let Ok((Some(value), _)) = recipe.make(sample) else { return };
    let charged = charged.expect("a sample that was made");
    let own: usize = match &value {
        Value::Row(values) => values.iter().map(Value::size_bytes).sum(),
        value => value.size_bytes(),
    };
    assert!(own as u64 <= charged, "{own} bytes made, {charged} charged");
}
