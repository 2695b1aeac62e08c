//! The newest events of a sandbox, numbered without gaps, for clients that listen now or ask later.

use std::collections::VecDeque;

use crate::control::{Event, EventBody};

const EVENTS_MAX: usize = 1000;
/// Decisions about the network among them: a sandbox makes as many as it likes, and they must not crowd out the others.
const DECISIONS_MAX: usize = EVENTS_MAX / 2;

#[derive(Debug, Default)]
pub(crate) struct Happenings {
    /// INVARIANT: in the order of their numbers. There may be gaps.
    kept: VecDeque<Event>,
    decisions: usize,
    last: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a> {
    /// Events up to this number, which the listener has not heard, are no longer kept.
    Gone(u64),
    Event(&'a Event),
}

impl Happenings {
    /// The first one has the number after `last`.
    pub(crate) fn after(last: u64) -> Self {
        Self { last, ..Self::default() }
    }

    pub(crate) fn add(&mut self, at_ms: u64, body: EventBody) {
        self.last += 1;
        self.decisions += usize::from(is_decision(&body));
        self.kept.push_back(Event { seq: self.last, at_ms, body });
        let goes = if self.decisions > DECISIONS_MAX {
            self.kept.iter().position(|event| is_decision(&event.body))
        } else {
            (self.kept.len() > EVENTS_MAX).then_some(0)
        };
        if let Some(gone) = goes.and_then(|index| self.kept.remove(index)) {
            self.decisions -= usize::from(is_decision(&gone.body));
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The event after `after`, which is advanced.
    pub(crate) fn next(&self, after: &mut u64) -> Option<Heard<'_>> {
        let event = self.kept.get(self.kept.partition_point(|event| event.seq <= *after))?;
        if event.seq > *after + 1 {
            *after = event.seq - 1;
            return Some(Heard::Gone(*after));
        }
        *after = event.seq;
        Some(Heard::Event(event))
    }

    /// Newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Event> {
        self.kept.iter().rev()
    }
}

fn is_decision(body: &EventBody) -> bool {
    matches!(body, EventBody::Decision { .. })
}

#[cfg(test)]
mod tests {
    use saggar_domain::net::{NetDecision, Protocol, Verdict};

    use super::*;

    fn decision() -> EventBody {
        let decision = NetDecision {
            host: "a.test".to_owned(),
            address: None,
            port: 443,
            protocol: Protocol::Tls,
            method: None,
            path: None,
            verdict: Verdict::Denied,
            rule: String::new(),
            reason: None,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            connection: None,
            secrets: Vec::new(),
            times: 1,
        };
        EventBody::Decision { exec_id: None, decision: Box::new(decision) }
    }

    #[test]
    fn decisions_do_not_crowd_out_other_events() {
        let mut happenings = Happenings::default();
        happenings.add(0, EventBody::Claimed);
        (0..DECISIONS_MAX + 3).for_each(|_| happenings.add(0, decision()));
        happenings.add(0, EventBody::Resumed);
        let mut after = 0;
        assert!(matches!(happenings.next(&mut after), Some(Heard::Event(event)) if event.seq == 1));
        assert_eq!(happenings.next(&mut after), Some(Heard::Gone(4)));
        let rest = std::iter::from_fn(|| happenings.next(&mut after).map(|heard| matches!(heard, Heard::Event(_))));
        assert_eq!(rest.filter(|is_event| *is_event).count(), DECISIONS_MAX + 1);
        assert_eq!(after, DECISIONS_MAX as u64 + 5);
    }

    #[test]
    fn a_listener_gets_each_once_and_is_told_of_what_is_gone() {
        let mut happenings = Happenings::default();
        let mut after = 0;
        assert_eq!(happenings.next(&mut after), None);
        for _ in 0..EVENTS_MAX + 5 {
            happenings.add(0, EventBody::Claimed);
        }
        assert_eq!(happenings.next(&mut after), Some(Heard::Gone(5)));
        let mut heard = Vec::new();
        while let Some(Heard::Event(event)) = happenings.next(&mut after) {
            heard.push(event.seq);
        }
        assert_eq!(heard, (6..=EVENTS_MAX as u64 + 5).collect::<Vec<_>>());
        let mut beyond = u64::MAX;
        assert_eq!(happenings.next(&mut beyond), None);
    }
}
