//! `saggar __supervise`: the process that holds one sandbox, from the request on its standard input until nothing is
//! left.
//!
//! ```text
//!  start read ─▶ detached ─▶ prepared ─▶ jailed ─▶ control socket ─▶ ready told ─▶ held ─▶ cleaned up ─▶ last word ─▶ gone
//! ```
//! It outlives the process that started it. Up to "ready" every exit path reports its reason on the socket it was
//! started with; from there on it reports over its control socket, and at the end in `ended/`. If it is killed it
//! leaves a record, and the reaper does the rest: the sandbox itself dies with it.
//!
//! One process holds one sandbox, because its locks belong to the process.

mod control_socket;
mod start;

use std::os::fd::OwnedFd;
use std::process::ExitCode;

use saggar_domain::{Code, DeadlineAction, Draft, NetworkMode, Problem, SandboxId, Spec};
use saggar_jail::cgroup::{Group, Host};
use saggar_jail::{Jailed, Signals};
use saggar_supervisor::control::{BasedOn, Reply, Start};
use saggar_supervisor::egress::{Network, SessionSecrets, Wants};
use saggar_supervisor::{Again, Changes, Channel, Held, Hold, Holding, Inside, Outcome};

use crate::allocator::Allocator;
use crate::data::DataDirectory;
use crate::egress::ServiceSocket;
use crate::holdback::hold_back;
use crate::ids::policy_hash;
use crate::plan::Life;
use crate::prepare::{Order, Prepared, clean_up, failed, prepare};
use crate::resolve::{ImageUser, resolve_for};
use crate::run::{keep_held, open_network, without_links};
use crate::templates::{LOCAL_PROJECT, Templates};
use crate::volume::HeldVolume;
use control_socket::ControlSocket;
pub(crate) use control_socket::{control_name, unnamed};
use start::Starter;

/// Drops everything that was inherited from the process that started us.
pub(crate) fn detach() {
    start::detach(IGNORED);
}

pub const SUPERVISE: &str = "__supervise";

/// SIGTERM ends the sandbox in an orderly way; signals from a terminal are meant for others.
const ENDING: &[i32] = &[libc::SIGTERM];
const IGNORED: &[i32] = &[libc::SIGHUP, libc::SIGINT, libc::SIGQUIT];

/// Returns once the sandbox is gone.
pub fn supervise() -> ExitCode {
    let (mut starter, start) = match Starter::receive() {
        Ok(received) => received,
        // There is no connection to report this on.
        Err(_) => return ExitCode::FAILURE,
    };
    detach();
    let outcome = Signals::block(ENDING)
        .map_err(|error| failed("blocking signals", error).error)
        .and_then(|signals| Supervised::make(start?, signals));
    match outcome {
        Ok(supervised) => {
            // If the starter died before it heard of this sandbox, another process may already have recorded that there is none. So
            // the sandbox ends, in the same order as on any SIGTERM. Once the starter has heard, others find the sandbox by its socket.
            if starter.tell(&Reply::Ready(Box::new(supervised.hold.describe()))).is_err() {
                let asked = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
                debug_assert!(asked.is_ok(), "{asked:?}");
            }
            drop(starter);
            Allocator::unmap_kept();
            supervised.hold()
        }
        Err(problem) => {
            // The starter may be gone; then there is nothing to be found.
            let _ = starter.tell(&Reply::Error(problem));
            ExitCode::FAILURE
        }
    }
}

/// A sandbox, and everything that has to be removed after it.
struct Supervised {
    data: DataDirectory,
    sandbox: SandboxId,
    /// What it takes to make its inside again.
    asked: Asked,
    prepared: Prepared,
    socket: ControlSocket,
    hold: Hold,
    /// What a scratch workspace's changes are in.
    layer: Option<OwnedFd>,
}

/// What a sandbox's inside is made of.
struct Asked {
    draft: Draft,
    template_project: String,
    volume_project: Option<String>,
    uses_secrets: bool,
}

/// A new inside, and what has to be removed after it.
struct Made {
    prepared: Prepared,
    inside: Inside,
    layer: Option<OwnedFd>,
}

impl Supervised {
    fn make(start: Start, signals: Signals) -> Result<Self, Problem> {
        let sandbox = start.sandbox_id;
        let data = DataDirectory::open(Some(&start.data_directory))?;
        let asked = Asked {
            draft: start.spec,
            template_project: start.template_project.unwrap_or_else(|| LOCAL_PROJECT.to_owned()),
            volume_project: start.volume_project,
            uses_secrets: start.uses_secrets,
        };
        let mut socket = None;
        let listen = || {
            socket = Some(ControlSocket::listen(&data, &sandbox)?);
            Ok(())
        };
        let made = asked.make(&data, &sandbox, start.terms.then, None, listen);
        match (made, socket) {
            (Ok(Made { prepared, inside, layer }), Some((socket, listener))) => {
                let hold = Hold::new(Holding {
                    sandbox_id: sandbox.clone(),
                    inside,
                    listener,
                    signals,
                    terms: start.terms,
                    is_pooled: start.is_pooled,
                    events_before: start.events_before,
                });
                Ok(Self { data, sandbox, asked, prepared, socket, hold, layer })
            }
            (made, socket) => {
                if let Some((socket, _)) = socket {
                    socket.remove();
                }
                Err(made.err().unwrap_or_else(|| failed("creating the control socket", "it was not created").error))
            }
        }
    }

    /// Holds it, and cleans up: the tree, the cgroups, the placeholders, the record; then writes the final report, and
    /// removes the socket last.
    fn hold(self) -> ExitCode {
        let Self { data, sandbox, mut asked, prepared, socket, mut hold, mut layer } = self;
        let mut prepared = Some(prepared);
        let mut held = loop {
            match hold.run() {
                Outcome::Ended(held) => break *held,
                Outcome::BeginsAgain(mut again) => {
                    layer = None;
                    match asked.again(&data, &sandbox, prepared.take(), &mut again) {
                        Ok(made) => {
                            (prepared, layer) = (Some(made.prepared), made.layer);
                            hold = again.go_on(made.inside);
                        }
                        Err(problem) => break again.give_up(problem),
                    }
                }
            }
        };
        if let Some(prepared) = prepared {
            prepared.clean_up_after(&data, &sandbox, &mut held, layer);
        }
        let written = data.write_ended(&held.last_word);
        socket.remove();
        held.answer();
        if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

impl Prepared {
    /// Removes what is left on the host of a sandbox that is dead.
    fn clean_up_after(mut self, data: &DataDirectory, sandbox: &SandboxId, held: &mut Held, layer: Option<OwnedFd>) {
        // Before its record goes: half-kept changes of a record that exists are found.
        if let (Some(scratch), Some(layer), Some(_)) = (&self.scratch, &layer, &held.reaped)
            && let Err(problem) = keep_held(data, sandbox, scratch, layer)
        {
            held.last_word.error.get_or_insert(problem);
        }
        drop(layer);
        let removed = held.group.take().map_or(Ok(()), Group::remove);
        match removed {
            Ok(()) if held.reaped.is_some() => {
                let is_postponed = self.placed.as_ref().is_some_and(|placed| {
                    // The final report's denials are not read yet; only the removal matters.
                    let _ = without_links(placed);
                    let before = &placed.before;
                    hold_back(data, sandbox, &placed.workspace, before, placed.started_ns).is_postponed
                });
                // Postponed work is left to the reaper.
                if !is_postponed {
                    clean_up(data, sandbox, self.record, self.placed);
                }
            }
            // Something in there doesn't die, which is already reported. The record stays, so that the reaper tries
            // again.
            Ok(()) => {}
            Err(error) => {
                held.last_word.error.get_or_insert_with(|| {
                    Problem::new(
                        Code::SetupFailed,
                        format!("a cgroup of the sandbox can't be removed: {}", error.kind()),
                        "the reaper tries again",
                    )
                });
            }
        }
        drop(self.range.take());
        // Free before the client hears of the end: it may create another sandbox with an exclusive volume then.
        self.volumes.clear();
    }
}

impl Asked {
    /// Makes an inside. `meanwhile` runs while PID 1 builds its root. On an error nothing of it is left that the record doesn't name.
    fn make(
        &self,
        data: &DataDirectory,
        sandbox: &SandboxId,
        then: DeadlineAction,
        volumes: Option<Vec<HeldVolume>>,
        meanwhile: impl FnOnce() -> std::io::Result<()>,
    ) -> Result<Made, Problem> {
        let project = self.template_project.as_str();
        let templates = || Ok(Templates::new(data, project));
        let (spec, template) = resolve_for(self.draft.clone(), templates, ImageUser::Asked)?;
        let host = Host::detect_with_freezer();
        if then != DeadlineAction::Kill && host.freezer().is_err() {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                "this host can't freeze a sandbox: no freezable cgroup is available",
                "end it at its deadline instead; `saggar doctor` shows what this host supports",
            ));
        }
        let mut network = match spec.network {
            NetworkMode::Proxied => {
                let source = Box::new(ServiceSocket::in_directory(data)?);
                let secrets = SessionSecrets::of_server(self.uses_secrets);
                let wants = Wants { questions: false, connections: true, models: !spec.models.is_none() };
                Some(Network::begin(source, sandbox.clone(), spec.egress.clone(), secrets, wants)?)
            }
            NetworkMode::None | NetworkMode::Host => None,
        };
        // The operator's own volumes are no default: they belong to no project of a server.
        let volume_project = match &self.volume_project {
            Some(project) => project.as_str(),
            None if spec.volumes.is_empty() => LOCAL_PROJECT,
            None => {
                return Err(Problem::new(
                    Code::InvalidMount,
                    "no project was named for the sandbox's volumes",
                    "use a server and a supervisor of the same version",
                ));
            }
        };
        let based_on = template.as_ref().map(|held| BasedOn { id: held.id.clone(), project: project.to_owned() });
        let order = Order { spec: &spec, life: Life::Held, template, volume_project, volumes, hands_over_root: true };
        let mut prepared = prepare(data, sandbox, host, order, &mut |_| {}).map_err(|stopped| stopped.error)?;
        let mut group = None;
        let entered = enter(&mut prepared, &spec, &mut group, meanwhile);
        let entered = entered.and_then(|(mut jailed, channel)| match &mut network {
            // Nothing runs in it before its network has passed its test.
            Some(network) => open_network(network, &mut jailed).map(|()| (jailed, channel)),
            None => Ok((jailed, channel)),
        });
        match entered {
            Ok((jailed, channel)) => {
                let inside = Inside {
                    policy_hash: policy_hash(&spec).to_string(),
                    spec,
                    unenforced: std::mem::take(&mut prepared.enforcement.unenforced),
                    pid: jailed.pid,
                    pidfd: jailed.pidfd,
                    questions: Some(jailed.listener),
                    channel,
                    group,
                    network,
                    counters: jailed.counters,
                    changes: jailed.changes.map(|upper| Changes { upper, base: prepared.identity.base() }),
                    based_on,
                };
                Ok(Made { prepared, inside, layer: jailed.layer })
            }
            Err(problem) => {
                // Whatever isn't removed now is found through the record.
                if group.map_or(Ok(()), Group::remove).is_ok() {
                    clean_up(data, sandbox, prepared.record, prepared.placed);
                }
                Err(problem)
            }
        }
    }

    /// Makes the inside again, from another template, where everything of the one before is dead.
    fn again(
        &mut self,
        data: &DataDirectory,
        sandbox: &SandboxId,
        before: Option<Prepared>,
        again: &mut Again,
    ) -> Result<Made, Problem> {
        if let Err(error) = again.take_group().map_or(Ok(()), Group::remove) {
            return Err(failed("removing the cgroups of the sandbox", error.kind()).error);
        }
        // Its range of ids and names on the host are free for the next one. Its volumes stay held, or another sandbox might take one.
        let volumes = before.map(|Prepared { record, placed, range, volumes, .. }| {
            clean_up(data, sandbox, record, placed);
            drop(range);
            volumes
        });
        self.draft.template = Some(again.template().clone());
        self.draft.egress = again.egress().clone();
        again.project().clone_into(&mut self.template_project);
        // Whether this host can freeze it was decided when it was made.
        self.make(data, sandbox, DeadlineAction::Kill, volumes, || Ok(()))
    }
}

/// Creates the sandbox. What was created is in `group` even if this fails.
fn enter(
    prepared: &mut Prepared,
    spec: &Spec,
    group: &mut Option<Group>,
    meanwhile: impl FnOnce() -> std::io::Result<()>,
) -> Result<(Jailed, Channel), Problem> {
    let (channel, theirs) = Channel::pair().map_err(|error| failed("creating the control channel", error).error)?;
    let jailed = prepared.enter(spec, theirs, group, meanwhile).map_err(|stopped| stopped.error)?;
    Ok((jailed, channel))
}
