//! Lifetimes: how long a sandbox may live, and how long it may be without use.
//!
//! ```text
//!  unowned ──claim──▶ running ──pause──▶ paused ──resume──▶ running
//! ```
//! Without an owner nothing counts, and while it is paused nothing does. Reads no clock: `now` is an argument.

use std::time::Duration;

use crate::control::{Terms, Then};

use super::moment::Moment;

/// The times of one sandbox.
#[derive(Debug)]
pub(crate) struct Lifetime {
    terms: Terms,
    state: State,
    used: Moment,
    was_busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has it yet.
    Unowned,
    /// It ends then, if ever.
    Running { until: Option<Moment> },
    /// It has so much left, if it ever ends.
    Paused { left: Option<Duration> },
}

/// What time has come for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Its time is up.
    Expired,
    /// It has been idle for too long.
    Idle,
}

impl Lifetime {
    pub(crate) fn new(terms: Terms, is_owned: bool, now: Moment) -> Self {
        let mut lifetime = Self { terms, state: State::Unowned, used: now, was_busy: false };
        if is_owned {
            lifetime.set(terms, now);
        }
        lifetime
    }

    /// New terms from now on; with them it has an owner.
    pub(crate) fn set(&mut self, terms: Terms, now: Moment) {
        self.terms = terms;
        let span = terms.ttl_ms.map(Duration::from_millis);
        self.state = match self.state {
            State::Unowned | State::Running { .. } => State::Running { until: span.map(|span| now + span) },
            State::Paused { .. } => State::Paused { left: span },
        };
        self.used = now;
    }

    /// Somebody uses it.
    pub(crate) fn touch(&mut self, now: Moment) {
        self.used = now;
    }

    pub(crate) fn pause(&mut self, now: Moment) {
        let left = self.left(now);
        self.state = State::Paused { left };
    }

    /// Goes on with what was left; with the whole time again where none was.
    pub(crate) fn resume(&mut self, now: Moment) {
        if let State::Paused { left } = self.state {
            let again = self.terms.ttl_ms.map(Duration::from_millis);
            let left = if left == Some(Duration::ZERO) { again } else { left };
            self.state = State::Running { until: left.map(|left| now + left) };
            self.used = now;
        }
    }

    /// What time has come for. While it is in use (`is_busy`) it is not idle, and was not since that was last said.
    pub(crate) fn due(&mut self, now: Moment, is_busy: bool) -> Option<(Due, Then)> {
        if is_busy || self.was_busy {
            self.used = now;
        }
        self.was_busy = is_busy;
        let State::Running { until } = self.state else { return None };
        if until.is_some_and(|until| now >= until) {
            return Some((Due::Expired, self.terms.then));
        }
        let idle = self.idle()?;
        (now >= self.used + idle).then_some((Due::Idle, self.terms.then))
    }

    /// When to look again.
    pub(crate) fn next(&self, is_busy: bool) -> Option<Moment> {
        let State::Running { until } = self.state else { return None };
        let idle = self.idle().filter(|_| !is_busy).map(|idle| self.used + idle);
        [until, idle].into_iter().flatten().min()
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.state != State::Unowned
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    /// How long it has left.
    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        match self.state {
            State::Unowned => None,
            State::Running { until } => until.map(|until| until.since(now)),
            State::Paused { left } => left,
        }
    }

    /// How long nobody has used it.
    pub(crate) fn idle_for(&self, now: Moment) -> Duration {
        now.since(self.used)
    }

    fn idle(&self) -> Option<Duration> {
        self.terms.idle_ms.map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(ttl_ms: Option<u64>, idle_ms: Option<u64>) -> Terms {
        Terms { ttl_ms, then: Then::Kill, idle_ms }
    }

    #[test]
    fn it_ends_at_its_time_and_not_before() {
        let mut lifetime = Lifetime::new(terms(Some(100), None), true, Moment::at(1000));
        assert_eq!(lifetime.next(false), Some(Moment::at(1100)));
        assert_eq!(lifetime.due(Moment::at(1099), false), None);
        assert_eq!(lifetime.due(Moment::at(1100), false), Some((Due::Expired, Then::Kill)));
        lifetime.set(terms(None, None), Moment::at(1100));
        assert_eq!((lifetime.next(false), lifetime.due(Moment::at(u64::MAX), false)), (None, None));
    }

    #[test]
    fn use_puts_idleness_off_and_so_does_being_busy() {
        let mut lifetime = Lifetime::new(terms(None, Some(10)), true, Moment::at(0));
        lifetime.touch(Moment::at(5));
        assert_eq!(lifetime.due(Moment::at(14), false), None);
        assert_eq!(lifetime.due(Moment::at(20), true), None);
        assert_eq!(lifetime.next(true), None);
        assert_eq!(lifetime.due(Moment::at(90), false), None);
        assert_eq!(lifetime.next(false), Some(Moment::at(100)));
        assert_eq!(lifetime.due(Moment::at(100), false), Some((Due::Idle, Then::Kill)));
    }

    #[test]
    fn nothing_counts_without_an_owner_or_while_paused() {
        let mut lifetime = Lifetime::new(terms(Some(1), Some(1)), false, Moment::at(0));
        assert_eq!((lifetime.due(Moment::at(9), false), lifetime.is_owned()), (None, false));
        lifetime.set(terms(Some(100), Some(1000)), Moment::at(10));
        lifetime.pause(Moment::at(40));
        assert_eq!(lifetime.due(Moment::at(5000), false), None);
        assert_eq!(lifetime.left(Moment::at(5000)), Some(Duration::from_millis(70)));
        lifetime.resume(Moment::at(5000));
        assert_eq!(lifetime.next(false), Some(Moment::at(5070)));
    }

    #[test]
    fn who_was_paused_at_the_end_of_its_time_gets_it_anew() {
        let mut lifetime = Lifetime::new(terms(Some(100), None), true, Moment::at(0));
        lifetime.pause(Moment::at(100));
        lifetime.resume(Moment::at(500));
        assert_eq!(lifetime.next(false), Some(Moment::at(600)));
    }
}
