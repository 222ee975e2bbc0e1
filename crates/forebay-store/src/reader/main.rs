//! `forebay-reader`: reads files for a loader, so that a read stuck in the kernel sticks this process and no other.
//!
//! Descriptor 0 is a socket, descriptor 1 the window (a memfd), and the only argument the loader's process id; see
//! `protocol.rs`. It prints nothing, keeps nothing open between two objects, and exits when its socket closes or when
//! the loader's process dies.
//!
//! The standard library only: `build.rs` compiles this file without cargo.

#![allow(clippy::disallowed_methods, reason = "this is what touches the disk")]

use std::ffi::{OsStr, c_int, c_long, c_ulong, c_void};
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::FromRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::ExitCode;

mod directory;
mod protocol;

use directory::{Directory, O_NONBLOCK};
use protocol::{Answer, MAX_REQUEST_BYTES, Request, Status, WINDOW_BYTES};

unsafe extern "C" {
    fn prctl(option: c_int, ...) -> c_int;
    fn syscall(number: c_long, ...) -> c_long;
    fn mmap(
        at: *mut c_void,
        length: usize,
        protection: c_int,
        flags: c_int,
        file: c_int,
        offset: c_long,
    ) -> *mut c_void;
}

const PR_SET_PDEATHSIG: c_int = 1;
const PR_SET_NAME: c_int = 15;
const SIGKILL: c_ulong = 9;
/// The same number on every architecture; the function is missing in older C libraries.
const SYS_CLOSE_RANGE: c_long = 436;
const PROT_READ_WRITE: c_int = 3;
const MAP_SHARED: c_int = 1;
/// As `forebay-store`'s own reads: a pipe is opened without waiting for a writer.
#[cfg(any(target_arch = "mips", target_arch = "mips64", target_arch = "sparc64"))]
compile_error!("the numbers of O_NONBLOCK and O_NOCTTY are others on this architecture");
const O_NOCTTY: c_int = 0o400;
const EINVAL: i32 = 22;
const TYPE_OF_FILE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;

fn main() -> ExitCode {
    let parent = std::env::args().nth(1).and_then(|argument| argument.parse().ok());
    // SAFETY: these calls take no memory but a C string literal; descriptors from 3 up are not used here.
    unsafe {
        prctl(PR_SET_NAME, c"forebay-reader".as_ptr());
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        syscall(SYS_CLOSE_RANGE, 3 as c_long, c_long::from(u32::MAX), 0 as c_long);
    }
    // The parent may have died before PR_SET_PDEATHSIG was set: then no signal will come.
    if parent != Some(std::os::unix::process::parent_id()) {
        return ExitCode::FAILURE;
    }
    // A working directory would keep its mount busy. All paths are absolute.
    let _stays = std::env::set_current_dir("/");
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let address = unsafe { mmap(std::ptr::null_mut(), WINDOW_BYTES, PROT_READ_WRITE, MAP_SHARED, 1, 0) };
    if address.addr() == usize::MAX {
        return ExitCode::FAILURE;
    }
    // SAFETY: `address` is mapped, readable and writable for WINDOW_BYTES until the process ends. The loader's process
    // has set the window to this size before, and reads no part of it that an unanswered request names. This process
    // writes to such parts only.
    let window = unsafe { std::slice::from_raw_parts_mut(address.cast::<u8>(), WINDOW_BYTES) };
    // SAFETY: descriptor 0 is the socket, and nothing else here uses it.
    let socket = unsafe { File::from_raw_fd(0) };
    match serve(socket, window) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(mut socket: File, window: &mut [u8]) -> io::Result<()> {
    let mut request = [0; MAX_REQUEST_BYTES];
    let mut opened = Opened::Nothing;
    loop {
        let count = socket.read(&mut request)?;
        if count == 0 {
            return Ok(());
        }
        let understood = Request::from_bytes(&request[..count]).and_then(|(kind, span, range, path)| {
            let begin = span.offset as usize;
            let window = window.get_mut(begin..begin + span.length as usize)?;
            Some((kind, window, range, Path::new(OsStr::from_bytes(path))))
        });
        let answer = match understood {
            Some((Request::Read, window, range, path)) => read(&mut opened, path, window, &range),
            Some((Request::Stat, _, _, path)) => {
                fs::metadata(path).map(|metadata| about(&metadata)).map_err(not(Status::NotExamined))
            }
            Some((Request::List, window, _, path)) => list(&mut opened, path, window),
            Some((Request::More, window, ..)) => opened.more(window),
            Some((Request::Close, ..)) => {
                opened = Opened::Nothing;
                continue;
            }
            None => Err(Answer { status: Status::NotUnderstood, ..Answer::default() }),
        };
        let answer = answer.unwrap_or_else(|failed| failed);
        // A finished file is closed before the answer is sent: close can hang, too, and the deadline should cover it.
        if answer.is_last || answer.status != Status::Fine {
            opened = Opened::Nothing;
        }
        socket.write_all(&answer.to_bytes())?;
    }
}

/// The open object that is sent piece by piece.
enum Opened {
    Nothing,
    File { file: File, about: Answer, rest: Range<u64> },
    Directory { entries: Directory, about: Answer, waiting: Option<(std::ffi::OsString, bool)> },
}

/// The answer for a failed system call.
fn not(status: Status) -> impl Fn(io::Error) -> Answer {
    move |error| Answer { status, errno: error.raw_os_error().unwrap_or(EINVAL), ..Answer::default() }
}

fn about(metadata: &Metadata) -> Answer {
    Answer {
        is_last: true,
        mode: metadata.mode(),
        size_bytes: metadata.len(),
        mtime_ns: metadata.mtime().saturating_mul(1_000_000_000).saturating_add(metadata.mtime_nsec()),
        device: metadata.dev(),
        inode: metadata.ino(),
        ..Answer::default()
    }
}

fn read(opened: &mut Opened, path: &Path, window: &mut [u8], range: &Range<u64>) -> Result<Answer, Answer> {
    let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK | O_NOCTTY).open(path);
    let file = file.map_err(not(Status::NotOpened))?;
    let about = about(&file.metadata().map_err(not(Status::NotExamined))?);
    if about.mode & TYPE_OF_FILE != REGULAR {
        return Err(Answer { status: Status::NotRegular, ..about });
    }
    // Bytes beyond the end do not exist; the caller sees that from the size.
    let end = range.end.min(about.size_bytes);
    *opened = Opened::File { file, about, rest: range.start.min(end)..end };
    opened.more(window)
}

fn list(opened: &mut Opened, path: &Path, window: &mut [u8]) -> Result<Answer, Answer> {
    let entries = Directory::open(path).map_err(not(Status::NotListed))?;
    let about = about(&entries.metadata().map_err(not(Status::NotListed))?);
    *opened = Opened::Directory { entries, about, waiting: None };
    opened.more(window)
}

impl Opened {
    fn more(&mut self, window: &mut [u8]) -> Result<Answer, Answer> {
        match self {
            Self::Nothing => Err(Answer { status: Status::NotUnderstood, ..Answer::default() }),
            Self::File { file, about, rest } => {
                let begin = rest.start;
                let wanted = (rest.end - begin).min(window.len() as u64) as usize;
                let count = fill(file, &mut window[..wanted], begin)
                    .map_err(|failed| Answer { size_bytes: about.size_bytes, ..failed })?;
                rest.start += count as u64;
                let is_last = count < wanted || rest.is_empty();
                if is_last {
                    let after = self::about(&file.metadata().map_err(not(Status::NotExamined))?);
                    (about.size_after, about.mtime_after) = (after.size_bytes, after.mtime_ns);
                }
                Ok(Answer { is_last, count: count as u64, offset: begin, ..*about })
            }
            Self::Directory { entries, about, waiting } => {
                let mut used = 0;
                if let Some((name, is_directory)) = waiting.take() {
                    let taken = protocol::put_entry(window, name.as_bytes(), is_directory);
                    used = taken.ok_or(Answer { status: Status::NotUnderstood, ..Answer::default() })?;
                }
                let is_last = loop {
                    let Some((name, is_directory)) = entries.next().map_err(not(Status::NotListed))? else {
                        break true;
                    };
                    match protocol::put_entry(&mut window[used..], name.as_bytes(), is_directory) {
                        Some(taken) => used += taken,
                        None => {
                            *waiting = Some((name.to_owned(), is_directory));
                            break false;
                        }
                    }
                };
                Ok(Answer { is_last, count: used as u64, ..*about })
            }
        }
    }
}

/// Fills `piece`, or as much of it as the file has.
fn fill(file: &File, piece: &mut [u8], begin: u64) -> Result<usize, Answer> {
    let mut have = 0;
    while have < piece.len() {
        let offset = begin + have as u64;
        match file.read_at(&mut piece[have..], offset) {
            Ok(0) => break,
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Answer { offset, ..not(Status::NotRead)(error) }),
        }
    }
    Ok(have)
}
