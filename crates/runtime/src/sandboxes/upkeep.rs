//! Background tasks: the reaper, the pool, retention.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::time::Duration;

use saggar_store::{Life, PageLimit, Retention, SandboxQuery, Scope};
use saggar_supervisor::control::{Op, Terms};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::create::{Owner, Past};
use super::pool::{PoolKind, Ready, Step, UNOWNED_MAX};
use super::{Sandboxes, now};
use crate::supervisor::Connection;

/// How often the reaper looks for leftovers without a record.
const REAP_EVERY: Duration = Duration::from_secs(15);
/// How often old rows are deleted.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of rows deleted at once: other writes wait meanwhile.
const SWEEP_ROWS: NonZeroU32 = NonZeroU32::new(2_000).expect("more than none");
/// The pool is refilled after this long without a claim: the client that claimed a sandbox is about to use it, and
/// goes first.
const REFILL_AFTER: Duration = Duration::from_millis(20);
/// Without such a pause, it is refilled after this long.
const REFILL_AFTER_MAX: Duration = Duration::from_millis(200);
/// How often the pool is checked without claims.
const POOL_EVERY: Duration = Duration::from_secs(2);

/// The background tasks of a server. They stop on drop.
#[derive(Debug)]
pub struct Upkeep {
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Upkeep {
    pub fn start(sandboxes: &Sandboxes) -> Self {
        let (stop, _) = watch::channel(false);
        let mut tasks = JoinSet::new();
        tasks.spawn(every(REAP_EVERY, sandboxes.clone(), stop.subscribe(), async |sandboxes: &Sandboxes| {
            sandboxes.reap().await;
            sandboxes.inner.egress.sweep().await;
            sandboxes.meet_strangers().await;
            if let Err(fault) = sandboxes.settle_all().await {
                tracing::error!(error = %fault, "settling sandboxes whose creator died failed");
            }
            sandboxes.end_long_paused().await;
            sandboxes.confirm_networks().await;
            sandboxes.sweep_snapshots().await;
            sandboxes.collect_all_templates().await;
        }));
        tasks.spawn(every(SWEEP_EVERY, sandboxes.clone(), stop.subscribe(), async |sandboxes: &Sandboxes| {
            sandboxes.sweep().await;
            if let Err(fault) = sandboxes.sweep_headers(now()).await {
                tracing::error!(error = %fault, "removing the values of header rules that no sandbox uses failed");
            }
        }));
        let (this, mut stopped) = (sandboxes.clone(), stop.subscribe());
        tasks.spawn(async move {
            while !*stopped.borrow() {
                // Not cancelled: a supervisor that has been started would become ready after all tasks have stopped.
                this.fill_pools(&stopped).await;
                tokio::select! {
                    () = this.inner.pools.lull(REFILL_AFTER, REFILL_AFTER_MAX) => {}
                    () = tokio::time::sleep(POOL_EVERY) => {}
                    _ = stopped.changed() => return,
                }
            }
        });
        Self { tasks, stop }
    }

    /// Stops the tasks, and waits for work in progress.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

async fn every<F>(period: Duration, sandboxes: Sandboxes, mut stopped: watch::Receiver<bool>, work: F)
where
    F: AsyncFn(&Sandboxes),
{
    loop {
        tokio::select! {
            () = tokio::time::sleep(period) => work(&sandboxes).await,
            _ = stopped.changed() => return,
        }
    }
}

impl Sandboxes {
    /// Removes everything without a live record: processes, mounts, cgroups, directories.
    pub(super) async fn reap(&self) {
        let this = self.clone();
        // It reads /proc and removes directories, so it must not run on an async thread.
        let work = move || (saggar_sandbox::reap(&this.inner.data), saggar_sandbox::collect_volumes(&this.inner.data));
        match tokio::task::spawn_blocking(work).await {
            Ok((leftovers, volumes)) => {
                if volumes > 0 {
                    tracing::info!(count = volumes, "removed volumes that were half made or half removed");
                }
                for leftover in leftovers {
                    tracing::info!(sandbox = ?leftover, "removed the leftovers of a dead supervisor");
                }
            }
            Err(error) => tracing::error!(error = %error, "the reaper failed"),
        }
    }

    /// Ends sandboxes that have been paused for longer than the operator allows.
    async fn end_long_paused(&self) {
        let mut query = SandboxQuery::new(Scope::All);
        query.states = [saggar_domain::SandboxState::Paused].into();
        query.limit = PageLimit::MAX;
        loop {
            // If it can't be read now, it is read next time.
            let Ok(page) = self.store().sandboxes(query.clone()).await else { return };
            for row in page.items {
                let Life::Paused { since, .. } = row.life else { continue };
                if since.after(self.settings().paused_max) < now()
                    && let Some(live) = self.inner.register.get(&row.asked.id)
                {
                    self.abandon(&live).await;
                }
            }
            // The newest come first, and those to end are among the last.
            match page.next {
                Some(next) => query.cursor = Some(next),
                None => return,
            }
        }
    }

    /// Deletes rows of objects that ended long ago.
    async fn sweep(&self) {
        let (ended, runs) = (self.settings().retention, self.settings().runs_retention);
        let retention = Retention { ended, runs, rows_max: SWEEP_ROWS };
        loop {
            match self.store().sweep(now(), retention).await {
                Ok(swept) if swept.has_more => {}
                Ok(_) => return,
                Err(error) => {
                    tracing::error!(error = %error, "deleting old rows failed");
                    return;
                }
            }
        }
    }

    /// Brings the pools to their sizes, one sandbox at a time: client requests go first.
    async fn fill_pools(&self, stopped: &watch::Receiver<bool>) {
        self.drop_stale_pools().await;
        // Tried again in the next round.
        let mut failed = BTreeSet::new();
        while !*stopped.borrow() {
            while let Some(stale) = self.inner.pools.take_stale() {
                self.end_ready(stale).await;
            }
            match self.inner.pools.next(&failed) {
                None => return,
                Some(Step::End(ready)) => self.end_ready(ready).await,
                Some(Step::Make(kind)) => {
                    if !self.make_ready(&kind).await {
                        failed.insert(kind);
                    }
                }
            }
        }
    }

    async fn make_ready(&self, kind: &PoolKind) -> bool {
        let Some(slot) = self.inner.slots.take() else { return false };
        let (template_project, _steady) = match &kind.template {
            None => (None, None),
            Some(template) => match self.steady(template).await {
                Some(steady) => (Some(template.project.clone()), Some(steady)),
                None => return false,
            },
        };
        let id = self.new_sandbox_id();
        // If this server is killed and none follows it, they end by themselves.
        let ttl_ms = u64::try_from(UNOWNED_MAX.as_millis()).unwrap_or(u64::MAX);
        let terms = Terms { ttl_ms: Some(ttl_ms), then: saggar_domain::DeadlineAction::Kill, idle_ms: None };
        let past = Past { template_project, ..Past::default() };
        match self.start_supervisor(&id, kind.spec(), terms, Owner::Nobody, past).await {
            Ok(_) => {
                let imports = self.warm_imports_of(kind.template.as_ref());
                self.begin_warm(&id, &self.inner.places.socket(&id), &imports).await;
                match self.inner.pools.put(Ready::new(id, kind.clone(), slot, UNOWNED_MAX)) {
                    None => true,
                    Some(ready) => {
                        self.end_ready(ready).await;
                        false
                    }
                }
            }
            Err(error) => {
                tracing::error!(error = %error, "creating a sandbox for the pool failed");
                self.reap().await;
                false
            }
        }
    }

    /// Ends a sandbox without an owner.
    pub(super) async fn end_ready(&self, ready: Ready) {
        let socket = self.inner.places.socket(&ready.id);
        if let Err(error) = Connection::question(&socket, Op::Kill).await {
            tracing::warn!(sandbox = %ready.id, error = %error, "ending a sandbox of the pool failed");
            if error.is_gone() {
                // Killed while it waited. Its leftovers are removed now, because the server may be stopping.
                self.inner.places.remove_socket(&ready.id);
                self.reap().await;
            }
        }
        self.inner.places.remove_final(&ready.id);
    }

    /// Ends every sandbox without an owner, for a server that stops for good.
    pub async fn drain_pool(&self) {
        for ready in self.inner.pools.drain() {
            self.end_ready(ready).await;
        }
    }

    /// Ends all sandboxes, on the operator's request.
    pub async fn end_all(&self) {
        self.drain_pool().await;
        for id in self.inner.register.ids() {
            if let Some(live) = self.inner.register.get(&id) {
                self.abandon(&live).await;
            }
        }
    }
}
