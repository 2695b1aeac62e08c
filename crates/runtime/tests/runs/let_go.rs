//! A worker that dies between a run's end and the end of its sandbox: the next worker ends the sandbox.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{RunId, SandboxId, Timestamp, Uptime};
use saggar_engine::{Body, Class, ModelReply, Report, Usage};
use saggar_runtime::runs::{About, Effects, Hub, Session, Task, Worker, WorkerSettings};
use saggar_store::Store;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::place::{PATIENCE, Place, random, uptime};

/// A world whose sandboxes end, or never do.
#[derive(Clone)]
struct World {
    is_stuck: bool,
    ending: mpsc::UnboundedSender<(RunId, Option<SandboxId>)>,
}

struct OneRun {
    world: World,
    about: About,
}

impl Effects for World {
    type Session = OneRun;

    fn now(&self) -> Timestamp {
        Timestamp::from(std::time::SystemTime::now())
    }

    fn uptime(&self) -> Uptime {
        uptime()
    }

    fn chance(&self) -> u64 {
        u64::from_ne_bytes(random())
    }

    async fn room(&self) -> u32 {
        0
    }

    fn session(&self, about: About) -> OneRun {
        OneRun { world: self.clone(), about }
    }

    async fn within<F: Future + Send>(&self, work: F) -> F::Output {
        work.await
    }
}

impl Session for OneRun {
    async fn perform(self: Arc<Self>, _: Task) -> Report {
        let reply = ModelReply { text: Body::text("It is done."), calls: Vec::new() };
        Report::Replied { reply, usage: Usage::default() }
    }

    fn sandbox(&self) -> Option<SandboxId> {
        self.about.sandbox.clone().or(Some(SandboxId::from_random([7; 16])))
    }

    async fn rest(&self) {}

    fn may_hold(&self) -> bool {
        true
    }

    async fn end(&self) -> bool {
        self.world.ending.send((self.about.run.clone(), self.about.sandbox.clone())).unwrap();
        if self.world.is_stuck { pending().await } else { true }
    }
}

#[tokio::test]
async fn a_sandbox_is_ended_by_whoever_takes_over_from_a_worker_that_died_before_it_did() {
    let place = Place::new().await;
    let store = Store::join(&place.directory).unwrap();
    let work = |is_stuck| {
        let (ending, ended) = mpsc::unbounded_channel();
        let lease = Duration::from_millis(500);
        let settings = WorkerSettings { lease, renew_every: lease / 5, ..WorkerSettings::default() };
        let worker = Worker::new(store.clone(), World { is_stuck, ending }, Hub::default(), settings);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let task = tokio::spawn(async move {
            let _stop = stop;
            worker.run(stopped).await;
        });
        (task, ended)
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
