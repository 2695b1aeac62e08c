//! Lifetimes: how long a sandbox may live, and how long it may be idle.
//!
//! ```text
//!  unowned ──claim──▶ running ──pause──▶ paused ──resume──▶ running
//! ```
//! Without an owner only the time to live counts, so that a sandbox that is never claimed ends by itself. While it is
//! paused nothing counts. Reads no clock: `now` is an argument.

use std::time::Duration;

use saggar_domain::DeadlineAction;

use crate::control::Terms;

use super::moment::Moment;

#[derive(Debug)]
pub(crate) struct Lifetime {
    terms: Terms,
    phase: Phase,
    used: Moment,
    was_busy: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It has no owner yet, and waits until then; `None` means forever.
    Unowned { until: Option<Moment> },
    /// It ends then; `None` means never.
    Running { until: Option<Moment> },
    /// It has this much time left; `None` means no end.
    Paused { left: Option<Duration> },
}

/// What is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Due {
    /// Its deadline passed.
    Expired,
    Idle,
}

impl Lifetime {
    pub(crate) fn new(terms: Terms, is_owned: bool, now: Moment) -> Self {
        let until = terms.ttl_ms.map(|span| now + Duration::from_millis(span));
        let mut lifetime = Self { terms, phase: Phase::Unowned { until }, used: now, was_busy: false };
        if is_owned {
            lifetime.set(terms, now);
        }
        lifetime
    }

    /// Applies new terms from now on; it then has an owner.
    pub(crate) fn set(&mut self, terms: Terms, now: Moment) {
        self.terms = terms;
        let span = terms.ttl_ms.map(Duration::from_millis);
        self.phase = match self.phase {
            Phase::Unowned { .. } | Phase::Running { .. } => Phase::Running { until: span.map(|span| now + span) },
            Phase::Paused { .. } => Phase::Paused { left: span },
        };
        self.used = now;
    }

    /// Records that it is in use.
    pub(crate) fn touch(&mut self, now: Moment) {
        self.used = now;
    }

    pub(crate) fn pause(&mut self, now: Moment) {
        let left = self.left(now);
        self.phase = Phase::Paused { left };
    }

    /// Continues with the remaining time, or with the whole time again if none was left.
    pub(crate) fn resume(&mut self, now: Moment) {
        if let Phase::Paused { left } = self.phase {
            let again = self.terms.ttl_ms.map(Duration::from_millis);
            let left = if left == Some(Duration::ZERO) { again } else { left };
            self.phase = Phase::Running { until: left.map(|left| now + left) };
            self.used = now;
        }
    }

    /// What is due now. While it is in use (`is_busy`) it is not idle, nor was it since the last call.
    pub(crate) fn due(&mut self, now: Moment, is_busy: bool) -> Option<(Due, DeadlineAction)> {
        if is_busy || self.was_busy {
            self.used = now;
        }
        self.was_busy = is_busy;
        let until = match self.phase {
            Phase::Running { until } => until,
            Phase::Unowned { until } => {
                return until.is_some_and(|until| now >= until).then_some((Due::Expired, DeadlineAction::Kill));
            }
            Phase::Paused { .. } => return None,
        };
        if until.is_some_and(|until| now >= until) {
            return Some((Due::Expired, self.terms.then));
        }
        let idle = self.idle()?;
        (now >= self.used + idle).then_some((Due::Idle, self.terms.then))
    }

    /// When to check again.
    pub(crate) fn next(&self, is_busy: bool) -> Option<Moment> {
        let until = match self.phase {
            Phase::Running { until } => until,
            Phase::Unowned { until } => return until,
            Phase::Paused { .. } => return None,
        };
        let idle = self.idle().filter(|_| !is_busy).map(|idle| self.used + idle);
        [until, idle].into_iter().flatten().min()
    }

    pub(crate) fn is_owned(&self) -> bool {
        !matches!(self.phase, Phase::Unowned { .. })
    }

    pub(crate) fn terms(&self) -> Terms {
        self.terms
    }

    pub(crate) fn left(&self, now: Moment) -> Option<Duration> {
        match self.phase {
            Phase::Unowned { until } | Phase::Running { until } => until.map(|until| until.since(now)),
            Phase::Paused { left } => left,
        }
    }

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
        Terms { ttl_ms, then: DeadlineAction::Kill, idle_ms }
    }

    #[test]
    fn it_ends_at_its_time_and_not_before() {
        let mut lifetime = Lifetime::new(terms(Some(100), None), true, Moment::at(1000));
        assert_eq!(lifetime.next(false), Some(Moment::at(1100)));
        assert_eq!(lifetime.due(Moment::at(1099), false), None);
        assert_eq!(lifetime.due(Moment::at(1100), false), Some((Due::Expired, DeadlineAction::Kill)));
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
        assert_eq!(lifetime.due(Moment::at(100), false), Some((Due::Idle, DeadlineAction::Kill)));
    }

    #[test]
    fn whom_nobody_comes_for_ends_by_itself() {
        let mut lifetime =
            Lifetime::new(Terms { then: DeadlineAction::Pause, ..terms(Some(100), Some(1)) }, false, Moment::at(0));
        assert_eq!((lifetime.due(Moment::at(99), false), lifetime.is_owned()), (None, false));
        assert_eq!(
            (lifetime.next(false), lifetime.left(Moment::at(60))),
            (Some(Moment::at(100)), Some(Duration::from_millis(40)))
        );
        assert_eq!(lifetime.due(Moment::at(100), false), Some((Due::Expired, DeadlineAction::Kill)));
    }

    #[test]
    fn idleness_counts_for_an_owner_and_nothing_while_paused() {
        let mut lifetime = Lifetime::new(terms(None, Some(1)), false, Moment::at(0));
        assert_eq!((lifetime.due(Moment::at(9), false), lifetime.next(false)), (None, None));
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
