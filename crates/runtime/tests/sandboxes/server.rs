//! A server without HTTP, on a runtime of its own: dropped, it is as dead as a process that was killed.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saggar_domain::{DeadlineAction, Draft, EndReason, Labels, ProjectId, PublicPorts, SandboxId, Timestamp};
use saggar_runtime::{
    Action, Adopted, Created, Fault, NewSandbox, NewTerms, Permit, PoolSize, Sandboxes, Settings, Subject,
};
use saggar_store::{Idempotency, IdempotencyKey, Life, RequestHash, Sandbox, Store};
use tokio::runtime::Runtime;

use crate::fake::Host;

/// How long anything may take here. Real time, since a server's own may be paused.
const PATIENCE: Duration = Duration::from_secs(60);

/// A data directory, removed at the end.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        // Short: the address of a socket has room for 107 bytes.
        let path = std::env::temp_dir().join(format!("saggar-fake-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// What is in one of its directories.
    pub fn entries(&self, directory: &str) -> usize {
        std::fs::read_dir(self.0.join(directory)).map_or(0, Iterator::count)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays is in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub struct Server {
    // Dropped first: with it everything that is under way.
    runtime: Runtime,
    pub sandboxes: Sandboxes,
    pub project: ProjectId,
    /// What the start found.
    pub found: Adopted,
}

impl Server {
    pub fn start(place: &Place, host: &Host) -> Self {
        Self::start_with(place, host, |_| {})
    }

    pub fn start_with(place: &Place, host: &Host, change: impl FnOnce(&mut Settings)) -> Self {
        Self::start_on(runtime(), Store::open(place.path()).unwrap(), place, host, change)
    }

    /// A worker's, beside the server's that holds the store.
    pub fn start_beside(place: &Place, host: &Host) -> Self {
        Self::start_on(runtime(), Store::join(place.path()).unwrap(), place, host, |_| {})
    }

    /// One that shares its runtime with its host, and whose time is paused: whenever both wait, it goes on.
    pub fn start_paused(place: &Place, change: impl FnOnce(&mut Settings)) -> (Self, Host) {
        let runtime = runtime();
        let host = Host::on(runtime.handle().clone());
        let server = Self::start_on(runtime, Store::open(place.path()).unwrap(), place, &host, change);
        server.run(async { tokio::time::pause() });
        (server, host)
    }

    /// One whose time is paused from its start on, over a host that is apart: for supervisors that say nothing.
    pub fn start_impatient(place: &Place, host: &Host) -> Self {
        let runtime = runtime();
        runtime.block_on(async { tokio::time::pause() });
        Self::start_on(runtime, Store::open(place.path()).unwrap(), place, host, |_| {})
    }

    fn start_on(
        runtime: Runtime,
        store: Store,
        place: &Place,
        host: &Host,
        change: impl FnOnce(&mut Settings),
    ) -> Self {
        let mut settings = Settings {
            data_directory: place.path().to_owned(),
            secrets_key_file: place.path().with_extension("key"),
            program: "/nonexistent".into(),
            capacity: 4,
            pool: PoolSize { least: 0, most: 0 },
            default_ttl: Duration::from_secs(60),
            ttl_max: Duration::from_secs(3600),
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
            snapshots: saggar_runtime::SnapshotLimits {
                count_max: 0,
                bytes_max: saggar_domain::ByteSize::from_bytes(0),
            },
            volumes: saggar_runtime::VolumeLimits {
                count_max: 0,
                bytes_max: None,
                default_size: saggar_domain::ByteSize::mebibytes(16),
            },
            egress_maxima: Default::default(),
            retention: Duration::from_secs(3600),
            runs_retention: Duration::from_secs(3600),
            paused_max: Duration::from_secs(3600),
        };
        change(&mut settings);
        let (sandboxes, project, found) = runtime.block_on(async {
            let now = Timestamp::from(std::time::SystemTime::now());
            let project = store.default_project(ProjectId::from_random([1; 16]), now).await.unwrap().id;
            let sandboxes = Sandboxes::open_with(settings, store, Box::new(host.clone())).unwrap();
            let found = sandboxes.adopt().await.unwrap();
            (sandboxes, project, found)
        });
        Self { runtime, sandboxes, project, found }
    }

    /// Runs something to its end, which must come.
    #[track_caller]
    pub fn run<T>(&self, work: impl Future<Output = T>) -> T {
        let (watch, too_late) = std::sync::mpsc::sync_channel::<()>(0);
        let guard = std::thread::spawn(move || {
            if too_late.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                eprintln!("it never ended");
                std::process::abort();
            }
        });
        let outcome = self.runtime.block_on(work);
        drop(watch);
        guard.join().unwrap();
        outcome
    }

    /// As a server is that was killed.
    pub fn kill(self) {}

    pub fn permit(&self, action: Action) -> Permit {
        Permit::decide(&Subject::Anybody { project: self.project.clone() }, action).unwrap()
    }

    pub async fn create(&self, new: NewSandbox, key: Option<&str>) -> Result<Created, Fault> {
        let request = format!("{:?}", new.spec);
        let idempotency = key.map(|key| Idempotency {
            key: IdempotencyKey::parse(key).unwrap(),
            request_hash: RequestHash::of(request.as_bytes()),
        });
        self.sandboxes.create(&self.permit(Action::CreateSandbox), new, idempotency).await
    }

    /// Makes one that nothing is said about.
    pub fn made(&self) -> SandboxId {
        self.run(self.create(plain(), None)).unwrap().sandbox.asked.id
    }

    /// A sandbox as the store has it.
    pub fn row(&self, id: &SandboxId) -> Option<Sandbox> {
        self.run(self.sandboxes.store().sandbox_of_any(id.clone())).unwrap()
    }

    /// Every row there is, newest first.
    pub fn rows(&self) -> Vec<Sandbox> {
        let mut query = saggar_store::SandboxQuery::new(saggar_store::Scope::All);
        query.states = saggar_domain::SandboxState::ALL.iter().copied().collect();
        self.run(self.sandboxes.store().sandboxes(query)).unwrap().items
    }

    /// Waits for a sandbox's end, and says why it ended.
    pub fn end_of(&self, id: &SandboxId) -> EndReason {
        let permit = self.permit(Action::ReadSandbox(id.clone()));
        // An error says that it has ended already.
        let _ = self.run(self.sandboxes.ended(&permit));
        reason(&self.row(id).unwrap()).expect("it has ended")
    }

    /// Sandboxes that take a place.
    pub fn taken(&self) -> usize {
        self.sandboxes.occupancy().0
    }
}

/// Why a sandbox ended, if it has.
pub fn reason(row: &Sandbox) -> Option<EndReason> {
    match &row.life {
        Life::Ended { ending, .. } => Some(ending.reason),
        Life::Creating | Life::Running { .. } | Life::Paused { .. } => None,
    }
}

pub fn plain() -> NewSandbox {
    with_spec(Draft::default())
}

pub fn with_spec(spec: Draft) -> NewSandbox {
    NewSandbox {
        spec,
        workspace: None,
        labels: Labels::default(),
        terms: NewTerms { ttl: Duration::from_secs(60), then: DeadlineAction::Kill, idle_timeout: None },
        auto_resume: false,
        public_ports: PublicPorts::default(),
        ingress: Default::default(),
    }
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}
