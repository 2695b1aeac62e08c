//! Golden journals: what was once written is read for ever. A file here is never changed; a new version adds one.

use std::collections::BTreeSet;

use saggar_engine::{Entry, Event, Outcome, Run, replay};

/// Every kind of event there was in version 1, with every field filled that it had.
const V1: &str = include_str!("../journals/v1.jsonl");

/// The names that version 1 has.
const V1_NAMES: [&str; 14] = [
    "claimed",
    "forked",
    "paused",
    "resumed",
    "run_finished",
    "run_started",
    "signal_received",
    "step_abandoned",
    "step_decided",
    "step_failed",
    "step_intended",
    "step_probed",
    "step_settled",
    "step_unknown",
];

#[test]
fn version_1_is_read_and_means_what_it_meant() {
    let entries: Vec<Entry> = V1.lines().map(|line| Entry::decode(line).unwrap()).collect();
    for (number, (entry, line)) in (1..).zip(entries.iter().zip(V1.lines())) {
        assert_eq!((entry.v, entry.seq), (1, number));
        assert_eq!(entry.encode(), line, "what is written today is what was written then");
    }
    let names: BTreeSet<_> = entries.iter().map(|entry| entry.event.name()).collect();
    assert_eq!(names, BTreeSet::from(V1_NAMES));
    let events: Vec<Event> = entries.into_iter().map(|entry| entry.event).collect();
    let replayed = replay(&events);
    assert_eq!(replayed.divergence, None, "the same is decided as then");
    let run = Run::from_events(&events);
    assert_eq!(run.outcome(), Some(&Outcome::Cancelled));
    assert_eq!((run.generation(), run.last_step(), run.replies(), run.conversation().len()), (1, 11, 2, 13));
    assert_eq!(format!("{run:?}"), format!("{:?}", replayed.run));
}
