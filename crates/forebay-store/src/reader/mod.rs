//! The reader program (`main.rs`), and its protocol with this process.

pub(crate) mod directory;
pub(crate) mod protocol;

#[cfg(test)]
mod tests {
    #[test]
    fn the_numbers_of_this_architecture_are_right() {
        assert_eq!(super::directory::SYS_GETDENTS64, libc::SYS_getdents64);
        assert_eq!(super::directory::O_DIRECTORY, libc::O_DIRECTORY);
        assert_eq!(super::directory::O_NONBLOCK, libc::O_NONBLOCK);
    }

    #[test]
    fn a_record_that_is_not_whole_is_none() {
        use super::directory::record;
        let mut bytes = [0; 32];
        (bytes[16], bytes[18], bytes[19]) = (24, 8, b'a');
        assert_eq!(record(&bytes), Some((24, 8, 1)));
        assert_eq!((0..24).find_map(|length| record(&bytes[..length])), None);
        for (length, name) in [(0, *b"a\0"), (18, *b"a\0"), (20, *b"ab"), (40, *b"a\0")] {
            (bytes[16], bytes[19], bytes[20]) = (length, name[0], name[1]);
            assert_eq!(record(&bytes), None, "{length}");
        }
    }
}
