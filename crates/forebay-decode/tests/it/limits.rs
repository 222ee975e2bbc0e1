//! Small files that claim to be large: what they may not take, and good files that look like them.

use forebay_core::{Epoch, Error, Kind, Rng, SampleId};
use forebay_decode::{Decoders, Image, Interpolation, Op, Pipeline, ResizeTo, Scratch};

use crate::memory::peak_bytes;

/// More pixels than any bytes of these tests could fill, and no more than a picture may have.
const CLAIMED: (u32, u32) = (16_000, 11_000);

#[allow(clippy::disallowed_methods, reason = "tests read their own golden files")]
fn golden(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// A PNG of one-bit grey, with these bytes as its compressed rows.
fn png((width, height): (u32, u32), coded: Option<&[u8]>) -> Vec<u8> {
    let mut out = b"\x89PNG\r\n\x1A\n".to_vec();
    let mut chunk = |name: &[u8; 4], data: &[u8]| {
        let mut checksum = flate2::Crc::new();
        checksum.update(name);
        checksum.update(data);
        out.extend((data.len() as u32).to_be_bytes());
        out.extend(name);
        out.extend(data);
        out.extend(checksum.sum().to_be_bytes());
    };
    let header = [&width.to_be_bytes()[..], &height.to_be_bytes(), &[1, 0, 0, 0, 0]].concat();
    chunk(b"IHDR", &header);
    coded.iter().for_each(|coded| chunk(b"IDAT", coded));
    chunk(b"IEND", b"");
    out
}

/// A black one that is good.
fn black_png(size: (u32, u32)) -> Vec<u8> {
    let rows = vec![0; (size.0.div_ceil(8) as usize + 1) * size.1 as usize];
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut encoder, &rows).unwrap();
    png(size, Some(&encoder.finish().unwrap()))
}

fn patched(name: &str, find: impl Fn(&[u8]) -> bool, after: usize, with: &[u8]) -> Vec<u8> {
    let mut bytes = golden(&format!("decode/{name}"));
    let at = (0..bytes.len()).find(|at| find(&bytes[*at..])).unwrap() + after;
    bytes[at..at + with.len()].copy_from_slice(with);
    bytes
}

fn resize() -> Pipeline {
    let resize = Op::Resize {
        size: ResizeTo::Edge(256),
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    };
    Pipeline::new(vec![resize, Op::CenterCrop { size: 224.into() }, Op::ToTensor]).unwrap()
}

fn run(pipeline: &Pipeline, bytes: &[u8]) -> Result<(), Error> {
    let mut scratch = Scratch::default();
    let rng = Rng::for_sample(0, Epoch(0), SampleId(0));
    pipeline.run(bytes, &rng, &mut scratch).map(|_| ())
}

#[test]
fn headers_that_claim_more_than_their_bytes_can_hold_are_refused_before_anything_is_allocated() {
    let (width, height) = CLAIMED;
    let (be, le) = (|side: u32| (side as u16).to_be_bytes(), |side: u32| (side as u16).to_le_bytes());
    let both = |low: [u8; 2], high: [u8; 2]| [low, high].concat();
    let claims = [
        ("png", png(CLAIMED, None)),
        ("jpeg", patched("jpeg-420.jpg", |b| b.starts_with(&[0xFF, 0xC0]), 5, &both(be(height), be(width)))),
        (
            "progressive jpeg",
            patched("jpeg-420-progressive.jpg", |b| b.starts_with(&[0xFF, 0xC2]), 5, &both(be(height), be(width))),
        ),
        ("gif", patched("gif-256.gif", |b| b.starts_with(b",\0\0\0\0"), 5, &both(le(width), le(height)))),
        ("webp", patched("webp-lossy.webp", |b| b.starts_with(&[0x9D, 1, 0x2A]), 3, &both(le(width), le(height)))),
        (
            "bmp",
            patched("bmp-24.bmp", |b| b.starts_with(b"BM"), 18, &[width.to_le_bytes(), height.to_le_bytes()].concat()),
        ),
        ("rle bmp", patched("bmp-rle8.bmp", |b| b.starts_with(b"BM"), 18, &[1, 0, 0, 0, 0, 0, 0x80, 0])),
        ("pnm", format!("P6 {width} {height} 255 ").into_bytes()),
        ("plain pnm", format!("P2 {width} {height} 255 1 2 3").into_bytes()),
    ];
    for (name, bytes) in claims {
        let pipeline = resize();
        let taken = peak_bytes(|| assert!(run(&pipeline, &bytes).is_err()));
        assert!(taken < 1 << 20, "{name}: {taken} bytes");
        let charged = pipeline.memory_bytes(&bytes, &mut Scratch::default());
        for error in [run(&pipeline, &bytes).unwrap_err(), charged.unwrap_err()] {
            assert_eq!(error.kind(), Kind::Corrupt, "{name}: {error}");
            assert!(error.detail().unwrap().starts_with("expected at least "), "{name}: {:?}", error.detail());
        }
        let mut decoders = Decoders::default();
        let header = decoders.header(&bytes).unwrap();
        let mut out = Image::default();
        decoders.decode(&bytes, &header, None, &mut out).unwrap_err();
        assert_eq!(out.pixels.capacity(), 0, "{name}");
    }
}

#[test]
fn pictures_of_one_colour_are_decoded_however_few_bytes_they_have() {
    let names =
        ["baseline.jpg", "progressive.jpg", "lossy.webp", "lossless.webp", "palette.gif", "palette.png", "grey.png"];
    let files = names.map(|name| (name, golden(&format!("solid/{name}"))));
    for (name, bytes) in files.into_iter().chain([("black png", black_png((2000, 1500)))]) {
        let mut decoders = Decoders::default();
        let header = decoders.header(&bytes).unwrap();
        assert!(header.coded_bytes <= bytes.len() as u64, "{name}");
        let mut out = Image::default();
        decoders.decode(&bytes, &header, None, &mut out).unwrap();
        assert_eq!((out.width, out.height), (2000, 1500), "{name}");
        assert!(out.pixels.iter().all(|value| *value == out.pixels[0]), "{name}");
    }
}

#[test]
fn a_side_that_would_take_gigabytes_of_weights_is_refused_though_the_file_is_good() {
    let bytes = black_png((10_000_000, 1));
    assert!(bytes.len() < 2_000);
    let crop = Op::RandomResizedCrop {
        size: 224.into(),
        scale: (1.0, 1.0),
        ratio: (1e7, 1e7),
        interpolation: Interpolation::Bicubic,
        antialias: true,
    };
    let whole = Op::Resize {
        size: ResizeTo::Exact(9.into()),
        interpolation: Interpolation::Lanczos,
        max_size: None,
        antialias: true,
    };
    let later = vec![Op::RandomHorizontalFlip { p: 1.0 }, whole.clone()];
    for ops in [vec![crop], vec![whole], later] {
        let error = run(&Pipeline::new(ops).unwrap(), &bytes).unwrap_err();
        assert_eq!(error.kind(), Kind::Exhausted);
        assert!(error.message().starts_with("has too long a side to be resized"), "{error}");
    }
}

#[test]
fn tables_and_enlarged_pictures_are_charged_before_they_are_made() {
    let charged =
        |ops: Vec<Op>, bytes: &[u8]| Pipeline::new(ops).unwrap().memory_bytes(bytes, &mut Scratch::default()).unwrap();
    let to = |size: u32| Op::Resize {
        size: ResizeTo::Exact(size.into()),
        interpolation: Interpolation::Bilinear,
        max_size: None,
        antialias: true,
    };
    let (small, long) = (black_png((16, 16)), black_png((1_000_000, 1)));
    let decoded = |bytes: &[u8]| charged(vec![Op::CenterCrop { size: 1.into() }, Op::ToTensor], bytes);
    // 16 bytes for each column of a bilinear filter.
    assert!(charged(vec![to(224), Op::ToTensor], &long) >= decoded(&long) + 16_000_000);
    assert!(charged(vec![to(3000), Op::ToTensor], &small) >= decoded(&small) + 3 * 3000 * 3000);
    assert!(charged(vec![to(3000)], &small) >= decoded(&small) + 5 * 3 * 3000 * 3000, "as floats it may leave");
    let common = charged(vec![to(224), Op::ToTensor], &black_png((500, 400)));
    assert!(common < 2_000_000, "{common} bytes for a common picture");
}
