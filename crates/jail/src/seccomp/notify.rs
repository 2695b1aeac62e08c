//! The host's end of a telling refusal: receive the refused call, describe it, answer it.
//!
//! The caller blocks in each refused call until it is answered, so the owner of a [`Listener`] must serve it or drop
//! it: without a listener the kernel answers ENOSYS by itself. There is deliberately no way to let a call through
//! (`SECCOMP_USER_NOTIF_FLAG_CONTINUE`): the arguments may have changed since they were checked.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use super::{arch, rules};

/// The listening end of an installed filter.
#[derive(Debug)]
pub struct Listener {
    fd: OwnedFd,
}

impl Listener {
    /// Wraps the descriptor that [`super::Filter::install`] returned, usually after it was passed to the host.
    pub fn from_fd(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Takes the next refused call; `None` if its caller died or was interrupted first.
    ///
    /// Blocks if nothing is waiting, whatever the descriptor's flags: poll for readability first, and let only one
    /// thread receive. A hang-up without readability means that the last process under the filter is gone.
    pub fn receive(&self) -> io::Result<Option<Notification>> {
        loop {
            // SAFETY: all zeroes is a valid value of this struct of integers; the kernel insists on it.
            let mut request: libc::seccomp_notif = unsafe { std::mem::zeroed() };
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_RECV, &mut request) {
                Ok(()) => return Ok(Some(Notification::from(request))),
                Err(Errno::NOENT) => return Ok(None),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a refused call with an error. A caller that has died needs no answer.
    pub fn refuse(&self, notification: &Notification, errno: Errno) -> io::Result<()> {
        self.answer(notification, Err(errno))
    }

    /// Answers a call that was made on the caller's behalf, with 0 or the resulting error.
    pub fn answer(&self, notification: &Notification, made: Result<(), Errno>) -> io::Result<()> {
        let error = made.err().map_or(0, |errno| -errno.raw_os_error());
        let mut response = libc::seccomp_notif_resp { id: notification.id, val: 0, error, flags: 0 };
        loop {
            match self.ioctl(libc::SECCOMP_IOCTL_NOTIF_SEND, &mut response) {
                Ok(()) | Err(Errno::NOENT) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Whether the caller still waits for this answer. If so, a pidfd that was opened by its pid before does refer to
    /// the caller: no other process can have had the pid in the meantime.
    pub(crate) fn is_waiting(&self, notification: &Notification) -> bool {
        let mut id = notification.id;
        self.ioctl(libc::SECCOMP_IOCTL_NOTIF_ID_VALID, &mut id).is_ok()
    }

    fn ioctl<T>(&self, request: libc::Ioctl, argument: &mut T) -> Result<(), Errno> {
        // SAFETY: the requests carry the size of their argument in their number and all callers pass just that, so
        // the kernel reads and writes within `argument`; on any other descriptor it refuses the number.
        let answer = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
        if answer == 0 {
            return Ok(());
        }
        Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A refused call that waits for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notification {
    /// The kernel's cookie for this one call.
    pub id: u64,
    /// The calling thread, in the pid namespace of the listener's owner; 0 if it is not visible there.
    pub pid: u32,
    pub nr: u32,
    /// Its arguments as the filter saw them: register values, which can't change afterwards.
    pub args: [u64; 6],
}

impl From<libc::seccomp_notif> for Notification {
    fn from(request: libc::seccomp_notif) -> Self {
        Self { id: request.id, pid: request.pid, nr: request.data.nr.cast_unsigned(), args: request.data.args }
    }
}

/// The refused call, the rule, and the error the caller gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The kernel's name of the call.
    pub syscall: &'static str,
    /// The stable id of the rule, such as `seccomp/mounts`.
    pub rule: &'static str,
    pub errno: Errno,
}

/// What to do about a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Refuse(Refusal),
    /// Make it, as far as the bound allows: see [`crate::Waiting`].
    Bound(Refusal),
}

/// Describes a notification, from the same table as the filter.
pub fn verdict(notification: &Notification) -> Verdict {
    let syscall = arch::name(notification.nr).unwrap_or("unknown");
    let clause = rules::rule_of(notification.nr).iter().find(|clause| clause.applies(&notification.args));
    match clause {
        Some(clause) if clause.answer == rules::Answer::Bounded => {
            Verdict::Bound(Refusal { syscall, rule: clause.group.rule(), errno: Errno::NOBUFS })
        }
        Some(clause) => Verdict::Refuse(Refusal { syscall, rule: clause.group.rule(), errno: clause.answer.errno() }),
        // The kernel asked about a call that this table allows, so the filter comes from another build. Refuse it.
        None => Verdict::Refuse(Refusal { syscall, rule: rules::Group::Unlisted.rule(), errno: Errno::NOSYS }),
    }
}
