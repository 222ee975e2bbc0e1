//! What was learnt of the bytes of parts when their index was made, for their decoders: bytes that mean nothing here.

use forebay_core::{Error, Result};

use super::numbers::no_memory;
use crate::extents::{Extents, ExtentsBuilder};

/// The annotation of each part, most of them perhaps empty. A part takes a byte or two beside its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Annotations {
    ranges: Extents,
    bytes: Vec<u8>,
}

impl Annotations {
    pub(super) fn len(&self) -> u64 {
        self.ranges.len()
    }

    pub(super) fn get(&self, part: u64) -> &[u8] {
        let range = self.ranges.range(part);
        &self.bytes[range.start as usize..range.end as usize]
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.ranges.size_bytes() + self.bytes.len()
    }

    pub(super) fn write(&self, out: &mut Vec<u8>) {
        self.ranges.write(out);
        out.extend(&self.bytes);
    }

    /// Reads what [`Annotations::write`] wrote. Ranges that the bytes do not hold cost no memory.
    pub(super) fn parse(bytes: &mut &[u8]) -> Option<Self> {
        let ranges = Extents::parse(bytes)?;
        let starts_at_zero = ranges.is_empty() || ranges.range(0).start == 0;
        let own = bytes.split_off(..usize::try_from(ranges.end()).ok().filter(|_| starts_at_zero)?)?;
        Some(Self { ranges, bytes: own.to_vec() })
    }
}

/// Puts [`Annotations`] together.
#[derive(Debug, Default)]
pub(super) struct AnnotationsBuilder {
    ranges: ExtentsBuilder,
    bytes: Vec<u8>,
}

impl AnnotationsBuilder {
    /// Adds that of a part. Those between the last one and this have none.
    pub(super) fn push(&mut self, part: u64, annotation: &[u8]) -> Result<()> {
        self.fill(part)?;
        if self.ranges.len() != part {
            return Err(Error::internal("a part was annotated twice, or behind later ones"));
        }
        self.bytes.try_reserve(annotation.len()).map_err(no_memory)?;
        self.bytes.extend(annotation);
        self.ranges.push(annotation.len() as u64)
    }

    /// Those of so many parts.
    pub(super) fn finish(mut self, parts: u64) -> Result<Annotations> {
        self.fill(parts)?;
        self.bytes.shrink_to_fit();
        Ok(Annotations { ranges: self.ranges.finish()?, bytes: self.bytes })
    }

    fn fill(&mut self, parts: u64) -> Result<()> {
        while self.ranges.len() < parts {
            self.ranges.push(0)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::shards::{ShardIndex, ShardIndexBuilder};
    use crate::{FileIndex, content_hash};

    const SIZE: u64 = 1 << 20;

    /// Samples of two fields, of which the first has an annotation in every second one.
    fn index(has_hashes: bool, is_annotated: bool) -> ShardIndex {
        let mut builder = ShardIndexBuilder::new(true);
        let hash = |content: &[u8]| has_hashes.then(|| content_hash(content));
        for sample in 0..100u64 {
            builder.push_part("jpg", sample * 1024, 300, hash(b"picture"), None).unwrap();
            if is_annotated && sample % 2 == 0 {
                builder.annotate_last(format!("landmarks of {sample}").as_bytes()).unwrap();
            }
            builder.push_part("cls", sample * 1024 + 512, 1, hash(b"3"), None).unwrap();
            builder.end_sample(Some((&sample.to_string(), sample))).unwrap();
        }
        builder.finish(Vec::new()).unwrap()
    }

    fn written(index: &ShardIndex) -> Vec<u8> {
        let mut bytes = Vec::new();
        index.write(&mut bytes);
        bytes
    }

    #[test]
    fn what_is_known_of_parts_is_kept_with_them() {
        let annotated = index(true, true);
        let read = ShardIndex::parse(&mut &*written(&annotated), SIZE).unwrap();
        assert_eq!(read, annotated);
        for sample in 0..read.len() {
            let expected = if sample % 2 == 0 { format!("landmarks of {sample}") } else { String::new() };
            assert_eq!(read.annotation(sample, &[0]), Some(expected.as_bytes()));
            assert_eq!(read.annotation(sample, &[1]), Some(&[][..]));
            assert_eq!(read.annotation(sample, &[5]), None, "a field that is not there");
        }
        // Afterwards, it is the same; and without them what it was before there were any.
        let plain = index(true, false);
        let mut later = plain.clone();
        let texts: Vec<_> = (0..100).step_by(2).map(|sample| (2 * sample, format!("landmarks of {sample}"))).collect();
        later.annotate(texts.iter().map(|(part, text)| (*part, text.as_bytes()))).unwrap();
        assert_eq!(written(&later), written(&annotated));
        assert!(annotated.size_bytes() >= plain.size_bytes() + texts.iter().map(|(_, text)| text.len()).sum::<usize>());
        later.forget_annotations();
        assert_eq!((written(&later), later.size_bytes()), (written(&plain), plain.size_bytes()));
        assert!(!plain.has_annotations() && plain.annotation(0, &[0]).is_none());
    }

    #[test]
    fn without_checksums_nothing_is_known() {
        let index = index(false, true);
        assert!(index.has_annotations());
        assert_eq!(index.annotation(0, &[0]), None);
    }

    #[test]
    fn annotations_come_in_the_order_of_the_parts() {
        let mut index = index(true, false);
        for wrong in [[3, 3], [3, 2], [0, 200], [200, 201]] {
            assert!(index.annotate(wrong.map(|part| (part, &b"x"[..]))).is_err(), "{wrong:?}");
        }
        let mut builder = ShardIndexBuilder::new(false);
        assert!(builder.annotate_last(b"of nothing").is_err());
        builder.push_part("jpg", 0, 1, None, None).unwrap();
        builder.annotate_last(b"one").unwrap();
        assert!(builder.annotate_last(b"another").is_err());
        builder.end_sample(None).unwrap();
        assert!(builder.annotate_last(b"too late").is_err());
    }

    #[test]
    fn damaged_annotations_are_no_index() {
        let annotated = index(true, true);
        let bytes = written(&annotated);
        let plain = written(&index(true, false)).len();
        // A cut anywhere; ranges beyond the bytes; as many as there are no parts.
        for end in plain..bytes.len() {
            assert!(ShardIndex::parse(&mut &bytes[..end], SIZE).is_none(), "{end}");
        }
        for at in plain..bytes.len() {
            for bit in [1, 128] {
                let mut damaged = bytes.clone();
                damaged[at] ^= bit;
                let Some(read) = ShardIndex::parse(&mut &*damaged, SIZE) else { continue };
                (0..read.len()).for_each(|sample| assert!(read.annotation(sample, &[0]).is_some(), "{at}"));
            }
        }
        for count in [0, 199, 201, u64::MAX] {
            let mut damaged = bytes.clone();
            damaged[plain..plain + 8].copy_from_slice(&count.to_le_bytes());
            assert!(ShardIndex::parse(&mut &*damaged, SIZE).is_none(), "{count}");
        }
        let mut unknown = bytes;
        unknown[0] |= 8;
        assert!(ShardIndex::parse(&mut &*unknown, SIZE).is_none(), "what comes later is not known");
    }
}
