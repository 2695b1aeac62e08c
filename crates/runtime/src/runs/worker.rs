//! Workers execute runs. Any number of them, in this process and beside it; the store keeps them apart.
//!
//! A worker has one or more lives, each under a new name. A life ends if its leases could not be renewed in time, for
//! example because the process was stopped: then everything in progress is dropped at once, and the next life starts
//! with nothing.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use saggar_domain::RunId;
use saggar_store::{Claimed, Holder, Lease, Now, Taking};
use tokio::sync::watch;
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, sleep, timeout};

use super::drive::{Drive, Stopped};
use super::effects::Effects;
use super::hub::Hub;
use super::journal::Journal;
use super::lease::Belief;
use super::presence::Presence;

/// One in this many slots is reserved for projects without a held run, so that a busy project doesn't delay another
/// project's first run.
const RESERVED_PART: u32 = 4;

#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// The data directory, where workers of this machine announce themselves; `None` disables that.
    pub data_directory: Option<PathBuf>,
    /// Concurrent runs.
    pub runs_max: u32,
    /// Concurrent runs per agent of a project, over all workers.
    pub per_agent: u32,
    /// Concurrent runs per project, over all workers.
    pub per_project: u32,
    /// How long an unresponsive worker keeps its runs. A dead one is detected at once: see [`Presence`].
    pub lease: Duration,
    /// How often leases are renewed.
    pub renew_every: Duration,
    /// How often it polls for the changes of other processes.
    pub look_every: Duration,
    /// How long effects in progress may take after a stop was requested.
    pub grace: Duration,
}

impl Default for WorkerSettings {
    fn default() -> Self {
        Self {
            data_directory: None,
            runs_max: 256,
            per_agent: 128,
            per_project: 256,
            lease: Duration::from_secs(5),
            renew_every: Duration::from_secs(1),
            look_every: Duration::from_millis(100),
            grace: Duration::from_secs(5),
        }
    }
}

#[derive(Clone, Debug)]
pub struct Worker<J, E> {
    journal: J,
    effects: E,
    hub: Hub,
    settings: WorkerSettings,
    limits: Arc<Limits>,
}

/// Limits over all workers, which may change at run time.
#[derive(Debug)]
struct Limits {
    per_agent: AtomicU32,
    per_project: AtomicU32,
}

/// How a life ended.
enum Life {
    Stopped,
    Lost,
}

impl<J: Journal, E: Effects> Worker<J, E> {
    pub fn new(journal: J, effects: E, hub: Hub, settings: WorkerSettings) -> Self {
        let (per_agent, per_project) = (settings.per_agent.into(), settings.per_project.into());
        Self { journal, effects, hub, settings, limits: Arc::new(Limits { per_agent, per_project }) }
    }

    /// Changes the limits. Runs in progress continue.
    pub fn set_limits(&self, per_agent: u32, per_project: u32) {
        self.limits.per_agent.store(per_agent, Ordering::Relaxed);
        self.limits.per_project.store(per_project, Ordering::Relaxed);
    }

    /// Works until told to stop. Cancelling it is like killing its process, except for the lock on its name.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        loop {
            match self.live(&mut stop).await {
                Life::Stopped => return,
                Life::Lost => {
                    tracing::warn!("leases lost; dropped all runs in progress");
                    sleep(self.settings.look_every).await;
                }
            }
        }
    }

    async fn live(&self, stop: &mut watch::Receiver<bool>) -> Life {
        let name = format!("w{:016x}{:016x}", self.effects.chance(), self.effects.chance());
        let holder = Holder::parse(&name).expect("digits and a letter are a name");
        let presence = self.show(&holder);
        let belief = Belief::new(self.settings.lease);
        let mut drives = Drives::default();
        if let Err(error) = self.journal.wake_unread(self.effects.now()).await {
            tracing::warn!(error = %error, "waking runs with unread letters failed");
        }
        let ended = {
            let (lease, every) = (self.settings.lease, self.settings.renew_every);
            let keep = belief.keep(&self.journal, &self.effects, &holder, lease, every);
            let work = async {
                tokio::select! {
                    biased;
                    // If the sender is gone, it is time to stop too.
                    _ = stop.wait_for(|stop| *stop) => {}
                    () = self.take_for_ever(&holder, presence.as_ref(), &belief, &mut drives) => {}
                }
                let grace = async { while drives.tasks.join_next().await.is_some() {} };
                // Anything unfinished by now is dropped, and found again by the next worker.
                let _ = timeout(self.settings.grace, grace).await;
            };
            tokio::select! {
                biased;
                () = keep => Life::Lost,
                () = work => Life::Stopped,
            }
        };
        drives.tasks.shutdown().await;
        // Other workers need not wait for the end of the leases. If this fails, they do.
        let given_back =
            timeout(self.settings.lease, self.journal.drop_holder(holder.clone(), self.effects.now())).await;
        if let (Ok(Ok(_)), Some(presence)) = (given_back, presence) {
            presence.leave(&holder);
        }
        ended
    }

    fn show(&self, holder: &Holder) -> Option<Presence> {
        let data = self.settings.data_directory.as_deref()?;
        Presence::show(data, holder)
            .inspect_err(
                |error| tracing::warn!(error = %error, "announcing this worker failed; leases still protect its runs"),
            )
            .ok()
    }

    async fn take_for_ever(&self, holder: &Holder, presence: Option<&Presence>, belief: &Belief, drives: &mut Drives) {
        let mut looked: Option<Instant> = None;
        loop {
            drives.tidy();
            if looked.is_none_or(|looked| looked.elapsed() >= self.settings.look_every) {
                looked = Some(Instant::now());
                self.look(holder, presence).await;
            }
            if let Err(error) = self.take(holder, belief, drives).await {
                tracing::warn!(error = %error, "claiming runs failed");
                drives.is_sure = false;
                sleep(self.settings.look_every).await;
            }
            tokio::select! {
                biased;
                () = self.hub.woken() => {}
                () = sleep(self.settings.look_every) => {}
            }
        }
    }

    /// Handles what other processes did: died, or sent letters to runs that are held here.
    async fn look(&self, holder: &Holder, presence: Option<&Presence>) {
        let dead = presence.map(Presence::dead).transpose().unwrap_or_else(|error| {
            tracing::warn!(error = %error, "listing workers failed");
            None
        });
        for dead in dead.into_iter().flatten() {
            match self.journal.drop_holder(dead.clone(), self.effects.now()).await {
                Ok(runs) => {
                    tracing::info!(worker = dead.as_str(), runs, "released the runs of a dead worker");
                    if let Some(presence) = presence {
                        presence.bury(&dead);
                    }
                }
                Err(error) => tracing::warn!(error = %error, "releasing the runs of a dead worker failed"),
            }
        }
        self.give_room().await;
        match self.journal.with_letters(holder.clone()).await {
            Ok(runs) => runs.iter().for_each(|run| self.hub.letter_here(run)),
            Err(error) => tracing::warn!(error = %error, "reading inboxes failed"),
        }
    }

    /// Wakes as many runs that wait for a sandbox as there is capacity for. One that is woken too early keeps its
    /// place.
    async fn give_room(&self) {
        let now = self.effects.now();
        let given = match self.journal.is_room_wanted(now).await {
            Ok(false) => return,
            Ok(true) => match self.effects.room().await {
                0 => return,
                room => self.journal.give_room(now, room).await,
            },
            Err(error) => Err(error),
        };
        if let Err(error) = given {
            tracing::warn!(error = %error, "waking runs that wait for a sandbox failed");
        }
    }

    async fn take(&self, holder: &Holder, belief: &Belief, drives: &mut Drives) -> Result<(), saggar_store::Error> {
        if !drives.is_sure {
            for claimed in self.journal.held(holder.clone()).await? {
                // A run that is just being released may have been claimed again: with another epoch, another drive
                // has it.
                if !drives.runs.values().any(|driven| *driven == (claimed.run.id.clone(), claimed.epoch)) {
                    self.drive(belief, drives, claimed);
                }
            }
            drives.is_sure = true;
        }
        loop {
            let room = self.settings.runs_max.saturating_sub(u32::try_from(drives.runs.len()).unwrap_or(u32::MAX));
            let now = Now { wall: self.effects.now(), uptime: self.effects.uptime() };
            let per_agent = self.limits.per_agent.load(Ordering::Relaxed);
            let per_project = self.limits.per_project.load(Ordering::Relaxed);
            let reserved = self.settings.runs_max / RESERVED_PART;
            let taking = Taking { most: room, reserved, per_agent, per_project };
            // Polling costs no write; most polls find nothing.
            if room == 0 || !belief.holds() || !self.journal.is_due(now, taking).await? {
                return Ok(());
            }
            let lease = Lease { from: now.uptime, until: now.uptime.after(self.settings.lease) };
            let claimed = self.journal.claim(holder.clone(), now.wall, lease, taking).await?;
            if claimed.is_empty() {
                return Ok(());
            }
            for claimed in claimed {
                self.drive(belief, drives, claimed);
            }
        }
    }

    fn drive(&self, belief: &Belief, drives: &mut Drives, claimed: Claimed) {
        let run = (claimed.run.id.clone(), claimed.epoch);
        let drive = Drive {
            journal: self.journal.clone(),
            effects: self.effects.clone(),
            hub: self.hub.clone(),
            belief: belief.clone(),
            claimed,
        };
        let effects = self.effects.clone();
        let task = drives.tasks.spawn(async move { effects.within(drive.run()).await });
        drives.runs.insert(task.id(), run);
    }
}

/// The runs that a worker executes in one life, each by its epoch.
struct Drives {
    tasks: JoinSet<Stopped>,
    runs: HashMap<Id, (RunId, u64)>,
    /// Whether this is the complete list of held runs: not after a claim whose outcome is unknown.
    is_sure: bool,
}

impl Default for Drives {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), runs: HashMap::new(), is_sure: true }
    }
}

impl Drives {
    /// Removes stopped drives. A run whose drive panicked stays held and is not executed here: the next worker may
    /// fare better.
    fn tidy(&mut self) {
        while let Some(stopped) = self.tasks.try_join_next_with_id() {
            let id = match stopped {
                Ok((id, _)) => id,
                Err(error) => {
                    tracing::error!(error = %error, "executing a run failed");
                    error.id()
                }
            };
            self.runs.remove(&id);
        }
    }
}
