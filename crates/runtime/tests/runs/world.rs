//! A world in this process, for a worker in this process: what a task comes to is a function, and a sandbox is only an id.

use std::future::{Future, pending};
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::model::Tariff;
use saggar_domain::{SandboxId, Timestamp, Uptime};
use saggar_engine::Report;
use saggar_runtime::runs::{About, Effects, Hub, Over, Session, Task, Worker, WorkerSettings};
use saggar_store::Store;
use tokio::task::JoinHandle;

use crate::place::{random, uptime};

/// The lease of the workers here.
const LEASE: Duration = Duration::from_millis(500);

type Perform = dyn Fn(&Task) -> Option<Report> + Send + Sync;
type End = dyn Fn(&About) -> bool + Send + Sync;

#[derive(Clone)]
pub struct World {
    /// What comes of a task; with `None` it never returns.
    pub perform: Arc<Perform>,
    /// Ends what a run holds; with `false` that never returns.
    pub end: Arc<End>,
    /// The sandbox of every run that has none, if runs have one.
    pub sandbox: Option<SandboxId>,
}

impl World {
    /// Runs hold nothing.
    pub fn of(perform: impl Fn(&Task) -> Option<Report> + Send + Sync + 'static) -> Self {
        Self { perform: Arc::new(perform), end: Arc::new(|_| true), sandbox: None }
    }

    /// A worker in this world, until it is aborted.
    pub fn work(self, store: Store) -> JoinHandle<()> {
        let settings = WorkerSettings { lease: LEASE, renew_every: LEASE / 5, ..WorkerSettings::default() };
        let worker = Worker::new(store, self, Hub::default(), settings);
        let (stop, stopped) = tokio::sync::watch::channel(false);
        tokio::spawn(async move {
            let _stop = stop;
            worker.run(stopped).await;
        })
    }
}

pub struct OneRun {
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
    async fn perform(self: Arc<Self>, task: Task) -> Report {
        match (self.world.perform)(&task) {
            Some(report) => report,
            None => pending().await,
        }
    }

    fn tariff(&self) -> Option<Tariff> {
        None
    }

    fn sandbox(&self) -> Option<SandboxId> {
        self.about.sandbox.clone().or_else(|| self.world.sandbox.clone())
    }

    async fn rest(&self) {}

    async fn end_earlier(&self) {}

    fn may_hold(&self) -> bool {
        self.sandbox().is_some()
    }

    async fn end(&self, _: Over) -> bool {
        if (self.world.end)(&self.about) { true } else { pending().await }
    }
}
