//! Admission control: limits the number of sandboxes before anything is created.
//!
//! INVARIANT: a slot is held from before the first trace of a sandbox until after its last, so the count is never too
//! low.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Clone, Debug)]
pub(crate) struct Slots {
    most: Arc<AtomicUsize>,
    taken: Arc<AtomicUsize>,
}

impl Slots {
    pub(crate) fn new(most: usize) -> Self {
        Self { most: Arc::new(AtomicUsize::new(most)), taken: Arc::default() }
    }

    /// A slot, if one is free.
    pub(crate) fn take(&self) -> Option<Slot> {
        let more = |taken| (taken < self.most()).then_some(taken + 1);
        self.taken.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok()?;
        Some(Slot { taken: Arc::clone(&self.taken) })
    }

    /// A slot for an existing sandbox, even beyond the limit: an earlier server may have allowed more.
    pub(crate) fn take_anyway(&self) -> Slot {
        self.taken.fetch_add(1, Ordering::AcqRel);
        Slot { taken: Arc::clone(&self.taken) }
    }

    pub(crate) fn taken(&self) -> usize {
        self.taken.load(Ordering::Acquire)
    }

    pub(crate) fn most(&self) -> usize {
        self.most.load(Ordering::Acquire)
    }

    /// If there are more already, no slot is given until there are fewer.
    pub(crate) fn set_most(&self, most: usize) {
        self.most.store(most, Ordering::Release);
    }
}

/// The slot of one sandbox; freed on drop.
#[derive(Debug)]
pub(crate) struct Slot {
    taken: Arc<AtomicUsize>,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_there_are_and_free_again_when_dropped() {
        let slots = Slots::new(2);
        let (first, _second) = (slots.take().unwrap(), slots.take().unwrap());
        assert!(slots.take().is_none());
        drop(first);
        assert!(slots.take().is_some());
    }

    #[test]
    fn what_is_there_already_counts_even_where_there_is_no_room() {
        let slots = Slots::new(1);
        let _adopted = [slots.take_anyway(), slots.take_anyway()];
        assert_eq!(slots.taken(), 2);
        assert!(slots.take().is_none());
    }
}
