//! Deadlines of a program: it is first asked to end, and killed a little later.
//!
//! ```text
//!  Running ──timeout or cancel──▶ Asked ──grace over, or asked again──▶ Killed
//! ```
//! Reads no clock: `now` is an argument, from a clock that doesn't jump with the wall clock.

use std::ops::Add;
use std::time::{Duration, Instant};

/// How long a program may take to end by itself once it was asked to.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Why a program was made to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its deadline passed.
    Timeout,
    /// The user cancelled it.
    Cancel,
}

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Ask,
    Kill,
}

/// The state of an ending, on any kind of clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<T = Instant> {
    timeout: T,
    state: Phase<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase<T> {
    Running,
    Asked { cause: Cause, until: T },
    Killed { cause: Cause },
}

impl<T: Copy + Ord + Add<Duration, Output = T>> Deadline<T> {
    pub(crate) fn new(timeout: T) -> Self {
        Self { timeout, state: Phase::Running }
    }

    /// When to check again; `None` if nothing is left to do.
    pub(crate) fn next(&self) -> Option<T> {
        match self.state {
            Phase::Running => Some(self.timeout),
            Phase::Asked { until, .. } => Some(until),
            Phase::Killed { .. } => None,
        }
    }

    pub(crate) fn tick(&mut self, now: T) -> Option<Action> {
        match self.state {
            Phase::Running if now >= self.timeout => self.ask(Cause::Timeout, now),
            Phase::Asked { cause, until } if now >= until => self.kill(cause),
            Phase::Running | Phase::Asked { .. } | Phase::Killed { .. } => None,
        }
    }

    /// The user wants it to end. A second request kills it at once.
    pub(crate) fn cancel(&mut self, now: T) -> Option<Action> {
        match self.state {
            Phase::Running => self.ask(Cause::Cancel, now),
            Phase::Asked { cause, .. } => self.kill(cause),
            Phase::Killed { .. } => None,
        }
    }

    /// Why it was made to end, if it was.
    pub(crate) fn cause(&self) -> Option<Cause> {
        match self.state {
            Phase::Running => None,
            Phase::Asked { cause, .. } | Phase::Killed { cause } => Some(cause),
        }
    }

    /// Shifts the deadline after the watched program was frozen.
    pub(crate) fn move_on(&mut self, by: Duration) {
        self.timeout = self.timeout + by;
        if let Phase::Asked { cause, until } = self.state {
            self.state = Phase::Asked { cause, until: until + by };
        }
    }

    fn ask(&mut self, cause: Cause, now: T) -> Option<Action> {
        self.state = Phase::Asked { cause, until: now + GRACE };
        Some(Action::Ask)
    }

    fn kill(&mut self, cause: Cause) -> Option<Action> {
        self.state = Phase::Killed { cause };
        Some(Action::Kill)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asked_at_the_deadline_and_killed_after_the_grace() {
        let start = Instant::now();
        let mut deadline = Deadline::new(start + Duration::from_secs(5));
        assert_eq!(deadline.tick(start + Duration::from_secs(4)), None);
        assert_eq!(deadline.tick(start + Duration::from_secs(5)), Some(Action::Ask));
        assert_eq!(deadline.tick(start + Duration::from_secs(6)), None);
        assert_eq!(deadline.tick(start + Duration::from_secs(5) + GRACE), Some(Action::Kill));
        assert_eq!((deadline.next(), deadline.cause()), (None, Some(Cause::Timeout)));
    }

    #[test]
    fn a_second_cancel_does_not_wait() {
        let start = Instant::now();
        let mut deadline = Deadline::new(start + Duration::from_secs(5));
        assert_eq!(deadline.cancel(start), Some(Action::Ask));
        assert_eq!(deadline.cancel(start), Some(Action::Kill));
        assert_eq!((deadline.cancel(start), deadline.cause()), (None, Some(Cause::Cancel)));
    }
}
