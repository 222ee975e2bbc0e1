//! The decoders against Pillow's pixels, and against every kind of damage that storage does to files.

use std::collections::BTreeMap;
use std::path::PathBuf;

use forebay_core::Kind;
use forebay_decode::{Decoders, Format, Header, Image, Region};
use proptest::prelude::*;

/// The files of `tests/golden/decode`, by name. They are made by `tests/golden/make_decode.py`.
#[allow(clippy::disallowed_methods, reason = "tests read their own golden files")]
pub(crate) fn golden() -> BTreeMap<String, Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/decode");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())).collect()
}

/// Encoded pictures that decode, with Pillow's pixels where those are stored.
pub(crate) fn pictures() -> Vec<(String, Vec<u8>, Option<Image>)> {
    let golden = golden();
    let encoded = golden.iter().filter(|(name, _)| !name.ends_with(".ppm") && !name.starts_with("unsupported"));
    encoded
        .map(|(name, bytes)| (name.clone(), bytes.clone(), golden.get(&format!("{name}.ppm")).map(|ppm| parse(ppm))))
        .collect()
}

fn parse(ppm: &[u8]) -> Image {
    let mut lines = ppm.splitn(4, |byte| *byte == b'\n');
    assert_eq!(lines.next(), Some(&b"P6"[..]));
    let sides = String::from_utf8(lines.next().unwrap().to_vec()).unwrap();
    let (width, height) = sides.split_once(' ').unwrap();
    let pixels = lines.nth(1).unwrap().to_vec();
    Image { width: width.parse().unwrap(), height: height.parse().unwrap(), channels: 3, pixels }
}

fn decode(decoders: &mut Decoders, bytes: &[u8]) -> forebay_core::Result<Image> {
    let header = decoders.header(bytes)?;
    let mut out = Image::default();
    let region = decoders.decode(bytes, &header, None, &mut out)?;
    assert_eq!(region, header.whole());
    assert_eq!((out.width, out.height, out.channels), (header.width, header.height, 3));
    assert_eq!(out.pixels.len(), out.width as usize * out.height as usize * 3);
    Ok(out)
}

fn crop(image: &Image, region: Region) -> Vec<u8> {
    let rows = image.pixels.chunks(image.width as usize * 3).skip(region.y as usize).take(region.height as usize);
    rows.flat_map(|row| &row[region.x as usize * 3..][..region.width as usize * 3]).copied().collect()
}

#[test]
fn pixels_are_those_of_pillow() {
    let mut decoders = Decoders::default();
    let mut wrong = Vec::new();
    let mut compared = 0;
    for (name, bytes, reference) in pictures() {
        let Some(reference) = reference else { continue };
        // Lossy formats leave rounding to the library: Pillow's may be of another version.
        let tolerance = if name.ends_with(".jpg") { 2 } else { 0 };
        compared += 1;
        match decode(&mut decoders, &bytes) {
            Err(error) => wrong.push(format!("{name}: {error}: {:?}", error.detail())),
            Ok(image) if (image.width, image.height) != (reference.width, reference.height) => {
                wrong.push(format!("{name}: {}×{}", image.width, image.height));
            }
            Ok(image) => {
                let pairs = image.pixels.iter().zip(&reference.pixels);
                let worst = pairs.map(|(a, b)| a.abs_diff(*b)).max().unwrap();
                if worst > tolerance {
                    wrong.push(format!("{name}: differs by {worst}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {compared}:\n{}", wrong.len(), wrong.join("\n"));
    assert!(compared > 100, "only {compared} golden files found");
}

#[test]
fn sound_variants_that_are_not_decoded_say_what_they_are() {
    let mut decoders = Decoders::default();
    for (name, bytes) in golden().iter().filter(|(name, _)| name.starts_with("unsupported")) {
        let error = decode(&mut decoders, bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Undecodable, "{name}: {error}");
        let kind = format!("may well be good: forebay does not decode this kind of {} (", format_of(name).name());
        assert!(error.message().starts_with(&kind), "{name}: {error}");
        assert!(!error.hint().contains("delete"), "{name}: {}", error.hint());
    }
}

/// Where the picture's own data ends, for the formats in which something may follow that is not read.
fn data_end(name: &str, bytes: &[u8]) -> usize {
    if name.ends_with(".png") {
        let start = bytes.windows(4).rposition(|kind| kind == b"IDAT").unwrap() - 4;
        let length = u32::from_be_bytes(bytes[start..start + 4].try_into().unwrap());
        return start + 12 + length as usize;
    }
    if !name.ends_with(".gif") {
        return bytes.len();
    }
    let palette = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) };
    // Ends where the terminator of the chain is.
    let chain = |mut at: usize| {
        while bytes[at] != 0 {
            at += 1 + usize::from(bytes[at]);
        }
        at
    };
    let mut at = 13 + palette(bytes[10]);
    while bytes[at] != b',' {
        at = if bytes[at] == b'!' { chain(at + 2) + 1 } else { at + 1 };
    }
    chain(at + 11 + palette(bytes[at + 9]))
}

#[test]
fn a_cut_file_is_corrupt_wherever_its_picture_is_cut() {
    let mut decoders = Decoders::default();
    for (name, bytes, _) in pictures() {
        let end = data_end(&name, &bytes);
        let cuts = (1..100).map(|percent| bytes.len() * percent / 100).chain([end - 1, end, bytes.len() - 1]);
        let padded = [".bmp", ".tif", "-text.pnm"].iter().any(|ending| name.ends_with(ending));
        let whole = decode(&mut decoders, &bytes).unwrap();
        for length in cuts.filter(|length| *length > 0) {
            let error = match decode(&mut decoders, &bytes[..length]) {
                Ok(image) if length >= end => {
                    assert_eq!(image, whole, "{name} cut at {length} of {}", bytes.len());
                    continue;
                }
                Err(error) => error,
                // All that is missing is the padding of the last row or chunk, or the last line's end of a text.
                Ok(_) if length == bytes.len() - 1 && padded => continue,
                Ok(_) => panic!("{name} cut at {length} of {} decoded", bytes.len()),
            };
            assert_eq!(error.kind(), Kind::Corrupt, "{name} cut at {length} of {}: {error}", bytes.len());
            assert!(length < end, "{name} cut at {length} of {}: {error}", bytes.len());
        }
        assert!(decode(&mut decoders, &bytes).is_ok(), "{name}: good after bad");
    }
}

#[test]
fn a_cut_jpeg_tells_where_it_ends() {
    let mut decoders = Decoders::default();
    let golden = golden();
    let mut message = |name: &str, percent: usize| {
        let bytes = &golden[name];
        // With an end marker behind the cut: the cheap check sees nothing, decoding must.
        let cut = [&bytes[..bytes.len() * percent / 100], &[0xFF, 0xD9]].concat();
        let plain = decode(&mut decoders, &bytes[..bytes.len() * percent / 100]).unwrap_err();
        (plain.to_string(), decode(&mut decoders, &cut).unwrap_err().to_string())
    };
    let (plain, ended) = message("large-420.jpg", 50);
    let row = |message: &str, start: &str| -> u32 {
        let row = message.strip_prefix(start).and_then(|rest| rest.strip_suffix(" of 173)"));
        row.unwrap_or_else(|| panic!("{message}")).parse().unwrap()
    };
    assert!((60..110).contains(&row(&plain, "is truncated (JPEG ends at row ")), "{plain}");
    assert!((60..110).contains(&row(&ended, "is damaged (JPEG, at row ")), "{ended}");
    let (plain, ended) = message("large-progressive.jpg", 50);
    assert!(plain.starts_with("is truncated (JPEG ends in scan "), "{plain}");
    assert!(ended.starts_with("is damaged (JPEG, in scan "), "{ended}");
    let (plain, _) = message("large-420.jpg", 1);
    assert_eq!(plain, "is truncated (JPEG ends in its header)");
}

#[test]
fn what_follows_the_end_of_a_picture_is_ignored() {
    let mut decoders = Decoders::default();
    for (name, bytes, _) in pictures() {
        let plain = decode(&mut decoders, &bytes).unwrap();
        for junk in [&[0; 1][..], &[0; 20_000], &[0xFF; 7], b"\xFF\xD8\xFF\xE0 another one"] {
            let longer = [&bytes, junk].concat();
            match decode(&mut decoders, &longer) {
                Ok(image) => assert_eq!(image.pixels, plain.pixels, "{name}"),
                Err(error) => panic!("{name} with {} bytes behind: {error}: {:?}", junk.len(), error.detail()),
            }
        }
    }
}

#[test]
fn zeros_in_a_jpeg_are_noticed() {
    let mut decoders = Decoders::default();
    let golden = golden();
    for name in ["large-420.jpg", "large-progressive.jpg"] {
        let bytes = &golden[name];
        for start in (1000..bytes.len() - 4096 - 2).step_by(512) {
            let mut damaged = bytes.clone();
            damaged[start..start + 4096].fill(0);
            let error = decode(&mut decoders, &damaged).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{name}, zeros at {start}: {error}");
        }
        for start in (100..bytes.len()).step_by(500) {
            let mut damaged = bytes.clone();
            damaged[start..].fill(0);
            let error = decode(&mut decoders, &damaged).map(|_| ()).unwrap_err();
            assert_eq!(error.kind(), Kind::Corrupt, "{name}, zeros from {start} on: {error}");
        }
    }
}

#[test]
fn padding_before_the_end_marker_is_no_damage_and_more_of_it_is() {
    let mut decoders = Decoders::default();
    let bytes = &golden()["large-420.jpg"];
    let with_junk = |count: usize| [&bytes[..bytes.len() - 2], &vec![0; count], &[0xFF, 0xD9]].concat();
    let plain = decode(&mut decoders, bytes).unwrap();
    for count in [1, 2, 8] {
        assert_eq!(decode(&mut decoders, &with_junk(count)).unwrap().pixels, plain.pixels);
    }
    for count in [16, 100, 4096] {
        let error = decode(&mut decoders, &with_junk(count)).map(|_| ()).unwrap_err();
        assert_eq!(error.kind(), Kind::Corrupt);
        assert!(error.detail().unwrap().contains("extraneous"), "{:?}", error.detail());
    }
}

#[test]
fn a_region_does_not_hide_that_the_end_is_missing() {
    let mut decoders = Decoders::default();
    for name in ["large-420.jpg", "large-lossy.webp", "large-lossless.webp"] {
        let bytes = &golden()[name];
        let header = decoders.header(bytes).unwrap();
        let top = Some(Region { x: 10, y: 3, width: 40, height: 20 });
        let mut out = Image::default();
        assert!(decoders.decode(bytes, &header, top, &mut out).is_ok());
        for percent in [60, 90, 99] {
            let cut = &bytes[..bytes.len() * percent / 100];
            assert_eq!(decoders.decode(cut, &header, top, &mut out).unwrap_err().kind(), Kind::Corrupt, "{name}");
        }
    }
}

fn check_region(decoders: &mut Decoders, name: &str, bytes: &[u8], header: &Header, whole: &Image, wanted: Region) {
    let mut out = Image::default();
    let got = decoders.decode(bytes, header, Some(wanted), &mut out).unwrap();
    assert!(got.x <= wanted.x && got.y <= wanted.y, "{name}: {wanted:?} gave {got:?}");
    assert!(got.x + got.width >= wanted.x + wanted.width, "{name}: {wanted:?} gave {got:?}");
    assert!(got.y + got.height >= wanted.y + wanted.height, "{name}: {wanted:?} gave {got:?}");
    assert_eq!((out.width, out.height), (got.width, got.height));
    let inner = Region { x: wanted.x - got.x, y: wanted.y - got.y, ..wanted };
    assert_eq!(crop(&out, inner), crop(whole, wanted), "{name}: {wanted:?}, decoded {got:?}");
}

#[test]
fn every_region_of_every_kind_equals_the_crop_of_the_whole() {
    let mut decoders = Decoders::default();
    for (name, bytes, _) in pictures() {
        let header = decoders.header(&bytes).unwrap();
        let whole = decode(&mut decoders, &bytes).unwrap();
        let mut random = Random(7);
        let tries = if name.ends_with(".jpg") || name.ends_with(".webp") { 300 } else { 5 };
        for _ in 0..tries {
            let (x, y) = (random.below(header.width), random.below(header.height));
            let (width, height) = (1 + random.below(header.width - x), 1 + random.below(header.height - y));
            check_region(&mut decoders, &name, &bytes, &header, &whole, Region { x, y, width, height });
        }
    }
}

#[test]
fn a_region_of_a_jpeg_or_webp_is_not_the_whole_of_it() {
    let mut decoders = Decoders::default();
    for (name, rows) in [("large-420.jpg", 20), ("large-lossy.webp", 24), ("large-lossless.webp", 24)] {
        let bytes = &golden()[name];
        let header = decoders.header(bytes).unwrap();
        let mut out = Image::default();
        let wanted = Region { x: 100, y: 80, width: 30, height: 20 };
        let got = decoders.decode(bytes, &header, Some(wanted), &mut out).unwrap();
        assert!(got.width <= 30 + 2 * 20 && got.height == rows, "{name}: {got:?}");
    }
}

#[test]
fn a_region_outside_the_picture_is_a_bug_of_the_caller() {
    let mut decoders = Decoders::default();
    for (name, bytes, _) in pictures() {
        let header = decoders.header(&bytes).unwrap();
        let wanted = Region { x: header.width - 1, y: 0, width: u32::MAX, height: 1 };
        let error = decoders.decode(&bytes, &header, Some(wanted), &mut Image::default()).unwrap_err();
        assert_eq!(error.kind(), Kind::Internal, "{name}");
    }
}

#[test]
fn huge_pictures_are_refused_by_their_header() {
    let mut decoders = Decoders::default();
    let golden = golden();
    // Where the sides are stored: name, offset of the width, of the height, bytes each, big-endian.
    let places = [
        ("png-rgb-8.png", 16, 20, 4, true),
        ("bmp-24.bmp", 18, 22, 4, false),
        ("gif-256.gif", 6, 8, 2, false),
        ("webp-animated.webp", 24, 27, 3, false),
    ];
    for (name, width_at, height_at, size, big_endian) in places {
        let mut bytes = golden[name].clone();
        for at in [width_at, height_at] {
            let field = &mut bytes[at..at + size];
            field.copy_from_slice(&0x4000_u32.to_be_bytes()[4 - size..]);
            if !big_endian {
                field.reverse();
            }
        }
        if name.ends_with(".png") {
            let crc = crc32(&bytes[12..29]);
            bytes[29..33].copy_from_slice(&crc.to_be_bytes());
        }
        let error = decoders.header(&bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted, "{name}: {error}: {:?}", error.detail());
        assert!(error.to_string().contains("expected at most 178956970 pixels, got "), "{name}: {error}");
    }
    for sides in ["16384 16384", "9999999999 1", "1 9999999999"] {
        let error = decoders.header(format!("P6 {sides} 255\n").as_bytes()).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted, "{sides}: {error}");
    }
    let mut jpeg = golden["jpeg-420.jpg"].clone();
    let frame = jpeg.windows(2).position(|pair| pair == [0xFF, 0xC0]).unwrap();
    jpeg[frame + 5..frame + 9].fill(0xF0);
    assert_eq!(decoders.header(&jpeg).unwrap_err().kind(), Kind::Exhausted);
    jpeg[frame + 5..frame + 9].fill(0);
    assert_eq!(decoders.header(&jpeg).unwrap_err().kind(), Kind::Corrupt);
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xEDB8_8320 } else { 0 })
    })
}

#[test]
fn progressive_jpegs_are_charged_for_their_coefficients() {
    let mut decoders = Decoders::default();
    let golden = golden();
    let charged = |name: &str, decoders: &mut Decoders| decoders.header(&golden[name]).unwrap().memory_bytes;
    let (rgb, blocks) = (229 * 173 * 3, 15 * 11 * 6 * 128);
    assert!(charged("large-420.jpg", &mut decoders) >= rgb);
    assert!(charged("large-420.jpg", &mut decoders) < rgb + blocks);
    assert!(charged("large-progressive.jpg", &mut decoders) >= rgb + blocks);
}

#[test]
fn a_jpeg_of_endless_scans_is_refused() {
    let mut decoders = Decoders::default();
    let bytes = &golden()["jpeg-420-progressive.jpg"];
    // The last scan, again and again: legal refinement it is not, but each repetition costs a pass.
    let last = bytes.windows(2).rposition(|pair| pair == [0xFF, 0xDA]).unwrap();
    let mut bomb = bytes[..bytes.len() - 2].to_vec();
    (0..600).for_each(|_| bomb.extend_from_slice(&bytes[last..bytes.len() - 2]));
    bomb.extend_from_slice(&[0xFF, 0xD9]);
    assert_eq!(decode(&mut decoders, &bomb).unwrap_err().kind(), Kind::Corrupt);
}

#[test]
fn a_changed_byte_of_a_png_is_noticed_where_a_pixel_depends_on_it() {
    let mut decoders = Decoders::default();
    let bytes = &golden()["png-rgb-8.png"];
    let whole = decode(&mut decoders, bytes).unwrap();
    let end_chunk = bytes.len() - 12;
    for at in 8..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        match decode(&mut decoders, &damaged) {
            Ok(image) => assert!(at >= end_chunk && image == whole, "byte {at} of {}", bytes.len()),
            Err(error) => assert!(at < end_chunk, "byte {at} of {}: {error}", bytes.len()),
        }
    }
}

fn format_of(name: &str) -> Format {
    match name.rsplit('.').next().unwrap() {
        "jpg" => Format::Jpeg,
        "png" => Format::Png,
        "webp" => Format::WebP,
        "gif" => Format::Gif,
        "bmp" => Format::Bmp,
        "pnm" => Format::Pnm,
        _ => Format::Tiff,
    }
}

#[test]
fn formats_are_known_by_content() {
    let mut decoders = Decoders::default();
    for (name, bytes, _) in pictures() {
        assert_eq!(decoders.header(&bytes).unwrap().format, format_of(&name), "{name}");
    }
    for bytes in [&b"<!DOCTYPE html>"[..], &[0; 4096], b"\0"] {
        assert_eq!(decoders.header(bytes).unwrap_err().kind(), Kind::Undecodable);
    }
    assert_eq!(decoders.header(b"").unwrap_err().kind(), Kind::Corrupt);
}

/// xorshift64: the same damage on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound.max(1))) as u32
    }
}

/// Decodes what may be anything; only a picture of modest size, as the loader's memory budget would have it.
fn survive(decoders: &mut Decoders, bytes: &[u8], wanted: impl Fn(&Header) -> Option<Region>) {
    let Ok(header) = decoders.header(bytes) else { return };
    if header.memory_bytes > 32 << 20 {
        return;
    }
    let mut out = Image::default();
    if let Ok(region) = decoders.decode(bytes, &header, wanted(&header), &mut out) {
        assert_eq!((out.width, out.height), (region.width, region.height));
        assert_eq!(out.pixels.len(), out.width as usize * out.height as usize * 3);
    } else if let Err(error) = decoders.decode(bytes, &header, wanted(&header), &mut out) {
        assert!(!error.to_string().contains("panic"), "{error}: {:?}", error.detail());
        assert_ne!(error.kind(), Kind::Internal, "{error}");
    }
}

#[test]
fn mutated_pictures_never_panic() {
    let mut decoders = Decoders::default();
    let mut random = Random(20_261_115);
    for (_, bytes, _) in pictures() {
        for round in 0..60 {
            let mut mutated = bytes.clone();
            // Headers are a small part of the bytes and hold most of the decisions.
            let reach = if round % 2 == 0 { bytes.len().min(200) } else { bytes.len() };
            for _ in 0..1 + random.below(8) {
                let at = random.below(reach as u32) as usize;
                mutated[at] = match random.below(4) {
                    0 => 0,
                    1 => 0xFF,
                    _ => random.next() as u8,
                };
            }
            if round % 7 == 0 {
                mutated.truncate(random.below(mutated.len() as u32) as usize);
            }
            survive(&mut decoders, &mutated, |_| None);
            let (a, b) = (random.next() as u32, random.next() as u32);
            survive(&mut decoders, &mutated, |header| {
                let (x, y) = (a % header.width, b % header.height);
                Some(Region { x, y, width: 1 + b % (header.width - x), height: 1 + a % (header.height - y) })
            });
        }
    }
    let (_, bytes, reference) = pictures().into_iter().find(|(name, ..)| name == "png-rgb-8.png").unwrap();
    assert_eq!(Some(decode(&mut decoders, &bytes).unwrap()), reference, "good after all that");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_behind_a_signature_never_panic(kind in 0..9_usize, tail in prop::collection::vec(any::<u8>(), 0..600)) {
        let signatures: [&[u8]; 9] = [
            b"\xFF\xD8\xFF", b"\x89PNG\r\n\x1A\n", b"RIFF\xFF\x01\0\0WEBPVP8", b"GIF89a", b"BM", b"II*\0\x08\0\0\0",
            b"P1 7 9 ", b"P2 3 5 9 ", b"P6 9 9 999 ",
        ];
        let bytes = [signatures[kind], &tail].concat();
        survive(&mut Decoders::default(), &bytes, |_| None);
    }
}
