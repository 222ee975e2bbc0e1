//! Indexes and headers of files of tokens.

use forebay_core::{Element, hash_words};
use forebay_format::{
    Documents, MegatronHeader, MegatronIndex, Runs, TokenShardIndex, TokenStream, npy_tokens, plain_tokens,
};

/// Documents lie inside of the file, one behind the other, and are the same for pieces of any size.
pub(crate) fn megatron(bytes: &[u8]) {
    let Ok(header) = MegatronHeader::parse(&bytes[..bytes.len().min(34)], bytes.len() as u64) else { return };
    let item = header.element.size_bytes() as u64;
    for tokens_bytes in [0, 14, bytes.len() as u64, u64::MAX] {
        let whole = read(header, bytes, tokens_bytes, |rest| rest);
        let in_pieces = read(header, bytes, tokens_bytes, |rest| 1 + hash_words(&[rest as u64]) as usize % 9);
        assert_eq!(whole, in_pieces, "in pieces");
        let outer = header.outer().map(|ranges| ranges.map(|range| &bytes[range.start as usize..range.end as usize]));
        let counted = outer.and_then(|[first, last]| {
            let (first, last) = (first.try_into().expect("12 bytes"), last.try_into().expect("8 bytes"));
            header.tokens_by(first, last, tokens_bytes).ok()
        });
        assert!(counted.is_none_or(|tokens| tokens <= tokens_bytes / item), "tokens beyond the end");
        let Ok(ends) = whole else { continue };
        let tokens = ends.last().copied().unwrap_or(0);
        assert!(
            outer.is_none() || counted == Some(tokens),
            "the outer sequences say {counted:?}, all of them {tokens}"
        );
        assert!(tokens <= tokens_bytes / item, "documents beyond the end");
        Documents::default().extend(0, tokens, &ends).expect("documents lie one behind the other");
    }
}

/// The documents, or the message of the error.
fn read(
    header: MegatronHeader,
    bytes: &[u8],
    tokens_bytes: u64,
    piece: impl Fn(usize) -> usize,
) -> Result<Vec<u64>, String> {
    let mut index = MegatronIndex::new(header, tokens_bytes).map_err(|error| error.to_string())?;
    let arrays = header.arrays();
    let mut rest = &bytes[arrays.start as usize..arrays.end as usize];
    while !rest.is_empty() {
        let (next, behind) = rest.split_at(piece(rest.len()).min(rest.len()));
        index.feed(next).map_err(|error| error.to_string())?;
        rest = behind;
    }
    index.finish().map_err(|error| error.to_string())
}

/// An `index.json`, and behind a zero byte a shard of its. Tokens lie inside of the shard.
pub(crate) fn shards(bytes: &[u8]) {
    let split = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let (json, shard) = (&bytes[..split], bytes.get(split + 1..).unwrap_or_default());
    for given in [None, Some(Element::U16)] {
        let Ok(index) = TokenShardIndex::parse(json, None, given) else { continue };
        let size_bytes = shard.len() as u64;
        for spec in &index.shards {
            let Ok(table_bytes) = spec.table_bytes(size_bytes) else { continue };
            let table = &shard[..table_bytes as usize];
            let first = spec.shape_at(table).and_then(|at| shard.get(at as usize).copied());
            let Ok(tokens) = spec.tokens(table, first, size_bytes, index.element) else { continue };
            is_inside(&tokens.runs, index.element, size_bytes);
            let count = tokens.runs.tokens();
            Documents::default().extend(0, count, &tokens.ends).expect("samples lie one behind the other");
        }
    }
}

/// The beginnings of raw files and of arrays. Tokens lie inside of the file.
pub(crate) fn heads(bytes: &[u8]) {
    for size_bytes in [bytes.len() as u64, u64::MAX] {
        for given in [None, Some(Element::U32)] {
            let found = [plain_tokens(bytes, size_bytes, given), npy_tokens(bytes, size_bytes, given)];
            for plain in found.into_iter().flatten() {
                is_inside(&plain.runs, plain.element, size_bytes);
            }
        }
    }
}

fn is_inside(runs: &Runs, element: Element, size_bytes: u64) {
    let stream =
        TokenStream::new(element.size_bytes(), vec![runs.clone()]).expect("the tokens of one file are counted");
    let ends = match runs {
        Runs::One { tokens, .. } => vec![*tokens],
        Runs::Many(runs) => runs.iter().map(|run| run.end).collect(),
    };
    for end in ends.into_iter().filter(|end| *end > 0) {
        let last = stream.first_piece(end - 1..end);
        assert!(last.bytes.end <= size_bytes, "{last:?} of {size_bytes}");
    }
}
