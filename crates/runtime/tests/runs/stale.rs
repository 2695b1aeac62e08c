//! A worker that was stopped for longer than its lease, and wakes up: it changes nothing.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use saggar_domain::RunState;
use saggar_engine::Class;

use crate::end::check_end;
use crate::ledger::Ledger;
use crate::place::{PATIENCE, Place};

const CALLS: usize = 3;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stale_worker_appends_nothing_and_does_nothing() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    ledger.hold(true);
    let stale = place.worker(1000, &ledger.url);
    let run = place.start("agent", Class::Keyed, &ledger.url, CALLS).await;
    // It is in the middle of its first call.
    let begun = Instant::now();
    while ledger.asked().is_empty() {
        assert!(begun.elapsed() < PATIENCE, "the first call comes");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    stale.signal(Signal::STOP);
    let epoch = place.row(&run).await.epoch;
    let next = place.worker(1000, &ledger.url);
    place.until(&run, "another takes over", |row| row.epoch > epoch).await;
    ledger.hold(false);
    let finished = place.until_finished(&run).await;
    let (journal, asked) = (place.events(&run).await, ledger.asked());
    drop(next);
    stale.signal(Signal::CONT);
    // It is alive, and goes on with what is its own: only the worker that was stopped is left to do this.
    let other = place.start("agent", Class::Keyed, &ledger.url, CALLS).await;
    place.until(&other, "it finishes", |row| row.state == RunState::Finished).await;
    assert_eq!(place.events(&run).await, journal, "nothing was appended");
    assert_eq!(place.row(&run).await.epoch, finished.epoch);
    let of_run = |asked: &std::collections::BTreeMap<String, u64>| {
        asked
            .iter()
            .filter(|(key, _)| key.starts_with(run.as_str()))
            .map(|(key, n)| (key.clone(), *n))
            .collect::<Vec<_>>()
    };
    assert_eq!(of_run(&ledger.asked()), of_run(&asked), "nothing was done");
    check_end(&place, &ledger, &run, CALLS).await;
}
