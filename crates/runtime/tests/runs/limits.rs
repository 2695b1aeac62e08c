//! Concurrency limits per agent and per project; a run that waits for a child or a human takes no slot.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime};

use saggar_domain::{RunState, Timestamp};
use saggar_engine::Class;
use saggar_runtime::runs::{Hub, Worker, WorkerSettings};
use saggar_store::Store;

use crate::ledger::Ledger;
use crate::place::{PATIENCE, Place, effects};

/// Waits until this many runs have a call in progress, and returns them.
async fn busy(ledger: &Ledger, runs: usize) -> BTreeSet<String> {
    let begun = Instant::now();
    loop {
        let asked = ledger.asked();
        let busy: BTreeSet<String> = asked.keys().filter_map(|key| Some(key.split_once('/')?.0.to_owned())).collect();
        if busy.len() >= runs {
            return busy;
        }
        assert!(begun.elapsed() < PATIENCE, "{runs} runs are busy: {busy:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn agents_and_projects_have_so_many_runs_at_once_and_the_rest_waits() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    ledger.hold(true);
    let store = Store::join(&place.directory).unwrap();
    let world = effects(&place.directory, store.clone(), &ledger.url);
    let settings = WorkerSettings { per_agent: 1, per_project: 2, ..WorkerSettings::default() };
    let worker = Worker::new(store, world, Hub::default(), settings);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let task = tokio::spawn(async move { worker.run(stopped).await });
    let mut runs = Vec::new();
    for name in ["a", "a", "b", "c"] {
        let run = place.start(name, Class::Keyed, &ledger.url, 1).await;
        // Runs of one millisecond have no order.
        let started = place.row(&run).await.created_at;
        while Timestamp::from(SystemTime::now()) <= started {
            tokio::task::yield_now().await;
        }
        runs.push(run);
    }
    // The third was started after the second, and is claimed before it; the fourth exceeds the project's limit.
    let taken = busy(&ledger, 2).await;
    assert_eq!(taken, BTreeSet::from([runs[0].to_string(), runs[2].to_string()]));
    for waiting in [&runs[1], &runs[3]] {
        let row = place.row(waiting).await;
        assert_eq!((row.state, row.epoch), (RunState::Queued, 0));
    }
    ledger.hold(false);
    for run in &runs {
        place.until_finished(run).await;
    }
    stop.send_replace(true);
    task.await.unwrap();
}
