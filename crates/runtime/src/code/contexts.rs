//! Contexts: start, find, list, start anew, remove.
//!
//! A context is where its exec is: with the supervisor. This process remembers only whose turn it is, and the
//! variables of contexts that it made. A context whose process ended by itself is started anew when it is next used;
//! one whose process was killed is gone.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use saggar_domain::{
    Beginning, Code, CodeLanguage, ContextId, ExecId, ExecSpec, ExecStatus, OutputStream, Problem, SandboxId, Signal,
};
use saggar_supervisor::control::ExecDescription;

use super::kernel;
use super::message::{self, Told};
use super::packets::{Packets, Piece};
use super::tag::Tag;
use super::warm;
use crate::fault::Fault;
use crate::following::{ExecEvent, Followed};
use crate::permit::{Action, Permit};
use crate::sandboxes::{Sandboxes, random};

/// Maximum number of contexts of a sandbox.
const CONTEXTS_MAX: usize = 16;
/// Time limit of an interpreter's start, on a busy machine.
const START_PATIENCE: Duration = Duration::from_secs(60);
/// Attempts to feed a process whose last client has just left, and the delay between them.
const FEED_TRIES: u32 = 100;
const FEED_PAUSE: Duration = Duration::from_millis(10);
/// Bytes of an interpreter's last words that an error quotes.
const WORDS_MAX: usize = 500;

/// A context to start.
#[derive(Clone, Debug)]
pub struct NewContext {
    pub language: CodeLanguage,
    /// By default the user's home.
    pub cwd: Option<String>,
    /// Added to the sandbox's own variables.
    pub env: BTreeMap<String, String>,
}

/// What a context was when it was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    New,
    Kept,
    /// Its process had ended: nothing that it had defined is left.
    Replaced,
}

/// A context of a live sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Context {
    pub id: ContextId,
    pub language: CodeLanguage,
    /// Where it was started.
    pub cwd: String,
    /// Whether code of its language runs in it if no context is named.
    pub is_default: bool,
    /// The exec that it is now.
    pub exec: ExecId,
    /// When that was started, in milliseconds since 1970.
    pub started_ms: u64,
    has_env: bool,
}

/// What this process knows of contexts.
#[derive(Debug, Default)]
pub(crate) struct Contexts {
    sandboxes: Mutex<HashMap<SandboxId, Arc<OfSandbox>>>,
}

#[derive(Debug, Default)]
pub(super) struct OfSandbox {
    /// Locked while one is started, so that they can be counted.
    making: tokio::sync::Mutex<()>,
    known: Mutex<HashMap<ContextId, Arc<Known>>>,
}

/// A context, as this process knows it.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// Held by the one execution.
    pub(super) turn: Arc<tokio::sync::Mutex<()>>,
    /// How many wait for it.
    pub(super) waiting: AtomicUsize,
    /// Whether nothing runs in it that this process doesn't know of.
    pub(super) is_settled: AtomicBool,
    /// Whether a client removed it.
    is_removed: AtomicBool,
    /// Its variables, if this process made it.
    env: Mutex<Option<BTreeMap<String, String>>>,
}

impl Contexts {
    fn of(&self, id: &SandboxId, is_live: impl Fn(&SandboxId) -> bool) -> Arc<OfSandbox> {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if !sandboxes.contains_key(id) {
            sandboxes.retain(|id, _| is_live(id));
        }
        Arc::clone(sandboxes.entry(id.clone()).or_default())
    }
}

impl OfSandbox {
    pub(super) fn known(&self, id: &ContextId) -> Arc<Known> {
        Arc::clone(self.known.lock().unwrap_or_else(PoisonError::into_inner).entry(id.clone()).or_default())
    }

    fn forget(&self, id: &ContextId) {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl Context {
    fn of(tag: Tag, exec: ExecDescription) -> Self {
        let Tag { id, language, is_default, has_env } = tag;
        Self { id, language, cwd: exec.cwd, is_default, exec: exec.exec_id, started_ms: exec.started_ms, has_env }
    }
}

impl Sandboxes {
    /// Starts a context. It is ready for code when this returns.
    pub async fn create_context(&self, permit: &Permit, new: NewContext) -> Result<Context, Fault> {
        let (this, permit) = (self.clone(), permit.clone());
        to_its_end(async move { this.create_context_now(&permit, new).await }).await
    }

    async fn create_context_now(&self, permit: &Permit, new: NewContext) -> Result<Context, Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let _making = here.making.lock().await;
        self.check_room(permit).await?;
        let tag = Tag {
            id: ContextId::from_random(random()),
            language: new.language,
            is_default: false,
            has_env: !new.env.is_empty(),
        };
        self.start(permit, &here, tag, new.cwd, new.env).await
    }

    /// The contexts of a sandbox, oldest first.
    pub async fn contexts_of(&self, permit: &Permit) -> Result<Vec<Context>, Fault> {
        permit.check(|action| matches!(action, Action::ReadSandbox(_) | Action::Exec(_)))?;
        let all = self.tagged(permit).await?;
        Ok(all
            .into_iter()
            .filter(|(_, exec)| exec.status.is_none())
            .map(|(tag, exec)| Context::of(tag, exec))
            .collect())
    }

    /// One of them.
    pub async fn context(&self, permit: &Permit, id: &ContextId) -> Result<Context, Fault> {
        let found = self.contexts_of(permit).await?.into_iter().rev().find(|context| context.id == *id);
        found.ok_or_else(|| no_context(id))
    }

    /// Ends its process, and starts another one without anything of the first.
    pub async fn restart_context(&self, permit: &Permit, id: &ContextId) -> Result<Context, Fault> {
        let (this, permit, id) = (self.clone(), permit.clone(), id.clone());
        to_its_end(async move { this.restart_context_now(&permit, &id).await }).await
    }

    async fn restart_context_now(&self, permit: &Permit, id: &ContextId) -> Result<Context, Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let _making = here.making.lock().await;
        let (tag, exec) = self.newest(permit, id).await?;
        let env = self.env_of(&here, &tag)?;
        if exec.status.is_none() {
            self.kill_exec(permit, &exec.exec_id).await?;
        }
        self.start(permit, &here, tag, Some(exec.cwd), env).await
    }

    /// Ends its process.
    pub async fn remove_context(&self, permit: &Permit, id: &ContextId) -> Result<(), Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let _making = here.making.lock().await;
        let (_, exec) = self.newest(permit, id).await?;
        if exec.status.is_none() {
            // So that an execution that is under way doesn't start it anew.
            here.known(id).is_removed.store(true, Ordering::Relaxed);
            self.kill_exec(permit, &exec.exec_id).await?;
        }
        here.forget(id);
        Ok(())
    }

    /// The context to run code in, and what is known of it: started anew if its process ended by itself.
    pub(super) async fn context_to_use(&self, permit: &Permit, id: &ContextId) -> Result<(Context, Arc<Known>), Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let (tag, exec) = self.newest(permit, id).await?;
        if exec.status.is_none() {
            return Ok((Context::of(tag, exec), here.known(id)));
        }
        let (this, permit, id) = (self.clone(), permit.clone(), id.clone());
        to_its_end(async move { this.living_context(&permit, &id).await }).await
    }

    async fn living_context(&self, permit: &Permit, id: &ContextId) -> Result<(Context, Arc<Known>), Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let _making = here.making.lock().await;
        let (tag, exec) = self.newest(permit, id).await?;
        let context = match exec.status {
            None => Context::of(tag, exec),
            Some(_) => {
                let env = self.env_of(&here, &tag)?;
                self.start(permit, &here, tag, Some(exec.cwd), env).await?
            }
        };
        Ok((context, here.known(id)))
    }

    /// The default context of a language, which is started when it is first used.
    pub(super) async fn default_context(
        &self,
        permit: &Permit,
        language: CodeLanguage,
        env: &BTreeMap<String, String>,
    ) -> Result<ContextId, Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let is_it = move |tag: &Tag| tag.is_default && tag.language == language;
        let find = move |all: Vec<(Tag, ExecDescription)>| {
            all.into_iter().rev().find(|(tag, _)| is_it(tag)).filter(|(_, exec)| is_kept(exec)).map(|(tag, _)| tag.id)
        };
        if let Some(id) = find(self.tagged(permit).await?) {
            return Ok(id);
        }
        let (this, permit, env) = (self.clone(), permit.clone(), env.clone());
        to_its_end(async move {
            let _making = here.making.lock().await;
            if let Some(id) = find(this.tagged(&permit).await?) {
                return Ok(id);
            }
            this.check_room(&permit).await?;
            let tag =
                Tag { id: ContextId::from_random(random()), language, is_default: true, has_env: !env.is_empty() };
            Ok(this.start(&permit, &here, tag, None, env).await?.id)
        })
        .await
    }

    /// The context of that id, which its caller has derived from a name: started if there is none, and anew if its
    /// process has ended, however.
    pub(crate) async fn context_by_id(
        &self,
        permit: &Permit,
        id: ContextId,
        language: CodeLanguage,
    ) -> Result<Found, Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let _making = here.making.lock().await;
        let all = self.tagged(permit).await?;
        let newest = all.iter().rev().find(|(tag, _)| tag.id == id);
        let found = match newest {
            Some((_, exec)) if exec.status.is_none() => return Ok(Found::Kept),
            Some(_) => Found::Replaced,
            None => Found::New,
        };
        self.check_room(permit).await?;
        self.start(permit, &here, Tag { id, language, is_default: false, has_env: false }, None, BTreeMap::new())
            .await?;
        Ok(found)
    }

    /// Starts the process of a context anew, after it died during an execution. `false` if a client removed it.
    pub(super) async fn revive_context(
        &self,
        permit: &Permit,
        context: &Context,
        known: &Known,
    ) -> Result<bool, Fault> {
        let here = self.of_sandbox(exec_permit(permit)?);
        let _making = here.making.lock().await;
        if known.is_removed.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let all = self.tagged(permit).await?;
        // The one that died may not be known to be dead yet, if it was killed while its output is not being read.
        let is_another = |exec: &ExecDescription| exec.exec_id != context.exec && exec.status.is_none();
        if all.iter().any(|(tag, exec)| tag.id == context.id && is_another(exec)) {
            // A client did it.
            return Ok(true);
        }
        let tag = Tag {
            id: context.id.clone(),
            language: context.language,
            is_default: context.is_default,
            has_env: context.has_env,
        };
        let env = self.env_of(&here, &tag)?;
        self.start(permit, &here, tag, Some(context.cwd.clone()), env).await?;
        Ok(true)
    }

    /// Attaches to feed the process of a context. Waits for another client that may just have left.
    pub(super) async fn feed_context(
        &self,
        permit: &Permit,
        exec: &ExecId,
        from: Beginning,
    ) -> Result<Followed, Fault> {
        let mut tries = FEED_TRIES;
        loop {
            match self.attach(permit, exec, from, true).await {
                Err(Fault::Capacity { .. }) if tries > 0 => tries -= 1,
                other => return other,
            }
            tokio::time::sleep(FEED_PAUSE).await;
        }
    }

    fn of_sandbox(&self, id: &SandboxId) -> Arc<OfSandbox> {
        self.code_contexts().of(id, |id| self.project_of(id).is_some())
    }

    /// All execs that are or were contexts, oldest first.
    async fn tagged(&self, permit: &Permit) -> Result<Vec<(Tag, ExecDescription)>, Fault> {
        let id = permit.sandbox()?;
        let execs = self.live_execs(permit.project(), id).await?;
        let execs = execs.ok_or_else(|| Fault::Ended { id: id.clone(), reason: None })?;
        let tagged = |exec: ExecDescription| Some((Tag::parse(exec.tag.as_deref()?)?, exec));
        Ok(execs.into_iter().filter_map(tagged).collect())
    }

    async fn newest(&self, permit: &Permit, id: &ContextId) -> Result<(Tag, ExecDescription), Fault> {
        let all = self.tagged(permit).await?;
        let newest = all.into_iter().rev().find(|(tag, _)| tag.id == *id).filter(|(_, exec)| is_kept(exec));
        newest.ok_or_else(|| no_context(id))
    }

    async fn check_room(&self, permit: &Permit) -> Result<(), Fault> {
        let count = self.tagged(permit).await?.iter().filter(|(_, exec)| exec.status.is_none()).count();
        if count < CONTEXTS_MAX {
            return Ok(());
        }
        Err(Fault::Conflict {
            what: format!("the sandbox has {CONTEXTS_MAX} code contexts, which is the maximum"),
            help: "remove one that is no longer used".to_owned(),
        })
    }

    fn env_of(&self, here: &OfSandbox, tag: &Tag) -> Result<BTreeMap<String, String>, Fault> {
        let known = here.known(&tag.id);
        let env = known.env.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match env {
            Some(env) => Ok(env),
            None if !tag.has_env => Ok(BTreeMap::new()),
            None => Err(Fault::Conflict {
                what: format!("the variables of context {} were not kept when the server was restarted", tag.id),
                help: "remove the context, and create another one with its variables".to_owned(),
            }),
        }
    }

    async fn start(
        &self,
        permit: &Permit,
        here: &OfSandbox,
        tag: Tag,
        cwd: Option<String>,
        env: BTreeMap<String, String>,
    ) -> Result<Context, Fault> {
        let language = tag.language;
        let is_warm = language == CodeLanguage::Python
            && self.live_execs(permit.project(), permit.sandbox()?).await?.is_some_and(|execs| warm::is_among(&execs));
        let spec = ExecSpec {
            argv: if is_warm { kernel::warm_command() } else { kernel::command(language) },
            env: env.clone(),
            cwd,
            stdin: true,
            tag: Some(tag.to_string()),
            ..ExecSpec::default()
        };
        let exec = self.start_exec(permit, spec).await.map_err(|fault| match fault {
            Fault::Refused(problem) if problem.code == Code::ProgramNotFound => no_interpreter(language),
            other => other,
        })?;
        let greeted = tokio::time::timeout(START_PATIENCE, self.greet(permit, &exec, language)).await;
        let late = || Fault::Conflict {
            what: format!(
                "{} did not start within {} seconds",
                kernel::interpreter(language),
                START_PATIENCE.as_secs()
            ),
            help: "try again, or give the sandbox more CPU".to_owned(),
        };
        if let Err(fault) = greeted.unwrap_or_else(|_| Err(late())) {
            // It may be dead already.
            let _ = self.kill_exec(permit, &exec.exec_id).await;
            return Err(fault);
        }
        let known = here.known(&tag.id);
        *known.env.lock().unwrap_or_else(PoisonError::into_inner) = Some(env);
        known.is_settled.store(true, Ordering::Relaxed);
        Ok(Context::of(tag, exec))
    }

    /// Sends the kernel to a new process, and waits until it answers.
    async fn greet(&self, permit: &Permit, exec: &ExecDescription, language: CodeLanguage) -> Result<(), Fault> {
        let nonce = new_nonce();
        let mut followed = match self.feed_context(permit, &exec.exec_id, Beginning::Start).await {
            // It has ended already; how, its events tell.
            Err(fault) if is_over(&fault) => self.attach(permit, &exec.exec_id, Beginning::Start, false).await?,
            other => other?,
        };
        let hello = kernel::hello(language, &nonce);
        let mut packets = Packets::new(&nonce);
        let mut words = Vec::new();
        // Its end is reported by its events; it may not read to the end.
        let _ = followed.feeding.stdin(&hello).await;
        let mut following = followed.into_following();
        while let Some(event) = following.next().await {
            match event {
                ExecEvent::Output { stream: OutputStream::Stderr, bytes } => {
                    words.extend_from_slice(&bytes[..bytes.len().min(WORDS_MAX)]);
                    words.truncate(WORDS_MAX);
                }
                ExecEvent::Output { stream: OutputStream::Stdout, bytes } => {
                    for piece in packets.push(&bytes).map_err(|_| broken_start(language, &words))? {
                        let Piece::Message(message) = piece else { continue };
                        match message::read(&message) {
                            Some(Told::Ready | Told::Begin) => return Ok(()),
                            Some(Told::Unable(why)) => return Err(unable(&why)),
                            _ => return Err(broken_start(language, &words)),
                        }
                    }
                }
                ExecEvent::Gap { .. } => {}
                ExecEvent::Exited(exec) if exec.exit_code == Some(127) => return Err(no_interpreter(language)),
                ExecEvent::Exited(_) => return Err(broken_start(language, &words)),
                ExecEvent::Failed(fault) => return Err(fault),
            }
        }
        Err(broken_start(language, &words))
    }
}

/// A context that was begun to be made is made, even if its client leaves: the next one finds a process that understands it.
async fn to_its_end<T: Send + 'static>(
    making: impl Future<Output = Result<T, Fault>> + Send + 'static,
) -> Result<T, Fault> {
    tokio::spawn(making).await.map_err(|error| Fault::internal("starting a code context", error))?
}

/// Whether a process can't be fed because it has ended.
pub(super) fn is_over(fault: &Fault) -> bool {
    matches!(fault, Fault::Refused(problem) if problem.code == Code::InvalidStdin)
}

/// Whether it lives, or ended by itself.
fn is_kept(exec: &ExecDescription) -> bool {
    let was_killed = exec.signal == Some(Signal::KILL.number()) && exec.status == Some(ExecStatus::Signaled);
    !was_killed
}

fn exec_permit(permit: &Permit) -> Result<&SandboxId, Fault> {
    permit.check(|action| matches!(action, Action::Exec(_)))?;
    permit.sandbox()
}

/// 128 random bits in hexadecimal.
pub(super) fn new_nonce() -> String {
    random::<16>().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn no_context(id: &ContextId) -> Fault {
    Fault::NotFound { what: "code context", id: id.to_string() }
}

fn no_interpreter(language: CodeLanguage) -> Fault {
    let program = kernel::interpreter(language);
    Fault::Refused(Problem::new(
        Code::ProgramNotFound,
        format!("the sandbox has no {program}, which runs {language}"),
        format!("use a template with {program} in its PATH"),
    ))
}

fn unable(why: &str) -> Fault {
    let why: String = why.chars().filter(|c| !c.is_control()).take(200).collect();
    Fault::Refused(Problem::new(Code::UnsupportedCapability, why, "use a template with a later version"))
}

fn broken_start(language: CodeLanguage, words: &[u8]) -> Fault {
    let words = String::from_utf8_lossy(words);
    let said: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let program = kernel::interpreter(language);
    Fault::Conflict {
        what: format!("{program} ended before it was ready: {}", said.trim()),
        help: format!("check that {program} works in the sandbox: it needs memory and processes within its limits"),
    }
}
