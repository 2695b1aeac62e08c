//! SIGKILL at random moments: no keyed effect is lost, no other is silently repeated, and every run ends in the same
//! way.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use saggar_domain::RunState;
use saggar_engine::{Attempt, Body, Class, Decision, EffectKey, Event, Run};
use saggar_runtime::Action;
use saggar_runtime::runs::Instruction;

use crate::end::check_end;
use crate::ledger::{Ledger, result};
use crate::place::{PATIENCE, Place, Process, random};

const KILLS: usize = 100;
const WORKERS: usize = 2;
/// Calls of one run.
const CALLS: usize = 40;

/// Decides about unknown outcomes after a look at the ledger, as a human would: once a call in transit has arrived. Its
/// sender is dead.
async fn decide(place: &Place, ledger: &Ledger, id: &saggar_domain::RunId) {
    let events = place.events(id).await;
    let run = Run::from_events(&events);
    let Some(open) = run.open_step().filter(|open| matches!(open.phase, Attempt::Unknown { .. })) else { return };
    let key = EffectKey::of(id, 0, open.step);
    if !ledger.has_read_all() {
        // Decided in the next round.
        return;
    }
    let decision = match ledger.has(key.as_str()) {
        true => Decision::Done(Body::text(result(key.as_str()))),
        false => Decision::Retry,
    };
    let permit = place.permit(Action::TellRun(id.clone()));
    let told = place.runs.tell(
        &permit,
        Some(format!("decide {}", events.len())),
        Instruction::Decide { step: open.step, attempt: Some(open.attempt), decision },
    );
    // The previous letter may have decided it.
    let _ = told.await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn heavy_a_hundred_kills_lose_nothing_and_do_nothing_twice() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    let mut workers: Vec<Process> = (0..WORKERS).map(|_| place.worker(3000, &ledger.url)).collect();
    let (mut keyed, mut once) = (Vec::new(), Vec::new());
    let begun = Instant::now();
    let mut kills = 0;
    loop {
        // There is always an effect in progress to be killed.
        let mut busy = 0;
        for id in keyed.iter().chain(&once) {
            let row = place.row(id).await;
            busy += usize::from(row.state != RunState::Finished);
            if row.state == RunState::Parked {
                decide(&place, &ledger, id).await;
            }
        }
        if kills < KILLS && busy < 4 {
            keyed.push(place.start("keyed", Class::Keyed, &ledger.url, CALLS).await);
            once.push(place.start("once", Class::Once, &ledger.url, CALLS).await);
        }
        if kills == KILLS && busy == 0 {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{kills} kills, {busy} of {} runs left", keyed.len() + once.len());
        let [byte] = random::<1>();
        tokio::time::sleep(Duration::from_millis(5 + u64::from(byte) / 4)).await;
        if kills < KILLS {
            let victim = usize::from(byte) % WORKERS;
            workers[victim].signal(Signal::KILL);
            workers[victim] = place.worker(3000, &ledger.url);
            kills += 1;
        }
    }
    for id in keyed.iter().chain(&once) {
        check_end(&place, &ledger, id, CALLS).await;
    }
    let mut taken_over = 0;
    for id in &once {
        let events = place.events(id).await;
        taken_over += events.iter().filter(|event| matches!(event, Event::Claimed { .. })).count() - 1;
        for (key, times) in ledger.asked().iter().filter(|(key, _)| key.starts_with(id.as_str())) {
            assert_eq!(*times, 1, "{key} was done {times} times without being reported");
        }
    }
    assert!(taken_over > 0, "some worker was killed in the middle of a run");
}
