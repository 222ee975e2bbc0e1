//! Allocations whose size a file determines: lack of memory is an error of the sample, and never ends the process
//! (docs/decisions/0031).

use forebay_core::{Error, Kind, Result};

/// The error of a sample that does not fit in memory. `what` names the allocation.
pub(crate) fn no_memory(bytes: usize, what: &str) -> Error {
    Error::new(Kind::Exhausted, format!("needs more memory than there is ({bytes} bytes for {what})"))
        .with_hint("lower `num_workers`, `prefetch_factor` or `memory_budget`, or give the process more memory")
}

/// Reserves room for `more` elements.
pub(crate) fn reserve<T>(buffer: &mut Vec<T>, more: usize, what: &str) -> Result<()> {
    buffer.try_reserve(more).map_err(|_| no_memory((buffer.len() + more).saturating_mul(size_of::<T>()), what))
}

/// [`Vec::resize`] that can fail.
pub(crate) fn resize<T: Clone>(buffer: &mut Vec<T>, len: usize, value: T, what: &str) -> Result<()> {
    reserve(buffer, len.saturating_sub(buffer.len()), what)?;
    buffer.resize(len, value);
    Ok(())
}

/// [`Iterator::collect`] that can fail, of an iterator that knows its length.
pub(crate) fn collect<T>(items: impl Iterator<Item = T>, len: usize, what: &str) -> Result<Vec<T>> {
    let mut all = Vec::new();
    all.try_reserve_exact(len).map_err(|_| no_memory(len.saturating_mul(size_of::<T>()), what))?;
    all.extend(items.take(len));
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_cannot_be_had_is_an_error_that_says_how_much() {
        let error = resize(&mut vec![0_u64; 3], usize::MAX / 8, 0, "its pixels").unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        let bytes = usize::MAX / 8 * 8;
        assert_eq!(error.to_string(), format!("needs more memory than there is ({bytes} bytes for its pixels)"));
        assert!(collect(0..u64::MAX, usize::MAX / 16, "a tensor").is_err());
        assert_eq!(collect(0..9, 3, "a tensor").unwrap(), [0, 1, 2]);
    }
}
