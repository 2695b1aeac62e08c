//! The agent's system calls on descriptors and signals, as safe functions.
//!
//! Deliberately thin: one call each, interrupted calls repeated, errors as numbers. A descriptor is owned by its [`Fd`]
//! and closed with it, and every one is created close-on-exec.

use core::ffi::c_int;
use core::mem::MaybeUninit;

/// An error number of the kernel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Errno(pub(super) i32);

impl Errno {
    pub(super) fn last() -> Errno {
        // SAFETY: the C library returns a valid pointer to this thread's errno.
        Errno(unsafe { *libc::__errno_location() })
    }
}

/// An open descriptor.
pub(super) struct Fd(c_int);

impl Fd {
    /// Takes ownership of a descriptor that the process was started with.
    pub(super) fn inherited(raw: c_int) -> Result<Fd, Errno> {
        // SAFETY: fcntl with these commands touches no memory.
        let result = unsafe { libc::fcntl(raw, libc::F_SETFD, libc::FD_CLOEXEC) };
        if result < 0 { Err(Errno::last()) } else { Ok(Fd(raw)) }
    }

    /// Takes ownership of a descriptor that a system call returned.
    pub(super) fn returned(result: c_int) -> Result<Fd, Errno> {
        if result < 0 { Err(Errno::last()) } else { Ok(Fd(result)) }
    }

    /// Takes ownership of a descriptor that the kernel delivered with a message.
    pub(super) fn received(raw: c_int) -> Fd {
        Fd(raw)
    }

    pub(super) fn raw(&self) -> c_int {
        self.0
    }

    /// A second descriptor for the same open file.
    pub(super) fn duplicate(&self) -> Result<Fd, Errno> {
        // SAFETY: fcntl with this command touches no memory.
        Fd::returned(unsafe { libc::fcntl(self.0, libc::F_DUPFD_CLOEXEC, 3) })
    }

    pub(super) fn set_nonblocking(&self) -> Result<(), Errno> {
        self.change_flags(|flags| flags | libc::O_NONBLOCK)
    }

    pub(super) fn set_blocking(&self) -> Result<(), Errno> {
        self.change_flags(|flags| flags & !libc::O_NONBLOCK)
    }

    fn change_flags(&self, change: impl Fn(c_int) -> c_int) -> Result<(), Errno> {
        // SAFETY: fcntl with these commands touches no memory.
        let result = unsafe {
            let flags = libc::fcntl(self.0, libc::F_GETFL);
            if flags < 0 { flags } else { libc::fcntl(self.0, libc::F_SETFL, change(flags)) }
        };
        check(result)
    }

    /// The device number, if this is a character device.
    pub(super) fn device(&self) -> Result<Option<libc::dev_t>, Errno> {
        let mut status = MaybeUninit::<libc::stat>::uninit();
        // SAFETY: fstat fills in the whole struct when it succeeds, and only then is it read.
        let status = unsafe {
            check(libc::fstat(self.0, status.as_mut_ptr()))?;
            status.assume_init()
        };
        Ok((status.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(status.st_rdev))
    }

    /// Changes the owner of the open file, and its group if one is given.
    pub(super) fn give_to(&self, uid: u32, gid: Option<u32>) -> Result<(), Errno> {
        // SAFETY: fchown touches no memory.
        check(unsafe { libc::fchown(self.0, uid, gid.unwrap_or(u32::MAX)) })
    }

    pub(super) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        retry(|| {
            // SAFETY: the pointer and the length are those of one writable slice.
            unsafe { libc::read(self.0, buffer.as_mut_ptr().cast(), buffer.len()) }
        })
    }

    pub(super) fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        retry(|| {
            // SAFETY: the pointer and the length are those of one readable slice.
            unsafe { libc::write(self.0, bytes.as_ptr().cast(), bytes.len()) }
        })
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        // SAFETY: this value owns the descriptor, so it isn't used afterwards. A failure of close would change nothing.
        unsafe { libc::close(self.0) };
    }
}

/// The read end and the write end of a pipe.
pub(super) fn pipe() -> Result<(Fd, Fd), Errno> {
    let mut ends = [0; 2];
    // SAFETY: pipe2 writes two descriptors into an array of two.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((Fd(ends[0]), Fd(ends[1])))
}

/// Opens one of the sandbox's fixed paths.
pub(super) fn open(path: &core::ffi::CStr, flags: c_int) -> Result<Fd, Errno> {
    // SAFETY: the path is a C string; without O_CREAT no mode is read.
    Fd::returned(unsafe { libc::open(path.as_ptr(), flags | libc::O_CLOEXEC) })
}

pub(super) fn is_open(raw: c_int) -> bool {
    // SAFETY: fcntl with this command touches no memory.
    unsafe { libc::fcntl(raw, libc::F_GETFD) >= 0 }
}

/// Closes every descriptor from `first` on.
pub(super) fn close_from(first: c_int) -> Result<(), Errno> {
    // SAFETY: callers own the descriptors above `first` or know that nothing uses them; the call touches no memory.
    let result = unsafe { libc::syscall(libc::SYS_close_range, first as u32, u32::MAX, 0) };
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

/// Waits until something in `entries` is ready, or as long as `wait` says.
pub(super) fn poll(entries: &mut [libc::pollfd], wait: Wait) -> Result<(), Errno> {
    let timeout = match wait {
        Wait::Forever => -1,
        Wait::Never => 0,
        Wait::Millis(millis) => millis.into(),
    };
    retry(|| {
        // SAFETY: the pointer and the count are those of one slice.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, timeout) as isize }
    })
    .map(|_| ())
}

/// Whether there is something to read now; an end of file doesn't count.
pub(super) fn is_readable(fd: &Fd) -> bool {
    let mut entries = [libc::pollfd { fd: fd.raw(), events: libc::POLLIN, revents: 0 }];
    poll(&mut entries, Wait::Never).is_ok() && entries[0].revents & libc::POLLIN != 0
}

#[derive(Clone, Copy)]
pub(super) enum Wait {
    Forever,
    Never,
    Millis(u16),
}

/// Blocks SIGCHLD, and nothing else, and returns a descriptor that is readable while it is pending.
pub(super) fn child_signals() -> Result<Fd, Errno> {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigemptyset initialises the set before anything reads it.
    unsafe {
        libc::sigemptyset(mask.as_mut_ptr());
        libc::sigaddset(mask.as_mut_ptr(), libc::SIGCHLD);
        check(libc::sigprocmask(libc::SIG_SETMASK, mask.as_ptr(), core::ptr::null_mut()))?;
        Fd::returned(libc::signalfd(-1, mask.as_ptr(), libc::SFD_CLOEXEC | libc::SFD_NONBLOCK))
    }
}

/// Blocks every signal that can be blocked.
pub(super) fn block_signals() -> Result<(), Errno> {
    let mut mask = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: sigfillset initialises the set before sigprocmask reads it.
    unsafe {
        libc::sigfillset(mask.as_mut_ptr());
        check(libc::sigprocmask(libc::SIG_SETMASK, mask.as_ptr(), core::ptr::null_mut()))
    }
}

/// The highest signal number Linux has.
const SIGNAL_MAX: c_int = 64;

/// Resets every signal to its default action.
pub(super) fn default_dispositions() {
    for signal in 1..=SIGNAL_MAX {
        // All zeroes are the kernel's struct sigaction for the default. Doesn't use the C library, which would leave
        // its own thread signals as inherited from the host. KILL and STOP are refused, and are at their default
        // anyway.
        let default = [0u64; 4];
        // SAFETY: the kernel reads at most four words, the last being a signal set of eight bytes, and writes nothing back.
        unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), core::ptr::null::<u64>(), 8usize) };
    }
}

/// Sets a signal's action: `SIG_DFL` or `SIG_IGN`.
pub(super) fn set_disposition(signal: c_int, disposition: libc::sighandler_t) -> Result<(), Errno> {
    // SAFETY: neither disposition is a function, so no code of ours runs in a signal's context.
    if unsafe { libc::signal(signal, disposition) } == libc::SIG_ERR { Err(Errno::last()) } else { Ok(()) }
}

/// A `prctl` whose arguments are all numbers.
pub(super) fn prctl(option: c_int, first: libc::c_ulong, second: libc::c_ulong) -> Result<c_int, Errno> {
    // SAFETY: callers pass options that take numbers, so the kernel follows no pointer.
    let result = unsafe { libc::prctl(option, first, second, 0 as libc::c_ulong, 0 as libc::c_ulong) };
    if result < 0 { Err(Errno::last()) } else { Ok(result) }
}

/// Converts a call's return value of 0 or -1 into a result.
pub(super) fn check(result: c_int) -> Result<(), Errno> {
    if result < 0 { Err(Errno::last()) } else { Ok(()) }
}

pub(super) fn retry(mut call: impl FnMut() -> isize) -> Result<usize, Errno> {
    loop {
        match usize::try_from(call()) {
            Ok(count) => return Ok(count),
            Err(_) => match Errno::last() {
                Errno(libc::EINTR) => continue,
                error => return Err(error),
            },
        }
    }
}
