//! The SIGBUS handler: a page of a mapping that the file no longer has, or that the disk does not give, becomes a page of
//! zeros and a mark. Every other SIGBUS goes to the handlers that are there besides.

use std::cell::Cell;
use std::io;
use std::mem::{MaybeUninit, transmute};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst};

use libc::{SIG_DFL, SIG_IGN, SIGBUS, c_int, c_void, siginfo_t};
use parking_lot::Mutex;

use super::registry;

/// The handler that was there before the first file was mapped.
static FIRST: Handler = Handler::default();
/// The last one that has been installed over ours: ours was put in front of it again.
static NEWER: Handler = Handler::default();
/// The thread that is in `NEWER`. If that one raises the signal again, the one before ours is meant.
static IN_NEWER: AtomicI32 = AtomicI32::new(0);
/// The address of the last fault that is not ours, and how often it was reported in a row.
static LAST_FAULT: (AtomicUsize, AtomicUsize) = (AtomicUsize::new(0), AtomicUsize::new(0));
/// A handler that neither repairs a fault nor ends the process gets it so often before the next older one does.
const MAX_REPEATS: usize = 16;
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// A handler as the system has it, in one word, so that it is never half of one and half of another.
struct Handler(AtomicUsize);

impl Handler {
    /// Bits that no address has.
    const TAKES_INFO: usize = 1 << 63;
    const IS_FOR_ONE_SIGNAL: usize = 1 << 62;
    const ADDRESS: usize = Self::IS_FOR_ONE_SIGNAL - 1;

    const fn default() -> Self {
        Self(AtomicUsize::new(SIG_DFL))
    }

    fn set(&self, action: &libc::sigaction) {
        let flag = |flag: c_int, bit: usize| if action.sa_flags & flag != 0 { bit } else { 0 };
        let bits = flag(libc::SA_SIGINFO, Self::TAKES_INFO) | flag(libc::SA_RESETHAND, Self::IS_FOR_ONE_SIGNAL);
        self.0.store(action.sa_sigaction | bits, SeqCst);
    }

    /// Async-signal-safe, as far as the handler is.
    fn call(&self, info: *mut siginfo_t, context: *mut c_void) {
        let word = self.0.load(SeqCst);
        let address = word & Self::ADDRESS;
        // SAFETY: the system gives the handler a valid siginfo_t.
        let is_fault = unsafe { (*info).si_code } > 0;
        if address == SIG_IGN && !is_fault {
            return;
        }
        if address == SIG_DFL || address == SIG_IGN {
            // A fault comes again as soon as the handler returns. It cannot be ignored.
            // SAFETY: zero is a valid sigaction, and SIG_DFL; sigaction and raise are async-signal-safe.
            unsafe {
                libc::sigaction(SIGBUS, &MaybeUninit::zeroed().assume_init(), ptr::null_mut());
                if !is_fault {
                    libc::raise(SIGBUS);
                }
            }
            return;
        }
        if word & Self::IS_FOR_ONE_SIGNAL != 0 {
            self.0.store(SIG_DFL, SeqCst);
        }
        if word & Self::TAKES_INFO != 0 {
            // SAFETY: the system had it as a handler that takes three arguments, and it is none of the two constants.
            let handler = unsafe { transmute::<usize, extern "C" fn(c_int, *mut siginfo_t, *mut c_void)>(address) };
            handler(SIGBUS, info, context);
        } else {
            // SAFETY: the same, of one argument.
            let handler = unsafe { transmute::<usize, extern "C" fn(c_int)>(address) };
            handler(SIGBUS);
        }
    }
}

/// Async-signal-safe: atomics, system calls, and the handlers besides.
extern "C" fn on_bus_error(_signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: errno is this thread's own, and the system gives the handler a valid siginfo_t. An address is in it
    // whenever the kernel reports a fault, which `si_code` says.
    let (errno, code, address) = unsafe { (*libc::__errno_location(), (*info).si_code, (*info).si_addr() as usize) };
    // Not BUS_MCEERR_AO: memory that no instruction needs now.
    let is_read = matches!(code, libc::BUS_ADRERR | libc::BUS_OBJERR | libc::BUS_MCEERR_AR);
    if !(is_read && replace(address)) {
        pass_on(code > 0, address, info, context);
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Marks the mapping with this address, and puts zeros in place of it from there to its end.
fn replace(address: usize) -> bool {
    let Some(addresses) = registry::cut(address) else { return false };
    let page = address & !(PAGE_BYTES.load(SeqCst) - 1);
    let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // As a system call: allocators and profilers put functions of their own in place of the C library's.
    // SAFETY: the pages belong to a mapping of ours, which the faulting thread holds while it reads from it, and which is
    // only read by copies whose bytes are discarded if the mapping is marked.
    let mapped = unsafe {
        libc::syscall(libc::SYS_mmap, page, addresses.end - page, libc::PROT_READ, flags, -1 as c_int, 0 as libc::off_t)
    };
    mapped != -1
}

/// Calls the handler that would have had the signal without ours.
fn pass_on(is_fault: bool, address: usize, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: takes nothing and is async-signal-safe.
    let own = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
    let is_again = is_fault && LAST_FAULT.0.swap(address, SeqCst) == address;
    if !is_again {
        LAST_FAULT.1.store(0, SeqCst);
    }
    let repeats = LAST_FAULT.1.fetch_add(usize::from(is_again), SeqCst);
    let is_raised_by_newer = !is_fault && IN_NEWER.load(SeqCst) == own;
    if NEWER.0.load(SeqCst) == SIG_DFL || is_raised_by_newer || repeats > MAX_REPEATS {
        return FIRST.call(info, context);
    }
    IN_NEWER.store(own, SeqCst);
    NEWER.call(info, context);
    IN_NEWER.store(0, SeqCst);
}

/// Makes the handler the first one for this process, and lets this thread have the signal. Cheap once that is so: others
/// install handlers at any time.
pub(super) fn arm() -> io::Result<()> {
    unblock()?;
    if is_ours(&current()?) { Ok(()) } else { install() }
}

fn current() -> io::Result<libc::sigaction> {
    let mut action = MaybeUninit::zeroed();
    // SAFETY: there is room for what is asked for.
    match unsafe { libc::sigaction(SIGBUS, ptr::null(), action.as_mut_ptr()) } {
        // SAFETY: zero is a valid sigaction, and the system has written another one.
        0 => Ok(unsafe { action.assume_init() }),
        _ => Err(io::Error::last_os_error()),
    }
}

fn handler() -> usize {
    on_bus_error as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as usize
}

fn is_ours(action: &libc::sigaction) -> bool {
    action.sa_sigaction == handler()
}

#[cold]
fn install() -> io::Result<()> {
    /// Whether it was installed before.
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut installed = INSTALLED.lock();
    let before = current()?;
    if is_ours(&before) {
        return Ok(());
    }
    // SAFETY: takes a name and gives a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page_bytes).map_err(io::Error::other)?, SeqCst);
    // Kept before ours can run.
    match *installed {
        // Back to the default: the handler that was there has been removed since, and the one before it too.
        true if before.sa_sigaction == SIG_DFL => {
            FIRST.set(&before);
            NEWER.set(&before);
        }
        true => NEWER.set(&before),
        false => FIRST.set(&before),
    }
    let mut ours = before;
    ours.sa_sigaction = handler();
    // NODEFER: a handler that raises the signal again means it to come at once.
    let restart = if before.sa_sigaction == SIG_DFL { libc::SA_RESTART } else { before.sa_flags & libc::SA_RESTART };
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | restart;
    // SAFETY: it is a valid sigaction with a handler that is async-signal-safe.
    if unsafe { libc::sigaction(SIGBUS, &ours, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    *installed = true;
    Ok(())
}

/// A fault in a thread that blocks its signal ends the process, whatever the handler.
fn unblock() -> io::Result<()> {
    thread_local!(static IS_UNBLOCKED: Cell<bool> = const { Cell::new(false) });
    if IS_UNBLOCKED.get() {
        return Ok(());
    }
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset makes a valid set of it, which the others take.
    let errno = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), SIGBUS);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut())
    };
    if errno != 0 {
        return Err(io::Error::from_raw_os_error(errno));
    }
    IS_UNBLOCKED.set(true);
    Ok(())
}

/// The size of a page, once the handler is armed.
pub(super) fn page_bytes() -> usize {
    PAGE_BYTES.load(SeqCst)
}
