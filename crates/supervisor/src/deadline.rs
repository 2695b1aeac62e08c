//! When a program must be gone: asked to end first, ended for certain a little later.
//!
//! ```text
//!  Running ──timeout or cancel──▶ Asked ──grace over, or asked again──▶ Killed
//! ```
//! Read-only of clocks: `now` is an argument, and it is a clock that doesn't jump with the wall clock.

use std::ops::Add;
use std::time::{Duration, Instant};

/// How long a program may take to end by itself once it was asked.
pub(crate) const GRACE: Duration = Duration::from_secs(2);

/// Why a program was made to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Its time was up.
    Timeout,
    /// The user asked.
    Cancel,
}

/// What has to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask it to end.
    Ask,
    Kill,
}

/// The state of an ending, by one clock or another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline<T = Instant> {
    timeout: T,
    state: State<T>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State<T> {
    Running,
    Asked { cause: Cause, until: T },
    Killed { cause: Cause },
}

impl<T: Copy + Ord + Add<Duration, Output = T>> Deadline<T> {
    pub(crate) fn new(timeout: T) -> Self {
        Self { timeout, state: State::Running }
    }

    /// When to look again; `None` when there is nothing more to do.
    pub(crate) fn next(&self) -> Option<T> {
        match self.state {
            State::Running => Some(self.timeout),
            State::Asked { until, .. } => Some(until),
            State::Killed { .. } => None,
        }
    }

    /// What the time says.
    pub(crate) fn tick(&mut self, now: T) -> Option<Action> {
        match self.state {
            State::Running if now >= self.timeout => self.ask(Cause::Timeout, now),
            State::Asked { cause, until } if now >= until => self.kill(cause),
            State::Running | State::Asked { .. } | State::Killed { .. } => None,
        }
    }

    /// The user wants it to end; wanting it twice means now.
    pub(crate) fn cancel(&mut self, now: T) -> Option<Action> {
        match self.state {
            State::Running => self.ask(Cause::Cancel, now),
            State::Asked { cause, .. } => self.kill(cause),
            State::Killed { .. } => None,
        }
    }

    /// Why it was made to end, if it was.
    pub(crate) fn cause(&self) -> Option<Cause> {
        match self.state {
            State::Running => None,
            State::Asked { cause, .. } | State::Killed { cause } => Some(cause),
        }
    }

    /// The clock stood still for what is being watched.
    pub(crate) fn move_on(&mut self, by: Duration) {
        self.timeout = self.timeout + by;
        if let State::Asked { cause, until } = self.state {
            self.state = State::Asked { cause, until: until + by };
        }
    }

    fn ask(&mut self, cause: Cause, now: T) -> Option<Action> {
        self.state = State::Asked { cause, until: now + GRACE };
        Some(Action::Ask)
    }

    fn kill(&mut self, cause: Cause) -> Option<Action> {
        self.state = State::Killed { cause };
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
