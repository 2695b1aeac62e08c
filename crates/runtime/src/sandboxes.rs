//! The lifecycle of sandboxes: create, adopt, reach, pause, end, and never leak.
//!
//! ```text
//!            insert row          supervisor ready        pause / resume          its supervisor is gone
//!  (nothing) ──────────▶ creating ───────────────▶ running ◀────────────▶ paused ──────────────────────▶ ended
//!                           └─────────── refused, lost, never ready ───────────────────────────────────▶ ended
//! ```
//! The supervisor owns the state of a live sandbox; the store has the index, the history and what was acknowledged.
//! This process may die after any step. A row exists before its supervisor, so [`adopt`] finds every expected
//! supervisor, and any other has no owner and is ended. If a worker died, the same is done for its row alone
//! ([`making`] tells which). A supervisor that died leaves its record to the reaper, and its last words, if any, to
//! the next process that looks.

mod admission;
mod adopt;
mod changes;
mod create;
mod end;
mod live;
mod look;
mod making;
mod network;
mod own_labels;
mod pool;
mod reach;
mod rest;
mod rest_learned;
mod service;
mod sizing;
mod strangers;
mod template;
mod upkeep;
mod watch;
mod workspace;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use saggar_domain::{BootId, ExecId, ProjectId, SandboxId, SnapshotId, Timestamp, Uptime, VolumeId};
use saggar_gateway::{Gateway, WeakGateway};
use saggar_sandbox::DataDirectory;
use saggar_store::Store;
use tokio::sync::Semaphore;

pub use adopt::Adopted;
pub use changes::{NewTerms, Patch};
pub use create::{Created, NewSandbox};
pub(crate) use live::Live;
pub use look::{ExecView, StoredExec};
pub(crate) use network::policy_hash;
pub(crate) use own_labels::{FILES_OF_LABEL, RUN_LABEL, without_own};
pub use rest::{Keep, Kept};
pub use sizing::PoolSize;
pub use upkeep::Upkeep;
pub use workspace::{AppliedChange, AppliedChanges, AskedWorkspace, ChangeDiff, KeptChanges, NoDiff, Workspaces};

use crate::code::{CodeRoom, Contexts};
use crate::egress;
use crate::fault::Fault;
use crate::secrets::{KeyFile, Vault};
use crate::settings::Settings;
use crate::signing::SigningKey;
use crate::snapshots::{Carrying, Taking};
use crate::supervisor::{Launcher, Places, Program};
use crate::templates::Jobs;
use crate::volumes::ContentSandboxes;
use admission::Slots;
use live::Register;
use making::Makers;
use pool::Pools;
use service::Services;
use strangers::Strangers;

/// Sandboxes created concurrently. Each takes a core for a few milliseconds; more would only slow all down.
const MAKING_MAX: usize = 8;

/// The purpose string from which the token of a sandbox's inside is derived.
const INSIDE: &str = "inside/v1";
/// The same for the token of a volume's content.
const VOLUME: &str = "volume/v1";

/// All sandboxes of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    launcher: Box<dyn Launcher>,
    store: Store,
    data: DataDirectory,
    places: Places,
    slots: Slots,
    making: Semaphore,
    makers: Makers,
    changers: Makers,
    register: Register,
    pools: Pools,
    jobs: Jobs,
    contexts: Contexts,
    code_room: CodeRoom,
    services: Services,
    /// Snapshots that forks are being made from.
    forking: Mutex<BTreeSet<SnapshotId>>,
    taking: Taking,
    carrying: Carrying,
    content: ContentSandboxes,
    egress: egress::Service,
    /// It has us, so we don't keep it.
    models: OnceLock<WeakGateway>,
    strangers: Strangers,
    signing: SigningKey,
    vault: Vault,
    boot_id: BootId,
    /// The longest lifetime that can be requested, in milliseconds.
    ttl_max_ms: AtomicU64,
}

impl Sandboxes {
    /// Opens the data directory without changing it: [`Sandboxes::adopt`] comes next.
    pub fn open(settings: Settings, store: Store) -> Result<Self, Fault> {
        let program = Program(settings.program.clone());
        Self::open_with(settings, store, Box::new(program))
    }

    /// The same with other supervisors than processes of the settings' program.
    pub fn open_with(settings: Settings, store: Store, launcher: Box<dyn Launcher>) -> Result<Self, Fault> {
        let data = DataDirectory::open(Some(&settings.data_directory)).map_err(Fault::Refused)?;
        let places = Places::open(&settings.data_directory)
            .map_err(|error| Fault::internal("opening the data directory", error))?;
        let key_file = KeyFile::new(settings.secrets_key_file.clone(), settings.data_directory.clone());
        let vault = Vault::new(store.clone(), key_file);
        let inner = Inner {
            launcher,
            store,
            data,
            places,
            slots: Slots::new(settings.capacity),
            making: Semaphore::new(MAKING_MAX),
            makers: Makers::open(&settings.data_directory)
                .map_err(|error| Fault::internal("opening the data directory", error))?,
            changers: Makers::open_changes(&settings.data_directory)
                .map_err(|error| Fault::internal("opening the data directory", error))?,
            register: Register::default(),
            pools: Pools::new(settings.pool),
            jobs: Jobs::default(),
            contexts: Contexts::default(),
            code_room: CodeRoom::default(),
            services: Services::default(),
            forking: Mutex::default(),
            taking: Taking::default(),
            carrying: Carrying::default(),
            content: ContentSandboxes::default(),
            egress: egress::Service::open(&settings.data_directory, settings.program.clone())
                .map_err(|error| Fault::internal("opening the data directory", error))?,
            models: OnceLock::new(),
            strangers: Strangers::default(),
            signing: SigningKey::open(&settings.data_directory)
                .map_err(|error| Fault::internal("opening the signing key", error))?,
            vault,
            boot_id: boot_id()?,
            ttl_max_ms: AtomicU64::new(millis(settings.ttl_max)),
            settings,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The longest lifetime that can be requested.
    pub(crate) fn ttl_max(&self) -> Duration {
        Duration::from_millis(self.inner.ttl_max_ms.load(Ordering::Relaxed))
    }

    /// Changes the limits at run time. Existing sandboxes are not affected.
    pub fn set_limits(&self, capacity: usize, ttl_max: Duration) {
        self.inner.slots.set_most(capacity);
        self.inner.ttl_max_ms.store(millis(ttl_max), Ordering::Relaxed);
    }

    pub(crate) fn data(&self) -> &DataDirectory {
        &self.inner.data
    }

    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    pub(crate) fn vault(&self) -> &Vault {
        &self.inner.vault
    }

    /// The number of sandboxes, and the maximum.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.inner.slots.taken(), self.inner.slots.most())
    }

    /// The remaining capacity, considering this process and all others.
    pub(crate) async fn room(&self) -> Result<u64, Fault> {
        let (taken, most) = self.occupancy();
        let here = most.saturating_sub(taken) + self.inner.pools.ready();
        let everywhere = (most as u64).saturating_sub(self.store().live_sandboxes().await?);
        Ok(everywhere.min(here as u64))
    }

    /// Jobs that make templates.
    pub(crate) fn jobs(&self) -> &Jobs {
        &self.inner.jobs
    }

    pub(crate) fn forking(&self) -> &Mutex<BTreeSet<SnapshotId>> {
        &self.inner.forking
    }

    pub(crate) fn code_room(&self) -> &CodeRoom {
        &self.inner.code_room
    }

    /// Code contexts, as far as this process knows more of them than their supervisors.
    pub(crate) fn code_contexts(&self) -> &Contexts {
        &self.inner.contexts
    }

    pub(crate) fn carrying(&self) -> &Carrying {
        &self.inner.carrying
    }

    pub(crate) fn taking(&self) -> &Taking {
        &self.inner.taking
    }

    /// The egress process of proxied sandboxes.
    pub fn egress(&self) -> &egress::Service {
        &self.inner.egress
    }

    /// From now on sandboxes can be given its models.
    pub(crate) fn know_models(&self, gateway: &Gateway) {
        // A process has one.
        let _ = self.inner.models.set(gateway.downgrade());
    }

    pub(crate) fn model_gateway(&self) -> Option<Gateway> {
        self.inner.models.get()?.upgrade()
    }

    pub fn signing(&self) -> &SigningKey {
        &self.inner.signing
    }

    /// The token for a sandbox's ports.
    pub fn access_token(&self, id: &SandboxId) -> String {
        self.inner.signing.access_token(id)
    }

    /// The token for a sandbox's inside: programs and files, but not its lifecycle. Different from the token for its
    /// ports, which users put into links.
    pub fn inside_token(&self, id: &SandboxId) -> String {
        self.inner.signing.sign(&[INSIDE, id.as_str()]).0
    }

    /// Whether this is that token. Takes constant time.
    pub fn is_inside_token(&self, id: &SandboxId, token: &str) -> bool {
        self.inner.signing.verify(&[INSIDE, id.as_str()], token)
    }

    /// The token for the content of a volume. It names the project, because nothing else in a request does.
    pub fn volume_token(&self, project: &ProjectId, volume: &VolumeId) -> String {
        let signature = self.inner.signing.sign(&[VOLUME, project.as_str(), volume.as_str()]);
        format!("{project}.{}", signature.0)
    }

    /// Whether this is that token, of whichever project. Takes constant time.
    pub fn is_volume_token(&self, volume: &VolumeId, token: &str) -> bool {
        let Some((project, signature)) = token.split_once('.') else { return false };
        self.inner.signing.verify(&[VOLUME, project, volume.as_str()], signature)
    }

    pub(crate) fn content_sandboxes(&self) -> &ContentSandboxes {
        &self.inner.content
    }

    /// The live sandboxes.
    pub fn live_ids(&self) -> Vec<SandboxId> {
        self.inner.register.ids()
    }

    pub(crate) fn new_sandbox_id(&self) -> SandboxId {
        SandboxId::from_random(random())
    }

    pub(crate) fn new_exec_id(&self) -> ExecId {
        ExecId::from_random(random())
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// 128 random bits.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bits = [0; N];
    let mut filled = 0;
    while filled < N {
        // The kernel waits until it has collected enough entropy; after that it can't fail.
        match rustix::rand::getrandom(&mut bits[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("the kernel gives no randomness: {errno}"),
        }
    }
    bits
}

/// The wall clock.
pub(crate) fn now() -> Timestamp {
    Timestamp::from(std::time::SystemTime::now())
}

/// The clock of leases: it can't be set, and is the same for every process of the host.
pub(crate) fn uptime() -> Uptime {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let (seconds, nanos) = (u64::try_from(now.tv_sec).unwrap_or(0), u64::try_from(now.tv_nsec).unwrap_or(0));
    Uptime::from_millis(seconds.saturating_mul(1000).saturating_add(nanos / 1_000_000))
}

/// The host's current boot id.
fn boot_id() -> Result<BootId, Fault> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map_err(|error| Fault::internal("reading the host's boot id", error))?;
    let unreadable =
        || Fault::internal("reading the host's boot id", std::io::Error::from(std::io::ErrorKind::InvalidData));
    BootId::parse(text.trim()).ok_or_else(unreadable)
}
