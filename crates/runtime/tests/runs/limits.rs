//! How many runs at once: of an agent and of a project, and no more than that; who waits for a child or a person takes no place.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use saggar_domain::RunState;
use saggar_engine::Class;
use saggar_runtime::runs::{Hub, Worker, WorkerSettings};
use saggar_store::Store;

use crate::ledger::Ledger;
use crate::place::{PATIENCE, Place, effects};

/// Waits until so many runs have a call under way; which those are.
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
        runs.push(place.start(name, Class::Keyed, &ledger.url, 1).await);
    }
    // The third was begun after the second, and is taken before it; the fourth is one too many of the project.
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
