//! Which way up a picture is to be shown, as EXIF has it: found in what is read, and put into what is written.

use crate::Format;

/// EXIF's number of it.
const ORIENTATION: u16 = 0x0112;
/// What stands in front of EXIF in a JPEG.
const EXIF: &[u8] = b"Exif\0\0";
/// More entries than this no camera writes.
const MAX_ENTRIES: usize = 512;

/// The orientation that a file says, from 2 to 8; 1, the usual one, where it says nothing that makes sense.
pub(super) fn orientation(format: Format, bytes: &[u8]) -> u8 {
    let found = match format {
        Format::Jpeg => of_jpeg(bytes),
        Format::Png => chunk(bytes.get(8..), b"eXIf", u32::from_be_bytes, 4, (8, 4)).and_then(of_tiff),
        Format::WebP => {
            let exif = chunk(bytes.get(12..), b"EXIF", |size| u32::from_le_bytes(size).next_multiple_of(2), 0, (8, 0));
            // Some writers put JPEG's mark in front.
            exif.and_then(|exif| of_tiff(exif.strip_prefix(EXIF).unwrap_or(exif)))
        }
        Format::Tiff => of_tiff(bytes),
        Format::Gif | Format::Bmp | Format::Pnm => None,
    };
    found.filter(|found| (2..=8).contains(found)).unwrap_or(1)
}

/// EXIF that says nothing but the orientation: a TIFF of one entry.
pub(super) fn exif(orientation: u8) -> Vec<u8> {
    let mut made = b"II*\0\x08\0\0\0\x01\0".to_vec();
    made.extend(ORIENTATION.to_le_bytes());
    made.extend([3, 0, 1, 0, 0, 0, orientation, 0, 0, 0, 0, 0, 0, 0]);
    made
}

/// The segment of a JPEG with it.
pub(super) fn jpeg_segment(orientation: u8) -> Vec<u8> {
    let content = [EXIF, &exif(orientation)].concat();
    let length = (content.len() as u16 + 2).to_be_bytes();
    [&[0xFF, 0xE1], &length[..], &content].concat()
}

/// Segments before the first scan.
fn of_jpeg(bytes: &[u8]) -> Option<u8> {
    let mut rest = bytes.get(2..)?;
    loop {
        let [0xFF, marker, high, low, ..] = *rest else { return None };
        match marker {
            // A fill byte.
            0xFF => rest = &rest[1..],
            0xDA | 0xD9 => return None,
            _ => {
                let length = usize::from(u16::from_be_bytes([high, low]));
                let content = rest.get(4..2 + length)?;
                if let (0xE1, Some(tiff)) = (marker, content.strip_prefix(EXIF)) {
                    return of_tiff(tiff);
                }
                rest = &rest[2 + length..];
            }
        }
    }
}

/// The content of the first chunk of this name: a size and a name, in the order that the format has them, and the content.
fn chunk<'a>(
    bytes: Option<&'a [u8]>,
    name: &[u8; 4],
    size: impl Fn([u8; 4]) -> u32,
    name_at: usize,
    (head, tail): (usize, usize),
) -> Option<&'a [u8]> {
    let mut rest = bytes?;
    loop {
        let own = rest.get(name_at..name_at + 4)?;
        let length = usize::try_from(size(*rest.get(4 - name_at..)?.first_chunk()?)).ok()?;
        let content = rest.get(head..head.checked_add(length)?)?;
        if own == name {
            return Some(content);
        }
        rest = rest.get(head + length + tail..)?;
    }
}

/// The first directory of a TIFF.
fn of_tiff(bytes: &[u8]) -> Option<u8> {
    let is_big = match bytes.get(..4)? {
        b"II*\0" => false,
        b"MM\0*" => true,
        _ => return None,
    };
    let short = |at: usize| {
        let two = *bytes.get(at..)?.first_chunk()?;
        Some(if is_big { u16::from_be_bytes(two) } else { u16::from_le_bytes(two) })
    };
    let four = *bytes.get(4..)?.first_chunk()?;
    let at = if is_big { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) } as usize;
    let count = usize::from(short(at)?).min(MAX_ENTRIES);
    let entry = (0..count).map(|entry| at + 2 + 12 * entry).find(|at| short(*at) == Some(ORIENTATION))?;
    // A short, and one of it.
    (short(entry + 2)? == 3).then(|| short(entry + 8)).flatten().and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn png_chunk(name: &[u8; 4], content: &[u8]) -> Vec<u8> {
        [&(content.len() as u32).to_be_bytes()[..], name, content, &[0; 4]].concat()
    }

    #[test]
    fn is_found_where_each_format_has_it() {
        for turned in 2..=8 {
            let jpeg = [b"\xFF\xD8\xFF\xE0\0\x04ab".as_slice(), &jpeg_segment(turned), b"\xFF\xDA"].concat();
            assert_eq!(orientation(Format::Jpeg, &jpeg), turned);
            let png = [b"\x89PNG\r\n\x1a\n".to_vec(), png_chunk(b"IHDR", &[0; 13]), png_chunk(b"eXIf", &exif(turned))]
                .concat();
            assert_eq!(orientation(Format::Png, &png), turned);
            let exif = exif(turned);
            let chunk = [b"EXIF".as_slice(), &(exif.len() as u32).to_le_bytes(), &exif].concat();
            let webp = [b"RIFF....WEBPVP8 \x03\0\0\0abc\0".as_slice(), &chunk].concat();
            assert_eq!(orientation(Format::WebP, &webp), turned);
            assert_eq!(orientation(Format::Tiff, &exif), turned);
            for end in 0..jpeg.len() - 2 {
                let found = orientation(Format::Jpeg, &jpeg[..end]);
                assert!(found == 1 || found == turned, "{end}");
            }
        }
        assert_eq!(orientation(Format::Tiff, &exif(9)), 1, "there is no such one");
        let far = b"MM\0*\xFF\xFF\xFF\xFF\0\x01";
        assert_eq!(orientation(Format::Tiff, far), 1, "a directory far behind the end");
    }
}
