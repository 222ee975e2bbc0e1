//! The blocks of a tar archive: ustar, with a pax header where a name or a size does not fit. All but names and sizes is the same
//! for every member, so that the same samples make the same bytes.

/// Headers are of this size, and contents are filled up to a multiple of it.
const BLOCK_BYTES: usize = 512;
/// Behind the last member.
pub(crate) const END: [u8; 2 * BLOCK_BYTES] = [0; 2 * BLOCK_BYTES];
/// The largest size that eleven octal digits hold.
const MAX_USTAR_BYTES: u64 = 0o777_7777_7777;
const MAX_NAME_BYTES: usize = 100;
const MAX_PREFIX_BYTES: usize = 155;

/// Zeros that follow a content of this size.
pub(crate) fn padding(size: u64) -> &'static [u8] {
    &END[..(size.next_multiple_of(BLOCK_BYTES as u64) - size) as usize]
}

/// What precedes the content of a file.
pub(crate) fn header(name: &str, size: u64) -> Vec<u8> {
    let place = if name.is_ascii() { split(name) } else { None };
    let (prefix, short, extended) = match place {
        Some((prefix, short)) if size <= MAX_USTAR_BYTES => (prefix, short.to_owned(), None),
        _ => {
            let mut records = record("path", name);
            if size > MAX_USTAR_BYTES {
                records.push_str(&record("size", &size.to_string()));
            }
            // For readers that do not know pax; those that do ignore it.
            let letter = |letter: char| if letter.is_ascii() { letter } else { '?' };
            ("", name.chars().map(letter).take(MAX_NAME_BYTES).collect(), Some(records))
        }
    };
    let mut made = Vec::new();
    if let Some(records) = extended {
        made.extend(block("", "././@PaxHeader", records.len() as u64, b'x'));
        made.extend(records.as_bytes());
        made.extend(padding(records.len() as u64));
    }
    made.extend(block(prefix, &short, if size <= MAX_USTAR_BYTES { size } else { 0 }, b'0'));
    made
}

/// How many bytes a file takes in an archive.
pub(crate) fn member_bytes(name: &str, size: u64) -> u64 {
    header(name, size).len() as u64 + size + padding(size).len() as u64
}

/// A name that ustar can hold, parted at one of its slashes if need be.
fn split(name: &str) -> Option<(&str, &str)> {
    if name.len() <= MAX_NAME_BYTES {
        return Some(("", name));
    }
    let fits = |(at, _): &(usize, &str)| *at <= MAX_PREFIX_BYTES && name.len() - at - 1 <= MAX_NAME_BYTES && *at > 0;
    let (at, _) = name.match_indices('/').find(fits)?;
    Some((&name[..at], &name[at + 1..]))
}

/// A record of a pax header: its own length, which counts its digits as well, the name and the value.
fn record(name: &str, value: &str) -> String {
    let rest = name.len() + value.len() + 3;
    let mut length = rest;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    format!("{length} {name}={value}\n")
}

fn block(prefix: &str, name: &str, size: u64, kind: u8) -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, name.as_bytes());
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    put(345, prefix.as_bytes());
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_format::{FileScanner, TarScanner};

    #[test]
    fn names_of_any_length_are_read_as_they_were_written() {
        let long = "d".repeat(90);
        let names = [
            "a.jpg".to_owned(),
            format!("{}/{}.jpg", "e".repeat(155), "n".repeat(96)),
            format!("{long}/{long}.jpg"),
            format!("{long}/{long}/{long}/{long}.jpg"),
            format!("{}.jpg", "n".repeat(97)),
            format!("\u{fc}/{}.jpg", "\u{732b}".repeat(80)),
            format!("{}/x.jpg", "y/".repeat(900)),
        ];
        let mut archive = Vec::new();
        for name in &names {
            assert_eq!(member_bytes(name, 5), (header(name, 5).len() + BLOCK_BYTES) as u64);
            archive.extend(header(name, 5));
            archive.extend(b"bytes");
            archive.extend(padding(5));
        }
        archive.extend(END);
        let mut scanner = TarScanner::new(archive.len() as u64);
        while let Some(position) = scanner.position() {
            scanner.feed(&archive[position as usize..]).unwrap();
        }
        let index = scanner.finish().unwrap();
        assert_eq!(index.len(), names.len() as u64);
        for (sample, name) in (0..).zip(&names) {
            let mut key = String::new();
            index.write_key(sample, &mut key);
            assert_eq!(format!("{key}.jpg"), *name);
            let (_, part) = index.find(sample, &[0]).unwrap();
            assert_eq!(&archive[part.range.start as usize..part.range.end as usize], b"bytes");
        }
    }

    #[test]
    fn sizes_that_octal_digits_do_not_hold_are_in_a_pax_header() {
        assert_eq!(header("a.bin", MAX_USTAR_BYTES).len(), BLOCK_BYTES);
        let made = header("a.bin", MAX_USTAR_BYTES + 1);
        assert_eq!(made.len(), 3 * BLOCK_BYTES);
        assert!(
            made[BLOCK_BYTES..].starts_with(b"14 path=a.bin\n19 size=8589934592\n"),
            "{:?}",
            &made[BLOCK_BYTES..600]
        );
        assert_eq!(record("path", &"x".repeat(90)).len(), 99);
        assert_eq!(record("path", &"x".repeat(91)), format!("101 path={}\n", "x".repeat(91)));
        assert_eq!((padding(0).len(), padding(1).len(), padding(512).len(), padding(513).len()), (0, 511, 0, 511));
    }
}
