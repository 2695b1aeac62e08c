//! Steps that wait for room for a sandbox: who counts as waiting, and what a fork may do with such a step.

use std::sync::Mutex;

use saggar_domain::{RunId, RunState};
use saggar_engine::{
    AgentSpec, Body, Class, EffectFailure, ModelReply, Report, RetryPolicy, ToolCall, ToolResult, Usage,
};
use saggar_runtime::Action;
use saggar_runtime::runs::{ForkAt, OpenCall, Work};
use saggar_store::Store;

use crate::place::{Place, agent};
use crate::world::World;

/// An agent whose tool may be called once, and is tried again after an hour.
fn careful() -> AgentSpec {
    let mut agent = agent("agent", Class::Once, "http://127.0.0.1:9/", 0);
    let hour = 60 * 60 * 1000;
    agent.tools.get_mut("http").unwrap().retry = RetryPolicy { attempts_max: 3, first_ms: hour, most_ms: hour };
    agent
}

/// The model calls the tool once; the tool's tries come to these, one after the other, and then none returns.
fn world(tries: Vec<Report>) -> World {
    let tries = Mutex::new(tries.into_iter());
    World::of(move |task| match &task.work {
        Work::TakeSnapshot => unreachable!("its agent wants none"),
        Work::CallModel { replies: 0, .. } => {
            let call = ToolCall {
                id: "1".to_owned(),
                tool: "http".to_owned(),
                arguments: Body::text(r#"{"url":"http://127.0.0.1:9/"}"#),
                read: None,
                invalid: None,
                class: None,
            };
            let reply = ModelReply::new(Body::text("I do it."), vec![call]);
            Some(Report::Replied { reply, usage: Usage::default() })
        }
        Work::CallModel { .. } | Work::Summarize { .. } => {
            let reply = ModelReply::new(Body::text("It is done."), Vec::new());
            Some(Report::Replied { reply, usage: Usage::default() })
        }
        Work::CallTool { .. } | Work::Probe { .. } => tries.lock().unwrap().next(),
    })
}

fn no_room() -> Report {
    Report::Delayed { reason: "no room".to_owned() }
}

async fn has(place: &Place, run: &RunId, event: &str) {
    place.until(run, event, |row| row.state == RunState::Waiting && row.holder.is_none()).await;
    assert_eq!(place.events(run).await.last().unwrap().name(), event);
}

#[tokio::test]
async fn a_step_that_failed_does_not_wait_for_room() {
    let place = Place::new().await;
    let store = Store::join(&place.directory).unwrap();
    let run = place.start_agent(careful()).await;
    let first = world(vec![no_room()]).work(store.clone());
    has(&place, &run, "step_delayed").await;
    assert!(place.row(&run).await.room_since.is_some());
    first.abort();
    // There is room, and its attempt fails: what it waits for now is its next try.
    let failure = EffectFailure::new("passing", "not now", true);
    let second = world(vec![Report::Failed { failure, usage: Usage::default() }]).work(store.clone());
    let now = saggar_domain::Timestamp::from(std::time::SystemTime::now());
    assert_eq!(store.give_room(now, 1).await.unwrap(), 1);
    place.until(&run, "it fails", |row| row.epoch > 1 && row.state == RunState::Waiting && row.holder.is_none()).await;
    has(&place, &run, "step_failed").await;
    assert_eq!(place.row(&run).await.room_since, None);
    let now = saggar_domain::Timestamp::from(std::time::SystemTime::now());
    assert_eq!(store.give_room(now, 1).await.unwrap(), 0, "room is not given to a run that doesn't wait for it");
    second.abort();
}

#[tokio::test]
async fn a_once_step_that_only_waits_for_room_can_be_forked() {
    let place = Place::new().await;
    let store = Store::join(&place.directory).unwrap();
    let run = place.start_agent(careful()).await;
    let first = world(vec![no_room()]).work(store.clone());
    has(&place, &run, "step_delayed").await;
    first.abort();
    let permit = place.permit(Action::ForkRun(run.clone()));
    let forked = place.runs.fork(&permit, ForkAt::End, None).await.unwrap();
    assert_eq!(forked.does_again, [OpenCall { step: 2, tool: "http".to_owned() }]);
    let result = ToolResult::new(Body::text("done"), false);
    let second = world(vec![Report::Returned { result, snapshot: None }]).work(store);
    let row = place.until_finished(&forked.row.id).await;
    assert!(row.outcome.unwrap().as_str().contains("completed"));
    second.abort();
}
