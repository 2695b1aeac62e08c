//! Builds: stage by stage and step by step, from the cache where it has a step.
//!
//! ```text
//!  recipe ─▶ checked ─▶ step ─▶ cached? ─▶ layer ─▶ … ─▶ manifest ─▶ name
//!                        │        └─ no ─▶ sandbox or copies ─▶ layer ─▶ remembered
//!                        └─ failed: which step, which line, why, its last output
//! ```
//! The result is visible with its name, at once and at the end. A build that fails, is cancelled or killed leaves only steps in the cache, and what a
//! collection removes.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use saggar_domain::template::{ContentDigest, Defaults, LayerEntry};
use saggar_domain::{Code, ExecStatus, Problem, TemplateName};
use saggar_image::{Beyond, Build, Fate, Placement, Store, View};
use saggar_sandbox::{DataDirectory, HeldTemplate, LOCAL_PROJECT, Signals, Templates, account_in};

use crate::cache_key::{Outcome, key};
use crate::context::{Context, paths};
use crate::event::{Built, Event, Failure, Log};
use crate::recipe::{Action, Base, Step};
use crate::request::Order;
use crate::run::run;
use crate::stage::State;

/// The name that messages and sandboxes of unfinished stages have.
const UNFINISHED: &str = "unfinished-build";

/// Builds a template. The calling process must have a single thread. Any of the signals cancels.
pub fn build(
    data: &DataDirectory,
    store: &Store,
    order: &Order,
    signals: &Signals,
    log: &Log,
) -> Result<Built, Failure> {
    order.check()?;
    // The build itself doesn't depend on it.
    let _ = store.collect_interrupted();
    let needed = order.recipe.needed();
    let count = needed.iter().map(|index| order.recipe.stages[*index].steps.len()).sum();
    let watch = Watch { signals, is_cancelled: Cell::new(false) };
    let begun = store.begin_build(order.limits(), &|| watch.check());
    let engine = Engine {
        data,
        order,
        build: begun.map_err(|problem| Failure { is_cancelled: watch.is_cancelled.get(), ..problem.into() })?,
        watch,
        log,
        context: None,
        stages: vec![None; order.recipe.stages.len()],
        number: 0,
        count,
        cached_steps: 0,
    };
    engine.build(&needed)
}

struct Engine<'a> {
    data: &'a DataDirectory,
    order: &'a Order,
    build: Build<'a>,
    watch: Watch<'a>,
    log: &'a Log,
    /// Opened when the first step needs it.
    context: Option<Context>,
    stages: Vec<Option<State>>,
    /// Of the current step, counted from 1.
    number: usize,
    count: usize,
    cached_steps: usize,
}

/// Notices that the build is cancelled.
struct Watch<'a> {
    signals: &'a Signals,
    is_cancelled: Cell<bool>,
}

impl Watch<'_> {
    fn check(&self) -> Result<(), Problem> {
        if self.is_cancelled.get() || matches!(self.signals.next(), Ok(Some(_))) {
            self.is_cancelled.set(true);
            return Err(cancelled());
        }
        Ok(())
    }
}

impl<'a> Engine<'a> {
    fn build(mut self, needed: &[usize]) -> Result<Built, Failure> {
        let order = self.order;
        for index in needed {
            let stage = &order.recipe.stages[*index];
            let mut state = self.base(&stage.from)?;
            for step in &stage.steps {
                self.number += 1;
                self.step(*index, step, &mut state)?;
            }
            self.stages[*index] = Some(state);
        }
        let state = self.stages.pop().flatten().expect("the last stage is always needed");
        let mut defaults = state.defaults.clone();
        for (value, asked) in [(&mut defaults.start, &order.recipe.start), (&mut defaults.ready, &order.recipe.ready)] {
            if asked.is_some() {
                value.clone_from(asked);
            }
        }
        let defaults = defaults.check().map_err(|what| wrong(what, "correct the recipe, then build again"))?;
        let manifest = state.manifest(&order.recipe, defaults)?;
        self.watch.check().map_err(|problem| Failure { is_cancelled: true, ..problem.into() })?;
        let replaced = self.build.finish(&manifest, &order.name, order.now)?;
        Ok(Built {
            id: manifest.id(),
            name: order.name.clone(),
            layers: manifest.layers().len(),
            bytes: manifest.bytes(),
            steps: self.count,
            cached_steps: self.cached_steps,
            replaced,
        })
    }

    fn base(&self, base: &Base) -> Result<State, Problem> {
        match base {
            Base::Scratch => Ok(State::new(Vec::new(), Defaults::default())),
            Base::Stage(index) => {
                let state = self.stages.get(*index).and_then(Option::as_ref);
                Ok(state.expect("an earlier stage that is needed is done").derived())
            }
            Base::Template(name) => {
                let held = self.template(name)?;
                Ok(State::new(held.manifest.layers().to_vec(), held.manifest.defaults().clone()))
            }
        }
    }

    fn template(&self, text: &str) -> Result<HeldTemplate, Problem> {
        let name = template_name(text)?;
        match published(self.data, self.build.store(), &self.order.published, &name)? {
            Some(held) => {
                self.build.adopt(&held, &|| self.watch.check())?;
                self.build.hold(&name, held.manifest.clone())
            }
            None => find(self.build.store(), text, &name),
        }
    }

    /// Does one step, and says so.
    fn step(&mut self, stage: usize, step: &Step, state: &mut State) -> Result<(), Failure> {
        let (number, begin) = (self.number, Instant::now());
        let text = step.action.to_string();
        self.log.write(Event::Step { number, count: self.count, line: step.line, text: text.clone() });
        let done = self.watch.check().map_err(Failure::from).and_then(|()| self.act(stage, step, state));
        match done {
            Ok((is_cached, layer)) => {
                self.cached_steps += usize::from(is_cached);
                let elapsed_ms = begin.elapsed().as_millis() as u64;
                self.log.write(Event::StepEnded { number, is_cached, layer, elapsed_ms });
                Ok(())
            }
            Err(failure) if failure.is_cancelled || self.watch.is_cancelled.get() => {
                let output = failure.output;
                Err(Failure { step: Some(number), line: step.line, is_cancelled: true, output, ..cancelled().into() })
            }
            Err(failure) => {
                let place = step.line.map_or_else(String::new, |line| format!(" (line {line})"));
                let message = format!("step {number} of {}{place}, {text}: {}", self.count, failure.problem.message);
                Err(Failure {
                    problem: Problem { message, ..failure.problem.clone() },
                    step: Some(number),
                    line: step.line,
                    ..failure
                })
            }
        }
    }

    /// Whether the step came from the cache, and the layer that it made.
    fn act(&mut self, stage: usize, step: &Step, state: &mut State) -> Result<(bool, Option<LayerEntry>), Failure> {
        state.is_uncached |= step.force;
        state.apply(&step.action)?;
        match &step.action {
            Action::Copy { .. } => self.copy(stage, &step.action, state),
            Action::Run { .. } => self.run(&step.action, state),
            Action::Workdir { .. } => {
                let path = state.defaults.cwd.as_ref().map_or("/", |cwd| cwd.as_str()).to_owned();
                let key = key(&state.layers, &Outcome::Directory { path: &path });
                self.obtain(&key, state, |engine, state| {
                    let below = engine.view(state)?;
                    let made = engine.build.directory(&path, &below, &|| engine.watch.check())?;
                    Ok(made.map(|made| made.layer))
                })
            }
            Action::Env { .. }
            | Action::User { .. }
            | Action::Entrypoint { .. }
            | Action::Cmd { .. }
            | Action::Expose { .. }
            | Action::Label { .. }
            | Action::Shell { .. } => Ok((false, None)),
        }
    }

    fn run(&mut self, action: &Action, state: &mut State) -> Result<(bool, Option<LayerEntry>), Failure> {
        let Action::Run { command, user, args } = action else { unreachable!("the caller has a RUN") };
        if state.layers.is_empty() {
            return Err(wrong(
                "there are no files to run a program of".to_owned(),
                "COPY some first, or start from a template",
            )
            .into());
        }
        let program = state.program(command);
        let env = state.env(args);
        let user = user.as_ref().or(state.defaults.user.as_ref()).map_or("0", String::as_str).to_owned();
        let cwd = state.defaults.cwd.as_ref().map_or("/", |cwd| cwd.as_str()).to_owned();
        let (network, egress) = (self.order.sandbox.network, &self.order.sandbox.egress);
        let outcome = Outcome::Run { program: &program, env: &env, user: &user, cwd: &cwd, network, egress };
        let key = key(&state.layers, &outcome);
        self.obtain(&key, state, |engine, state| {
            let name = unfinished();
            let defaults = Defaults { env: env.clone(), user: Some(user.clone()), ..state.defaults.clone() };
            let manifest = state.manifest(&engine.order.recipe, defaults)?;
            let held = engine.build.hold(&name, manifest)?;
            let mut draft = engine.order.sandbox.clone();
            draft.template = Some(name);
            let ran = run(engine.data, draft, held, &program, engine.number, engine.watch.signals, engine.log)?;
            if ran.report.status == ExecStatus::Cancelled {
                engine.watch.is_cancelled.set(true);
            }
            if !ran.has_succeeded() {
                let problem = Problem::new(Code::BuildFailed, ran.reason(), ran.help());
                let exit_code = ran.report.exit_code;
                return Err(Failure { exit_code, output: ran.tail, ..problem.into() });
            }
            let Some(changes) = ran.report.root else {
                return Err(Problem::new(
                    Code::BuildFailed,
                    "what it changed can't be read: a process of its sandbox is still alive",
                    "build again; a hung disk or network mount is the usual reason",
                )
                .into());
            };
            let below = engine.view(state)?;
            let made = engine.build.changes(&changes, &below, &|| engine.watch.check())?;
            Ok(made.map(|made| made.layer))
        })
    }

    fn copy(
        &mut self,
        stage: usize,
        action: &Action,
        state: &mut State,
    ) -> Result<(bool, Option<LayerEntry>), Failure> {
        let Action::Copy { from, sources, to, chown, chmod } = action else { unreachable!("the caller has a COPY") };
        let source = self.source(stage, from.as_deref())?;
        let (view, beyond) = match &source {
            Source::Directory(context) => (&context.view, Beyond::Refused),
            Source::Layers(view) => (view, Beyond::Stays),
        };
        let fate = |path: &[u8]| match &source {
            Source::Directory(context) => context.fate(path),
            Source::Layers(_) => Fate::Taken,
        };
        let check = || self.watch.check();
        let found = paths(view, sources, beyond)?;
        let mut selection = self.build.select(view, &found, &fate, &check)?;
        let content = selection.digest(view, &check)?;
        let owner = match chown {
            None => None,
            Some(chown) => {
                let below = self.view(state)?;
                // A number alone is the group's too, as with Docker. A name's group is in the image's accounts.
                let is_number = chown.bytes().all(|byte| byte.is_ascii_digit());
                let wanted = if is_number { format!("{chown}:{chown}") } else { chown.clone() };
                let account = account_in(&below.layers(), &wanted)
                    .map_err(|why| wrong(why, "name a user or group that the image has, or its number"))?;
                Some((account.uid, account.gid))
            }
        };
        let mut to = state.absolute(to);
        if to.ends_with("/.") {
            to.pop();
        }
        let key = key(&state.layers, &Outcome::Copy { to: &to, owner, mode: *chmod, content: &content });
        let outcome = self.obtain(&key, state, |engine, state| {
            let below = engine.view(state)?;
            let placement = Placement { to: &to, owner, mode: *chmod };
            let made = engine.build.copies(view, &selection, &placement, &below, &|| engine.watch.check())?;
            Ok(made.map(|made| made.layer))
        });
        if let (None, Source::Directory(context)) = (from, source) {
            self.context = Some(context);
        }
        outcome
    }

    fn source(&mut self, stage: usize, from: Option<&str>) -> Result<Source, Problem> {
        let Some(from) = from else {
            let context = match (self.context.take(), &self.order.context) {
                (Some(context), _) => context,
                (None, Some(path)) => Context::open(path)?,
                (None, None) => {
                    return Err(wrong(
                        "the build has no context to copy from".to_owned(),
                        "name a directory: `saggar template build DIRECTORY`",
                    ));
                }
            };
            return Ok(Source::Directory(context));
        };
        if let Some(index) = self.order.recipe.stage_of(from, stage) {
            let state =
                self.stages.get(index).and_then(Option::as_ref).expect("an earlier stage that is needed is done");
            return Ok(Source::Layers(self.view(state)?));
        }
        if let Some(path) = self.order.contexts.get(from) {
            return Ok(Source::Directory(Context::open(path)?));
        }
        let held = self.template(from).map_err(|problem| Problem {
            message: format!("{from:?} is neither an earlier stage nor a template: {}", problem.message),
            ..problem
        })?;
        view_of(&held).map(Source::Layers)
    }

    /// Takes a step from the cache, or makes and remembers it.
    fn obtain(
        &mut self,
        key: &ContentDigest,
        state: &mut State,
        make: impl FnOnce(&mut Self, &State) -> Result<Option<LayerEntry>, Failure>,
    ) -> Result<(bool, Option<LayerEntry>), Failure> {
        let may_use = !self.order.no_cache && !state.is_uncached;
        let cached = may_use.then(|| self.build.store().cached(key)).flatten();
        let (is_cached, layer) = match cached {
            Some(layer) => (true, layer),
            None => {
                let layer = make(self, state)?;
                self.build.store().remember(key, layer.as_ref().map(|layer| &layer.id))?;
                (false, layer)
            }
        };
        state.layers.extend(layer.clone());
        Ok((is_cached, layer))
    }

    /// The files of a stage.
    fn view(&self, state: &State) -> Result<View, Problem> {
        if state.layers.is_empty() {
            return Ok(View::empty());
        }
        let manifest = state.manifest(&self.order.recipe, Defaults::default())?;
        view_of(&self.build.hold(&unfinished(), manifest)?)
    }
}

/// What a COPY reads from.
enum Source {
    Directory(Context),
    Layers(View),
}

fn view_of(held: &HeldTemplate) -> Result<View, Problem> {
    View::of_template(held).map_err(|errno| {
        let why = std::io::Error::from(errno).kind();
        Problem::new(
            Code::DataDirectory,
            format!("the layers of a template can't be opened: {why}"),
            "`saggar template check` lists all damage",
        )
    })
}

fn unfinished() -> TemplateName {
    TemplateName::parse(UNFINISHED).expect("it is well-formed")
}

/// The name that a reference has in the store. Docker's own images have a short and a long form.
fn template_name(text: &str) -> Result<TemplateName, Problem> {
    let short = ["docker.io/library/", "docker.io/", "library/"].iter().find_map(|prefix| text.strip_prefix(prefix));
    match TemplateName::parse(short.unwrap_or(text)) {
        Some(name) if !["base", "host"].contains(&name.name()) => Ok(name),
        Some(name) => Err(wrong(
            format!("the template {:?} is made of the host's own files, and nothing can be built on it", name.as_str()),
            "start from an image that was imported: `saggar template import`",
        )),
        None => {
            let last = text.rsplit('/').next().unwrap_or(text).split('@').next().unwrap_or_default();
            let name = TemplateName::parse(last).map_or_else(|| "NAME".to_owned(), |name| name.to_string());
            Err(wrong(
                format!("there is no template {text:?}: names have no '/' and no digest"),
                &format!(
                    "import the image with `saggar template import docker://{text} --name {name}`, and start from {name}"
                ),
            ))
        }
    }
}

/// The environment of a template, for the variables of a Dockerfile.
///
/// `shared` are those of the operator's that it may be, if the store has none of the name.
pub fn template_env(
    data: &DataDirectory,
    store: &Store,
    shared: &[TemplateName],
    text: &str,
) -> Result<BTreeMap<String, String>, Problem> {
    let name = template_name(text)?;
    let held = match published(data, store, shared, &name)? {
        Some(held) => held,
        None => find(store, text, &name)?,
    };
    Ok(held.manifest.defaults().env.clone())
}

/// The operator's template of this name, if the store has none and it is shared.
fn published(
    data: &DataDirectory,
    store: &Store,
    shared: &[TemplateName],
    name: &TemplateName,
) -> Result<Option<HeldTemplate>, Problem> {
    if !shared.contains(name) || store.templates().name(name)?.is_some() {
        return Ok(None);
    }
    let operators = Templates::new(data, LOCAL_PROJECT);
    // Without one, the project is told what it is told about any name.
    if operators.name(name)?.is_none() { Ok(None) } else { operators.find(name).map(Some) }
}

fn find(store: &Store, text: &str, name: &TemplateName) -> Result<HeldTemplate, Problem> {
    store.templates().find(name).map_err(|problem| match problem.code {
        Code::UnsupportedCapability => Problem { help: import_help(text, name), ..problem },
        _ => problem,
    })
}

fn import_help(text: &str, name: &TemplateName) -> String {
    format!("import it with `saggar template import docker://{text} --name {name}`, or from a file")
}

fn wrong(what: String, help: &str) -> Problem {
    Problem::new(Code::InvalidValue, what, help)
}

fn cancelled() -> Problem {
    Problem::new(Code::BuildFailed, "the build was cancelled", "build again; the steps that were done are cached")
}
