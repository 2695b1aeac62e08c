//! Supervisors that hold nothing: they speak the control protocol as real ones do, and fail as real ones can.
//!
//! They live on a host of their own, apart from the server that started them, so a test can let either die alone. A host stops a supervisor
//! at a [`Step`] if told to, tells when it got there, and lets it go on when the test has done its worst.

mod held;
mod wire;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use saggar_domain::{Code, DeadlineAction, Draft, EndReason, Problem, SandboxId, SandboxState};
use saggar_runtime::{Launched, Launcher, Waiting};
use saggar_supervisor::control::{CONTROL, EventBody, Op, Reply, Request, Start, Terms, encode_json};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

use held::Held;
use wire::Wire;

/// How a supervisor that is started next behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// As it should.
    Good,
    /// The program can't be executed.
    CannotBeStarted,
    /// Dies before it has read what to hold.
    DiesUntold,
    /// Dies before it is ready.
    DiesTold,
    /// Says no, and ends.
    Refuses,
    /// Says something else than whether it is ready.
    Babbles,
    /// Never says anything.
    Hangs,
    /// Says that it is ready, and dies.
    DiesReady,
    /// Takes so long to end after its starter died that it is asked meanwhile.
    EndsSlowly,
}

/// A moment in a supervisor's life that a test can stop it at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// It runs, and has read nothing.
    Launched,
    /// It knows what to hold.
    Told,
    /// It can be reached, and has not said that it is ready.
    Listening,
    /// It has an owner, and has not said so.
    Claimed,
    /// It is frozen, and has not said so.
    Paused,
    /// It has left its last words, and has not said that it is dead.
    Dead,
}

/// Where supervisors live. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Host {
    inner: Arc<Inner>,
    runtime: tokio::runtime::Handle,
}

#[derive(Debug, Default)]
struct Inner {
    next: Mutex<VecDeque<Behaviour>>,
    /// The point to stop at, and whether a supervisor is stopped there.
    stop: Mutex<Option<Step>>,
    stopped: watch::Sender<bool>,
    launched: Mutex<Vec<AbortHandle>>,
    processes: Mutex<JoinSet<()>>,
    held: watch::Sender<BTreeMap<SandboxId, Arc<Held>>>,
    /// How many reported that they are ready to a process that still existed.
    ready: watch::Sender<usize>,
}

impl Host {
    /// A host apart from every server: on a runtime that lives as long as the tests do.
    pub fn apart() -> Self {
        static RUNTIME: std::sync::OnceLock<tokio::runtime::Runtime> = std::sync::OnceLock::new();
        let runtime = RUNTIME.get_or_init(|| {
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
        });
        Self::on(runtime.handle().clone())
    }

    /// A host on a server's own runtime: it dies with the server, and time that is paused is paused for both.
    pub fn on(runtime: tokio::runtime::Handle) -> Self {
        Self { inner: Arc::default(), runtime }
    }

    /// The next that are started behave like this, in turn; those after them as they should.
    pub fn next(&self, behaviours: &[Behaviour]) {
        self.inner.next.lock().expect("ours").extend(behaviours);
    }

    /// Stops the first that comes to this step there.
    pub fn stop_at(&self, step: Step) {
        *self.inner.stop.lock().expect("ours") = Some(step);
    }

    /// Waits until one is stopped.
    pub async fn stopped(&self) {
        self.inner.stopped.subscribe().wait_for(|stopped| *stopped).await.expect("the host lives");
    }

    /// Lets it go on.
    pub fn go_on(&self) {
        *self.inner.stop.lock().expect("ours") = None;
        self.inner.stopped.send_replace(false);
    }

    /// The sandboxes that have a supervisor that lives.
    pub fn held(&self) -> Vec<SandboxId> {
        self.inner.held.borrow().keys().cloned().collect()
    }

    /// Waits until so many sandboxes have a supervisor.
    pub async fn until_held(&self, count: usize) {
        self.inner.held.subscribe().wait_for(|held| held.len() == count).await.expect("the host lives");
    }

    /// Waits until so many have said that they are ready. Blocks: no server of this thread goes on meanwhile.
    pub fn wait_ready(&self, count: usize) {
        let mut ready = self.inner.ready.subscribe();
        self.runtime
            .block_on(async { ready.wait_for(|ready| *ready == count).await.map(drop) })
            .expect("the host lives");
    }

    /// Waits until every sandbox is ending. Blocks, too.
    pub fn wait_ending(&self) {
        let mut held = self.inner.held.subscribe();
        let is_ending = |all: &BTreeMap<SandboxId, Arc<Held>>| {
            !all.is_empty() && all.values().all(|one| one.state() == SandboxState::Ending)
        };
        self.runtime.block_on(async { held.wait_for(is_ending).await.map(drop) }).expect("the host lives");
    }

    /// Waits until no process is left. Blocks, too.
    pub fn wait_ended(&self) {
        let mut processes = std::mem::take(&mut *self.inner.processes.lock().expect("ours"));
        self.runtime.block_on(async { while processes.join_next().await.is_some() {} });
    }

    /// A supervisor without an owner, as a server has it ready.
    pub async fn hold_ahead(&self, data: &Path) {
        self.hold(data, true).await;
    }

    /// One with an owner that no row tells of.
    pub async fn hold_owned(&self, data: &Path) {
        self.hold(data, false).await;
    }

    async fn hold(&self, data: &Path, is_pooled: bool) {
        let mut ready = self.inner.ready.subscribe();
        let before = *ready.borrow();
        let start = Start {
            v: CONTROL,
            data_directory: data.to_owned(),
            sandbox_id: SandboxId::from_random([u8::try_from(self.launched()).expect("few"); 16]),
            spec: Draft::default(),
            terms: Terms { ttl_ms: Some(3_600_000), then: DeadlineAction::Kill, idle_ms: None },
            is_pooled,
            uses_secrets: false,
            template_project: None,
            volume_project: None,
            events_before: 0,
        };
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("ours");
        let mut bytes = Vec::new();
        encode_json(&mut bytes, &start).expect("short enough");
        std::io::Write::write_all(&mut &ours, &bytes).expect("ours");
        self.launch(theirs.into()).expect("it is told how");
        ready.wait_for(|ready| *ready > before).await.expect("the host lives");
        // Only now: one whose starter is gone before it is ready ends.
        drop(ours);
    }

    /// How many of those that were started have not ended.
    pub fn alive(&self) -> usize {
        self.inner.launched.lock().expect("ours").iter().filter(|process| !process.is_finished()).count()
    }

    /// How many were ever started.
    pub fn launched(&self) -> usize {
        self.inner.launched.lock().expect("ours").len()
    }

    pub fn sandbox(&self, id: &SandboxId) -> Arc<Held> {
        Arc::clone(self.inner.held.borrow().get(id).expect("its supervisor lives"))
    }

    /// Kills a supervisor: it leaves its socket and no words.
    pub fn kill(&self, id: &SandboxId) {
        // Two may end it at once.
        if let Some(process) = self.forget(id) {
            process.abort();
        }
    }

    fn forget(&self, id: &SandboxId) -> Option<AbortHandle> {
        let mut forgotten = None;
        self.inner.held.send_modify(|held| forgotten = held.remove(id));
        forgotten.and_then(|held| held.process.lock().expect("ours").take())
    }

    /// A sandbox ends by itself, cleanly. The process that started it learns of it from what is left.
    pub fn end(&self, id: &SandboxId, reason: EndReason) {
        let held = self.sandbox(id);
        held.leave(reason);
        self.kill(id);
    }

    /// A supervisor takes connections and answers nothing any more, or does again.
    pub fn set_mute(&self, id: &SandboxId, is_mute: bool) {
        self.sandbox(id).is_mute.send_replace(is_mute);
    }

    async fn pass(&self, step: Step) {
        let is_mine = self.inner.stop.lock().expect("ours").take_if(|stop| *stop == step).is_some();
        if is_mine {
            self.inner.stopped.send_replace(true);
            self.inner.stopped.subscribe().wait_for(|stopped| !*stopped).await.expect("the host lives");
        }
    }

    async fn supervise(self, stdin: UnixStream, behaviour: Behaviour) {
        let mut stdin = Wire::over(stdin);
        self.pass(Step::Launched).await;
        if behaviour == Behaviour::DiesUntold {
            return;
        }
        let Some(start) = stdin.read::<Start>().await else { return };
        self.pass(Step::Told).await;
        match behaviour {
            Behaviour::DiesTold => return,
            Behaviour::Refuses => {
                let problem = Problem::new(Code::UnenforcedLimit, "limit memory can't be enforced", "leave it out");
                stdin.write(&Reply::Error(problem)).await;
                return;
            }
            Behaviour::Babbles => {
                stdin.write(&Reply::Done).await;
                return std::future::pending().await;
            }
            Behaviour::Hangs => return std::future::pending().await,
            Behaviour::Good
            | Behaviour::CannotBeStarted
            | Behaviour::DiesUntold
            | Behaviour::DiesReady
            | Behaviour::EndsSlowly => {}
        }
        let held = Arc::new(Held::new(start));
        let listener = UnixListener::bind(held.path("control", "sock")).expect("a short path");
        self.pass(Step::Listening).await;
        let ready = Reply::Ready(Box::new(held.describe()));
        if behaviour == Behaviour::DiesReady {
            stdin.write(&ready).await;
            return;
        }
        let process = tokio::spawn(self.clone().serve(Arc::clone(&held), listener));
        *held.process.lock().expect("ours") = Some(process.abort_handle());
        let id = held.start.sandbox_id.clone();
        self.inner.held.send_modify(|all| drop(all.insert(id.clone(), held)));
        if !stdin.write(&ready).await {
            // Its starter has died, and may have been settled as one that had made nothing: it ends, in order.
            let held = self.sandbox(&id);
            if behaviour == Behaviour::EndsSlowly {
                held.change(SandboxState::Ending, EventBody::Ending { reason: EndReason::Killed });
                self.inner.held.send_modify(|_| {});
                // Until it is told to end: then its words are written.
                let _ = process.await;
                return;
            }
            held.leave(EndReason::Killed);
            return self.kill(&id);
        }
        self.inner.ready.send_modify(|count| *count += 1);
        drop(stdin);
        // The process that started it waits for its end.
        let _ = process.await;
    }

    async fn serve(self, held: Arc<Held>, listener: UnixListener) {
        // Dropped with this, which ends every connection.
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.expect("ours");
            let (this, held) = (self.clone(), Arc::clone(&held));
            connections.spawn(async move { this.answer(&held, Wire::over(stream)).await });
        }
    }

    async fn answer(&self, held: &Held, mut wire: Wire) {
        let Some(Request { op, .. }) = wire.read().await else { return };
        if matches!(op, Op::SetEgress { .. }) {
            held.rulings.fetch_add(1, Ordering::SeqCst);
        }
        held.is_mute.subscribe().wait_for(|is_mute| !*is_mute).await.expect("it lives");
        match op {
            Op::Describe => {}
            Op::Claim { terms, env, .. } => {
                held.claim(terms, env);
                self.pass(Step::Claimed).await;
            }
            Op::SetEgress { egress, .. } => {
                held.now.lock().expect("ours").egress = Some(egress);
                held.tell(EventBody::RulesReplaced { policy_hash: String::new() });
            }
            Op::SetTerms { terms } => held.now.lock().expect("ours").terms = terms,
            Op::Pause => {
                held.change(SandboxState::Paused, EventBody::Paused { by_itself: false });
                self.pass(Step::Paused).await;
            }
            Op::Resume { terms } => {
                held.change(SandboxState::Running, EventBody::Resumed);
                if let Some(terms) = terms {
                    held.now.lock().expect("ours").terms = terms;
                }
            }
            Op::Events { after } => return held.tell_events(after, &mut wire).await,
            Op::Touch => {
                wire.write(&Reply::Done).await;
                return;
            }
            Op::Kill => {
                let last = held.leave(EndReason::Killed);
                self.pass(Step::Dead).await;
                let process = self.forget(&held.start.sandbox_id);
                wire.write(&Reply::Killed(Box::new(last))).await;
                // With it this very connection.
                return process.map_or((), |process| process.abort());
            }
            Op::Exec(_)
            | Op::Attach(_)
            | Op::StdinEnd { .. }
            | Op::Signal { .. }
            | Op::Resize { .. }
            | Op::Open { .. }
            | Op::KeepStill
            | Op::BeginAgain { .. }
            | Op::Environment
            | Op::GoOn
            | Op::Usage => {
                let problem = Problem::new(Code::UnsupportedCapability, "nothing runs in here", "ask a real one");
                wire.write(&Reply::Error(problem)).await;
                return;
            }
        }
        wire.write(&Reply::Described(Box::new(held.describe()))).await;
    }
}

impl Launcher for Host {
    fn needs_egress(&self) -> bool {
        false
    }

    fn launch(&self, stdin: OwnedFd) -> io::Result<Box<dyn Launched>> {
        let behaviour = self.inner.next.lock().expect("ours").pop_front().unwrap_or(Behaviour::Good);
        if behaviour == Behaviour::CannotBeStarted {
            return Err(io::ErrorKind::NotFound.into());
        }
        let stdin = std::os::unix::net::UnixStream::from(stdin);
        stdin.set_nonblocking(true)?;
        let _host = self.runtime.enter();
        let stdin = UnixStream::from_std(stdin)?;
        let (alive, ended) = watch::channel(());
        let this = self.clone();
        let task = self.inner.processes.lock().expect("ours").spawn(async move {
            // Dropped at its end, however that comes.
            let _alive = alive;
            this.supervise(stdin, behaviour).await;
        });
        self.inner.launched.lock().expect("ours").push(task.clone());
        Ok(Box::new(FakeProcess { task, ended }))
    }
}

struct FakeProcess {
    task: AbortHandle,
    ended: watch::Receiver<()>,
}

impl Launched for FakeProcess {
    fn ended(&mut self) -> Waiting<'_> {
        // The error is the end: its sender is dropped.
        Box::pin(async { while self.ended.changed().await.is_ok() {} })
    }

    fn kill(&mut self) -> Waiting<'_> {
        self.task.abort();
        self.ended()
    }
}
