//! A worker that dies between a run's end and the end of its sandbox: the next worker ends the sandbox.

use std::sync::Arc;

use saggar_domain::SandboxId;
use saggar_engine::{Body, Class, ModelReply, Report, Usage};
use saggar_store::Store;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::place::{PATIENCE, Place};
use crate::world::World;

#[tokio::test]
async fn a_sandbox_is_ended_by_whoever_takes_over_from_a_worker_that_died_before_it_did() {
    let place = Place::new().await;
    let store = Store::join(&place.directory).unwrap();
    let work = |is_stuck: bool| {
        let (ending, ended) = mpsc::unbounded_channel();
        let done = |_: &_| {
            let reply = ModelReply::new(Body::text("It is done."), Vec::new());
            Some(Report::Replied { reply, usage: Usage::default() })
        };
        let world = World {
            end: Arc::new(move |about| {
                ending.send((about.run.clone(), about.sandbox.clone())).unwrap();
                !is_stuck
            }),
            sandbox: Some(SandboxId::from_random([7; 16])),
            ..World::of(done)
        };
        (world.work(store.clone()), ended)
    };
    let run = place.start("agent", Class::Keyed, "http://127.0.0.1:9/", 0).await;
    let (dying, mut ending) = work(true);
    let first = timeout(PATIENCE, ending.recv()).await.unwrap();
    assert_eq!(first, Some((run.clone(), None)), "its end is durable, and its sandbox is being ended");
    dying.abort();
    let (next, mut ended) = work(false);
    let (found, sandbox) = timeout(PATIENCE, ended.recv()).await.unwrap().unwrap();
    assert_eq!((found, sandbox), (run.clone(), Some(SandboxId::from_random([7; 16]))));
    let events = place.events(&run).await.len();
    place.until(&run, "it is let go of", |row| row.wake_at.is_none() && row.holder.is_none()).await;
    assert_eq!(place.events(&run).await.len(), events, "nothing happens to a run that is over");
    next.abort();
}
