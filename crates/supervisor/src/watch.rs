//! Watching the filter's questions: every telling syscall is refused, told of, and answered no faster than a named rate.
//!
//! The rate matters: each answer costs the host a little outside the sandbox's CPU limit, and a program that asks in a loop
//! must not be able to spend that without end. It waits instead.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use saggar_domain::{Denial, DenialCode};
use saggar_jail::seccomp::{Listener, verdict};

/// Answered at once before the rate holds.
const BURST: u32 = 256;
/// Between two answers afterwards.
const INTERVAL: Duration = Duration::from_millis(10);

/// What happened inside, as it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The program runs.
    Started,
    /// A telling syscall was refused.
    Refused(Refused),
}

/// A refused syscall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Its name.
    pub syscall: &'static str,
    /// The rule that refused it.
    pub rule: &'static str,
}

impl Refused {
    /// What is said of it.
    pub fn to_denial(self) -> Denial {
        Denial {
            code: DenialCode::SyscallRefused,
            rule: self.rule.to_owned(),
            message: format!(
                "a program called {}, which the {} rule refuses in every sandbox of this tier",
                self.syscall, self.rule
            ),
        }
    }
}

/// The filter's listener with its rate.
#[derive(Debug)]
pub(crate) struct Watch {
    listener: Option<Listener>,
    left: u32,
    next: Option<Instant>,
}

impl Watch {
    pub(crate) fn new(listener: Option<Listener>) -> Self {
        Self { listener, left: BURST, next: None }
    }

    /// The descriptor to wait for, unless the rate says to wait for the time.
    pub(crate) fn waiting_on(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().filter(|_| self.next.is_none_or(|next| now >= next)).map(AsFd::as_fd)
    }

    /// When the rate allows the next answer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.listener.as_ref().and(self.next)
    }

    /// Refuses the call that waits. A hang-up without a question means that nobody is left to ask.
    pub(crate) fn answer(&mut self, now: Instant) -> Option<Refused> {
        let mut polls = [PollFd::from_borrowed_fd(self.waiting_on(now)?, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut polls, Some(&at_once)).is_err() || !polls[0].revents().contains(PollFlags::IN) {
            self.listener = None;
            return None;
        }
        let listener = self.listener.as_ref()?;
        let notification = match listener.receive() {
            Ok(notification) => notification?,
            // Without a listener the kernel refuses by itself, which is as good.
            Err(_) => {
                self.listener = None;
                return None;
            }
        };
        let refusal = verdict(&notification);
        if listener.refuse(&notification, refusal.errno).is_err() {
            self.listener = None;
        }
        self.left = self.left.saturating_sub(1);
        self.next = (self.left == 0).then(|| now + INTERVAL);
        Some(Refused { syscall: refusal.syscall, rule: refusal.rule })
    }
}
