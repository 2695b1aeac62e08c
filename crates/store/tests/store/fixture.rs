//! Test directories, and rows for a store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};
use saggar_domain::{
    BootId, DeadlineAction, EndReason, ExecId, ExecStatus, Ingress, Labels, PolicyHash, ProjectId, ProjectName, RunId,
    RunState, SandboxId, Timestamp, Uptime, User,
};
use saggar_store::{
    Append, Claimed, Ending, ExecEnd, Holder, Insertion, JsonText, Lease, Lifetime, NewRun, NewSandbox, Project,
    RunInsertion, StartedExec, Store, StoredEvent, Summary, Taking, TokenHash,
};

/// The start of the tests' time.
pub const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

/// A directory that is removed with its test.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Self {
        let directory = std::env::temp_dir().join(format!("saggar-store-{:032x}", u128::from_ne_bytes(random())));
        std::fs::create_dir(&directory).unwrap();
        Self(directory)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn open(&self) -> Store {
        Store::open(&self.0).unwrap()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

pub async fn store_with_project(scratch: &Scratch) -> (Store, ProjectId) {
    let store = scratch.open();
    let project = store.default_project(ProjectId::from_random(random()), NOW).await.unwrap();
    (store, project.id)
}

pub fn project(name: &str) -> Project {
    Project { id: ProjectId::from_random(random()), name: ProjectName::parse(name).unwrap(), created_at: NOW }
}

/// Each is a millisecond newer than the last.
pub fn sandbox(project: &ProjectId) -> NewSandbox {
    static AGE: AtomicU64 = AtomicU64::new(0);
    let id = SandboxId::from_random(random());
    let age = Duration::from_millis(AGE.fetch_add(1, Ordering::Relaxed));
    sandbox_with(id, project.clone(), NOW.after(age))
}

pub fn sandbox_with(id: SandboxId, project: ProjectId, created_at: Timestamp) -> NewSandbox {
    NewSandbox {
        id,
        project,
        created_at,
        lifetime: Lifetime {
            deadline: Some(created_at.after(Duration::from_secs(300))),
            on_deadline: DeadlineAction::Pause,
            idle_timeout: Some(Duration::from_secs(60)),
        },
        auto_resume: true,
        boot_id: BootId::parse("0b0e8c1e-8b7e-4a3c-9f59-1f2a3b4c5d6e").unwrap(),
        policy_hash: PolicyHash::parse(&format!("sha256:{}", "ab".repeat(32))),
        access_token_hash: Some(TokenHash::of(b"token")),
        public_ports: [80, 65535].map(|port| port.try_into().unwrap()).into_iter().collect(),
        ingress: Ingress::default(),
        labels: labels(&[("team", "Zoë's \"own\"")]),
        spec: serde_json::from_str(r#"{"schema":"saggar.spec/v1","template":"base","network":"none"}"#).unwrap(),
        env_names: Default::default(),
    }
}

pub async fn insert(store: &Store, new: &NewSandbox) {
    assert_eq!(store.insert_sandbox(new.clone(), None).await, Ok(Insertion::Inserted));
}

pub fn labels(entries: &[(&str, &str)]) -> Labels {
    let entries: BTreeMap<_, _> = entries.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect();
    Labels::parse(entries).unwrap()
}

pub fn ending(at: Timestamp) -> Ending {
    Ending { at, reason: EndReason::TimedOut, detail: JsonText::parse(r#"{"peak":1}"#) }
}

pub fn exec(sandbox: &SandboxId, started_at: Timestamp) -> StartedExec {
    StartedExec {
        id: ExecId::from_random(random()),
        sandbox: sandbox.clone(),
        argv: vec!["sh".into(), "-c".into(), "echo 'é'; exit 3".into()],
        cwd: None,
        user: User::Root,
        started_at,
    }
}

pub fn exec_end(at: Timestamp) -> ExecEnd {
    ExecEnd { at, status: ExecStatus::Exited, exit_code: Some(3), signal: None }
}

pub fn event(seq: u64) -> StoredEvent {
    StoredEvent { seq, at: NOW, body: JsonText::parse(&format!(r#"{{"n":{seq}}}"#)).unwrap() }
}

pub fn random<const LEN: usize>() -> [u8; LEN] {
    let mut bits = [0; LEN];
    assert_eq!(getrandom(&mut bits, GetRandomFlags::empty()), Ok(LEN));
    bits
}

/// Runs this program again with one test that plays a part in another; an environment variable names its directory.
pub fn part(test: &str, variable: &str, value: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture", "--test-threads=1"]).env(variable, value);
    command
}

/// A run with this first entry.
pub async fn run(store: &Store, project: &ProjectId, first: &str, child_of: Option<(RunId, u64)>) -> RunId {
    let id = RunId::from_random(random());
    let new = NewRun {
        labels: saggar_domain::Labels::default(),
        id: id.clone(),
        project: project.clone(),
        agent: "a".to_owned(),
        created_at: NOW,
        first: first.to_owned(),
        child_of,
    };
    assert_eq!(store.create_run(new, None).await, Ok(RunInsertion::Inserted));
    id
}

/// Claims all due runs.
pub async fn take_all(store: &Store, holder: &str) -> Vec<Claimed> {
    let from = Uptime::from_millis(1_000_000);
    let lease = Lease { from, until: from.after(Duration::from_secs(5)) };
    let taking = Taking { most: 1000, reserved: 0, per_agent: 1000, per_project: 1000 };
    store.claim_due(Holder::parse(holder).unwrap(), NOW, lease, taking).await.unwrap()
}

/// An append that leaves the run's state unchanged.
pub fn append(run: &RunId, epoch: u64, head: u64, entries: &[&str], state: RunState) -> Append {
    let outcome = (state == RunState::Finished).then(|| JsonText::parse("{}").unwrap());
    Append {
        run: run.clone(),
        epoch,
        head,
        entries: entries.iter().map(|entry| (*entry).to_owned()).collect(),
        summary: Summary { state, at: NOW, wake_at: None, outcome, sandbox: None, room_since: None },
        consumed: Vec::new(),
        seen: 0,
        children: Vec::new(),
        letters: Vec::new(),
        files: None,
        generation: None,
        left: Default::default(),
        known_calls: None,
    }
}
