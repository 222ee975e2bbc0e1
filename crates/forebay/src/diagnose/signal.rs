//! A signal that wakes a thread. The handler does what a handler may: it writes one byte to a pipe, and calls the handler
//! that was there before. Everything else happens in a thread of its own, which needs neither the main thread nor the
//! interpreter: it also answers while those are stuck in a collective.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};
use std::thread::Builder;

use forebay_core::{Error, Result};

/// Linux has signals 1 to 64.
const SIGNALS: usize = 65;
/// These cannot be caught, or tell of a fault that would come again as soon as the handler returns.
const REFUSED: [i32; 9] = [
    libc::SIGKILL,
    libc::SIGSTOP,
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// The end of the pipe that handlers write to.
static SIGNAL_PIPE: AtomicI32 = AtomicI32::new(-1);
/// The process whose thread listens to it: a forked child has the handler, and not the thread.
static LISTENING: AtomicU32 = AtomicU32::new(0);
/// By signal, the handler that was there before.
static BEFORE: [Before; SIGNALS] = [const { Before::none() }; SIGNALS];

struct Before {
    /// The handler here was put in its place.
    is_taken: AtomicBool,
    handler: AtomicUsize,
    flags: AtomicI32,
}

impl Before {
    const fn none() -> Self {
        Self { is_taken: AtomicBool::new(false), handler: AtomicUsize::new(0), flags: AtomicI32::new(0) }
    }

    /// Async-signal-safe, as far as the handler before is.
    fn call(&self, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
        let (handler, flags) = (self.handler.load(SeqCst), self.flags.load(SeqCst));
        if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
            return;
        }
        if flags & libc::SA_SIGINFO == 0 {
            // SAFETY: the system gave it as a handler of this kind, and it is none of the two constants.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(handler) };
            handler(signal);
        } else {
            type WithInfo = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: as above; the flags say that it takes three arguments.
            let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
            handler(signal, info, context);
        }
    }
}

/// Async-signal-safe: atomics, system calls, and the handler before.
extern "C" fn ring(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is this thread's own; getpid and write are async-signal-safe and take valid arguments.
    unsafe {
        let errno = *libc::__errno_location();
        if LISTENING.load(SeqCst) == libc::getpid() as u32 {
            let byte = signal as u8;
            // A pipe that is full has enough to tell.
            libc::write(SIGNAL_PIPE.load(SeqCst), (&raw const byte).cast(), 1);
        }
        if let Some(before) = BEFORE.get(signal as usize) {
            before.call(signal, info, context);
        }
        *libc::__errno_location() = errno;
    }
}

/// Calls `action` with the signal, in a thread of its own, whenever it comes; again is no different from once. A handler
/// that is there already is called as well.
pub(crate) fn on_signal(signal: i32, action: fn(i32)) -> Result<()> {
    static REGISTERING: Mutex<()> = Mutex::new(());
    if signal < 1 || signal as usize >= SIGNALS || REFUSED.contains(&signal) {
        return Err(Error::config(format!("signal: expected one that a program may take, got {signal}"))
            .with_hint("SIGUSR1 and SIGUSR2 are free for programs to use"));
    }
    let _alone = REGISTERING.lock().unwrap_or_else(PoisonError::into_inner);
    listen(action)?;
    let is_ours = install(signal).map_err(|error| Error::io(&format!("made to answer signal {signal}"), error))?;
    if is_ours {
        return Ok(());
    }
    // Whether that one calls this one cannot be seen; if it does, each would call the other for ever.
    Err(Error::config(format!("signal {signal}: another handler was installed after this one"))
        .with_hint("call this once, after whatever else takes the signal, or choose another signal"))
}

/// Puts the handler in place; `false` if it was there and another one has taken its place since.
fn install(signal: i32) -> io::Result<bool> {
    // SAFETY: zero is a valid sigaction, and the pointers are to such.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, std::ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let handler = ring as extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) as usize;
        let slot = &BEFORE[signal as usize];
        if before.sa_sigaction == handler || slot.is_taken.load(SeqCst) {
            return Ok(before.sa_sigaction == handler);
        }
        // Kept before the handler can run.
        slot.handler.store(before.sa_sigaction, SeqCst);
        slot.flags.store(before.sa_flags, SeqCst);
        // A handler before this one decides: Python wants system calls to end, or its own handlers run only after them.
        let has_handler = before.sa_sigaction != libc::SIG_DFL && before.sa_sigaction != libc::SIG_IGN;
        let restart = if has_handler { before.sa_flags & libc::SA_RESTART } else { libc::SA_RESTART };
        let mut after = before;
        after.sa_sigaction = handler;
        after.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | restart;
        if libc::sigaction(signal, &after, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        slot.is_taken.store(true, SeqCst);
        Ok(true)
    }
}

/// Starts the thread that waits for signals, once in each process.
fn listen(action: fn(i32)) -> Result<()> {
    let own = std::process::id();
    if LISTENING.load(SeqCst) == own {
        return Ok(());
    }
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Error::io("given a pipe", io::Error::last_os_error()));
    }
    // SAFETY: they were just made, and no other code has them.
    let (mut receiver, sender) = unsafe { (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1])) };
    // SAFETY: the descriptor is open. A handler must never wait.
    unsafe { libc::fcntl(sender.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    let wait = move || {
        let mut signal = [0];
        // It ends with the process: the other end is never closed.
        while receiver.read_exact(&mut signal).is_ok() {
            // The panic hook has reported it already.
            let _panicked = std::panic::catch_unwind(|| action(i32::from(signal[0])));
        }
    };
    Builder::new().name("forebay-dump".to_owned()).spawn(wait).map_err(|error| Error::io("given a thread", error))?;
    // A forked child's copy of its parent's pipe stays open: closing it could meet a handler that writes to it.
    SIGNAL_PIPE.store(std::os::fd::IntoRawFd::into_raw_fd(sender), SeqCst);
    LISTENING.store(own, SeqCst);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    static RUNG: AtomicU64 = AtomicU64::new(0);
    static CALLED: AtomicU64 = AtomicU64::new(0);

    extern "C" fn earlier(signal: i32) {
        CALLED.fetch_add(signal as u64, SeqCst);
    }

    fn wait_for(count: &AtomicU64, expected: u64) {
        let until = Instant::now() + Duration::from_secs(10);
        while count.load(SeqCst) != expected {
            assert!(Instant::now() < until, "{} of {expected}", count.load(SeqCst));
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_signal_wakes_the_thread_and_calls_the_handler_before() {
        let signal = libc::SIGRTMIN() + 3;
        // SAFETY: the handler is async-signal-safe; nothing else uses this signal.
        unsafe { libc::signal(signal, earlier as extern "C" fn(i32) as usize) };
        let action: fn(i32) = |signal| {
            RUNG.fetch_add(signal as u64, SeqCst);
        };
        for times in 1..=3 {
            on_signal(signal, action).unwrap(); // again is no different from once
            // SAFETY: takes no memory; the handler is installed.
            assert_eq!(unsafe { libc::raise(signal) }, 0);
            assert_eq!(CALLED.load(SeqCst), times * signal as u64);
            wait_for(&RUNG, times * signal as u64);
        }
        // SAFETY: as above.
        unsafe { libc::signal(signal, earlier as extern "C" fn(i32) as usize) };
        let error = on_signal(signal, action).unwrap_err();
        assert!(error.to_string().contains("another handler was installed after this one"), "{error}");
    }

    #[test]
    fn what_no_program_may_take_is_refused() {
        for signal in [0, -1, 65, libc::SIGKILL, libc::SIGSTOP, libc::SIGSEGV] {
            let error = on_signal(signal, |_| ()).unwrap_err();
            assert!(error.to_string().contains(&format!("got {signal}")), "{error}");
        }
    }
}
