//! The reader's executable: embedded in this library and run from memory, so there is no file to ship or to find.

use std::ffi::{CStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::fcntl_dupfd_cloexec;

/// Built by `build.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/forebay-reader"));

/// Path of a reader executable, for systems on which neither memory nor the temporary directory is executable.
const VARIABLE: &str = "FOREBAY_READER";

/// The executable in memory, with one descriptor, until no reader is needed.
static IN_MEMORY: Mutex<Option<Arc<File>>> = Mutex::new(None);

/// Frees the memory and the descriptor. The next start writes the executable again.
pub(super) fn forget() {
    let known = IN_MEMORY.lock().take();
    // Closed now, or when the last concurrent start is done with it.
    drop(known);
}

/// Runs the reader: `FOREBAY_READER` if set, else from memory, else from a temporary file.
pub(super) fn run(start: impl Fn(&Path) -> io::Result<Child>) -> io::Result<Child> {
    if let Some(path) = std::env::var_os(VARIABLE).filter(|path| !path.is_empty()) {
        return start(Path::new(&path)).map_err(|error| explained(VARIABLE, error));
    }
    // Kept open while it is started through its descriptor's path.
    let in_memory = in_memory();
    let path = |program: &File| PathBuf::from(format!("/proc/self/fd/{}", program.as_raw_fd()));
    match in_memory.and_then(|program| start(&path(&program))) {
        // Memory is not executable (vm.memfd_noexec, a sandbox), there is no /proc, or no memfd.
        Err(error)
            if matches!(
                error.raw_os_error(),
                Some(libc::EACCES | libc::EPERM | libc::ENOENT | libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP)
            ) =>
        {
            let (directory, program) = in_file()?;
            let started = start(&program);
            // The running process does not need the file any more. If it cannot be removed, it stays in the temporary
            // directory.
            let _removed = std::fs::remove_dir_all(directory);
            started.map_err(|error| explained(&program.display().to_string(), error))
        }
        started => started,
    }
}

/// Keeps the errno, which determines the hint, and adds what was tried.
fn explained(what: &str, error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => error,
        _ => io::Error::new(error.kind(), format!("the reader ({what}) could not be executed: {error}")),
    }
}

fn in_memory() -> io::Result<Arc<File>> {
    let mut known = IN_MEMORY.lock();
    match &mut *known {
        Some(program) => Ok(Arc::clone(program)),
        empty => {
            // Kernels before 6.3 do not know the flag; later ones may refuse to execute without it.
            let program = memory_file(c"forebay-reader", MemfdFlags::EXEC);
            let mut program = program.or_else(|_| memory_file(c"forebay-reader", MemfdFlags::empty()))?;
            program.write_all(PROGRAM)?;
            Ok(Arc::clone(empty.insert(Arc::new(program))))
        }
    }
}

fn in_file() -> io::Result<(PathBuf, PathBuf)> {
    let mut template = std::env::temp_dir().join("forebay-XXXXXX").into_os_string();
    template.push("\0");
    let mut name = std::os::unix::ffi::OsStringExt::into_vec(template);
    // SAFETY: `name` is a writable C string; mkdtemp replaces six characters in place.
    if unsafe { libc::mkdtemp(name.as_mut_ptr().cast()) }.is_null() {
        return Err(io::Error::last_os_error());
    }
    name.pop();
    let directory = PathBuf::from(<OsString as std::os::unix::ffi::OsStringExt>::from_vec(name));
    let program = directory.join("forebay-reader");
    OpenOptions::new().write(true).create_new(true).mode(0o700).open(&program)?.write_all(PROGRAM)?;
    Ok((directory, program))
}

/// An unnamed file in memory, on a descriptor above standard input and output.
pub(super) fn memory_file(name: &CStr, flags: MemfdFlags) -> io::Result<File> {
    let file = memfd_create(name, MemfdFlags::CLOEXEC | flags)?;
    let file = if file.as_raw_fd() > 2 { file } else { fcntl_dupfd_cloexec(&file, 3)? };
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_from_a_file_where_memory_may_not_be_executed() {
        let tried = std::cell::Cell::new(0);
        let child = run(|program| {
            tried.set(tried.get() + 1);
            match tried.get() {
                1 => Err(io::Error::from_raw_os_error(libc::EACCES)),
                // Without a socket it exits at once.
                _ => std::process::Command::new(program).arg("0").spawn(),
            }
        });
        assert_eq!(child.unwrap().wait().unwrap().code(), Some(1));
        assert_eq!(tried.get(), 2);
    }
}
