use super::*;
use crate::encode::coders::encode;

/// Waves of colour, which every format can keep well.
fn waves(width: u32, height: u32) -> Image {
    let pixels = (0..height).flat_map(|y| (0..width).flat_map(move |x| [(x * 2) as u8, (y * 2) as u8, (x + y) as u8]));
    Image { width, height, channels: 3, pixels: pixels.collect() }
}

fn ppm(image: &Image) -> Vec<u8> {
    [format!("P6 {} {} 255\n", image.width, image.height).as_bytes(), &image.pixels].concat()
}

fn decoded(bytes: &[u8]) -> Image {
    let (mut decoders, mut image) = (Decoders::default(), Image::default());
    let header = decoders.header(bytes).unwrap();
    decoders.decode(bytes, &header, None, &mut image).unwrap();
    image
}

const ALL: [Coding; 3] = [Coding::Jpeg, Coding::WebP, Coding::Png];

#[test]
fn what_is_written_is_the_same_picture_in_every_format() {
    let image = waves(60, 40);
    for coding in ALL {
        for turned in 1..=8 {
            let bytes = encode(&image, coding, 95, turned).unwrap();
            assert_eq!(Format::sniff(&bytes), Some(coding.format()));
            assert_eq!(orientation(coding.format(), &bytes), turned, "{coding:?}");
            let back = decoded(&bytes);
            assert_eq!((back.width, back.height), (60, 40));
            let difference: u64 =
                back.pixels.iter().zip(&image.pixels).map(|(one, other)| u64::from(one.abs_diff(*other))).sum();
            let mean = difference as f64 / image.pixels.len() as f64;
            // Colours at half the resolution, in JPEG and WebP, blur the saw teeth of these waves.
            assert!(mean <= if coding == Coding::Png { 0.0 } else { 8.0 }, "{coding:?}: {mean}");
        }
    }
}

#[test]
fn the_longer_side_decides_and_small_pictures_stay() {
    let mut recoder = Recoder::default();
    let how = |format| Recoding { max_side: Some(30), format, quality: 90 };
    for (width, height, expected) in
        [(60, 40, Some((30, 20))), (40, 60, Some((20, 30))), (30, 30, None), (31, 1, Some((30, 1)))]
    {
        for coding in ALL {
            let bytes = encode(&waves(width, height), coding, 90, 6).unwrap();
            let made = recoder.recode(&bytes, &how(None)).unwrap();
            let size = made.as_ref().map(|made| (decoded(&made.bytes).width, decoded(&made.bytes).height));
            assert_eq!(size, expected, "{coding:?} {width}×{height}");
            if let Some(made) = made {
                assert!(made.is_same_format && made.coding == coding);
                assert_eq!(orientation(coding.format(), &made.bytes), 6, "it stays what it was");
            }
        }
    }
    // Nothing to do but the format.
    let small = ppm(&waves(20, 20));
    assert_eq!(recoder.recode(&small, &how(None)).unwrap(), None);
    let made = recoder.recode(&small, &how(Some(Coding::WebP))).unwrap().unwrap();
    assert!(made.coding == Coding::WebP && !made.is_same_format);
    // Formats that are not written become PNG.
    let made = recoder.recode(&ppm(&waves(60, 60)), &how(None)).unwrap().unwrap();
    assert_eq!(made.coding, Coding::Png);
}

#[test]
fn pixels_are_those_of_resize() {
    let image = waves(61, 47);
    let how = Recoding { max_side: Some(20), format: None, quality: 90 };
    let made = Recoder::default().recode(&ppm(&image), &how).unwrap().unwrap();
    let op = Op::Resize {
        size: ResizeTo::LongEdge,
        interpolation: Interpolation::Bilinear,
        max_size: Some(20),
        antialias: true,
    };
    let pipeline = crate::Pipeline::new(vec![op]).unwrap();
    let rng = Rng::for_sample(0, Epoch(0), SampleId(0));
    let (value, _) = pipeline.run(&ppm(&image), &rng, &mut crate::Scratch::default()).unwrap();
    let Value::Image(expected) = value else { panic!("a picture was made of a picture") };
    assert_eq!(decoded(&made.bytes), expected);
}

#[test]
fn damaged_pictures_are_errors_of_the_decoder() {
    let bytes = encode(&waves(64, 64), Coding::Jpeg, 90, 1).unwrap();
    let mut recoder = Recoder::default();
    assert!(recoder.check(&bytes).is_ok());
    let error = recoder.check(&bytes[..bytes.len() / 2]).unwrap_err();
    assert_eq!(error.kind(), Kind::Corrupt, "{error}");
    let how = Recoding { max_side: Some(8), format: None, quality: 90 };
    assert!(recoder.recode(&bytes[..bytes.len() / 2], &how).is_err());
    assert!(recoder.recode(&bytes, &how).unwrap().is_some(), "and the next one is made");
}

#[test]
fn better_quality_takes_more_bytes_and_sides_have_limits() {
    let sizes: Vec<_> =
        [10, 50, 95].map(|quality| encode(&waves(99, 77), Coding::Jpeg, quality, 1).unwrap().len()).into();
    assert!(sizes.is_sorted() && sizes[0] < sizes[2], "{sizes:?}");
    let wide = Image { width: 17_000, height: 1, channels: 3, pixels: vec![0; 51_000] };
    let error = encode(&wide, Coding::WebP, 90, 1).unwrap_err();
    assert_eq!(error.message(), "is too large for WebP (expected at most 16383 pixels a side, got 17000×1)");
    assert!(encode(&wide, Coding::Jpeg, 90, 1).is_ok());
    let odd = Image { pixels: vec![0; 5], ..waves(2, 2) };
    assert_eq!(encode(&odd, Coding::Jpeg, 90, 1).unwrap_err().kind(), Kind::Internal);
}
