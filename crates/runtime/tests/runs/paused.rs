//! A worker that is killed while its run is paused and a call is under way: nobody calls again until the run is resumed.

use rustix::process::Signal;
use saggar_domain::RunState;
use saggar_engine::{Class, replay};
use saggar_runtime::Action;
use saggar_runtime::runs::Instruction;

use crate::ledger::Ledger;
use crate::place::Place;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_paused_run_calls_nobody_again_after_a_crash_until_it_is_resumed() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    ledger.hold(true);
    let run = place.start("agent", Class::Keyed, &ledger.url, 1).await;
    let first = place.worker(3000, &ledger.url);
    place.until(&run, "it calls", |_| !ledger.asked().is_empty()).await;
    let tell = async |instruction| {
        place.runs.tell(&place.permit(Action::TellRun(run.clone())), None, instruction).await.unwrap();
    };
    let head = place.row(&run).await.head;
    tell(Instruction::Pause).await;
    place.until(&run, "it hears that", |row| row.head > head).await;
    first.signal(Signal::KILL);
    let _second = place.worker(3000, &ledger.url);
    place.until(&run, "it rests", |row| row.state == RunState::Paused && row.holder.is_none()).await;
    assert_eq!(ledger.asked().values().sum::<u64>(), 1, "only the first worker has called");
    ledger.hold(false);
    tell(Instruction::Resume).await;
    place.until_finished(&run).await;
    assert_eq!(ledger.asked().into_values().collect::<Vec<_>>(), [2], "by the same key");
    assert_eq!(replay(&place.events(&run).await).divergence, None);
}
