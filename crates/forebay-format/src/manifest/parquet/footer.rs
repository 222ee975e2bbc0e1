//! Checks a file's footer before the Parquet library reads it. The library allocates as much as the schema claims and
//! recurses as deep as the schema nests: either can abort the process, which cannot be caught.

use parquet::errors::ParquetError;

use crate::parquet_pages::{Thrift, Type, wrong};

/// Deeper than any table of samples.
const MAX_DEPTH: usize = 64;

/// Refuses a footer whose schema claims more columns than it has, or nests them too deep.
pub(super) fn check(file: &[u8]) -> Result<(), ParquetError> {
    let metadata = metadata(file)?;
    Thrift::new(metadata).fields(&mut |thrift, id, field| match (id, field) {
        (2, Type::List) => check_schema(thrift).map(|()| true),
        _ => Ok(false),
    })
}

/// The footer's bytes, which precede its length and the magic number.
fn metadata(file: &[u8]) -> Result<&[u8], ParquetError> {
    let short = || wrong("it ends before its metadata");
    let (rest, tail) = file.split_last_chunk::<8>().ok_or_else(short)?;
    let [a, b, c, d, magic @ ..] = *tail;
    if &magic != b"PAR1" {
        return Err(wrong("its last bytes are not those of a Parquet file"));
    }
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    let begin = rest.len().checked_sub(length).filter(|&begin| begin >= 4);
    let begin = begin.ok_or_else(|| wrong(format!("its metadata claims {length} bytes of {}", file.len())))?;
    Ok(&rest[begin..])
}

/// The schema is a tree, written depth first: each element says how many children follow.
fn check_schema(thrift: &mut Thrift<'_>) -> Result<(), ParquetError> {
    let (element, count) = thrift.list()?;
    if count > 0 && element != Type::Struct {
        return Err(wrong("its schema is not a list of columns"));
    }
    // Children still to come, for the element and its ancestors.
    let mut open: Vec<usize> = Vec::new();
    for number in 0..count {
        let mut children = 0;
        thrift.fields(&mut |thrift, id, field| match id {
            5 => thrift.i32(field).map(|count| children = count).map(|()| true),
            _ => Ok(false),
        })?;
        let left = count - number - 1;
        let children = usize::try_from(children).ok().filter(|&children| children <= left);
        let children =
            children.ok_or_else(|| wrong(format!("its schema claims more columns than the {count} it has")))?;
        if let Some(siblings) = open.last_mut() {
            *siblings -= 1;
        }
        open.push(children);
        if open.len() > MAX_DEPTH {
            return Err(wrong(format!("its schema is nested more than {MAX_DEPTH} deep")));
        }
        while open.last() == Some(&0) {
            open.pop();
        }
    }
    Ok(())
}
