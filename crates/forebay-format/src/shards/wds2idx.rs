//! The index of a tar archive that DALI's `wds2idx` writes, version 1.2: `v1.2 N`, then a line `ext offset size name …` for each
//! of `N` samples. It has no checksums.

use forebay_core::{Error, Kind, Result};

use super::tar::split_name;
use super::{ShardIndex, ShardIndexBuilder};

const BLOCK_BYTES: u64 = 512;

/// The index of an archive of this size. What does not fit into the archive is refused, and so is what cannot be told apart:
/// names with blanks.
pub fn read_wds2idx(bytes: &[u8], size_bytes: u64) -> Result<ShardIndex> {
    let text = std::str::from_utf8(bytes).map_err(|_| malformed(1, "expected text"))?;
    let mut lines = (1..).zip(text.lines());
    let count =
        lines.next().and_then(|(_, line)| line.strip_prefix("v1.2 ")).and_then(|count| count.trim().parse().ok());
    let count: u64 = count.ok_or_else(|| malformed(1, "expected \"v1.2\" and the number of samples"))?;
    let mut shard = ShardIndexBuilder::new(true);
    let mut found = 0;
    for (number, line) in lines.by_ref().filter(|(_, line)| !line.trim().is_empty()) {
        let words: Vec<_> = line.split_ascii_whitespace().collect();
        let (parts, rest) = words.as_chunks::<4>();
        if !rest.is_empty() {
            return Err(malformed(number, "expected field, offset, size and name of each member"));
        }
        let mut sample = None;
        for [field, offset, size, name] in parts {
            let place = offset.parse::<u64>().ok().zip(size.parse::<u64>().ok());
            let is_inside = |(offset, size): &(u64, u64)| {
                offset.is_multiple_of(BLOCK_BYTES)
                    && *offset >= BLOCK_BYTES
                    && offset.checked_add(*size).is_some_and(|end| end <= size_bytes)
            };
            let Some((offset, size)) = place.filter(is_inside) else {
                return Err(malformed(number, &format!("expected members within {size_bytes} bytes")));
            };
            // What has no key belongs to no sample.
            let Some((key, own)) = split_name(name.as_bytes()) else { continue };
            if own != field.as_bytes() || sample.is_some_and(|(open, _)| open != key) {
                return Err(malformed(number, "expected members of one sample"));
            }
            sample.get_or_insert((key, offset - BLOCK_BYTES));
            shard.push_part(field, offset, size, None, None)?;
        }
        found += 1;
        if let Some((key, header_at)) = sample {
            let key = std::str::from_utf8(key).unwrap_or_default();
            shard.end_sample(Some((key, header_at)))?;
        }
    }
    if found != count {
        return Err(malformed(1, &format!("expected {count} samples, got {found}")));
    }
    shard.finish(Vec::new())
}

fn malformed(line: u64, expected: &str) -> Error {
    Error::new(Kind::Corrupt, format!("is no index of this archive by wds2idx (line {line}: {expected})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_if_it_fits_its_archive() {
        let text = b"v1.2 2\njpg 1536 600 a/1.jpg seg.png 3072 1 a/1.seg.png\njpg 4096 0 a/2.jpg\n";
        let shard = read_wds2idx(text, 4096).unwrap();
        assert_eq!((shard.len(), shard.has_hashes()), (2, false));
        assert_eq!(shard.find(0, &[1]).unwrap().1.range, 3072..3073);
        let mut key = String::new();
        shard.write_key(1, &mut key);
        assert_eq!(key, "a/2");
        for other in [
            "",
            "v1.1 1\njpg 512 1 1.jpg\n",
            "v1.2 x\n",
            "v1.2 1000000000\njpg 512 1 1.jpg\n",
            "v1.2 1\njpg 512 1\n",
            "v1.2 1\njpg 512 1 a b.jpg\n",
            "v1.2 1\njpg 512 4000 1.jpg\n",
            "v1.2 1\njpg 18446744073709551104 600 1.jpg\n",
            "v1.2 1\njpg 500 1 1.jpg\n",
            "v1.2 1\njpg 0 1 1.jpg\n",
            "v1.2 1\njpg -512 1 1.jpg\n",
            "v1.2 1\npng 512 1 1.jpg\n",
            "v1.2 1\njpg 512 1 1.jpg cls 1024 1 2.cls\n",
        ] {
            let error = read_wds2idx(other.as_bytes(), 4096).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{other}");
        }
        assert!(read_wds2idx(b"v1.2 1\njpg 512 1 \xff.jpg\n", 4096).is_err());
    }
}
