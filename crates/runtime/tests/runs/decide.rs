//! A decision that is asked for twice, because no answer came to the first: it counts once.

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
    for _ in 0..2 {
        let permit = place.permit(Action::TellRun(run.clone()));
        place.runs.tell(&permit, None, Instruction::Decide { step, decision: Decision::Retry }).await.unwrap();
    }
    // A second one would be taken for the answer when this step parks again, and nobody would have said that.
    assert_eq!(Store::join(&place.directory).unwrap().letters(run).await.unwrap().len(), 1);
}
