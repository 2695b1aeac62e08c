//! The lifecycle of sandboxes: made, found again, reached, paused, ended, and never leaked.
//!
//! ```text
//!            insert row          supervisor ready        pause / resume          its supervisor is gone
//!  (nothing) ──────────▶ creating ───────────────▶ running ◀────────────▶ paused ──────────────────────▶ ended
//!                           └─────────── refused, lost, never ready ───────────────────────────────────▶ ended
//! ```
//! The supervisor owns the truth about a live sandbox; the store has the index, the history and what was acknowledged. What
//! can come between two steps: a death of this process after any of them. A row is there before its supervisor, so [`adopt`] finds
//! every supervisor that should be, and whatever else is found belongs to nobody and is ended. A supervisor that died leaves its
//! record to the reaper, and its last words, if it had any, to whoever looks next.

mod admission;
mod adopt;
mod changes;
mod create;
mod end;
mod live;
mod pool;
mod reach;
mod sizing;
mod upkeep;
mod watch;

use std::sync::Arc;

use saggar_domain::{ExecId, SandboxId};
use saggar_sandbox::DataDirectory;
use saggar_store::Store;
use tokio::sync::Semaphore;

pub use changes::NewTerms;
pub use create::{Created, NewSandbox};
pub use sizing::PoolSize;
pub use upkeep::Upkeep;

use crate::fault::Fault;
use crate::settings::Settings;
use crate::supervisor::Places;
use admission::Slots;
use live::Register;
use pool::Pool;

/// Sandboxes that are being made at the same time. Each takes a core for a few milliseconds; more would only make all slower.
const MAKING_MAX: usize = 8;

/// All sandboxes of a server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Sandboxes {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Settings,
    store: Store,
    data: DataDirectory,
    places: Places,
    slots: Slots,
    making: Semaphore,
    register: Register,
    pool: Pool,
}

impl Sandboxes {
    /// Opens what there is, without touching it: [`Sandboxes::adopt`] comes next.
    pub fn open(settings: Settings, store: Store) -> Result<Self, Fault> {
        let data = DataDirectory::open(Some(&settings.data_directory)).map_err(Fault::Refused)?;
        let places = Places::open(&settings.data_directory)
            .map_err(|error| Fault::internal("opening the data directory", error))?;
        let inner = Inner {
            store,
            data,
            places,
            slots: Slots::new(settings.capacity),
            making: Semaphore::new(MAKING_MAX),
            register: Register::default(),
            pool: Pool::new(settings.pool),
            settings,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the operator decided.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// Where rows are.
    pub fn store(&self) -> &Store {
        &self.inner.store
    }

    /// How many sandboxes there are, and may be.
    pub fn occupancy(&self) -> (usize, usize) {
        (self.inner.slots.taken(), self.inner.slots.most())
    }

    pub(crate) fn new_sandbox_id(&self) -> SandboxId {
        SandboxId::from_random(random())
    }

    pub(crate) fn new_exec_id(&self) -> ExecId {
        ExecId::from_random(random())
    }
}

/// 128 bits that nobody can guess.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bits = [0; N];
    let mut filled = 0;
    while filled < N {
        // Before the kernel has collected enough it waits; after that it can't fail.
        match rustix::rand::getrandom(&mut bits[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("the kernel gives no randomness: {errno}"),
        }
    }
    bits
}

/// The wall clock, in milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
