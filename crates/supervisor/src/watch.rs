//! Answers the filter's notifications: every telling call is refused, reported, and answered at a limited rate. A
//! `listen` is made on the program's behalf, unless too many connections may wait already.
//!
//! The rate matters: each answer costs the host a little outside the sandbox's CPU limit, and a program that makes such
//! calls in a loop must not spend that without end. It waits instead.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use saggar_domain::{Denial, DenialCode};
use saggar_jail::Waiting;
use saggar_jail::seccomp::{Group, Listener, Verdict, verdict};

use crate::egress::FromEgress;

/// Number of calls answered at once before the rate applies.
const BURST: u32 = 256;
/// Time between two answers afterwards, and the time to regain one of the burst.
const INTERVAL: Duration = Duration::from_millis(10);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// The program runs.
    Started,
    /// A telling call was refused.
    Refused(Refused),
    /// The egress process says something, usually a decision.
    Egress(FromEgress),
    /// The egress process is gone, and with it the sandbox's network, until another one is there.
    NetworkLost { is_for_good: bool },
    /// Another egress process serves it.
    NetworkRestored,
}

/// A refused syscall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    pub syscall: &'static str,
    pub rule: &'static str,
    pub answered: Answered,
}

/// How a call was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    AtOnce,
    /// The burst is used up, so the next call has to wait. A program that makes many such calls seems to hang.
    Slowly,
}

impl Refused {
    pub fn to_denial(self) -> Denial {
        let message = if self.answered == Answered::Slowly {
            format!(
                "a program called {} so often that it is slowed down: after {BURST} calls at once, the host answers one call of this kind every {} ms",
                self.syscall,
                INTERVAL.as_millis()
            )
        } else if self.rule == Group::Listeners.rule() {
            format!(
                "a program made the system call {}, and the {} rule allows no more waiting connections in this sandbox: close listeners that are not needed, or give it more memory",
                self.syscall, self.rule
            )
        } else {
            format!(
                "a program made the system call {}, which the {} rule refuses in every sandbox of this tier",
                self.syscall, self.rule
            )
        };
        Denial { code: DenialCode::SyscallRefused, rule: self.rule.to_owned(), message }
    }
}

#[derive(Debug)]
pub(crate) struct Watch {
    listener: Option<Listener>,
    waiting: Waiting,
    pace: Pace,
}

impl Watch {
    pub(crate) fn new(listener: Option<Listener>, memory_bytes: u64) -> Self {
        let waiting = Waiting::new(Waiting::connections_for(memory_bytes));
        Self { listener, waiting, pace: Pace::default() }
    }

    /// The descriptor to wait for, unless the rate requires waiting for time to pass.
    pub(crate) fn waiting_on(&self, now: Instant) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().filter(|_| self.pace.next(now).is_none()).map(AsFd::as_fd)
    }

    /// When the rate allows the next answer, if it doesn't now. Never in the past, where a wait would return at once.
    pub(crate) fn next(&self, now: Instant) -> Option<Instant> {
        self.listener.as_ref().and(self.pace.next(now))
    }

    /// Answers the waiting call, and returns what was refused or is slowed down from now on. A hang-up without a
    /// notification means that no process is left. `look` gets the calling thread, which waits until `look` returns.
    pub(crate) fn answer<T>(&mut self, now: Instant, look: impl FnOnce(u32) -> T) -> Option<(Refused, T)> {
        let mut polls = [PollFd::from_borrowed_fd(self.waiting_on(now)?, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        if poll(&mut polls, Some(&at_once)).is_err() || !polls[0].revents().contains(PollFlags::IN) {
            self.listener = None;
            return None;
        }
        let listener = self.listener.as_ref()?;
        let notification = match listener.receive() {
            Ok(notification) => notification?,
            // Without a listener the kernel refuses by itself, which is just as good.
            Err(_) => {
                self.listener = None;
                return None;
            }
        };
        let (answer, refusal, is_refused) = match verdict(&notification) {
            Verdict::Refuse(refusal) => (Err(refusal.errno), refusal, true),
            Verdict::Bound(refusal) => {
                let made = self.waiting.listen(listener, &notification);
                // Any other error is the kernel's answer to the program's call, such as a port that is in use.
                (made, refusal, made == Err(refusal.errno))
            }
        };
        let seen = look(notification.pid);
        if listener.answer(&notification, answer).is_err() {
            self.listener = None;
        }
        self.pace.spend(now);
        let answered = if self.pace.next(now).is_some() { Answered::Slowly } else { Answered::AtOnce };
        let refused = Refused { syscall: refusal.syscall, rule: refusal.rule, answered };
        (is_refused || answered == Answered::Slowly).then_some((refused, seen))
    }
}

/// The rate of answers: a burst at once, then one in each interval. What isn't used is regained, up to the whole burst.
#[derive(Debug, Default)]
struct Pace {
    /// When everything spent will have been regained.
    whole_at: Option<Instant>,
}

impl Pace {
    /// When the next one is available, if none is now.
    fn next(&self, now: Instant) -> Option<Instant> {
        let missing = self.whole_at?.saturating_duration_since(now);
        missing.checked_sub(BURST * INTERVAL).filter(|wait| !wait.is_zero()).map(|wait| now + wait)
    }

    fn spend(&mut self, now: Instant) {
        self.whole_at = Some(self.whole_at.map_or(now, |at| at.max(now)) + INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Spends until it has to wait, and returns how often that was possible.
    fn spend_all(pace: &mut Pace, now: Instant) -> u32 {
        let mut spent = 0;
        while pace.next(now).is_none() {
            pace.spend(now);
            spent += 1;
        }
        spent
    }

    #[test]
    fn a_burst_is_answered_at_once_and_then_one_in_each_interval() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(spend_all(&mut pace, start), BURST + 1);
        for count in 1..100 {
            let now = start + count * INTERVAL;
            assert_eq!(spend_all(&mut pace, now), 1);
            assert_eq!(pace.next(now), Some(now + INTERVAL));
        }
    }

    #[test]
    fn there_is_nothing_to_wait_for_once_the_time_has_come() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        spend_all(&mut pace, start);
        for later in [INTERVAL, 2 * INTERVAL, Duration::from_secs(3600)] {
            assert_eq!(pace.next(start + later), None);
        }
    }

    #[test]
    fn what_is_not_used_comes_back_up_to_a_burst() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        spend_all(&mut pace, start);
        assert_eq!(spend_all(&mut pace, start + 40 * INTERVAL), 40);
        assert_eq!(spend_all(&mut pace, start + Duration::from_secs(3600)), BURST + 1);
    }
}
