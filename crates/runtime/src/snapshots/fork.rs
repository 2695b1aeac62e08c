//! Forks: sandboxes with the files of another one, as they are now. On this tier they start without its programs.
//!
//! One snapshot is taken for all of them; its files are below those of each fork. Nobody sees it, and it goes with the last of them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::{Code, Draft, EnvDraft, Problem, SnapshotId};
use saggar_supervisor::control::{Op, Reply};

use super::TakeSnapshot;
use super::take::{Purpose, check_awake};
use crate::fault::Fault;
use crate::permit::{Action, Permit};
use crate::sandboxes::{Created, Live, NewSandbox, NewTerms, Sandboxes, without_own};

/// Maximum number of forks of one request.
const FORKS_MAX: u32 = 1000;
/// Forks that are made at once for one request: as many as the processors can work on.
const AT_ONCE: usize = 8;

#[derive(Clone, Debug)]
pub struct ForkOptions {
    pub count: u32,
    /// The lifetime of each; `None` for the server's default.
    pub ttl: Option<Duration>,
}

/// What became of a request for forks.
#[derive(Debug)]
pub struct Forked {
    /// One for each that was asked for.
    pub forks: Vec<Result<Created, Fault>>,
    /// For how long the parent's programs stood still.
    pub frozen: Duration,
}

impl Sandboxes {
    /// Makes forks of a running or paused sandbox. Continues to its end even if the caller is cancelled.
    pub async fn fork(&self, permit: &Permit, create: &Permit, options: ForkOptions) -> Result<Forked, Fault> {
        create.check(|action| *action == Action::CreateSandbox)?;
        if options.count == 0 || options.count > FORKS_MAX {
            return Err(Fault::Refused(Problem::new(
                Code::InvalidValue,
                format!("{} forks were asked for", options.count),
                format!("ask for 1 to {FORKS_MAX}"),
            )));
        }
        let live = self.changeable(permit).await?;
        let this = self.clone();
        let work = tokio::spawn(async move { this.fork_live(&live, options).await });
        work.await.map_err(|error| Fault::internal("forking a sandbox", error))?
    }

    async fn fork_live(&self, live: &Arc<Live>, options: ForkOptions) -> Result<Forked, Fault> {
        check_awake(live)?;
        if self.room().await? == 0 {
            let (taken, most) = self.occupancy();
            return Err(Fault::Capacity {
                what: format!("{taken} of {most} sandboxes are in use"),
                retry_after: Duration::from_secs(1),
            });
        }
        self.check_forkable(live).await?;
        let env = self.environment_of(live).await?;
        // In use before it is there: otherwise it might be removed before the first fork is.
        let id = Self::new_snapshot_id();
        let _forking = self.begin_forking(&id);
        let record = self.take(live, id.clone(), TakeSnapshot::default(), Purpose::Forks).await?;
        let new = self.as_fork(live, &id, env, options.ttl).await?;
        let frozen = Duration::from_micros(record.facts.frozen_us);
        let mut forks = Vec::with_capacity(options.count as usize);
        let mut left = options.count as usize;
        while left > 0 {
            let now = left.min(AT_ONCE);
            let making: Vec<_> = (0..now)
                .map(|_| {
                    let (this, project, new) = (self.clone(), live.project.clone(), new.clone());
                    tokio::spawn(async move { this.create_in(project, new, None).await })
                })
                .collect();
            for one in making {
                forks
                    .push(one.await.map_err(|error| Fault::internal("forking a sandbox", error)).and_then(|made| made));
            }
            left -= now;
            // Without room the rest would be refused too, each after another look.
            if matches!(forks.last(), Some(Err(Fault::Capacity { .. }))) && self.room().await? == 0 {
                for _ in 0..left {
                    let (taken, most) = self.occupancy();
                    forks.push(Err(Fault::Capacity {
                        what: format!("{taken} of {most} sandboxes are in use"),
                        retry_after: Duration::from_secs(1),
                    }));
                }
                left = 0;
            }
        }
        Ok(Forked { forks, frozen })
    }

    /// A directory of the host is opened in the name of whoever names it, and the caller of a fork names none.
    async fn check_forkable(&self, live: &Live) -> Result<(), Fault> {
        match self.row_of(&live.project, &live.id).await?.asked.spec.workspace {
            None => Ok(()),
            Some(_) => Err(Fault::Refused(Problem::new(
                Code::UnsupportedCapability,
                "a sandbox with a workspace can't be forked",
                "take a snapshot, start another one from it, and name the directory again",
            ))),
        }
    }

    /// A fork has what its parent was asked to be, except for its own name, place and time.
    async fn as_fork(
        &self,
        live: &Live,
        snapshot: &SnapshotId,
        env: EnvDraft,
        ttl: Option<Duration>,
    ) -> Result<NewSandbox, Fault> {
        let row = self.row_of(&live.project, &live.id).await?.asked;
        let ttl = ttl.unwrap_or(self.settings().default_ttl);
        Ok(NewSandbox {
            spec: Draft { template: Some(snapshot.template_name()), env, ..row.spec },
            workspace: None,
            labels: without_own(&row.labels).map_err(Fault::Refused)?,
            terms: NewTerms { ttl, then: row.lifetime.on_deadline, idle_timeout: row.lifetime.idle_timeout },
            auto_resume: row.auto_resume,
            public_ports: row.public_ports,
            ingress: row.ingress,
        })
    }

    /// The variables that the sandbox's owner gave it. Only its supervisor has them.
    pub(crate) async fn environment_of(&self, live: &Live) -> Result<EnvDraft, Fault> {
        let given: BTreeSet<String> = self.row_of(&live.project, &live.id).await?.asked.env_names;
        if given.is_empty() {
            return Ok(EnvDraft::default());
        }
        let all = match self.question_asleep(&live.project, &live.id, Op::Environment).await? {
            Reply::Environment { env } => env,
            _ => {
                let error = crate::supervisor::ControlError::Protocol("another answer than `environment`".to_owned());
                return Err(Fault::from_control(error, &live.id));
            }
        };
        let mut env = EnvDraft::default();
        for (name, value) in all.into_iter().filter(|(name, _)| given.contains(name)) {
            env.insert(name, value).map_err(Fault::Refused)?;
        }
        Ok(env)
    }

    /// Sandboxes may be started from the snapshot until this is dropped: it is in use though none uses it yet.
    pub(crate) fn begin_forking(&self, id: &SnapshotId) -> Forking {
        self.forking().lock().unwrap_or_else(std::sync::PoisonError::into_inner).insert(id.clone());
        Forking { sandboxes: self.clone(), id: id.clone() }
    }

    pub(super) fn is_forking(&self, id: &SnapshotId) -> bool {
        self.forking().lock().unwrap_or_else(std::sync::PoisonError::into_inner).contains(id)
    }
}

pub(crate) struct Forking {
    sandboxes: Sandboxes,
    id: SnapshotId,
}

impl Drop for Forking {
    fn drop(&mut self) {
        self.sandboxes.forking().lock().unwrap_or_else(std::sync::PoisonError::into_inner).remove(&self.id);
    }
}
