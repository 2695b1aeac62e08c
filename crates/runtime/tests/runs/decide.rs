//! A decision that is repeated because the first got no response counts once.

use rustix::process::Signal;
use saggar_domain::RunState;
use saggar_engine::{Class, Decision, Run};
use saggar_runtime::Action;
use saggar_runtime::runs::Instruction;
use saggar_store::Store;

use crate::ledger::Ledger;
use crate::place::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_same_park_is_decided_once_however_often_it_is_asked() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    ledger.hold(true);
    let run = place.start("agent", Class::Once, &ledger.url, 1).await;
    let first = place.worker(3000, &ledger.url);
    place.until(&run, "it calls", |_| !ledger.asked().is_empty()).await;
    first.signal(Signal::KILL);
    let second = place.worker(3000, &ledger.url);
    place.until(&run, "it parks", |row| row.state == RunState::Parked && row.holder.is_none()).await;
    drop(second);
    let step = Run::from_events(&place.events(&run).await).open_step().unwrap().step;
    let decide = |attempt, decision| {
        let permit = place.permit(Action::TellRun(run.clone()));
        let (runs, instruction) = (&place.runs, Instruction::Decide { step, attempt, decision });
        async move { runs.tell(&permit, None, instruction).await }
    };
    for attempt in [Some(0), Some(2)] {
        let refused = decide(attempt, Decision::Retry).await.unwrap_err().to_string();
        assert!(refused.contains("is parked at attempt 1 of step"), "{refused}");
    }
    for attempt in [None, Some(1)] {
        decide(attempt, Decision::Retry).await.unwrap();
    }
    let refused = decide(None, Decision::Abandon).await.unwrap_err().to_string();
    assert!(refused.contains("same id and different text"), "{refused}");
    // A second letter would be taken for a decision when this step parks again, which was never made.
    assert_eq!(Store::join(&place.directory).unwrap().letters(run).await.unwrap().len(), 1);
}
