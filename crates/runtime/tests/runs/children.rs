//! SIGKILL while runs wait for child runs: no child exists twice or is lost, and every end is reported once.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use saggar_domain::RunState;
use saggar_engine::{AgentSpec, Body, Class, Event, RunOutcome, Settled, replay};
use saggar_runtime::Action;
use saggar_runtime::runs::Instruction;
use saggar_store::{PageLimit, RunQuery, RunRow};

use crate::ledger::Ledger;
use crate::place::{PATIENCE, Place, agent};

/// Children of one run, and calls of each.
const CHILDREN: usize = 4;
const CALLS: usize = 3;
const KILLS: usize = 8;

/// An agent whose children each make some calls.
pub fn parent(url: &str) -> AgentSpec {
    let helper = agent("helper", Class::Keyed, url, CALLS);
    let call = |index| serde_json::json!({ "tool": "delegate", "arguments": { "task": format!("part {index}"), "agent": "helper" } });
    let calls: Vec<_> = (0..CHILDREN).map(call).collect();
    let script = serde_json::json!({ "turns": [{ "text": "You do it.", "calls": calls }, { "text": "All is done." }] });
    let mut spec = agent("parent", Class::Keyed, url, 0);
    spec.model.model = script.to_string();
    spec.tools.insert("delegate".to_owned(), spec.tools["http"].clone());
    spec.agents.insert("helper".to_owned(), helper);
    spec
}

pub async fn children(place: &Place, of: &saggar_domain::RunId) -> Vec<RunRow> {
    let permit = place.permit(Action::ListRuns);
    let project = permit.project().clone();
    let query = RunQuery { child_of: Some(of.clone()), limit: PageLimit::MAX, ..RunQuery::new(project) };
    place.runs.list(&permit, query).await.unwrap().items
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn heavy_workers_killed_while_children_are_under_way_start_none_twice() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    let mut worker = place.worker(3000, &ledger.url);
    let run = place.start_agent(parent(&ledger.url)).await;
    let begun = Instant::now();
    // Between any two kills there is progress, by the child or by the next worker.
    for kill in 1..=KILLS {
        while ledger.asked().len() < kill {
            assert!(begun.elapsed() < PATIENCE, "call {kill} comes");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        worker.signal(Signal::KILL);
        worker = place.worker(3000, &ledger.url);
    }
    let finished = place.until_finished(&run).await;
    assert!(finished.epoch > 1, "it was given back and taken again");
    let events = place.events(&run).await;
    assert_eq!(replay(&events).divergence, None);
    let completed = Event::RunFinished {
        outcome: RunOutcome::Completed { answer: Body::text("All is done.") },
        at: events.last().unwrap().at(),
    };
    assert_eq!(events.last(), Some(&completed));
    let told: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::StepSettled { result: Settled::Ended(end), .. } => Some(end.child.clone()),
            _ => None,
        })
        .collect();
    let rows = children(&place, &run).await;
    assert_eq!((told.len(), rows.len()), (CHILDREN, CHILDREN));
    for row in &rows {
        assert_eq!((told.iter().filter(|id| **id == row.id).count(), row.state), (1, RunState::Finished));
        assert_eq!(replay(&place.events(&row.id).await).divergence, None);
    }
    // Each call has one key, however often it was made.
    assert_eq!(ledger.asked().len(), CHILDREN * CALLS);
    drop(worker);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn pausing_and_cancelling_reach_the_child_and_a_fork_starts_its_own() {
    let place = Place::new().await;
    let ledger = Ledger::start();
    ledger.hold(true);
    let _worker = place.worker(3000, &ledger.url);
    let run = place.start_agent(parent(&ledger.url)).await;
    place.until(&run, "it waits", |row| row.state == RunState::Waiting && row.holder.is_none()).await;
    let child = children(&place, &run).await.remove(0).id;
    place.until(&child, "it runs", |row| row.state == RunState::Running).await;
    let tell = async |id: &saggar_domain::RunId, instruction: Instruction| {
        place.runs.tell(&place.permit(Action::TellRun(id.clone())), None, instruction).await.unwrap();
    };
    let has = async |id: &saggar_domain::RunId, name: &str| {
        let begun = Instant::now();
        while !place.events(id).await.iter().any(|event| event.name() == name) {
            assert!(begun.elapsed() < PATIENCE, "{id}: {name}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tell(&run, Instruction::Pause).await;
    has(&child, "paused").await;
    tell(&run, Instruction::Resume).await;
    has(&child, "resumed").await;
    // A fork at this moment doesn't share that child.
    let fork = place
        .runs
        .fork(&place.permit(Action::ForkRun(run.clone())), saggar_runtime::runs::ForkAt::End, None)
        .await
        .unwrap()
        .row
        .id;
    place.until(&fork, "it waits", |row| row.state == RunState::Waiting && row.holder.is_none()).await;
    let own = children(&place, &fork).await;
    assert_eq!((own.len(), own[0].id == child), (1, false));
    tell(&run, Instruction::Cancel).await;
    let cancelled = |row: &RunRow| row.outcome.as_ref().is_some_and(|outcome| outcome.as_str().contains("cancelled"));
    assert!(cancelled(&place.until_finished(&run).await));
    assert!(cancelled(&place.until_finished(&child).await));
    ledger.hold(false);
    assert!(!cancelled(&place.until_finished(&fork).await));
    assert_eq!(children(&place, &fork).await.len(), CHILDREN);
    for id in [&run, &child, &fork] {
        assert_eq!(replay(&place.events(id).await).divergence, None);
    }
    let fixture = place.runs.export(&place.permit(Action::ReadRun(fork.clone()))).await.unwrap();
    assert_eq!(fixture.check().unwrap(), fixture.entries.len());
    // Clients can't send the letters that runs send to each other.
    let permit = place.permit(Action::TellRun(fork.clone()));
    assert!(place.runs.tell(&permit, Some("@parent".to_owned()), Instruction::Resume).await.is_err());
}
