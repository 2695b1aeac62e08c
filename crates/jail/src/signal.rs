//! Signals as a file descriptor, so that one poll loop waits for everything.

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;

/// A set of signals, blocked for the process and read from a descriptor instead.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    mask: libc::sigset_t,
    /// Whoever we work for, if we end with it.
    master: Option<Master>,
}

/// The other end of a pipe: when it is closed, by whatever death, that counts as one SIGTERM.
#[derive(Debug)]
struct Master {
    pipe: OwnedFd,
    /// Readable when either is: the signals, or the end of the pipe.
    both: OwnedFd,
    is_gone: Cell<bool>,
}

/// What an event of the pipe says.
const PIPE: u64 = 1;

impl Signals {
    /// Blocks the signals and opens the descriptor. Signals that the parent process set to be ignored (`nohup`, a
    /// background job) stay ignored. SIGCHLD gets its default action back: if it were ignored, we could not learn how a
    /// child ended.
    pub fn block(signals: &[i32]) -> std::io::Result<Self> {
        let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises the whole set before it is read; sigaddset, sigprocmask and signalfd get that valid set. No
        // handler is installed, only a default.
        unsafe {
            libc::sigemptyset(mask.as_mut_ptr());
            libc::signal(libc::SIGCHLD, libc::SIG_DFL);
            for signal in signals.iter().filter(|signal| !is_ignored(**signal)) {
                libc::sigaddset(mask.as_mut_ptr(), *signal);
            }
            let mask = mask.assume_init();
            if libc::sigprocmask(libc::SIG_BLOCK, &mask, std::ptr::null_mut()) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            let fd = libc::signalfd(-1, &mask, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(std::io::Error::last_os_error());
            }
            Ok(Self { fd: OwnedFd::from_raw_fd(fd), mask, master: None })
        }
    }

    /// The same for a process that ends with the one that holds the other end of `pipe`. Nothing may be written to it any more. Unlike
    /// the kernel's own signal for a parent's death, this outlives a change of ids.
    pub fn block_while_open(signals: &[i32], pipe: OwnedFd) -> std::io::Result<Self> {
        let mut blocked = Self::block(signals)?;
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&both, &blocked.fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        // That it was closed is always reported.
        epoll::add(&both, &pipe, epoll::EventData::new_u64(PIPE), epoll::EventFlags::empty())?;
        let master = Master { pipe, both, is_gone: Cell::new(false) };
        blocked.master = Some(master);
        Ok(blocked)
    }

    /// The next pending signal, if any.
    pub fn next(&self) -> std::io::Result<Option<i32>> {
        let mut info = [0u8; size_of::<libc::signalfd_siginfo>()];
        match rustix::io::read(&self.fd, &mut info) {
            Ok(length) if length == info.len() => {
                let number = info.first_chunk::<4>().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
                Ok(Some(number as i32))
            }
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(self.master.as_ref().and_then(Master::loss)),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Master {
    /// SIGTERM, once.
    fn loss(&self) -> Option<i32> {
        if self.is_gone.get() {
            return None;
        }
        let mut events = [MaybeUninit::uninit(); 2];
        let at_once = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let (events, _) = epoll::wait(&self.both, &mut events, Some(&at_once)).ok()?;
        events.iter().any(|event| event.data.u64() == PIPE).then(|| {
            self.is_gone.set(true);
            // It would be reported for ever. The pipe is open, so this can't fail.
            let _ = epoll::delete(&self.both, &self.pipe);
            libc::SIGTERM
        })
    }
}

fn is_ignored(signal: i32) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: only asks, into a struct of the right type, which the call fills in when it succeeds; zeroes are valid besides.
    unsafe {
        libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        // SAFETY: the set was initialised by `block`, and no old set is asked for.
        unsafe { libc::sigprocmask(libc::SIG_UNBLOCK, &self.mask, std::ptr::null_mut()) };
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.master.as_ref().map_or(self.fd.as_fd(), |master| master.both.as_fd())
    }
}
