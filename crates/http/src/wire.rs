//! Conversions between the runtime's types and the API's. Each exists once.

use std::collections::BTreeMap;
use std::num::NonZeroU16;
use std::time::Duration;

use saggar_api as api;
use saggar_api::Timestamp;
use saggar_domain::{
    EndReason, EnvDraft, ExecId, ExecState, HostMask, HostUser, Ingress, Labels, OutputStream, PublicPorts, RunId,
    SandboxId, Timeout, User,
};
use saggar_runtime::{
    AskedWorkspace, ChangeDiff, ExecEvent, ExecView, Finished, NewSandbox, NewTerms, NoDiff, StoredExec,
};
use saggar_store::{self as store, ExecProgress, Life};
use saggar_supervisor::control;
use serde_json::Value;

use crate::refusal::Refusal;

/// A sandbox in the API's format. `unenforced` are the default limits that this host can't enforce.
pub fn sandbox(row: store::Sandbox, unenforced: Vec<String>) -> Result<api::Sandbox, Refusal> {
    let store::Sandbox { asked, life, supervisor_pid: _ } = row;
    let (started_at, ended) = match &life {
        Life::Creating => (None, None),
        Life::Running { started_at, .. } | Life::Paused { started_at, .. } => (Some(*started_at), None),
        Life::Ended { started_at, ending } => (*started_at, Some(ended(ending))),
    };
    let is_counting = matches!(life, Life::Creating | Life::Running { .. });
    Ok(api::Sandbox {
        id: asked.id,
        project_id: asked.project,
        state: life.state(),
        paused: matches!(life, Life::Paused { .. })
            .then_some(api::PausedSandbox { has_processes: true, survives_restart: false }),
        spec: api::SandboxSpec::of(asked.spec).map_err(|_| Refusal::internal())?,
        labels: shown_labels(&asked.labels),
        unenforced,
        policy_hash: asked.policy_hash,
        created_at: time(asked.created_at),
        started_at: started_at.map(time),
        deadline: asked.lifetime.deadline.filter(|_| is_counting).map(time),
        on_timeout: asked.lifetime.on_deadline,
        idle_timeout: asked.lifetime.idle_timeout.map(Timeout::from),
        auto_resume: asked.auto_resume,
        ports: api::EffectivePorts {
            public: asked.public_ports.named().collect(),
            every: asked.public_ports.is_every(),
            allow: asked.ingress.allow.map(|ports| ports.into_iter().map(NonZeroU16::get).collect()),
            host: asked.ingress.host.map(|mask| mask.to_string()),
        },
        ended,
    })
}

fn ended(ending: &store::Ending) -> api::Ended {
    let detail: Option<Value> = ending.detail.as_ref().and_then(|detail| detail.to_value().ok());
    let said = detail.as_ref().and_then(|detail| detail.get("error")?.get("message")?.as_str());
    api::Ended {
        at: time(ending.at),
        reason: ending.reason,
        detail: said.map_or_else(|| end_words(ending.reason).to_owned(), str::to_owned),
    }
}

/// Why a sandbox ended, for people.
pub fn end_words(reason: EndReason) -> &'static str {
    match reason {
        EndReason::Killed => "a client ended it",
        EndReason::TimedOut => "its lifetime expired; request a longer ttl, or extend it while it is in use",
        EndReason::Idle => "it was not used for its idle timeout",
        EndReason::OutOfMemory => "it ran out of memory; create it with a larger limit `memory`",
        EndReason::AgentLost => "the agent inside died",
        EndReason::SupervisorLost => "its supervisor was killed",
        EndReason::HostRebooted => "the host was rebooted",
        EndReason::StartFailed => "it could not be created",
        EndReason::Unclaimed => "it was not claimed in time",
        EndReason::Unknown => "how it ended is unknown",
    }
}

pub fn moment(at: Timestamp) -> saggar_domain::Timestamp {
    saggar_domain::Timestamp::from_millis(at.as_millis())
}

pub fn time(at: saggar_domain::Timestamp) -> Timestamp {
    Timestamp::from_millis(at.as_millis())
}

/// Labels in their stored form.
pub fn labels<'a>(entries: impl Iterator<Item = (&'a str, &'a str)>) -> Result<Labels, Refusal> {
    let entries: BTreeMap<String, String> = entries.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    Labels::parse(entries).map_err(refused)
}

pub fn shown_labels(labels: &Labels) -> api::Labels {
    let mut shown = api::Labels::default();
    for (name, value) in labels.entries() {
        // Stored labels were validated by the same rules, so none is left out here.
        if let Ok(label) = api::Label::new(name.clone(), value.clone()) {
            // Each name occurs once.
            let _ = shown.insert(label);
        }
    }
    shown
}

/// A lifetime or idle timeout; zero is refused, because the sandbox would end before it could be used.
pub fn lifetime(name: &str, span: Timeout) -> Result<Duration, Refusal> {
    if span.as_millis() == 0 {
        let help = "set a time, such as \"5m\"; to end a sandbox now, delete it";
        return Err(Refusal::new(api::Code::InvalidValue, format!("{name} is zero"), help));
    }
    Ok(span.duration())
}

/// A sandbox to create.
pub fn new_sandbox(
    create: api::CreateSandbox,
    caller: Option<HostUser>,
    default_ttl: Duration,
) -> Result<NewSandbox, Refusal> {
    Ok(NewSandbox {
        labels: labels(create.labels.iter())?,
        public_ports: public_ports(&create.ports)?,
        ingress: ingress(&create.ports)?,
        terms: NewTerms {
            ttl: create.ttl.map_or(Ok(default_ttl), |ttl| lifetime("ttl", ttl))?,
            then: create.on_timeout,
            idle_timeout: create.idle_timeout.map(|span| lifetime("idle_timeout", span)).transpose()?,
        },
        auto_resume: create.auto_resume,
        workspace: asked_workspace(&create, caller)?,
        spec: create.into_spec(),
    })
}

/// The directory of the host that it asks for. A path is only for a user of that host.
fn asked_workspace(create: &api::CreateSandbox, caller: Option<HostUser>) -> Result<Option<AskedWorkspace>, Refusal> {
    match (&create.workspace, &create.directory, caller) {
        (None, None, _) => Ok(None),
        (Some(name), None, _) => Ok(Some(AskedWorkspace::Named(name.clone()))),
        (None, Some(path), Some(user)) => Ok(Some(AskedWorkspace::Directory { path: path.clone(), user })),
        (None, Some(_), None) => Err(Refusal::new(
            api::Code::Forbidden,
            "a directory of the host can be named only by a user of that host, through the server's Unix socket",
            "connect to that socket, such as with --url unix:/run/saggar.sock; or ask the operator for a workspace by name",
        )),
        (Some(_), Some(_), _) => Err(Refusal::new(
            api::Code::Contradiction,
            "workspace and directory are both mounted at /workspace",
            "leave one of them out",
        )),
    }
}

/// Environment entries of whatever client, by the domain's rules.
pub fn env(entries: BTreeMap<String, String>) -> Result<EnvDraft, Refusal> {
    let mut env = EnvDraft::default();
    for (name, value) in entries {
        env.insert(name, value).map_err(refused)?;
    }
    Ok(env)
}

fn refused(problem: saggar_domain::Problem) -> Refusal {
    Refusal(Box::new(problem.into()))
}

/// The ports that need no token.
pub fn public_ports(ports: &api::Ports) -> Result<PublicPorts, Refusal> {
    const PORTS_MAX: usize = 64;
    if ports.public.len() > PORTS_MAX {
        return Err(Refusal::invalid(format!("more than {PORTS_MAX} public ports"), "declare fewer"));
    }
    ports.public.iter().copied().map(port).collect()
}

/// The ports that can be reached, and how.
pub fn ingress(ports: &api::Ports) -> Result<Ingress, Refusal> {
    let allow = ports.allow.as_ref().map(|allow| allow.iter().copied().map(port).collect()).transpose()?;
    let host = ports.host.as_deref().map(HostMask::parse).transpose().map_err(refused)?;
    let ingress = Ingress::parse(allow, host).map_err(refused)?;
    match ports.public.iter().find(|port| !ingress.allows(**port)) {
        None => Ok(ingress),
        Some(port) => Err(Refusal::new(
            api::Code::Contradiction,
            format!("port {port} is public, and `allow` doesn't list it"),
            "add it to `allow`, or remove it from `public`",
        )),
    }
}

fn port(port: u16) -> Result<NonZeroU16, Refusal> {
    NonZeroU16::new(port).ok_or_else(|| Refusal::invalid("port 0 is invalid", "use a port from 1"))
}

/// An exec from its supervisor's state.
pub fn exec(sandbox: &SandboxId, state: &control::ExecDescription, user: Option<User>) -> api::Exec {
    let ended_ms = state.ended_ms;
    api::Exec {
        id: state.exec_id.clone(),
        sandbox_id: sandbox.clone(),
        command: state.argv.clone(),
        user,
        tty: state.has_terminal,
        status: state.status.into(),
        pid: state.status.is_none().then_some(state.pid),
        exit_code: state.exit_code,
        signal: state.signal,
        started_at: Timestamp::from_millis(state.started_ms),
        ended_at: ended_ms.map(Timestamp::from_millis),
        elapsed_ms: ended_ms.map(|ended| ended.saturating_sub(state.started_ms)),
        usage: state.usage,
        denials: state.denials.clone(),
        error: state.error.clone().map(Into::into),
    }
}

/// Something that happened to an exec that is followed.
pub fn exec_event(sandbox: &SandboxId, event: ExecEvent, user: Option<User>) -> api::ExecEvent {
    match event {
        ExecEvent::Output { stream: OutputStream::Stdout, bytes } => {
            api::ExecEvent::Stdout { bytes: api::Bytes(bytes) }
        }
        ExecEvent::Output { stream: OutputStream::Stderr, bytes } => {
            api::ExecEvent::Stderr { bytes: api::Bytes(bytes) }
        }
        ExecEvent::Gap { stream, bytes } => api::ExecEvent::Gap { stream, bytes },
        ExecEvent::Exited(state) => api::ExecEvent::Exited { exec: Box::new(exec(sandbox, &state, user)) },
        ExecEvent::Failed(fault) => api::ExecEvent::Failed { problem: *Refusal::from(fault).0 },
    }
}

/// An exec with its output.
pub fn exec_result(sandbox: &SandboxId, finished: Finished, user: Option<User>) -> api::ExecResult {
    let Finished { exec: state, stdout, stderr } = finished;
    let output = api::Output {
        stdout_dropped: state.stdout_bytes.saturating_sub(stdout.len() as u64),
        stderr_dropped: state.stderr_bytes.saturating_sub(stderr.len() as u64),
        stdout,
        stderr,
    };
    api::ExecResult { exec: exec(sandbox, &state, user), output }
}

/// An exec, from any source.
pub fn exec_view(sandbox: &SandboxId, view: ExecView) -> api::ExecResult {
    match view {
        ExecView::Live(finished) => exec_result(sandbox, *finished, None),
        ExecView::Stored(stored) => {
            let StoredExec { exec, output, usage, denials } = *stored;
            let kept = |tail: &store::Tail| (tail.bytes().to_vec(), tail.dropped());
            let ((stdout, stdout_dropped), (stderr, stderr_dropped)) = (kept(&output.stdout), kept(&output.stderr));
            let output = api::Output { stdout, stderr, stdout_dropped, stderr_dropped };
            api::ExecResult { exec: api::Exec { usage, denials, ..stored_exec(exec) }, output }
        }
    }
}

fn stored_exec(exec: store::Exec) -> api::Exec {
    let store::Exec { asked, progress } = exec;
    let (status, at, exit_code, signal) = match progress {
        ExecProgress::Running => (ExecState::Running, None, None, None),
        ExecProgress::Ended(end) => (ExecState::Ended(end.status), Some(end.at), end.exit_code, end.signal),
        ExecProgress::Lost { at } => (ExecState::Lost, Some(at), None, None),
    };
    let elapsed_ms = at.map(|at| at.as_millis().saturating_sub(asked.started_at.as_millis()));
    api::Exec {
        id: asked.id,
        sandbox_id: asked.sandbox,
        command: asked.argv,
        user: None,
        tty: false,
        status,
        pid: None,
        exit_code,
        signal,
        started_at: time(asked.started_at),
        ended_at: at.map(time),
        elapsed_ms,
        usage: None,
        denials: Vec::new(),
        error: None,
    }
}

/// An event; `None` for one that this version doesn't know.
/// `run` is the run that the sandbox belongs to.
pub fn event(stored: &store::StoredEvent, run: Option<&RunId>) -> Option<api::SandboxEvent> {
    let body: control::EventBody = stored.body.to_value().ok()?;
    Some(api::SandboxEvent { seq: stored.seq, at: time(stored.at), body: event_body(body, run)? })
}

fn event_body(body: control::EventBody, run: Option<&RunId>) -> Option<api::SandboxEventBody> {
    use api::SandboxEventBody as Body;
    use control::EventBody as Control;
    Some(match body {
        Control::Started { unenforced } => Body::Started { unenforced },
        Control::Claimed => Body::Claimed,
        Control::ExecStarted { exec_id, program } => Body::ExecStarted { exec_id, program },
        Control::ExecEnded(state) => exec_ended(state.exec_id.clone(), &state),
        Control::Denial { denial } => Body::Denied { denial },
        Control::Limit { denial } => Body::LimitReached { denial },
        Control::Paused { by_itself } => {
            Body::Paused { reason: if by_itself { api::PauseReason::TimeUp } else { api::PauseReason::Asked } }
        }
        Control::Resumed => Body::Resumed,
        Control::Ending { reason } => Body::Ended { reason, detail: end_words(reason).to_owned() },
        Control::Decision { exec_id, decision } => {
            Body::Decision { decision: Box::new(api::NetworkDecision::of(*decision, exec_id, run.cloned())) }
        }
        Control::BeganAgain { template } => Body::RolledBack { template: template.to_string() },
        Control::RulesReplaced { policy_hash } => Body::RulesReplaced { policy_hash },
        Control::NetworkLost => Body::NetworkLost,
        Control::NetworkRestored => Body::NetworkRestored,
        Control::Unknown => return None,
    })
}

fn exec_ended(exec_id: ExecId, state: &control::ExecDescription) -> api::SandboxEventBody {
    api::SandboxEventBody::ExecEnded {
        exec_id,
        status: state.status.map_or(ExecState::Lost, ExecState::Ended),
        exit_code: state.exit_code,
        signal: state.signal,
    }
}

/// A sandbox's usage.
pub fn metrics(report: control::UsageReport) -> api::Metrics {
    /// The supervisor's sampling interval.
    const INTERVAL_MS: u64 = 5_000;
    api::Metrics {
        now: sample(report.now),
        samples: report.samples.into_iter().map(sample).collect(),
        interval_ms: INTERVAL_MS,
    }
}

fn sample(sample: control::Sample) -> api::Sample {
    api::Sample {
        at: Timestamp::from_millis(sample.at_ms),
        cpu_ms: sample.cpu_usec.map(|usec| usec / 1000),
        memory_bytes: sample.memory_bytes,
        memory_peak_bytes: sample.memory_peak_bytes,
        processes: sample.processes,
        disk_bytes: sample.disk_bytes,
    }
}

/// A key without its secret.
pub fn key(key: store::ApiKey) -> Result<api::Key, Refusal> {
    Ok(api::Key {
        id: key.id,
        project_id: key.project,
        name: api::KeyName::parse(key.name.as_str()).map_err(|_| Refusal::internal())?,
        prefix: key.prefix,
        created_at: time(key.created_at),
        last_used_at: key.last_used_at.map(time),
        expires_at: key.expires_at.map(time),
        revoked_at: key.revoked_at.map(time),
    })
}

/// What a sandbox changed, in the API's format.
pub fn changes(kept: saggar_runtime::KeptChanges) -> api::ChangeList {
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let items = kept.entries.into_iter().map(|entry| api::SandboxChange {
        path: entry.path.to_string(),
        change: word(serde_json::json!(entry.change)),
        kind: word(serde_json::json!(entry.kind)),
        size: entry.size,
        changed_on_host: entry.changed_on_host,
    });
    let skipped = kept.skipped.into_iter().map(|one| api::SkippedChange { path: one.path.to_string(), why: one.why });
    let commit = |one: saggar_runtime::NewCommit| api::NewCommit { id: one.id, subject: one.subject.to_string() };
    let branch = kept
        .branch
        .map(|branch| api::NewBranch { name: branch.name, commits: branch.commits.into_iter().map(commit).collect() });
    api::ChangeList { items: items.collect(), skipped: skipped.collect(), branch }
}

/// Compared changes in the API's format.
pub fn diffs(compared: Vec<ChangeDiff>) -> api::ChangeDiffs {
    let word = |value: serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let item = |one: ChangeDiff| {
        let (diff, reason) = match one.text {
            Ok(text) => (Some(text), None),
            Err(NoDiff::NotAFile) => (None, Some("not_a_file")),
            Err(NoDiff::NotText) => (None, Some("not_text")),
            Err(NoDiff::Omitted) => (None, Some("too_long")),
        };
        api::ChangeDiff {
            path: one.entry.path.to_string(),
            change: word(serde_json::json!(one.entry.change)),
            kind: word(serde_json::json!(one.entry.kind)),
            diff,
            reason: reason.map(str::to_owned),
        }
    };
    api::ChangeDiffs { items: compared.into_iter().map(item).collect() }
}

/// The outcome of applying changes, in the API's format.
pub fn applied(applied: saggar_runtime::AppliedChanges) -> api::AppliedChanges {
    let item = |one: saggar_runtime::AppliedChange| api::AppliedChange {
        path: one.path,
        applied: one.refused.is_none(),
        reason: one.refused,
    };
    let branch = applied.branch.map(|(name, commit)| api::AppliedBranch { name, commit });
    api::AppliedChanges { items: applied.changes.into_iter().map(item).collect(), branch }
}

/// A volume in the API's format.
pub fn volume(volume: saggar_runtime::UsedVolume) -> api::Volume {
    let saggar_runtime::UsedVolume { project, record, used_by } = volume;
    api::Volume {
        id: record.id,
        project_id: project,
        name: record.name,
        size: record.size,
        sharing: record.sharing,
        created_at: time(record.created_at),
        used_by,
    }
}

/// A secret in the API's format; `users` are the live sandboxes that use it.
pub fn secret(row: store::SecretRow, users: Option<Vec<SandboxId>>) -> api::ProjectSecret {
    api::ProjectSecret {
        name: row.name,
        project_id: row.project,
        binding: row.binding.into(),
        version: row.version,
        created_at: time(row.created_at),
        updated_at: time(row.updated_at),
        sealing_key: row.key.to_string(),
        used_by: users,
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::{BootId, Draft, NetworkMode, ProjectId, Tier};

    use super::*;

    #[test]
    fn a_sandbox_is_shown_with_the_tier_and_network_of_its_own_spec() {
        let at = saggar_domain::Timestamp::from_millis(1);
        for (tier, network) in [(Tier::Namespace, NetworkMode::Host), (Tier::Vm, NetworkMode::Proxied)] {
            let asked = store::NewSandbox {
                id: SandboxId::from_random([1; 16]),
                project: ProjectId::from_random([2; 16]),
                created_at: at,
                lifetime: store::Lifetime {
                    deadline: None,
                    on_deadline: saggar_domain::DeadlineAction::Kill,
                    idle_timeout: None,
                },
                auto_resume: false,
                boot_id: BootId::parse("0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e").unwrap(),
                policy_hash: None,
                access_token_hash: None,
                public_ports: PublicPorts::default(),
                ingress: Ingress::default(),
                labels: Labels::default(),
                spec: Draft { tier: Some(tier), network: Some(network), ..Draft::default() },
                env_names: Default::default(),
            };
            let row = store::Sandbox { asked, life: Life::Creating, supervisor_pid: None };
            let Ok(shown) = sandbox(row, Vec::new()) else { panic!("it can be shown") };
            assert_eq!((shown.spec.tier, shown.spec.network), (tier, network));
            assert_eq!(shown.spec.network_managed, network != NetworkMode::Host);
        }
    }
}
