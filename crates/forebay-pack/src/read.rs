//! Reads a sample, looks whether it is good, and makes of it what goes into the shard.

use std::time::Instant;

use forebay_core::{Chances, Clock, Error, Failure, Kind, Outcome, Result, Retry, Stage, SystemClock};
use forebay_decode::{Annotator, Coding, Recoder, Recoding, Scratch};
use forebay_store::ReadRequest;
use xxhash_rust::xxh3::xxh3_64;

use crate::columns::Makes;
use crate::records::Saved;
use crate::shard::PackedField;
use crate::source::{Holds, LABEL_FIELD, Piece, Sample, Samples, is_picture};
use crate::target::Halt;

/// What became of a sample.
pub(crate) enum Made {
    Good { key: String, fields: Vec<PackedField>, saved: Saved },
    Bad { failure: Box<Failure>, is_of_storage: bool },
}

/// What is done with samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handling {
    pub(crate) checks: bool,
    pub(crate) recoding: Option<Recoding>,
    pub(crate) landmarks: bool,
    pub(crate) retry: Retry,
}

/// What one thread reads with.
pub(crate) struct SampleReader<'a> {
    samples: &'a Samples,
    halt: &'a Halt,
    handling: Handling,
    recoder: Recoder,
    annotator: Annotator,
    scratch: Scratch,
}

impl<'a> SampleReader<'a> {
    pub(crate) fn new(samples: &'a Samples, halt: &'a Halt, handling: Handling) -> Self {
        Self {
            samples,
            halt,
            handling,
            recoder: Recoder::default(),
            annotator: Annotator::default(),
            scratch: Scratch::default(),
        }
    }

    /// A sample by its number in the source; `position` is its place in the order of packing. An error only where all of it stops.
    pub(crate) fn make(&mut self, number: u64, position: u64) -> Result<Made> {
        let sample = match self.samples.get(number) {
            Ok(sample) => sample,
            Err(error) => return Ok(bad(&error.at_index(number), None, position)),
        };
        let (started, mut attempts, mut chances) = (Instant::now(), 1, Chances::default());
        loop {
            self.halt.sleep(std::time::Duration::ZERO)?;
            let (at, error) = match self.attempt(&sample, number) {
                Ok(made) => return Ok(made),
                Err(failed) => failed,
            };
            // What is wrong here is wrong for every sample.
            if error.kind() == Kind::Internal || error.kind() == Kind::Config {
                return Err(error);
            }
            let Some(pause) = self.handling.retry.judge(&error, attempts, &mut chances, started.elapsed(), number)
            else {
                let piece = &sample.pieces[at];
                let error = error.at_path(&piece.locator.name()).at_index(number).after(attempts, started.elapsed());
                return Ok(bad(&error, Some(piece), position));
            };
            self.samples.store.doubt(&sample.pieces[at].locator.path);
            attempts += 1;
            self.halt.sleep(pause)?;
        }
    }

    /// Reads all of it once. What failed is an error of one of its pieces.
    fn attempt(&mut self, sample: &Sample, number: u64) -> std::result::Result<Made, (usize, Error)> {
        let (mut fields, mut saved) = (Vec::new(), Saved::default());
        for (at, piece) in sample.pieces.iter().enumerate() {
            let bytes = self.read(piece).map_err(|error| (at, error))?;
            let made = self.fields(piece, bytes, number, &mut saved);
            for made in made.map_err(|error| (at, error.at_stage(Stage::Decode)))? {
                fields.push(self.annotated(made));
            }
        }
        if let Some(label) = sample.label_text() {
            fields.push(self.annotated((LABEL_FIELD.to_owned(), label.into_bytes())));
        }
        Ok(Made::Good { key: sample.key.clone(), fields, saved })
    }

    fn read(&self, piece: &Piece) -> Result<Vec<u8>> {
        if let Some(lost) = piece.lost {
            return Err(Error::new(Kind::Corrupt, lost.predicate()).at_stage(Stage::Decode));
        }
        let mut request = ReadRequest::new(&piece.locator.path, self.handling.retry.deadline);
        request.range.clone_from(&piece.locator.range);
        let object = self.samples.store.fetch(&request, &mut |size| {
            // It is charged by what was listed. What is asked for a value in a page has room for the page as well.
            let is_value = matches!(piece.holds, Holds::Columns(_));
            if size > piece.size && !is_value && (!piece.is_file || piece.expected.is_some()) {
                return Err(changed(format!("expected {} bytes, got {size}", piece.size)));
            }
            let mut buffer = Vec::new();
            let no_memory = |_| Error::new(Kind::Exhausted, format!("no memory was left for {size} bytes of it"));
            buffer.try_reserve_exact(usize::try_from(size).unwrap_or(usize::MAX)).map_err(no_memory)?;
            Ok(buffer)
        })?;
        let differs = |stat: forebay_store::Stat| piece.expected?.differs(stat.size_bytes, stat.mtime_ns);
        if let Some(what) = differs(object.stat) {
            return Err(changed(what));
        }
        let bytes = object.bytes.into_vec();
        if let Some(expected) = piece.hash.filter(|hash| *hash != xxh3_64(&bytes)) {
            let got = xxh3_64(&bytes);
            let message = format!("is not what it was (expected xxh3 {expected:016x}, got {got:016x})");
            return Err(Error::new(Kind::Corrupt, message).at_stage(Stage::Decode));
        }
        Ok(bytes)
    }

    /// With the landmarks of a JPEG, which the index gets. Other fields have none, and the index says so.
    fn annotated(&mut self, (name, bytes): (String, Vec<u8>)) -> PackedField {
        let annotation = self.handling.landmarks.then(|| match is_jpeg(&name) {
            true => self.annotator.annotate(&bytes),
            false => Vec::new(),
        });
        PackedField { name, bytes, annotation }
    }

    /// The names and the bytes of the fields in a piece as they will be in the shard.
    fn fields(
        &mut self,
        piece: &Piece,
        bytes: Vec<u8>,
        number: u64,
        saved: &mut Saved,
    ) -> Result<Vec<(String, Vec<u8>)>> {
        let columns = match &piece.holds {
            Holds::Field(field) => {
                let is_picture = is_picture(field);
                if bytes.is_empty() && (piece.is_file || is_picture) {
                    return Err(Error::new(Kind::Corrupt, "is empty (0 bytes)"));
                }
                let how = self.handling.recoding;
                let field = field.clone();
                return Ok(vec![if is_picture { self.picture(field, bytes, how, saved)? } else { (field, bytes) }]);
            }
            Holds::Columns(columns) => columns.clone(),
        };
        let Some(typed) = self.samples.typed() else {
            return Err(Error::internal("a piece of columns is of a source without any"));
        };
        let mut made = Vec::new();
        for (makes, field, bytes) in typed.make(columns, bytes, number, &mut self.scratch)? {
            let how = self.handling.recoding;
            made.push(match makes {
                Makes::Picture => self.picture(field, bytes, how, saved)?,
                Makes::Pixels => self.pixels(field, bytes, how, saved)?,
                _ => (field, bytes),
            });
        }
        Ok(made)
    }

    /// The name and the bytes of a picture as they will be in the shard.
    fn picture(
        &mut self,
        mut field: String,
        bytes: Vec<u8>,
        how: Option<Recoding>,
        saved: &mut Saved,
    ) -> Result<(String, Vec<u8>)> {
        let Some(how) = &how else {
            if self.handling.checks {
                self.recoder.check(&bytes)?;
            }
            return Ok((field, bytes));
        };
        let Some(made) = self.recoder.recode(&bytes, how)? else { return Ok((field, bytes)) };
        saved.add(&Saved {
            pictures: 1,
            bytes_before: bytes.len() as u64,
            bytes_after: made.bytes.len() as u64,
            decode_seconds_before: made.decode_before.as_secs_f64(),
            decode_seconds_after: made.decode_after.as_secs_f64(),
        });
        if !made.is_same_format {
            // A column's name stays in front of the ending.
            field.truncate(field.rfind('.').map_or(0, |dot| dot + 1));
            field.push_str(made.coding.extension());
        }
        Ok((field, made.bytes))
    }

    /// A picture that was only pixels is written as PNG, unless it is to be of another format. No file was saved by that.
    fn pixels(
        &mut self,
        field: String,
        bytes: Vec<u8>,
        how: Option<Recoding>,
        saved: &mut Saved,
    ) -> Result<(String, Vec<u8>)> {
        let png = Recoding { max_side: None, format: Some(Coding::Png), quality: 100 };
        let how = how.map_or(png, |how| Recoding { format: how.format.or(png.format), ..how });
        let own = &mut Saved::default();
        let saved = if self.handling.recoding.is_some() { saved } else { own };
        self.picture(field, bytes, Some(how), saved)
    }
}

/// Whether a field may be a JPEG by its name: as where an index is made of archives.
fn is_jpeg(field: &str) -> bool {
    let ending = field.rsplit('.').next().unwrap_or(field);
    ["jpg", "jpeg"].iter().any(|known| ending.eq_ignore_ascii_case(known))
}

fn changed(what: String) -> Error {
    let message = format!("is not what was listed ({what}): it was changed while it was packed");
    Error::new(Kind::Stale, message).with_hint("pack a source that nothing writes to, into another target")
}

fn bad(error: &Error, piece: Option<&Piece>, position: u64) -> Made {
    let path = error.path().map(std::path::Path::to_owned).unwrap_or_default();
    let failure = Failure::of(error, &path, Outcome::Skipped);
    let failure = match piece {
        Some(piece) => {
            let expected = piece.expected.filter(|expected| !expected.by_etag);
            let size_bytes = expected.and_then(|expected| expected.size_bytes);
            let mtime_ns = expected.and_then(|expected| expected.stamp_ns);
            Failure { size_bytes, mtime_ns, ..failure.located(&piece.locator) }
        }
        None => failure,
    };
    let failure = Failure { position, unix_seconds: SystemClock::default().unix_seconds(), ..failure };
    Made::Bad { failure: Box::new(failure), is_of_storage: matches!(error.kind(), Kind::Unavailable | Kind::Timeout) }
}
