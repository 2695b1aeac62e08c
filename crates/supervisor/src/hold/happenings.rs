//! The newest events of a sandbox, numbered without gaps, for clients that listen now or ask later.

use std::collections::VecDeque;

use crate::control::{Event, EventBody};

const EVENTS_MAX: usize = 1000;

#[derive(Debug, Default)]
pub(crate) struct Happenings {
    kept: VecDeque<Event>,
    last: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard<'a> {
    /// Events up to this number are no longer kept.
    Gone(u64),
    Event(&'a Event),
}

impl Happenings {
    pub(crate) fn add(&mut self, at_ms: u64, body: EventBody) {
        self.last += 1;
        if self.kept.len() == EVENTS_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(Event { seq: self.last, at_ms, body });
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    /// The event after `after`, which is advanced.
    pub(crate) fn next(&self, after: &mut u64) -> Option<Heard<'_>> {
        let first = self.last - self.kept.len() as u64 + 1;
        if *after >= self.last {
            return None;
        }
        if *after + 1 < first {
            *after = first - 1;
            return Some(Heard::Gone(first - 1));
        }
        *after += 1;
        self.kept.get((*after - first) as usize).map(Heard::Event)
    }

    /// Newest first.
    pub(crate) fn newest(&self) -> impl Iterator<Item = &Event> {
        self.kept.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
