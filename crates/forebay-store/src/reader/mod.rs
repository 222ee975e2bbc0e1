//! The reader, a program of its own (`main.rs`), and what this process and it say to each other.

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
}
