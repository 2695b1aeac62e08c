//! Runs with an uncertain history: restored from a backup, or with an unreadable journal. No worker executes them
//! until a human has decided.

use std::time::Duration;

use saggar_domain::{RunId, RunState, Timestamp};
use saggar_engine::{Body, Class, ModelReply, Report, ToolCall, Usage};
use saggar_runtime::runs::Instruction;
use saggar_runtime::{Action, Fault};
use saggar_store::{Append, BlobHash, BlockKind, Holder, Lease, Store, Summary, Taking, backup, restore};

use crate::children::{children, parent};
use crate::ledger::Ledger;
use crate::place::{Place, new_directory, uptime};
use crate::world::World;

const CALLS: usize = 3;

async fn tell(place: &Place, run: &RunId, what: Instruction) {
    place.runs.tell(&place.permit(Action::TellRun(run.clone())), None, what).await.unwrap();
}

fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_restored_run_repeats_nothing_until_a_person_says_so() {
    let (place, ledger) = (Place::new().await, Ledger::start());
    ledger.hold(true);
    let (ended, resumed) = (
        place.start("agent", Class::Once, &ledger.url, CALLS).await,
        place.start("agent", Class::Keyed, &ledger.url, CALLS).await,
    );
    let worker = place.worker(3000, &ledger.url);
    place.until(&ended, "both are in their first call", |_| ledger.asked().len() == 2).await;
    let copy = new_directory();
    backup(&place.directory, &copy, now()).unwrap();
    ledger.hold(false);
    for run in [&ended, &resumed] {
        place.until_finished(run).await;
    }
    drop(worker);
    let asked = ledger.asked();
    assert_eq!(asked.len(), 2 * CALLS);

    let elsewhere = new_directory();
    restore(&copy, &elsewhere).unwrap();
    std::fs::remove_file(copy).unwrap();
    let restored = Place::over(elsewhere).await;
    let _worker = restored.worker(3000, &ledger.url);
    // Its worker works: this run is new.
    let other = restored.start("agent", Class::Once, &ledger.url, 1).await;
    restored.until_finished(&other).await;
    for run in [&ended, &resumed] {
        let row = restored.row(run).await;
        assert_eq!((row.state, row.block.map(|block| block.kind)), (RunState::Parked, Some(BlockKind::Restored)));
    }
    let decide = Instruction::Decide { step: 2, attempt: None, decision: saggar_engine::Decision::Retry };
    let permit = restored.permit(Action::TellRun(ended.clone()));
    assert!(restored.runs.tell(&permit, None, decide).await.is_err(), "there is something else to decide first");

    tell(&restored, &ended, Instruction::Cancel).await;
    let row = restored.until_finished(&ended).await;
    assert!(row.outcome.unwrap().as_str().contains("cancelled"));
    tell(&restored, &resumed, Instruction::Resume).await;
    let row = restored.until_finished(&resumed).await;
    assert!(row.outcome.unwrap().as_str().contains("completed"));
    let of = |run: &RunId, asked: std::collections::BTreeMap<String, u64>| {
        asked.into_iter().filter(|(key, _)| key.starts_with(run.as_str())).collect::<Vec<_>>()
    };
    assert_eq!(of(&ended, ledger.asked()), of(&ended, asked.clone()), "nothing was done twice");
    assert_eq!(of(&resumed, ledger.asked()).len(), CALLS, "the keys are those of before");
}

/// Takes a run that is due, and appends what no program wrote.
async fn spoil(place: &Place, run: &RunId) {
    let store = Store::join(&place.directory).unwrap();
    let from = uptime();
    let lease = Lease { from, until: from.after(Duration::from_secs(5)) };
    let taking = Taking { most: 8, reserved: 0, per_agent: 8, per_project: 8 };
    let taken = store.claim_due(Holder::parse("spoiler").unwrap(), now(), lease, taking).await.unwrap();
    let epoch = taken.iter().find(|taken| taken.run.id == *run).unwrap().epoch;
    let append = Append {
        run: run.clone(),
        epoch,
        head: place.row(run).await.head,
        entries: vec!["{\"v\":1,".to_owned()],
        summary: Summary {
            state: RunState::Running,
            at: now(),
            wake_at: Some(now()),
            outcome: None,
            sandbox: None,
            room_since: None,
        },
        consumed: Vec::new(),
        seen: 0,
        children: Vec::new(),
        letters: Vec::new(),
        files: None,
        generation: None,
        left: Default::default(),
        known_calls: None,
    };
    store.append(append).await.unwrap();
    for taken in taken {
        store.release_run(taken.run.id, taken.epoch).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_run_whose_journal_cannot_be_read_says_so_and_can_be_ended() {
    let (place, ledger) = (Place::new().await, Ledger::start());
    let run = place.start("agent", Class::Once, &ledger.url, CALLS).await;
    spoil(&place, &run).await;
    let _worker = place.worker(3000, &ledger.url);
    let row = place.until(&run, "it is blocked", |row| row.block.is_some()).await;
    let block = row.block.unwrap();
    assert_eq!((row.state, row.holder, block.kind), (RunState::Parked, None, BlockKind::Damaged));
    assert_eq!(block.reason, "entry 2 can't be read");
    let no_keys = saggar_runtime::KeyFile::new(place.directory.with_extension("key"), place.directory.clone());
    let found = saggar_runtime::runs::check_data_directory(&place.directory, &no_keys).unwrap();
    assert!(found.findings.iter().any(|finding| finding.about == run.as_str()), "{found:?}");
    let permit = place.permit(Action::ReadRun(run.clone()));
    let expected = format!("run {run} is damaged: entry 2 can't be read");
    for fault in [
        place.runs.journal(&permit, 0).await.map(drop),
        place.runs.replay(&permit).await.map(drop),
        place.runs.export(&permit).await.map(drop),
    ] {
        let fault = fault.unwrap_err();
        assert!(matches!(fault, Fault::RunDamaged { .. }), "{fault:?}");
        assert_eq!(fault.to_string(), expected);
    }
    tell(&place, &run, Instruction::Cancel).await;
    let row = place.row(&run).await;
    assert_eq!((row.state, row.block), (RunState::Finished, None));
    // Other runs continue.
    let other = place.start("agent", Class::Once, &ledger.url, 1).await;
    place.until_finished(&other).await;
    assert!(!ledger.asked().keys().any(|key| key.starts_with(run.as_str())));
}

#[tokio::test]
async fn a_damaged_run_that_a_person_ended_stays_ended_where_its_journal_could_go_on() {
    let place = Place::new().await;
    // The journal is whole. What it would name next is not there.
    let absent = Body::Blob { hash: BlobHash::of(b"never put").to_hex(), length: 9 };
    let world = World::of(move |_| {
        let call = ToolCall {
            id: "1".to_owned(),
            tool: "http".to_owned(),
            arguments: absent.clone(),
            read: None,
            invalid: None,
            class: None,
        };
        let reply = ModelReply::new(Body::text("I do it."), vec![call]);
        Some(Report::Replied { reply, usage: Usage::default() })
    });
    let (ending, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let world = World {
        sandbox: Some(saggar_domain::SandboxId::from_random([7; 16])),
        end: std::sync::Arc::new(move |about| ending.send(about.run.clone()).is_ok()),
        ..world
    };
    let run = place.start("agent", Class::Once, "http://127.0.0.1:9/", 0).await;
    let worker = world.work(Store::join(&place.directory).unwrap());
    let row = place.until(&run, "it is blocked", |row| row.block.is_some()).await;
    assert_eq!(row.block.map(|block| block.kind), Some(BlockKind::Damaged));
    let events = place.events(&run).await;
    tell(&place, &run, Instruction::Cancel).await;
    // A worker takes it once more, for its sandbox alone.
    let row = place.until(&run, "it is let go of", |row| row.wake_at.is_none() && row.holder.is_none()).await;
    assert_eq!(ended.recv().await, Some(run.clone()));
    assert_eq!((row.state, row.block), (RunState::Finished, None));
    assert!(row.outcome.unwrap().as_str().contains("cancelled"));
    assert_eq!(place.events(&run).await, events);
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn the_children_of_a_damaged_run_are_cancelled_with_it() {
    let (place, ledger) = (Place::new().await, Ledger::start());
    ledger.hold(true);
    let run = place.start_agent(parent(&ledger.url)).await;
    let worker = place.worker(3000, &ledger.url);
    place.until(&run, "it waits", |row| row.state == RunState::Waiting && row.holder.is_none()).await;
    let child = children(&place, &run).await.remove(0).id;
    place.until(&child, "it calls", |_| !ledger.asked().is_empty()).await;
    drop(worker);
    tell(&place, &run, Instruction::Signal { name: "note".to_owned(), body: Body::text("hello"), question: None })
        .await;
    spoil(&place, &run).await;
    let _worker = place.worker(3000, &ledger.url);
    place.until(&run, "it is blocked", |row| row.block.is_some()).await;
    assert_eq!(place.row(&child).await.outcome, None);
    tell(&place, &run, Instruction::Cancel).await;
    let cancelled = place.until_finished(&child).await;
    assert!(cancelled.outcome.unwrap().as_str().contains("cancelled"));
    assert_eq!(place.row(&run).await.state, RunState::Finished);
}
