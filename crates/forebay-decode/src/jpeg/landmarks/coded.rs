//! Landmarks as they are written down: each as what differs from the one before.
//!
//! ```text
//! form  { mcus  bytes  bits  {dc}* }*
//! ```
//! `form` is 1 for pictures of one component and 3 for those of three, and has room for other codings. `bits` is a byte; all else
//! are numbers of 7 bits in each byte, the lowest first, whose highest bit says that more follow; differences of DC coefficients
//! have their sign in the lowest bit. It comes from a file, and is not trusted.

use super::{COMPONENTS, Landmark, MAX_LANDMARKS};

/// A landmark takes these at least, and most often nine.
const MIN_BYTES: usize = 4;
/// The decoder has less than 64 bits between two MCUs.
const MAX_BITS: u8 = 63;

pub(super) fn write(landmarks: &[Landmark]) -> Vec<u8> {
    let mut out = Vec::new();
    if landmarks.is_empty() {
        return out;
    }
    let components = if landmarks.iter().all(|landmark| landmark.dc[1..] == [0; COMPONENTS - 1]) { 1 } else { 3 };
    out.push(components as u8);
    let mut last = Landmark::default();
    for landmark in landmarks {
        push(landmark.mcu.wrapping_sub(last.mcu), &mut out);
        push(landmark.offset.wrapping_sub(last.offset), &mut out);
        out.push(landmark.bits);
        for (dc, last) in landmark.dc.iter().zip(last.dc).take(components) {
            let difference = i32::from(*dc) - i32::from(last);
            push((difference << 1 ^ difference >> 31).cast_unsigned(), &mut out);
        }
        last = *landmark;
    }
    out
}

/// Reads what [`write`] wrote about a picture of so many bytes. `None` where it is anything else: landmarks that are given come
/// one behind the other, inside of the picture, and have possible numbers of bits.
pub(super) fn parse(mut coded: &[u8], size: usize) -> Option<Vec<Landmark>> {
    let mut all = Vec::new();
    let Some(form) = coded.split_off_first() else { return Some(all) };
    let components = [1, COMPONENTS].into_iter().find(|components| *components == usize::from(*form))?;
    // As many as the bytes can hold: a list costs no more memory than what was read of it accounts for.
    all.try_reserve((coded.len() / MIN_BYTES).min(MAX_LANDMARKS)).ok()?;
    let mut last = Landmark::default();
    while !coded.is_empty() {
        let (mcus, bytes) = (take(&mut coded)?, take(&mut coded)?);
        let bits = coded.split_off_first().copied().filter(|bits| *bits <= MAX_BITS)?;
        let (mcu, offset) = (last.mcu.checked_add(mcus)?, last.offset.checked_add(bytes)?);
        if mcus == 0 || bytes == 0 || offset as usize > size || all.len() == MAX_LANDMARKS {
            return None;
        }
        let mut dc = last.dc;
        for dc in dc.iter_mut().take(components) {
            let code = take(&mut coded)?;
            let difference = (code >> 1).cast_signed() ^ -(code & 1).cast_signed();
            *dc = i32::from(*dc).checked_add(difference)?.try_into().ok()?;
        }
        last = Landmark { mcu, offset, dc, bits, unused: 0 };
        all.push(last);
    }
    Some(all)
}

fn push(mut number: u32, out: &mut Vec<u8>) {
    while number > 0x7F {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn take(coded: &mut &[u8]) -> Option<u32> {
    let mut number = 0u64;
    for place in 0..5 {
        let byte = *coded.split_off_first()?;
        number |= u64::from(byte & 0x7F) << (7 * place);
        if byte & 0x80 == 0 {
            return u32::try_from(number).ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 1 << 20;

    fn some() -> Vec<Landmark> {
        let landmark = |mcu, offset, dc, bits| Landmark { mcu, offset, dc, bits, unused: 0 };
        vec![
            landmark(32, 900, [-300, 4, 5], 16),
            landmark(64, 3_300, [i16::MIN, 4, -60], 63),
            landmark(96, 3_301, [i16::MAX, 0, 0], 0),
            landmark(70_000, SIZE as u32, [1, -1, 1], 5),
        ]
    }

    #[test]
    fn what_is_written_is_read() {
        assert_eq!(parse(&write(&some()), SIZE), Some(some()));
        assert_eq!((write(&[]), parse(&[], SIZE)), (Vec::new(), Some(Vec::new())));
        let mut grey = some();
        grey.iter_mut().for_each(|landmark| landmark.dc[1..].fill(0));
        assert_eq!(parse(&write(&grey), SIZE), Some(grey.clone()));
        assert_eq!(write(&some()).len() - write(&grey).len(), 9, "no more than the components that there are");
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let coded = write(&some());
        assert_eq!(parse(&coded, SIZE - 1), None, "beyond the end");
        let is_whole = |end: &usize| parse(&coded[..*end], SIZE).is_some();
        assert_eq!((0..coded.len()).filter(is_whole).collect::<Vec<_>>(), [0, 1, 9, 19, 27], "between two of them");
        let refused = |change: &dyn Fn(&mut Vec<Landmark>)| {
            let mut landmarks = some();
            change(&mut landmarks);
            assert_eq!(parse(&write(&landmarks), SIZE), None);
        };
        refused(&|all| all.swap(0, 1));
        refused(&|all| all[1].mcu = all[0].mcu);
        refused(&|all| all[1].offset = all[0].offset);
        refused(&|all| all[2].bits = 64);
        for form in [0, 2, 4, 255] {
            assert_eq!(parse(&[&[form], &coded[1..]].concat(), SIZE), None);
        }
        // Numbers beyond 32 bits, DC coefficients beyond 16.
        assert_eq!(parse(&[1, 0xFF, 0xFF, 0xFF, 0xFF, 0x1F, 1, 0, 0], SIZE), None);
        assert_eq!(parse(&[1, 1, 1, 0, 0xFF, 0xFF, 0xFF, 0xFF, 0x0F], SIZE), None);
        let many = [1].into_iter().chain([1, 1, 0, 0].repeat(MAX_LANDMARKS + 1)).collect::<Vec<_>>();
        assert_eq!(parse(&many, SIZE), None);
        assert_eq!(parse(&many[..many.len() - 4], SIZE).map(|all| all.len()), Some(MAX_LANDMARKS));
    }
}
