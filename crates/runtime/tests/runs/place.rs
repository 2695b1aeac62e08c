//! A data directory with a store, the server's side of it in this process, and workers as separate processes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use saggar_domain::{KeyId, ProjectId, RunId, RunState};
use saggar_engine::{AgentSpec, Body, Budget, Class, Entry, Event, ModelRef, RetryPolicy, ToolSpec};
use saggar_runtime::runs::{Hub, NewRun, RealEffects, RunSettings, Runs, Worker, WorkerSettings};
use saggar_runtime::{Action, Permit, PoolSize, Sandboxes, Settings, Subject};
use saggar_store::{RunRow, Store};

/// Time limit of everything here.
pub const PATIENCE: Duration = Duration::from_secs(100);
/// The variable with a worker's directory, lease and allowed URL.
const PART: &str = "SAGGAR_TEST_WORKER";

pub struct Place {
    pub directory: PathBuf,
    pub runs: Runs,
    pub subject: Subject,
}

impl Place {
    pub async fn new() -> Self {
        let directory = new_directory();
        std::fs::create_dir(&directory).unwrap();
        Self::over(directory).await
    }

    /// Uses an existing data directory.
    pub async fn over(directory: PathBuf) -> Self {
        let store = Store::open(&directory).unwrap();
        let now = saggar_domain::Timestamp::from(std::time::SystemTime::now());
        let project = store.default_project(ProjectId::from_random(random()), now).await.unwrap().id;
        let subject = Subject::Key { key: KeyId::from_random(random()), project };
        let runs = Runs::new(store, Hub::default());
        Self { directory, runs, subject }
    }

    pub fn permit(&self, action: Action) -> Permit {
        Permit::decide(&self.subject, action).unwrap()
    }

    /// A run whose tool is called this many times.
    pub async fn start(&self, name: &str, class: Class, url: &str, calls: usize) -> RunId {
        self.start_agent(agent(name, class, url, calls)).await
    }

    pub async fn start_agent(&self, agent: AgentSpec) -> RunId {
        let new = NewRun { agent, labels: saggar_domain::Labels::default(), idempotency: None };
        self.runs.start(&self.permit(Action::StartRun), new).await.unwrap().0.id
    }

    pub async fn row(&self, id: &RunId) -> RunRow {
        self.runs.get(&self.permit(Action::ReadRun(id.clone()))).await.unwrap()
    }

    pub async fn events(&self, id: &RunId) -> Vec<Event> {
        let permit = self.permit(Action::ReadRun(id.clone()));
        let mut events = Vec::new();
        loop {
            let page = self.runs.journal(&permit, events.len() as u64).await.unwrap();
            if page.is_empty() {
                return events;
            }
            events.extend(page.iter().map(|entry| Entry::decode(&entry.entry).unwrap().event));
        }
    }

    /// Waits until a condition holds for a run.
    pub async fn until(&self, id: &RunId, what: &str, holds: impl Fn(&RunRow) -> bool) -> RunRow {
        let begun = Instant::now();
        loop {
            let row = self.row(id).await;
            if holds(&row) {
                return row;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: {row:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub async fn until_finished(&self, id: &RunId) -> RunRow {
        self.until(id, "it finishes", |row| row.state == RunState::Finished).await
    }

    /// A worker as a separate process.
    pub fn worker(&self, lease_ms: u64, url: &str) -> Process {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "place::part_of_a_worker", "--nocapture", "--test-threads=1"]);
        command.env(PART, format!("{}\n{lease_ms}\n{url}", self.directory.display()));
        Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A leftover belongs to a test that has already failed.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// A directory that doesn't exist yet.
pub fn new_directory() -> PathBuf {
    std::env::temp_dir().join(format!("saggar-runs-{:032x}", u128::from_ne_bytes(random())))
}

/// A process that ends with its test.
pub struct Process(pub Child);

impl Process {
    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.0.kill();
        // It may have been killed already.
        let _ = self.0.wait();
    }
}

/// Not a test of its own: the code of a worker's process.
#[test]
fn part_of_a_worker() {
    let Ok(part) = std::env::var(PART) else { return };
    let [directory, lease_ms, url] = part.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(1).build().unwrap();
    runtime.block_on(work(Path::new(directory), lease_ms.parse().unwrap(), url));
}

async fn work(directory: &Path, lease_ms: u64, url: &str) {
    let store = Store::join(directory).unwrap();
    let lease = Duration::from_millis(lease_ms);
    let settings = WorkerSettings {
        data_directory: Some(directory.to_owned()),
        lease,
        renew_every: lease / 5,
        ..WorkerSettings::default()
    };
    let effects = effects(directory, store.clone(), url);
    let (_stop, stopped) = tokio::sync::watch::channel(false);
    Worker::new(store, effects, Hub::default(), settings).run(stopped).await;
}

/// The real world, without a sandbox.
pub fn effects(directory: &Path, store: Store, url: &str) -> RealEffects {
    let settings = Settings {
        data_directory: directory.to_owned(),
        secrets_key_file: directory.with_extension("key"),
        program: PathBuf::from("/nonexistent"),
        capacity: 1,
        pool: PoolSize { least: 0, most: 0 },
        default_ttl: Duration::from_secs(60),
        ttl_max: Duration::from_secs(60),
        allow_host_network: false,
        public_templates: Vec::new(),
        import_registries: Vec::new(),
        import_size_max: saggar_domain::ByteSize::from_bytes(1 << 30),
        build_network: Vec::new(),
        build_memory: saggar_domain::ByteSize::from_bytes(1 << 30),
        build_cpus: saggar_domain::Cpus::millis(1000),
        build_disk: saggar_domain::ByteSize::from_bytes(1 << 30),
        build_timeout: std::time::Duration::from_secs(60),
        template_jobs_per_project: 2,
        disk_storage_max: None,
        warm_imports: Vec::new(),
        workspaces: Default::default(),
        snapshots: saggar_runtime::SnapshotLimits { count_max: 0, bytes_max: saggar_domain::ByteSize::from_bytes(0) },
        volumes: saggar_runtime::VolumeLimits {
            count_max: 0,
            bytes_max: None,
            default_size: saggar_domain::ByteSize::mebibytes(16),
        },
        egress_maxima: Default::default(),
        retention: Duration::from_secs(60),
        runs_retention: Duration::from_secs(60),
        paused_max: Duration::from_secs(60),
    };
    let sandboxes = Sandboxes::open(settings, store).unwrap();
    let models = saggar_runtime::model_gateway(&sandboxes, Default::default());
    RealEffects::new(
        sandboxes,
        models,
        RunSettings { http_allowed: vec![url.parse().unwrap()], ..RunSettings::default() },
    )
}

pub fn agent(name: &str, class: Class, url: &str, calls: usize) -> AgentSpec {
    let call = |index| serde_json::json!({ "tool": "http", "arguments": { "url": url, "body": index } });
    let calls: Vec<_> = (0..calls).map(call).collect();
    let script = serde_json::json!({ "turns": [{ "text": "I do it.", "calls": calls }, { "text": "It is done." }] });
    let tool = ToolSpec {
        class,
        retry: RetryPolicy { attempts_max: 50, first_ms: 10, most_ms: 200 },
        timeout_ms: 60_000,
        egress: None,
        endpoint: None,
        is_parallel: false,
        uses_sandbox: false,
    };
    AgentSpec {
        name: name.to_owned(),
        identity: None,
        directory: None,
        system: None,
        task: Body::text("do it"),
        model: ModelRef {
            provider: "scripted".to_owned(),
            model: script.to_string(),
            sampling: Default::default(),
            reply_tokens_max: 100,
            reply_micros_max: None,
            retry: RetryPolicy::default(),
        },
        tools: BTreeMap::from([("http".to_owned(), tool)]),
        sandbox: Default::default(),
        budget: Budget::default(),
        repeats_max: 8,
        corrections_max: saggar_engine::CORRECTIONS_DEFAULT,
        output: None,
        context: None,
        open_max: saggar_engine::OPEN_STEPS_DEFAULT,
        on: Default::default(),
        snapshots: Default::default(),
        agents: BTreeMap::new(),
    }
}

pub fn random<const N: usize>() -> [u8; N] {
    let mut bits = [0; N];
    rustix::rand::getrandom(&mut bits, rustix::rand::GetRandomFlags::empty()).unwrap();
    bits
}

/// The clock of leases.
pub fn uptime() -> saggar_domain::Uptime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    saggar_domain::Uptime::from_millis(now.tv_sec.unsigned_abs() * 1000 + now.tv_nsec.unsigned_abs() / 1_000_000)
}
