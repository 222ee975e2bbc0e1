//! Records of TFRecord files, in their frames.

use forebay_core::{Error, FRAME_BYTES, FRAME_HEADER_BYTES, Kind, Result, frame_length, masked_crc};

use super::{Part, RecordFormat};

/// Records in their frames, taken as they are.
#[derive(Clone, Copy, Debug, Default)]
pub struct FramedRecord;

/// What is in a frame, whose length is checked and whose checksum is not.
pub(super) fn content(frame: &[u8]) -> Result<&[u8]> {
    let damaged = |message: String| Error::new(Kind::Corrupt, message);
    let header = frame.first_chunk::<FRAME_HEADER_BYTES>();
    let header = header.ok_or_else(|| damaged(format!("is truncated ({} bytes)", frame.len())))?;
    let length =
        frame_length(header).ok_or_else(|| damaged("has a length that is not what its checksum says".to_owned()))?;
    let got = frame.len().saturating_sub(FRAME_BYTES);
    match frame.get(FRAME_HEADER_BYTES..frame.len() - 4).filter(|content| content.len() as u64 == length) {
        Some(content) => Ok(content),
        None => Err(damaged(format!("is not as long as it says (expected {length} bytes, got {got})"))),
    }
}

/// Whether the record in a frame is what its checksum says.
pub(super) fn verify(frame: &[u8]) -> Result<()> {
    let content = content(frame)?;
    let expected = frame.last_chunk::<4>().map_or(0, |crc| u32::from_le_bytes(*crc));
    match masked_crc(content) {
        crc if crc == expected => Ok(()),
        crc => {
            let message = format!("is not what its checksum says (expected {expected:08x}, got {crc:08x})");
            Err(Error::new(Kind::Corrupt, message))
        }
    }
}

impl RecordFormat for FramedRecord {
    fn field_count(&self) -> usize {
        1
    }

    fn verify(&self, record: &[u8]) -> Result<()> {
        verify(record)
    }

    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<Part<'a>>, (usize, Error)> {
        content(record).map(|content| vec![Part::Plain(content)]).map_err(|error| (usize::MAX, error))
    }
}

/// A frame around a record, for tests.
#[cfg(test)]
pub(super) fn framed(record: &[u8]) -> Vec<u8> {
    let length = (record.len() as u64).to_le_bytes();
    [&length[..], &masked_crc(&length).to_le_bytes(), record, &masked_crc(record).to_le_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_holds_what_its_checksums_say() {
        for record in [&b"abc"[..], b""] {
            let frame = framed(record);
            verify(&frame).unwrap();
            assert_eq!(FramedRecord.split(&frame).unwrap(), [Part::Plain(record)]);
            for end in 0..frame.len() {
                assert_eq!(verify(&frame[..end]).unwrap_err().kind(), Kind::Corrupt, "{end}");
            }
            for at in 0..frame.len() {
                let mut damaged = frame.clone();
                damaged[at] ^= 1;
                assert!(verify(&damaged).is_err(), "{at}");
            }
        }
    }
}
