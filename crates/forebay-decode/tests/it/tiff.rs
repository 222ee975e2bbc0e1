//! TIFFs that lie: what they cost is bounded by their length, and by the picture that they say they are; and good ones that
//! are not decoded.

use std::time::{Duration, Instant};

use forebay_core::{Error, Kind};
use forebay_decode::{Decoders, Image};

use crate::memory::{peak_bytes, with_largest};

/// Work that is bounded takes milliseconds; what these files took without bounds were tens of seconds.
const SOON: Duration = Duration::from_secs(5);

const SHORT: u16 = 3;
const LONG: u16 = 4;

/// A little-endian TIFF in the making.
#[derive(Default)]
struct File {
    bytes: Vec<u8>,
}

impl File {
    fn new() -> Self {
        Self { bytes: b"II*\0\0\0\0\0".to_vec() }
    }

    /// Appends bytes, and tells where they are.
    fn add(&mut self, bytes: &[u8]) -> u32 {
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(bytes);
        at
    }

    fn longs(&mut self, values: impl IntoIterator<Item = u32>) -> u32 {
        let bytes: Vec<u8> = values.into_iter().flat_map(u32::to_le_bytes).collect();
        self.add(&bytes)
    }

    /// Appends a directory of (tag, type, count, value or offset), whose next page is `next`, and tells where it is.
    fn directory(&mut self, entries: &[(u16, u16, u32, u32)], next: u32) -> u32 {
        let mut bytes = (entries.len() as u16).to_le_bytes().to_vec();
        for (tag, kind, count, value) in entries {
            bytes.extend([tag.to_le_bytes(), kind.to_le_bytes()].concat());
            bytes.extend([count.to_le_bytes(), value.to_le_bytes()].concat());
        }
        bytes.extend(next.to_le_bytes());
        self.add(&bytes)
    }

    /// Makes the directory at this place the first page.
    fn starting_at(mut self, at: u32) -> Vec<u8> {
        self.bytes[4..8].copy_from_slice(&at.to_le_bytes());
        self.bytes
    }
}

/// The tags of an uncompressed grey picture in one strip, or in strips whose arrays are at the given places.
fn grey(width: u32, height: u32, strips: u32, offsets: u32, counts: u32) -> Vec<(u16, u16, u32, u32)> {
    vec![
        (256, LONG, 1, width),
        (257, LONG, 1, height),
        (258, SHORT, 1, 8),
        (259, SHORT, 1, 1),
        (262, SHORT, 1, 1),
        (273, LONG, strips, offsets),
        (278, LONG, 1, height.div_ceil(strips)),
        (279, LONG, strips, counts),
    ]
}

fn decode(bytes: &[u8]) -> Result<Image, Error> {
    let mut decoders = Decoders::default();
    let header = decoders.header(bytes)?;
    let mut out = Image::default();
    decoders.decode(bytes, &header, None, &mut out)?;
    Ok(out)
}

/// Decodes, and tells how long it took.
fn timed(bytes: &[u8]) -> (Result<Image, Error>, Duration) {
    let start = Instant::now();
    let decoded = decode(bytes);
    (decoded, start.elapsed())
}

/// Says of so many strips of one byte each that they are at offset 1, in arrays of bytes, which are the longest there are.
fn strips(file: &mut File, count: u32) -> [(u16, u16, u32, u32); 2] {
    let ones = file.add(&vec![1; count as usize]);
    [(273, 1, count, ones), (279, 1, count, ones)]
}

#[test]
fn a_page_that_is_its_own_next_page_is_looked_at_once() {
    let mut file = File::new();
    let [offsets, counts] = strips(&mut file, 300_000);
    let mut tags = grey(1, 1, 1, 0, 0);
    (tags[5], tags[7]) = (offsets, counts);
    let at = file.bytes.len() as u32;
    file.directory(&tags, at);
    let bytes = file.starting_at(at);
    let (decoded, took) = timed(&bytes);
    assert_eq!(decoded.unwrap().pixels, [b'I'; 3], "the first page is good, and Pillow reads it");
    assert!(took < SOON, "{} bytes took {took:?}", bytes.len());
}

#[test]
fn pages_that_share_their_arrays_cost_no_more_than_the_files_length() {
    let mut file = File::new();
    let arrays = strips(&mut file, 300_000);
    let mut next = 0;
    for _ in 0..4_000 {
        next = file.directory(&arrays, next);
    }
    let mut tags = grey(1, 1, 1, 0, 0);
    (tags[5], tags[7]) = (arrays[0], arrays[1]);
    let at = file.directory(&tags, next);
    let bytes = file.starting_at(at);
    let (decoded, took) = timed(&bytes);
    assert_eq!(decoded.unwrap().pixels, [b'I'; 3]);
    assert!(took < SOON, "{} bytes took {took:?}", bytes.len());
}

#[test]
fn a_tile_that_its_bytes_cannot_fill_is_refused_before_memory_is_taken() {
    let mut decoders = Decoders::default();
    for compression in [1, 5, 8, 32773] {
        let mut file = File::new();
        let coded = file.add(&[0; 4]);
        let tags = [
            (256, LONG, 1, 13_000),
            (257, LONG, 1, 13_000),
            (258, SHORT, 1, 8),
            (259, SHORT, 1, compression),
            (262, SHORT, 1, 1),
            (322, LONG, 1, 13_008),
            (323, LONG, 1, 13_008),
            (324, LONG, 1, coded),
            (325, LONG, 1, 4),
        ];
        let at = file.directory(&tags, 0);
        let bytes = file.starting_at(at);
        let peak = peak_bytes(|| {
            let error = decoders.header(&bytes).and_then(|header| {
                let mut out = Image::default();
                decoders.decode(&bytes, &header, None, &mut out)
            });
            let error = error.unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "compression {compression}: {error}");
            assert!(error.detail().unwrap().contains("13000×13000"), "{:?}", error.detail());
        });
        assert!(peak < 64 << 10, "compression {compression}: {} bytes took {peak} bytes", bytes.len());
    }
}

#[test]
fn a_tile_far_larger_than_its_picture_is_refused() {
    let mut file = File::new();
    let coded = file.add(&vec![0; 1 << 20]);
    let tags = [
        (256, LONG, 1, 1),
        (257, LONG, 1, 1),
        (258, SHORT, 1, 8),
        (259, SHORT, 1, 8),
        (262, SHORT, 1, 1),
        (322, LONG, 1, 13_008),
        (323, LONG, 1, 13_008),
        (324, LONG, 1, coded),
        (325, LONG, 1, 1 << 20),
    ];
    let at = file.directory(&tags, 0);
    let error = Decoders::default().header(&file.starting_at(at)).unwrap_err();
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
}

#[test]
fn strips_that_repeat_the_same_bytes_are_refused_once_they_are_more_than_the_file_can_hold() {
    let rows = 20_000;
    for (compression, filler) in [(32773, 128), (8, 0)] {
        let mut file = File::new();
        // Bytes that fill nothing, to be read again for each of the strips.
        let coded = file.add(&vec![filler; 40_000]);
        let offsets = file.longs((0..rows).map(|_| coded));
        let counts = file.longs((0..rows).map(|_| 40_000));
        let mut tags = grey(1, rows, rows, offsets, counts);
        tags[3].3 = compression;
        let at = file.directory(&tags, 0);
        let bytes = file.starting_at(at);
        let (decoded, took) = timed(&bytes);
        assert_eq!(decoded.unwrap_err().kind(), Kind::Corrupt);
        assert!(took < SOON, "{} bytes took {took:?}", bytes.len());
    }
    // The same strip again and again, as a picture larger than everything in the file.
    let mut file = File::new();
    let coded = file.add(&[0; 8_000]);
    let offsets = file.longs((0..rows).map(|_| coded));
    let counts = file.longs((0..rows).map(|_| 8_000));
    let at = file.directory(&grey(8_000, rows, rows, offsets, counts), 0);
    let error = Decoders::default().header(&file.starting_at(at)).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
}

#[test]
fn arrays_of_offsets_take_no_memory() {
    let mut file = File::new();
    let pixel = file.add(&[5; 4]);
    let offsets = file.add(&vec![pixel as u8; 1 << 20]);
    let mut tags = grey(1, 1, 1, pixel, 1);
    // Bytes as offsets: each would be a number of 8 bytes.
    tags[5] = (273, 1, 1 << 20, offsets);
    tags[7] = (279, 1, 1 << 20, offsets);
    let at = file.directory(&tags, 0);
    let bytes = file.starting_at(at);
    let peak = peak_bytes(|| assert_eq!(decode(&bytes).unwrap().pixels, [5; 3]));
    assert!(peak < 64 << 10, "{} bytes took {peak} bytes", bytes.len());
}

/// As `tiff_wrong_bits_per_sample.tiff` of Pillow's tests: its byte count is 35711440.
#[test]
fn the_only_strip_of_an_uncompressed_picture_needs_no_byte_count() {
    let file = |byte_count: u32| {
        let mut file = File::new();
        let page = file.directory(&grey(16, 8, 1, 200, byte_count), 0);
        file.bytes.resize(200, 0);
        file.add(&[7; 128]);
        file.starting_at(page)
    };
    let whole = decode(&file(128)).unwrap();
    for byte_count in [129, 35_711_440, u32::MAX] {
        let bytes = file(byte_count);
        assert_eq!(decode(&bytes).unwrap().pixels, whole.pixels, "{byte_count}");
        let error = decode(&bytes[..bytes.len() - 1]).unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Corrupt, "is truncated (TIFF)"), "{byte_count}");
    }
}

#[test]
fn no_number_of_bits_is_damage() {
    for bits in 1..=64 {
        for photometric in [0, 1, 2, 3, 5, 6] {
            for samples in 1..=6 {
                let mut file = File::new();
                let map = file.add(&[0; 6 * 256]);
                let pixels = file.add(&[0; 16 * 16 * 6 * 8]);
                let mut tags = grey(16, 16, 1, pixels, 16 * 16 * 6 * 8);
                (tags[2].3, tags[4].3) = (bits, photometric);
                tags.insert(6, (277, SHORT, 1, samples));
                tags.push((320, SHORT, 768, map));
                let page = file.directory(&tags, 0);
                if let Err(error) = decode(&file.starting_at(page)) {
                    assert_eq!(error.kind(), Kind::Undecodable, "{samples} of {bits} bits: {error}");
                    assert!(error.message().starts_with("may well be good: "), "{error}");
                    assert!(!error.hint().contains("delete"), "{}", error.hint());
                }
            }
        }
    }
}

#[test]
fn a_tiff_takes_no_more_memory_than_is_charged_for_it() {
    for (name, bytes, _) in crate::decode::pictures() {
        if !name.ends_with(".tif") {
            continue;
        }
        let mut decoders = Decoders::default();
        let header = decoders.header(&bytes).unwrap();
        let peak = peak_bytes(|| {
            decoders.decode(&bytes, &header, None, &mut Image::default()).unwrap();
        });
        assert!(peak <= header.memory_bytes, "{name}: charged {}, took {peak}", header.memory_bytes);
    }
}

#[test]
fn a_tiff_that_there_is_no_memory_for_is_an_error() {
    let mut file = File::new();
    let coded = file.add(&vec![9; 512 * 512]);
    let at = file.directory(&grey(512, 512, 1, coded, 512 * 512), 0);
    let bytes = file.starting_at(at);
    let error = with_largest(100_000, || decode(&bytes).unwrap_err());
    assert_eq!(error.kind(), Kind::Exhausted, "{error}");
    assert_eq!(decode(&bytes).unwrap().pixels[..3], [9; 3], "and later there is");
}
