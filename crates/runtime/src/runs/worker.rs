//! Workers: who drives runs. Any number of them, in this process and beside it; the store keeps them apart.
//!
//! A worker lives one or more lives, each under a name of its own. A life ends when its leases could not be renewed in time, for example
//! because the process was stopped: then everything it had under way is dropped at once, and the next life begins with nothing.

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

/// One place in so many is kept for projects of which no run is driven anywhere: a project that fills the rest delays nobody's first run.
const RESERVED_PART: u32 = 4;

/// How a worker works.
#[derive(Clone, Debug)]
pub struct WorkerSettings {
    /// Where workers of this machine show that they are alive; `None` where that can't be seen.
    pub data_directory: Option<PathBuf>,
    /// Runs driven at once.
    pub runs_max: u32,
    /// Of one agent of a project, by all workers together.
    pub per_agent: u32,
    /// Of one project, by all workers together.
    pub per_project: u32,
    /// How long a worker that gives no sign is waited for. A dead one isn't: see [`Presence`].
    pub lease: Duration,
    /// How often leases are renewed.
    pub renew_every: Duration,
    /// How often it looks for what others have left or written.
    pub look_every: Duration,
    /// What is under way may take so long when the worker is told to stop.
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

/// Limits that hold over all workers, and may change while this one works.
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
    /// A worker that does nothing yet.
    pub fn new(journal: J, effects: E, hub: Hub, settings: WorkerSettings) -> Self {
        let (per_agent, per_project) = (settings.per_agent.into(), settings.per_project.into());
        Self { journal, effects, hub, settings, limits: Arc::new(Limits { per_agent, per_project }) }
    }

    /// What the operator has decided since. Runs that are driven already go on.
    pub fn set_limits(&self, per_agent: u32, per_project: u32) {
        self.limits.per_agent.store(per_agent, Ordering::Relaxed);
        self.limits.per_project.store(per_project, Ordering::Relaxed);
    }

    /// Works until told to stop. Dropped, it is as if its process had been killed, but for the lock on its name.
    pub async fn run(&self, mut stop: watch::Receiver<bool>) {
        loop {
            match self.live(&mut stop).await {
                Life::Stopped => return,
                Life::Lost => {
                    tracing::warn!("leases were lost; everything under way was dropped");
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
            tracing::warn!(error = %error, "letters that an older program left may wait longer");
        }
        let ended = {
            let (lease, every) = (self.settings.lease, self.settings.renew_every);
            let keep = belief.keep(&self.journal, &self.effects, &holder, lease, every);
            let work = async {
                tokio::select! {
                    biased;
                    // If nobody can tell any more, it is time to go too.
                    _ = stop.wait_for(|stop| *stop) => {}
                    () = self.take_for_ever(&holder, presence.as_ref(), &belief, &mut drives) => {}
                }
                let grace = async { while drives.tasks.join_next().await.is_some() {} };
                // What isn't finished by now is dropped, and found again by whoever takes it.
                let _ = timeout(self.settings.grace, grace).await;
            };
            tokio::select! {
                biased;
                () = keep => Life::Lost,
                () = work => Life::Stopped,
            }
        };
        drives.tasks.shutdown().await;
        // Others need not wait for the end of the leases. Where this fails, they do.
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
                |error| tracing::warn!(error = %error, "this worker can't be seen by others; leases still hold"),
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
                tracing::warn!(error = %error, "runs can't be taken");
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

    /// What other processes have done: died, or written to runs that are held here.
    async fn look(&self, holder: &Holder, presence: Option<&Presence>) {
        let dead = presence.map(Presence::dead).transpose().unwrap_or_else(|error| {
            tracing::warn!(error = %error, "the other workers can't be seen");
            None
        });
        for dead in dead.into_iter().flatten() {
            match self.journal.drop_holder(dead.clone(), self.effects.now()).await {
                Ok(runs) => {
                    tracing::info!(worker = dead.as_str(), runs, "a worker is dead; its runs go on");
                    if let Some(presence) = presence {
                        presence.bury(&dead);
                    }
                }
                Err(error) => tracing::warn!(error = %error, "the runs of a dead worker can't be freed yet"),
            }
        }
        self.give_room().await;
        match self.journal.with_letters(holder.clone()).await {
            Ok(runs) => runs.iter().for_each(|run| self.hub.letter_here(run)),
            Err(error) => tracing::warn!(error = %error, "inboxes can't be looked into"),
        }
    }

    /// Wakes runs that wait for a sandbox, as many as there is room for. One that is woken too early keeps its place.
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
            tracing::warn!(error = %error, "runs that wait for a sandbox can't be woken yet");
        }
    }

    async fn take(&self, holder: &Holder, belief: &Belief, drives: &mut Drives) -> Result<(), saggar_store::Error> {
        if !drives.is_sure {
            for claimed in self.journal.held(holder.clone()).await? {
                // One that is just being given back may have been taken again: by another epoch it is another drive's.
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
            // A look costs no write; most find nothing.
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

/// The runs that a worker drives in one life, each by its epoch.
struct Drives {
    tasks: JoinSet<Stopped>,
    runs: HashMap<Id, (RunId, u64)>,
    /// Whether these are all that the store says are held: not after a claim of which nobody knows whether it was made.
    is_sure: bool,
}

impl Default for Drives {
    fn default() -> Self {
        Self { tasks: JoinSet::new(), runs: HashMap::new(), is_sure: true }
    }
}

impl Drives {
    /// Forgets those that have stopped. One that panicked stays held and is driven by nobody here: the next worker may fare better.
    fn tidy(&mut self) {
        while let Some(stopped) = self.tasks.try_join_next_with_id() {
            let id = match stopped {
                Ok((id, _)) => id,
                Err(error) => {
                    tracing::error!(error = %error, "driving a run failed");
                    error.id()
                }
            };
            self.runs.remove(&id);
        }
    }
}
