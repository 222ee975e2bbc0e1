//! The entropy decoder of our own against libjpeg-turbo's: whatever the bytes, the same pixels and the same words.

use std::ffi::c_void;

use turbojpeg_sys as tj;

use super::differential::{Contenders, Random, outcome};
use super::*;

/// What a picture is encoded as.
#[derive(Clone, Copy, Debug)]
struct Kind {
    subsampling: tj::TJSAMP,
    cmyk: bool,
    quality: i32,
    optimised: bool,
    restart_mcus: i32,
    restart_rows: i32,
}

const PLAIN: Kind = Kind {
    subsampling: tj::TJSAMP_TJSAMP_420,
    cmyk: false,
    quality: 90,
    optimised: false,
    restart_mcus: 0,
    restart_rows: 0,
};

/// A picture with everything that makes codes: smooth parts, edges, and `noise`.
fn encode(kind: Kind, width: usize, height: usize, noise: usize, random: &mut Random) -> Vec<u8> {
    let channels = if kind.cmyk { 4 } else { 3 };
    let (a, b) = (random.below(7) + 1, random.below(5) + 1);
    let mut pixels = vec![0; width * height * channels];
    for (at, pixel) in pixels.chunks_exact_mut(channels).enumerate() {
        let (x, y) = (at % width, at / width);
        let edge = if (x / 23 + y / 17) % 3 == 0 { 90 } else { 0 };
        // Only the left half is noisy, so that short and long blocks take turns.
        let noise = if x < width / 2 { noise } else { noise / 16 };
        for (channel, value) in pixel.iter_mut().enumerate() {
            *value = (x * a / 2 + y * b / 2 + edge + channel * 40 + random.below(noise + 1)).min(255) as u8;
        }
    }
    let (mut out, mut size) = (std::ptr::null_mut(), 0);
    let format = if kind.cmyk { tj::TJPF_TJPF_CMYK } else { tj::TJPF_TJPF_RGB };
    // SAFETY: `pixels` has the size said; the library allocates `out`, which is copied and freed with its function.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_COMPRESS as c_int);
        let set = |parameter: tj::TJPARAM, value: c_int| assert_eq!(tj::tj3Set(handle, parameter as c_int, value), 0);
        set(tj::TJPARAM_TJPARAM_QUALITY, kind.quality);
        set(tj::TJPARAM_TJPARAM_SUBSAMP, kind.subsampling);
        set(tj::TJPARAM_TJPARAM_OPTIMIZE, kind.optimised.into());
        set(tj::TJPARAM_TJPARAM_RESTARTBLOCKS, kind.restart_mcus);
        if kind.restart_rows > 0 {
            set(tj::TJPARAM_TJPARAM_RESTARTROWS, kind.restart_rows);
        }
        let (width, height) = (width as c_int, height as c_int);
        assert_eq!(tj::tj3Compress8(handle, pixels.as_ptr(), width, 0, height, format, &raw mut out, &raw mut size), 0);
        let bytes = std::slice::from_raw_parts(out, size as usize).to_vec();
        tj::tj3Free(out.cast::<c_void>());
        tj::tj3Destroy(handle);
        bytes
    }
}

fn corpus(random: &mut Random) -> Vec<(String, Vec<u8>)> {
    let samplings = [
        tj::TJSAMP_TJSAMP_444,
        tj::TJSAMP_TJSAMP_422,
        tj::TJSAMP_TJSAMP_420,
        tj::TJSAMP_TJSAMP_GRAY,
        tj::TJSAMP_TJSAMP_440,
        tj::TJSAMP_TJSAMP_411,
        tj::TJSAMP_TJSAMP_441,
    ];
    let mut kinds: Vec<_> = samplings.map(|subsampling| Kind { subsampling, ..PLAIN }).to_vec();
    kinds.extend(samplings.map(|subsampling| Kind { subsampling, optimised: true, restart_rows: 1, ..PLAIN }));
    kinds.extend([
        Kind { cmyk: true, ..PLAIN },
        Kind { cmyk: true, subsampling: tj::TJSAMP_TJSAMP_444, optimised: true, ..PLAIN },
        Kind { quality: 100, subsampling: tj::TJSAMP_TJSAMP_444, ..PLAIN },
        Kind { quality: 100, optimised: true, ..PLAIN },
        Kind { quality: 30, ..PLAIN },
        Kind { quality: 5, optimised: true, ..PLAIN },
        Kind { restart_mcus: 1, ..PLAIN },
        Kind { restart_mcus: 5, quality: 98, ..PLAIN },
        Kind { restart_rows: 2, ..PLAIN },
    ]);
    let mut pictures = Vec::new();
    for (number, kind) in kinds.into_iter().enumerate() {
        for noise in [6, 200] {
            let (width, height) = (97 + number * 9 + random.below(60), 80 + random.below(90));
            pictures.push((format!("{kind:?} {width}x{height}"), encode(kind, width, height, noise, random)));
        }
    }
    pictures
}

#[test]
fn sound_pictures_have_the_same_pixels_and_are_decoded_by_our_code() {
    let mut random = Random(1);
    let mut contenders = Contenders::new();
    let mut jumped_over = 0;
    for (name, bytes) in corpus(&mut random) {
        let before = contenders.own_mcus();
        assert!(contenders.check(&name, &bytes, &mut random), "{name} is not decoded");
        for _ in 0..8 {
            contenders.check(&name, &bytes, &mut random);
        }
        let [own, plain, original, knowing] = contenders.own_mcus();
        jumped_over += own - before[0] - (knowing - before[3]);
        // One MCU in each restart interval is never ours, the first ones of the smallest pictures apart.
        let is_ours = name.contains("restart_mcus: 1,") || own - before[0] > 300;
        assert!(is_ours && plain == own && original == 0, "{name}: {} MCUs were ours", own - before[0]);
    }
    assert!(jumped_over > 1_000, "{jumped_over} MCUs were jumped over");
    assert!(contenders.with_landmarks > 150, "{} had landmarks", contenders.with_landmarks);
}

/// Accidental damage by storage and transport, and malicious damage.
fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let scan = bytes.windows(2).position(|pair| pair == [0xFF, 0xDA]).unwrap() + 14;
    let tables = bytes.windows(2).position(|pair| pair == [0xFF, 0xC4]).unwrap();
    for _ in 0..1 + random.below(3) {
        let at = scan + random.below(bytes.len() - scan);
        match random.below(15) {
            0..3 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at] = 0xFF,
            4 => bytes[at] = random.next() as u8,
            5 => bytes.truncate(at),
            6 => {
                let end = bytes.len().min(at + 1 + random.below(600));
                bytes[at..end].fill(0);
            }
            7 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.below(40)))),
            8 => {
                let marker = [0xFF, 0xD0 + random.below(16) as u8];
                drop(bytes.splice(at..at, marker));
            }
            9 => {
                // Codes and their symbols.
                let at = tables + 5 + random.below(scan - tables - 5);
                bytes[at] = random.next() as u8;
            }
            10 => {
                // A restart interval that was not there.
                let segment = [0xFF, 0xDD, 0, 4, 0, random.below(9) as u8];
                drop(bytes.splice(tables..tables, segment));
                return bytes;
            }
            11 => {
                // Junk before the next marker, with stuffed bytes in it: how much of it counts is a matter of how
                // many bytes wait in the bit buffer.
                let marker = bytes[at..].windows(2).position(|pair| pair[0] == 0xFF && pair[1] >= 0xD0);
                let at = at + marker.unwrap_or_default();
                let byte =
                    |random: &mut Random| if random.below(3) == 0 { vec![0xFF, 0] } else { vec![random.next() as u8] };
                let junk: Vec<u8> = (0..random.below(20)).flat_map(|_| byte(random)).collect();
                drop(bytes.splice(at..at, junk));
            }
            12 => {
                let count = random.below(12);
                drop(bytes.splice(at..at, std::iter::repeat_n(0xFF, count)));
            }
            13 => {
                // More than is ever looked at together.
                let junk: Vec<u8> = (0..random.below(100_000)).map(|_| random.next() as u8).collect();
                drop(bytes.splice(at..at, junk));
            }
            _ => bytes.extend((0..8000).map(|_| random.next() as u8)),
        }
        if bytes.len() <= scan {
            break;
        }
    }
    bytes
}

#[test]
fn damaged_pictures_have_the_same_outcome() {
    // A few thousand here; set the variable for more.
    let rounds = std::env::var("FOREBAY_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(80);
    let mut random = Random(20_261_115);
    let mut contenders = Contenders::new();
    let corpus = corpus(&mut random);
    let (mut sound, mut damaged) = (0, 0);
    for round in 0..rounds {
        for (name, bytes) in &corpus {
            let bytes = damage(bytes, &mut random);
            let is_sound = contenders.check(&format!("{name}, round {round}"), &bytes, &mut random);
            *(if is_sound { &mut sound } else { &mut damaged }) += 1;
        }
    }
    assert!(contenders.planar > rounds * corpus.len() / 2, "{} had planes", contenders.planar);
    // Neither kind is all there is.
    assert!(contenders.with_landmarks > rounds, "{} had landmarks", contenders.with_landmarks);
    assert!(sound > rounds * corpus.len() / 10 && damaged > rounds * corpus.len() / 10, "{sound} and {damaged}");
}

#[test]
fn any_bytes_have_the_same_outcome() {
    let mut random = Random(15);
    let mut tried = 0;
    for (_, bytes) in corpus(&mut random).into_iter().step_by(2) {
        for _ in 0..8 {
            let mut bytes = bytes.clone();
            for _ in 0..1 + random.below(3) {
                // Mostly the header, which the other damage leaves alone.
                let end = if random.below(4) > 0 { 700 } else { bytes.len() };
                let at = random.below(end.min(bytes.len()));
                match random.below(4) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = random.next() as u8,
                    2 => drop(bytes.drain(at..bytes.len().min(at + 1 + random.below(200)))),
                    _ => {
                        let from = random.below(bytes.len());
                        let part = bytes[from..bytes.len().min(from + 200)].to_vec();
                        drop(bytes.splice(at..at, part));
                    }
                }
            }
            tried += usize::from(differential::huffman_differential(&bytes));
        }
    }
    assert!(tried > 60, "only {tried} had a header");
}

fn asked(jpeg: &Jpeg) -> u64 {
    // SAFETY: a live decompressor.
    unsafe { forebay_jpeg_memory_asked(jpeg.raw) }
}

/// The library's whole picture, with the library's own memory.
fn library(bytes: &[u8]) -> Vec<u8> {
    // SAFETY: the buffer has room for the size that the library says, and the handle is destroyed once.
    unsafe {
        let handle = tj::tj3Init(tj::TJINIT_TJINIT_DECOMPRESS as c_int);
        assert_eq!(tj::tj3DecompressHeader(handle, bytes.as_ptr(), bytes.len() as _), 0);
        let get = |parameter: tj::TJPARAM| tj::tj3Get(handle, parameter as c_int) as usize;
        let mut pixels = vec![0; get(tj::TJPARAM_TJPARAM_JPEGWIDTH) * get(tj::TJPARAM_TJPARAM_JPEGHEIGHT) * 3];
        let (out, format) = (pixels.as_mut_ptr(), tj::TJPF_TJPF_RGB as c_int);
        assert_eq!(tj::tj3Decompress8(handle, bytes.as_ptr(), bytes.len() as _, out, 0, format), 0);
        tj::tj3Destroy(handle);
        pixels
    }
}

#[test]
fn memory_is_used_again_and_changes_no_pixel() {
    let mut random = Random(3);
    let pictures: Vec<_> = corpus(&mut random).into_iter().filter(|(name, _)| !name.contains("cmyk: true")).collect();
    let mut jpeg = Jpeg::new().unwrap();
    // Twice: the first time, it learns how much they need.
    for (name, bytes) in pictures.iter().chain(&pictures) {
        assert!(outcome(&mut jpeg, bytes, |_| None).unwrap().1 == library(bytes), "{name}");
    }
    let before = asked(&jpeg);
    for (name, bytes) in &pictures {
        let part = |_: &Header| Some(Region { x: 30, y: 20, width: 40, height: 10 });
        outcome(&mut jpeg, bytes, part).unwrap();
        outcome(&mut jpeg, &bytes[..bytes.len() / 2], |_| None).unwrap_err();
        assert_eq!(asked(&jpeg), before, "{name}");
    }
}

#[test]
fn memory_that_a_huge_picture_needed_is_given_back() {
    let mut random = Random(4);
    let (huge, small) = (encode(PLAIN, 20_000, 16, 0, &mut random), encode(PLAIN, 500, 64, 9, &mut random));
    let mut jpeg = Jpeg::new().unwrap();
    assert!(outcome(&mut jpeg, &huge, |_| None).unwrap().1 == library(&huge));
    let kept = |jpeg: &mut Jpeg, bytes: &[u8]| {
        let before = asked(jpeg);
        outcome(jpeg, bytes, |_| None).unwrap();
        asked(jpeg) == before
    };
    assert!(!kept(&mut jpeg, &huge) && !kept(&mut jpeg, &small), "nothing is kept that was large");
    assert!(!kept(&mut jpeg, &small), "several pieces become one");
    assert!(kept(&mut jpeg, &small) && kept(&mut jpeg, &small));
}

/// Runs in a child, which the sanitizer ends.
#[cfg(address_sanitizer)]
#[test]
fn an_overrun_inside_of_reused_memory_is_found() {
    const VARIABLE: &str = "FOREBAY_TEST_OVERRUN";
    if let Ok(offset) = std::env::var(VARIABLE) {
        let jpeg = Jpeg::new().unwrap();
        // SAFETY: none: this is what the sanitizer has to find.
        unsafe { forebay_jpeg_overrun(jpeg.raw, offset.parse().unwrap()) };
        return;
    }
    for offset in ["0", "7", "-1", "-24"] {
        let name = std::thread::current().name().unwrap().to_owned();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", &name, "--nocapture"]).env(VARIABLE, offset).output().unwrap();
        let words = String::from_utf8_lossy(&ended.stderr);
        assert!(!ended.status.success() && words.contains("use-after-poison"), "{offset}: {words}");
        assert!(words.contains("forebay_memory_overrun"), "{offset}: {words}");
    }
}
