//! Builds on behalf of a client. A process of its own does the work; here it is fed, listened to and ended.
//!
//! The files that steps copy are archives that the client has sent before ([`super::files`]). They are unpacked into
//! `templates/PROJECT/contexts/JOB`, which is removed with the job, or by the next start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::process::{Pid, Signal, kill_process};
use saggar_build::{
    Action as BuildAction, BUILD, Base, Built, Event, Failure, Order, Recipe, Request, Step, Stream, dockerfile,
};
use saggar_domain::net::EgressDraft;
use saggar_domain::template::{TemplateId, TemplateLimits};
use saggar_domain::{Code, Draft, DraftLimits, JobId, NetworkMode, Problem, ProjectId, Storage, TemplateName, Timeout};
use saggar_image::{Limits, unpack_upload};
use saggar_sandbox::{LOCAL_PROJECT, Templates};

use super::document::{JobKind, JobState};
use super::files::FilesHash;
use super::import::{ImportRequest, Upload};
use super::job::{Job, JobView};
use super::jobs::JobFailure;
use super::manage::{TEMPLATES, refused};
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{Sandboxes, now};

/// Longest line that is read from the process.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// How long the process may take to end after it was told to.
const ENDING_PATIENCE: Duration = Duration::from_secs(20);
/// How often it is looked whether the job was cancelled.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Maximum size of a Dockerfile.
const DOCKERFILE_BYTES_MAX: u64 = 1 << 20;
/// Characters of a path that a message quotes.
const FILE_LEN_SHOWN: usize = 128;
/// Lines of a failed step's output that its problem quotes.
const TAIL_LINES: usize = 10;

/// What to build.
#[derive(Debug)]
pub struct BuildRequest {
    pub source: BuildSource,
    pub no_cache: bool,
}

#[derive(Debug)]
pub enum BuildSource {
    Steps {
        base: BuildBase,
        /// Its first stage starts from `base`.
        recipe: Recipe,
        /// Archives that its steps copy from, by their hashes.
        files: BTreeSet<FilesHash>,
    },
    /// An archive of a directory with a Dockerfile.
    Context {
        archive: Upload,
        /// Path of the Dockerfile in it; a recipe if it ends with `.toml`.
        file: String,
        /// The stage to end with.
        target: Option<String>,
        /// Build arguments.
        args: BTreeMap<String, String>,
    },
}

/// What the first stage starts from.
#[derive(Clone, Debug)]
pub enum BuildBase {
    /// As the recipe says.
    Recipe,
    /// A template of the project.
    Template(TemplateName),
    /// A template of the project with the name that follows from this image; without it, the image is imported first.
    Image(Box<ImportRequest>),
}

impl Sandboxes {
    /// Announces a build: it gets an id, and begins when [`Sandboxes::begin_build`] says what to do. The limits are of each of its steps, at most
    /// those of the operator, and the defaults of the template's sandboxes.
    pub async fn announce_build(
        &self,
        permit: &Permit,
        names: Vec<TemplateName>,
        limits: TemplateLimits,
    ) -> Result<JobView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        for name in &names {
            saggar_image::check_free(name).map_err(refused)?;
        }
        let job = self.new_job(permit.project(), JobKind::Build, names, JobState::Waiting).await?;
        job.set_limits(limits);
        Ok(job.view())
    }

    /// Begins an announced build.
    pub async fn begin_build(&self, permit: &Permit, id: &JobId, wanted: BuildRequest) -> Result<JobView, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let missing = || Fault::NotFound { what: "build", id: id.to_string() };
        let job = self.jobs().get(permit.project(), id).ok_or_else(missing)?;
        if let BuildSource::Steps { recipe, .. } = &wanted.source {
            recipe.check().map_err(refused)?;
        }
        let registries = match &wanted.source {
            BuildSource::Steps { base: BuildBase::Image(_), .. } => Some(self.registries().await?),
            BuildSource::Steps { .. } | BuildSource::Context { .. } => None,
        };
        self.jobs().start(&job, self.settings().template_jobs_per_project)?;
        self.run_job(Arc::clone(&job), move |sandboxes, job| {
            let place = Contexts::make(sandboxes, &job.project, &job.view().id)?;
            let (recipe, contexts) = match wanted.source {
                BuildSource::Steps { base, mut recipe, files } => {
                    let base = sandboxes.base_of(job, base, registries)?;
                    if let (Some(base), Some(first)) = (base, recipe.stages.first_mut()) {
                        first.from = Base::Template(base.to_string());
                    }
                    // After all others, whose numbers clients count.
                    let labels = job.limits().within_reach().to_labels();
                    if let Some(last) = recipe.stages.last_mut().filter(|_| !labels.is_empty()) {
                        last.steps.push(Step { line: None, force: false, action: BuildAction::Label { set: labels } });
                    }
                    (recipe, place.unpack(sandboxes, job, &files)?)
                }
                BuildSource::Context { archive, file, target, args } => {
                    let context = unpacked(sandboxes, archive.into_file(), &place.0.join(CONTEXT))?;
                    let recipe = sandboxes.recipe_of(job, &context, &file, target.as_deref(), &args)?;
                    // What clients bring beside the directory is no part of it.
                    remove_brought(&context);
                    (recipe, BTreeMap::from([(CONTEXT.to_owned(), context)]))
                }
            };
            sandboxes.build_in_process(job, recipe, contexts, wanted.no_cache)
        });
        Ok(job.view())
    }

    /// The recipe of a Dockerfile in a context, which a stranger has made.
    fn recipe_of(
        &self,
        job: &Job,
        context: &Path,
        file: &str,
        target: Option<&str>,
        args: &BTreeMap<String, String>,
    ) -> Result<Recipe, JobFailure> {
        let fail = |why: &dyn std::fmt::Display| {
            let shown: String = file.chars().take(FILE_LEN_SHOWN).collect();
            JobFailure::from(Problem::new(
                Code::InvalidValue,
                format!("{shown:?} of the context can't be read: {why}"),
                "send an archive with a Dockerfile, and name it with `file` if it is elsewhere",
            ))
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = openat(CWD, context, flags, Mode::empty()).map_err(|errno| fail(&errno))?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let opened = openat2(root, file, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty(), resolve);
        let mut text = String::new();
        let opened = File::from(opened.map_err(|errno| fail(&errno))?);
        opened.take(DOCKERFILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| fail(&error.kind()))?;
        if file.ends_with(".toml") {
            return Recipe::from_toml(&text).map_err(JobFailure::from);
        }
        let store = self.template_store(&job.project).map_err(problem_of)?;
        let env_of =
            |name: &str| saggar_build::template_env(self.data(), &store, &self.settings().public_templates, name);
        let parsed = dockerfile::read(&text, dockerfile::Given { args, target, env_of: &env_of })?;
        for notice in parsed.notices {
            job.say(now(), None, false, &format!("line {}: {}", notice.line, notice.text));
        }
        Ok(parsed.recipe)
    }

    /// The template that the first stage starts from; `None` if the recipe says it.
    fn base_of(
        &self,
        job: &Job,
        base: BuildBase,
        registries: Option<super::registries::Registries>,
    ) -> Result<Option<TemplateName>, JobFailure> {
        let templates = Templates::new(self.data(), job.project.as_str());
        let failed = |problem: Problem| JobFailure { problem, step: Some("base".to_owned()) };
        match (base, registries) {
            (BuildBase::Template(name), _) => match templates.name(&name).map_err(failed)? {
                Some(_) => Ok(Some(name)),
                None if self.is_published(&name).map_err(failed)? => Ok(Some(name)),
                None => Err(failed(Problem::new(
                    Code::InvalidValue,
                    format!("template '{name}' not found"),
                    "build or import it first, or name one that the operator lets every project use",
                ))),
            },
            (BuildBase::Image(wanted), Some(registries)) => {
                let (request, name) = self
                    .registry_request(*wanted, registries, job.stop_flag())
                    .map_err(|fault| failed(problem_of(fault)))?;
                if templates.name(&name).map_err(failed)?.is_none() {
                    let request = request.map_err(failed)?;
                    super::import::imported(self, job, &request).map_err(|failure| failed(failure.problem))?;
                }
                Ok(Some(name))
            }
            (BuildBase::Recipe | BuildBase::Image(_), _) => Ok(None),
        }
    }

    /// Whether it is a template that the operator lets every project use.
    fn is_published(&self, name: &TemplateName) -> Result<bool, Problem> {
        let is_named = self.settings().public_templates.contains(name);
        Ok(is_named && Templates::new(self.data(), LOCAL_PROJECT).name(name)?.is_some())
    }

    /// Runs the process to its end.
    fn build_in_process(
        &self,
        job: &Job,
        recipe: Recipe,
        contexts: BTreeMap<String, PathBuf>,
        no_cache: bool,
    ) -> Result<TemplateId, JobFailure> {
        let names = job.view().names;
        let name = names.first().cloned().unwrap_or_default();
        let context = contexts.get(CONTEXT).cloned();
        let order = Order {
            name: name.clone(),
            recipe,
            context,
            contexts,
            published: self.settings().public_templates.clone(),
            sandbox: self.build_sandbox(job.limits()),
            bytes_max: Some(self.settings().import_size_max.bytes()),
            entries_max: None,
            no_cache,
            now: now(),
        };
        let request = Request::new(self.settings().data_directory.clone(), job.project.as_str().to_owned(), order);
        let built = self.listen(job, &request)?;
        let store = self.template_store(&job.project).map_err(problem_of)?;
        for other in names.iter().skip(1) {
            store.tag(&name, other, now())?;
        }
        Ok(built.id)
    }

    fn listen(&self, job: &Job, request: &Request) -> Result<Built, JobFailure> {
        let broken = |what: &str, error: &dyn std::fmt::Display| {
            tracing::error!(error = %error, what, "a process that builds failed");
            JobFailure::from(Problem::new(Code::SetupFailed, what, "try again; the server's log has the reason"))
        };
        let mut command = Command::new(&self.settings().program);
        command.arg(BUILD).env_clear().current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| broken("the build can't be started", &error))?;
        let mut body = serde_json::to_vec(request).expect("our own types have only text keys");
        body.push(b'\n');
        // It stays open until the build has ended: its end is how the process learns of ours.
        let (mut stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let is_over = Arc::new(AtomicBool::new(false));
        let watcher = {
            let (is_over, stop, timeout) = (Arc::clone(&is_over), job.stop_flag(), self.settings().build_timeout);
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            std::thread::spawn(move || watch(pid, &is_over, &stop, timeout))
        };
        if let Some(stdin) = &mut stdin {
            // If it has ended already, its output says why.
            let _ = stdin.write_all(&body);
        }
        let mut last = None;
        let mut reader = stdout.map(BufReader::new);
        while let Some(line) = reader.as_mut().and_then(next_line) {
            match serde_json::from_str(&line) {
                Ok(event) => last = tell(job, event).or(last),
                Err(error) => tracing::warn!(error = %error, "a line of a process that builds can't be read"),
            }
        }
        is_over.store(true, Ordering::Relaxed);
        watcher.thread().unpark();
        // Before the process is waited for: until then its id can't be another's.
        let is_late = watcher.join().unwrap_or(false);
        let ended = child.wait();
        drop(stdin);
        match (last, ended) {
            (Some(Ok(built)), _) => Ok(built),
            (Some(Err(_)) | None, _) if is_late => Err(JobFailure::from(Problem::new(
                Code::InvalidValue,
                format!("the build took longer than {}", Timeout::from(self.settings().build_timeout)),
                "build less at once, or ask the operator for the setting `build_timeout`",
            ))),
            (Some(Err(failure)), _) => Err(failure_of(failure)),
            (None, Ok(status)) => Err(broken("the process that builds ended early", &status)),
            (None, Err(error)) => Err(broken("the process that builds can't be waited for", &error)),
        }
    }

    /// The sandbox of each step, by the operator's settings.
    fn build_sandbox(&self, asked: TemplateLimits) -> Draft {
        let settings = self.settings();
        let memory = asked.memory.map_or(settings.build_memory, |asked| asked.min(settings.build_memory));
        let cpus = asked.cpus.map_or(settings.build_cpus, |asked| asked.min(settings.build_cpus));
        let is_networked = !settings.build_network.is_empty();
        Draft {
            network: Some(if is_networked { NetworkMode::Proxied } else { NetworkMode::None }),
            egress: EgressDraft::of(settings.build_network.clone(), Vec::new()),
            storage: settings.disk_storage_max.map(|_| Storage::Disk),
            limits: DraftLimits {
                timeout: Some(Timeout::from(settings.build_timeout)),
                memory: Some(memory),
                cpus: Some(cpus),
                disk: Some(settings.build_disk),
                ..DraftLimits::default()
            },
            ..Draft::default()
        }
    }
}

/// Where a client's Dockerfile is that isn't in the directory it sends.
const BROUGHT: &str = ".saggar-build";

/// It was unpacked by us, with whatever a stranger put there. Removing follows no link.
fn remove_brought(context: &Path) {
    // What can't be removed is removed with the job.
    let _ = std::fs::remove_dir_all(context.join(BROUGHT));
}

/// The key of the default context.
pub(super) const CONTEXT: &str = "context";

/// Ends the process when its job is cancelled or takes too long. Returns whether it took too long.
fn watch(pid: Option<Pid>, is_over: &AtomicBool, stop: &AtomicBool, timeout: Duration) -> bool {
    let Some(pid) = pid else { return false };
    let begin = Instant::now();
    let mut told: Option<Instant> = None;
    let mut is_late = false;
    while !is_over.load(Ordering::Relaxed) {
        is_late |= begin.elapsed() > timeout;
        match told {
            None if is_late || stop.load(Ordering::Relaxed) => {
                // It may be about to end by itself.
                let _ = kill_process(pid, Signal::TERM);
                told = Some(Instant::now());
            }
            Some(at) if at.elapsed() > ENDING_PATIENCE => {
                // As above. What it leaves is collected.
                let _ = kill_process(pid, Signal::KILL);
            }
            None | Some(_) => {}
        }
        std::thread::park_timeout(LOOK_EVERY);
    }
    is_late
}

fn next_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    let count = reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).ok()?;
    (count > 0).then(|| String::from_utf8_lossy(&line).into_owned())
}

/// Logs an event; the last one is the outcome.
fn tell(job: &Job, event: Event) -> Option<Result<Built, Failure>> {
    let short = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    match event {
        Event::Notice { line, text } => {
            let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
            job.say(now(), None, false, &format!("{place}{text}"));
            None
        }
        Event::Step { number, count, text, .. } => {
            job.progress(short(number).saturating_sub(1), short(count));
            job.say(now(), Some(short(number)), false, &format!("[{number}/{count}] {text}"));
            None
        }
        Event::Output { number, stream, text } => {
            job.say(now(), Some(short(number)), stream == Stream::Stderr, &text);
            None
        }
        Event::StepEnded { number, is_cached, .. } => {
            if is_cached {
                job.say(now(), Some(short(number)), false, "cached");
            }
            None
        }
        Event::Built(built) => {
            job.progress(short(built.steps), short(built.steps));
            job.say(now(), None, false, &format!("built {}: {}", built.name, built.id));
            Some(Ok(built))
        }
        Event::Failed(failure) => Some(Err(failure)),
    }
}

fn failure_of(failure: Failure) -> JobFailure {
    let Failure { mut problem, step, output, .. } = failure;
    if !output.is_empty() {
        let tail = output[output.len().saturating_sub(TAIL_LINES)..].join("\n");
        problem.message = format!("{}\n{tail}", problem.message);
    }
    JobFailure { problem, step: step.map(|step| step.to_string()) }
}

/// The problem of a fault, for a job's record.
fn problem_of(fault: Fault) -> Problem {
    match fault {
        Fault::Refused(problem) | Fault::NoSuchTemplate(problem) => problem,
        other => Problem::new(Code::DataDirectory, other.to_string(), "tell the operator of the server"),
    }
}

/// Where a build's files are unpacked. Removed when it is dropped.
struct Contexts(PathBuf);

impl Contexts {
    fn make(sandboxes: &Sandboxes, project: &ProjectId, id: &JobId) -> Result<Self, JobFailure> {
        let place = sandboxes.contexts(project).join(id.as_str());
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&place).map_err(|error| unwritable(&error))?;
        Ok(Self(place))
    }

    fn unpack(
        &self,
        sandboxes: &Sandboxes,
        job: &Job,
        files: &BTreeSet<FilesHash>,
    ) -> Result<BTreeMap<String, PathBuf>, JobFailure> {
        let mut contexts = BTreeMap::new();
        for hash in files {
            let archive = sandboxes.files_of(&job.project, hash).map_err(|_| {
                JobFailure::from(Problem::new(
                    Code::InvalidValue,
                    format!("the files {} of a COPY step were not uploaded", hash.as_str()),
                    "build again: the client uploads them",
                ))
            })?;
            let place = self.0.join(hash.as_str());
            contexts.insert(hash.as_str().to_owned(), unpacked(sandboxes, archive, &place)?);
        }
        Ok(contexts)
    }
}

fn unpacked(sandboxes: &Sandboxes, archive: File, place: &Path) -> Result<PathBuf, JobFailure> {
    std::fs::DirBuilder::new().mode(0o700).create(place).map_err(|error| unwritable(&error))?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let directory = openat(CWD, place, flags, Mode::empty()).map_err(|errno| unwritable(&errno.into()))?;
    let limits = Limits { bytes_max: sandboxes.settings().import_size_max.bytes(), ..Limits::default() };
    unpack_upload(Box::new(archive), directory, limits)?;
    Ok(place.to_owned())
}

impl Drop for Contexts {
    fn drop(&mut self) {
        // If this fails, the next start removes it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn unwritable(error: &std::io::Error) -> JobFailure {
    JobFailure::from(Problem::new(
        Code::DataDirectory,
        format!("the files of the build can't be unpacked: {}", error.kind()),
        "tell the operator of the server",
    ))
}
