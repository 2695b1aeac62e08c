//! The expected end of a run, whatever happened before.

use saggar_domain::RunId;
use saggar_engine::{Body, EffectKey, Event, RunOutcome, Settled, replay};

use crate::ledger::{Ledger, result};
use crate::place::Place;

/// Completed, with each call's own result in order, each known to the ledger, and a replay without a difference.
pub async fn check_end(place: &Place, ledger: &Ledger, id: &RunId, calls: usize) {
    let events = place.events(id).await;
    let replayed = replay(&events);
    assert_eq!(replayed.divergence, None, "{id}");
    let outcome = RunOutcome::Completed { answer: Body::text("It is done.") };
    assert_eq!(replayed.run.outcome(), Some(&outcome), "{id}");
    let mut given = Vec::new();
    for event in &events {
        if let Event::StepSettled { step, result: Settled::Returned(returned), .. } = event {
            given.push((*step, returned.content.clone()));
        }
    }
    // The first step is the model's.
    let key = |step: u64| EffectKey::of(id, 0, step).as_str().to_owned();
    let expected: Vec<_> = (2..calls as u64 + 2).map(|step| (step, Body::text(result(&key(step))))).collect();
    assert_eq!(given, expected, "{id}");
    assert!(expected.iter().all(|(step, _)| ledger.has(&key(*step))), "{id}");
}
