//! Runs a piece of code in a context, and passes on what it prints, shows and raises, as it happens.
//!
//! ```text
//!  waiting for its turn ──request──▶ begun ──▶ ended
//!                             │         │ timeout, client gone
//!                             │         ▼
//!                             └──▶ interrupting: SIGINT, SIGINT again, then the process is killed and started anew
//! ```
//! The driver is a task of its own: it sees the execution to its end even if the client goes away.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use saggar_domain::{Beginning, CodeLanguage, CodeStatus, ContextId, ExecStatus, OutputStream, Signal, SignalScope};
use saggar_supervisor::control::ExecDescription;
use tokio::sync::{OwnedMutexGuard, mpsc};
use tokio::time::{Instant, sleep_until};

use super::asked::{Place, RunCode, check};
use super::contexts::{Context, Known, is_over, new_nonce};
use super::kernel;
use super::message::{self, CodeError, CodeResult, End, Told};
use super::packets::{Packets, Piece};
use super::room::HeldCode;
use super::text::Text;
use crate::fault::Fault;
use crate::following::{ExecEvent, Following};
use crate::permit::Permit;
use crate::sandboxes::Sandboxes;

/// Maximum number of executions that wait for one context.
const WAITING_MAX: usize = 32;
/// Events that may be under way to a client.
const EVENTS_MAX: usize = 4;
/// When an execution that a client started, and this process doesn't know of, counts as in the way.
const STRANGER_PATIENCE: Duration = Duration::from_millis(500);
/// Time until a kernel that has nothing else to do takes up a request.
const BEGIN_PATIENCE: Duration = Duration::from_secs(60);
/// Delay between interrupts, and from the first one to the kill.
const INTERRUPT_EVERY: Duration = Duration::from_secs(2);
const INTERRUPT_PATIENCE: Duration = Duration::from_secs(5);
/// How long a client may take for an event when the time of the execution is over.
const TELL_PATIENCE: Duration = Duration::from_secs(2);
/// Longer than any execution: no limit.
const NEVER: Duration = Duration::from_secs(400 * 24 * 3600);
/// Most bytes of results and errors of one execution.
const TOLD_MAX: usize = 128 << 20;
/// Most messages of one execution. A kernel of ours stops its code at half of this; code that speaks for its kernel doesn't.
const MESSAGES_MAX: usize = 2000;

/// Something that happened during an execution.
#[derive(Debug)]
pub enum CodeEvent {
    Output {
        stream: OutputStream,
        text: String,
    },
    Result(CodeResult),
    Error(CodeError),
    /// The last event.
    Ended {
        status: CodeStatus,
        /// How many executions the context has had; `None` if its process died.
        count: Option<u64>,
    },
    /// The sandbox is gone, or can't be reached; the last event.
    Failed(Fault),
}

/// An execution. Dropping it before its last event interrupts it.
#[derive(Debug)]
pub struct Running {
    pub context: ContextId,
    pub language: CodeLanguage,
    events: mpsc::Receiver<CodeEvent>,
}

impl Running {
    /// The next event; `None` after the last. May be cancelled at its await, and loses nothing.
    pub async fn next(&mut self) -> Option<CodeEvent> {
        self.events.recv().await
    }
}

impl Sandboxes {
    /// Runs code once it is the context's turn.
    pub async fn run_code(&self, permit: &Permit, run: RunCode) -> Result<Running, Fault> {
        let held = self.room_for_code(permit, run.bytes())?;
        self.run_arrived_code(permit, run, held).await
    }

    /// The same for code of a request, which had room since before it was read.
    pub async fn run_arrived_code(&self, permit: &Permit, run: RunCode, mut held: HeldCode) -> Result<Running, Fault> {
        check(&run)?;
        held.shrink(run.bytes());
        let id = match &run.place {
            Place::Context(id) => id.clone(),
            Place::Default(language, env) => self.default_context(permit, *language, env).await?,
        };
        let (_, known) = self.context_to_use(permit, &id).await?;
        let _waiting = Waiting::enter(&known.waiting, &id)?;
        let turn = known.turn.clone().lock_owned().await;
        // It may have been started anew meanwhile.
        let (mut context, known) = self.context_to_use(permit, &id).await?;
        let is_settled = known.is_settled.swap(true, Ordering::Relaxed);
        let (sender, events) = mpsc::channel(EVENTS_MAX);
        let language = context.language;
        let nonce = new_nonce();
        let followed = match self.feed_context(permit, &context.exec, Beginning::Now).await {
            // It has ended just now.
            Err(fault) if is_over(&fault) => {
                context = self.context_to_use(permit, &id).await?.0;
                self.feed_context(permit, &context.exec, Beginning::Now).await?
            }
            other => other?,
        };
        let request = kernel::request(language, &nonce, &run.code, &run.env);
        let now = Instant::now();
        let driver = Driver {
            sandboxes: self.clone(),
            permit: permit.clone(),
            context,
            known,
            events: sender,
            streams: [Stream::new(&nonce), Stream::new(&nonce)],
            deadline: now + run.timeout.map_or(NEVER, |timeout| timeout.min(NEVER)),
            begin_by: now + if is_settled { BEGIN_PATIENCE } else { STRANGER_PATIENCE },
            is_settled,
            interrupting: None,
            has_error: false,
            told: 0,
            messages: 0,
            is_deaf: false,
            _turn: turn,
        };
        tokio::spawn(async move {
            // A kernel that is busy or dead doesn't read, so this must not be waited for alone.
            let (following, mut feeding) = followed.split();
            let feed = async move {
                // How it goes on is told by the events.
                let _ = feeding.stdin(&request).await;
                drop((request, held));
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = driver.drive(following) => {}
                () = feed => {}
            }
        });
        Ok(Running { context: id, language, events })
    }
}

/// One that waits for its turn.
struct Waiting<'a>(&'a std::sync::atomic::AtomicUsize);

impl<'a> Waiting<'a> {
    fn enter(count: &'a std::sync::atomic::AtomicUsize, id: &ContextId) -> Result<Self, Fault> {
        let entered = Self(count);
        if count.fetch_add(1, Ordering::Relaxed) < WAITING_MAX {
            return Ok(entered);
        }
        let what = format!("{WAITING_MAX} executions already wait for context {id}");
        Err(Fault::Capacity { what, retry_after: Duration::from_secs(1) })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One of the two streams.
struct Stream {
    packets: Packets,
    text: Text,
    is_begun: bool,
    end: Option<End>,
}

impl Stream {
    fn new(nonce: &str) -> Self {
        Self { packets: Packets::new(nonce), text: Text::default(), is_begun: false, end: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    TimedOut,
    /// The client is gone.
    Left,
    /// Something runs that no client of this process started.
    Stranger,
}

struct Interrupting {
    why: Why,
    next: Instant,
    kill_at: Instant,
}

struct Driver {
    sandboxes: Sandboxes,
    permit: Permit,
    context: Context,
    known: Arc<Known>,
    events: mpsc::Sender<CodeEvent>,
    streams: [Stream; 2],
    deadline: Instant,
    begin_by: Instant,
    is_settled: bool,
    interrupting: Option<Interrupting>,
    has_error: bool,
    told: usize,
    messages: usize,
    /// The client takes no more events.
    is_deaf: bool,
    _turn: OwnedMutexGuard<()>,
}

/// How the driver's part ended.
enum Outcome {
    Done(End),
    /// The process is dead.
    Dead(Box<ExecDescription>),
    /// It must be killed.
    Broken(&'static str),
    Failed(Fault),
}

impl Driver {
    async fn drive(mut self, mut following: Following) {
        let outcome = self.follow(&mut following).await;
        drop(following);
        match outcome {
            Outcome::Done(end) => {
                let status = self.status(end);
                self.tell(CodeEvent::Ended { status, count: Some(end.count) }).await;
            }
            Outcome::Dead(exec) => self.died(how_it_ended(&exec)).await,
            Outcome::Broken(why) => {
                // If it can't be killed it is dead.
                let _ = self.sandboxes.kill_exec(&self.permit, &self.context.exec).await;
                self.died(why.to_owned()).await;
            }
            Outcome::Failed(fault) => self.tell(CodeEvent::Failed(fault)).await,
        }
    }

    async fn follow(&mut self, following: &mut Following) -> Outcome {
        loop {
            let events = self.events.clone();
            let is_leaving = self.interrupting.is_none();
            let tick = self.next_tick();
            let event = tokio::select! {
                event = following.next() => event,
                () = events.closed(), if is_leaving => {
                    self.interrupt(Why::Left).await;
                    continue;
                }
                () = sleep_until(tick) => match self.tick().await {
                    Some(outcome) => return outcome,
                    None => continue,
                },
            };
            match event {
                Some(ExecEvent::Output { stream, bytes }) => match self.hear(stream, &bytes).await {
                    Ok(()) => {}
                    Err(why) => return Outcome::Broken(why),
                },
                Some(ExecEvent::Gap { stream, bytes }) => {
                    self.streams[index(stream)].packets.skip();
                    let text = format!("\nsaggar: {bytes} bytes of output were not read in time, and are lost\n");
                    self.tell(CodeEvent::Output { stream: OutputStream::Stderr, text }).await;
                }
                Some(ExecEvent::Exited(exec)) => {
                    self.rest().await;
                    return Outcome::Dead(exec);
                }
                Some(ExecEvent::Failed(fault)) => return Outcome::Failed(fault),
                None => {
                    let id = self.permit.sandbox().cloned();
                    return Outcome::Failed(id.map_or_else(|fault| fault, |id| Fault::Ended { id, reason: None }));
                }
            }
            if let [Stream { end: Some(end), .. }, Stream { end: Some(_), .. }] = self.streams {
                return Outcome::Done(end);
            }
        }
    }

    fn next_tick(&self) -> Instant {
        match &self.interrupting {
            Some(interrupting) => interrupting.next.min(interrupting.kill_at),
            None if self.is_begun() => self.deadline,
            None => self.deadline.min(self.begin_by),
        }
    }

    fn is_begun(&self) -> bool {
        self.streams.iter().all(|stream| stream.is_begun)
    }

    async fn tick(&mut self) -> Option<Outcome> {
        let now = Instant::now();
        if let Some(interrupting) = &mut self.interrupting {
            if now >= interrupting.kill_at {
                return Some(Outcome::Broken(match interrupting.why {
                    Why::TimedOut => "the code took longer than its timeout and did not stop when it was interrupted",
                    Why::Left => "the client disconnected, and the code did not stop when it was interrupted",
                    Why::Stranger => "code of an earlier client still ran and did not stop when it was interrupted",
                }));
            }
            if now >= interrupting.next {
                interrupting.next = now + INTERRUPT_EVERY;
                self.signal().await;
            }
            return None;
        }
        if now >= self.deadline {
            self.interrupt(Why::TimedOut).await;
        } else if !self.is_begun() && now >= self.begin_by {
            if self.is_settled {
                return Some(Outcome::Broken("the context's process no longer takes requests"));
            }
            self.interrupt(Why::Stranger).await;
        }
        None
    }

    async fn interrupt(&mut self, why: Why) {
        let now = Instant::now();
        self.interrupting = Some(Interrupting { why, next: now + INTERRUPT_EVERY, kill_at: now + INTERRUPT_PATIENCE });
        self.signal().await;
    }

    async fn signal(&self) {
        // If it can't be signalled it is dead, which its events tell.
        let _ = self.sandboxes.signal(&self.permit, &self.context.exec, Signal::INT, SignalScope::Tree).await;
    }

    async fn hear(&mut self, stream: OutputStream, bytes: &[u8]) -> Result<(), &'static str> {
        const LIE: &str = "the context's process broke the protocol of its kernel";
        let at = index(stream);
        let pieces = self.streams[at].packets.push(bytes).map_err(|_| LIE)?;
        for piece in pieces {
            let message = match piece {
                Piece::Printed(bytes) => {
                    // What came before belongs to an earlier execution.
                    if self.streams[at].is_begun {
                        let text = self.streams[at].text.push(&bytes);
                        self.print(stream, text).await;
                    }
                    continue;
                }
                Piece::Message(message) => message,
            };
            self.told += message.len();
            self.messages += 1;
            if self.told > TOLD_MAX || self.messages > MESSAGES_MAX {
                return Err("the code had too many results");
            }
            match message::read(&message).ok_or(LIE)? {
                Told::Begin if !self.streams[at].is_begun => {
                    self.streams[at].is_begun = true;
                    if self.is_begun() && self.interrupting.as_ref().is_some_and(|it| it.why == Why::Stranger) {
                        self.interrupting = None;
                    }
                }
                Told::Result(result) if self.is_open(at) => self.tell(CodeEvent::Result(result)).await,
                Told::Error(error) if self.is_open(at) => {
                    self.has_error = true;
                    let error = self.in_our_words(error);
                    self.tell(CodeEvent::Error(error)).await;
                }
                Told::End(end) if self.is_open(at) => {
                    let text = self.streams[at].text.rest();
                    self.print(stream, text).await;
                    self.streams[at].end = Some(end);
                    if let (OutputStream::Stdout, Some(status)) = (stream, end.status.filter(|status| *status != 0)) {
                        self.has_error = true;
                        let value = format!("exit status {status}");
                        let error =
                            CodeError { name: "ExitStatus".to_owned(), value: status.to_string(), traceback: value };
                        let error = self.in_our_words(error);
                        self.tell(CodeEvent::Error(error)).await;
                    }
                }
                Told::Ready | Told::Unable(_) | Told::Begin | Told::Result(_) | Told::Error(_) | Told::End(_) => {
                    return Err(LIE);
                }
            }
        }
        Ok(())
    }

    fn is_open(&self, at: usize) -> bool {
        self.streams[at].is_begun && self.streams[at].end.is_none()
    }

    /// An interrupt of ours is not the code's error.
    fn in_our_words(&self, error: CodeError) -> CodeError {
        match self.interrupting.as_ref().map(|interrupting| interrupting.why) {
            Some(Why::TimedOut) => CodeError {
                name: "ExecutionTimeout".to_owned(),
                value: "the code took longer than its timeout and was interrupted".to_owned(),
                traceback: error.traceback,
            },
            Some(Why::Left | Why::Stranger) | None => error,
        }
    }

    async fn rest(&mut self) {
        for (at, stream) in [(0, OutputStream::Stdout), (1, OutputStream::Stderr)] {
            if self.streams[at].is_begun {
                let rest = self.streams[at].packets.rest();
                let text = self.streams[at].text.push(&rest) + &self.streams[at].text.rest();
                self.print(stream, text).await;
            }
        }
    }

    async fn print(&mut self, stream: OutputStream, text: String) {
        if !text.is_empty() {
            self.tell(CodeEvent::Output { stream, text }).await;
        }
    }

    /// Waits for the client to take it, but not longer than the execution may take.
    async fn tell(&mut self, event: CodeEvent) {
        if self.is_deaf {
            return;
        }
        let limit = match &self.interrupting {
            Some(interrupting) => interrupting.kill_at,
            None => self.deadline,
        };
        let limit = limit.max(Instant::now() + TELL_PATIENCE);
        tokio::select! {
            permit = self.events.reserve() => match permit {
                Ok(permit) => permit.send(event),
                Err(_) => self.is_deaf = true,
            },
            () = sleep_until(limit) => self.is_deaf = true,
        }
    }

    fn status(&self, _end: End) -> CodeStatus {
        match self.interrupting.as_ref().map(|interrupting| interrupting.why) {
            Some(Why::TimedOut) => CodeStatus::TimedOut,
            Some(Why::Left) => CodeStatus::Interrupted,
            Some(Why::Stranger) | None if self.has_error => CodeStatus::Error,
            Some(Why::Stranger) | None => CodeStatus::Ok,
        }
    }

    /// Starts the process anew, and says what was lost.
    async fn died(&mut self, how: String) {
        let revived = self.sandboxes.revive_context(&self.permit, &self.context, &self.known).await;
        let then = match revived {
            Ok(true) => "it was started anew, and what it had defined is lost".to_owned(),
            Ok(false) => "the context was removed".to_owned(),
            Err(fault @ (Fault::Ended { .. } | Fault::NotFound { .. })) => {
                self.tell(CodeEvent::Failed(fault)).await;
                return;
            }
            Err(fault) => format!("it can't be started anew: {fault}"),
        };
        let timed_out = self.interrupting.as_ref().is_some_and(|interrupting| interrupting.why == Why::TimedOut);
        let name = if timed_out { "ExecutionTimeout" } else { "ContextDied" };
        let value = format!("{how}; {then}");
        let error = CodeError { name: name.to_owned(), traceback: format!("{name}: {value}"), value };
        self.tell(CodeEvent::Error(error)).await;
        let status = if timed_out { CodeStatus::TimedOut } else { CodeStatus::Died };
        self.tell(CodeEvent::Ended { status, count: None }).await;
    }
}

fn index(stream: OutputStream) -> usize {
    match stream {
        OutputStream::Stdout => 0,
        OutputStream::Stderr => 1,
    }
}

fn how_it_ended(exec: &ExecDescription) -> String {
    match (exec.status, exec.exit_code, exec.signal) {
        (Some(ExecStatus::OutOfMemory), ..) => "the context's process ran out of memory".to_owned(),
        (_, Some(70), _) => "the code closed or replaced what its kernel needs".to_owned(),
        (_, Some(code), _) => format!("the context's process exited with code {code}"),
        (_, None, Some(signal)) => format!("the context's process was ended by signal {signal}"),
        (_, None, None) => "the context's process ended".to_owned(),
    }
}
