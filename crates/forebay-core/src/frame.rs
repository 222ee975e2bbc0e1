//! The frame of a record in a TFRecord file: its length and the checksum of that, the record, and its checksum. The checksums
//! are CRC-32C, rotated and shifted so that those of data with checksums in it are good ones, too.

use crc_fast::{CrcAlgorithm, checksum};

/// What stands before a record.
pub const FRAME_HEADER_BYTES: usize = 12;
/// What stands around it in all.
pub const FRAME_BYTES: usize = FRAME_HEADER_BYTES + 4;

/// The checksum that a frame has of some bytes.
pub fn masked_crc(bytes: &[u8]) -> u32 {
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32;
    crc.rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// The length of the record behind this header; `None` if it is not what its checksum says.
pub fn frame_length(header: &[u8; FRAME_HEADER_BYTES]) -> Option<u64> {
    let (length, crc) = header.split_first_chunk::<8>()?;
    (masked_crc(length).to_le_bytes() == *crc).then(|| u64::from_le_bytes(*length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_that_of_tensorflow() {
        let header = [0x18, 0, 0, 0, 0, 0, 0, 0, 0xA3, 0x7F, 0x4B, 0x22];
        assert_eq!(frame_length(&header), Some(0x18));
        for bit in 0..96 {
            let mut damaged = header;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(frame_length(&damaged), None, "{bit}");
        }
    }
}
