//! The pools: sandboxes created ahead of time, so that the first command of a new one doesn't have to wait.
//!
//! A sandbox in a pool is like any other, with a supervisor and a slot, but without an owner and without a row: if
//! this process dies, its successor finds it by its socket. Pools cost memory and improve latency, not
//! throughput; so they are filled in the background, one sandbox at a time, and sized by demand. Each template in demand has its own;
//! together they keep no more than the operator allows ([`super::sizing::shares`]).
//!
//! INVARIANT: the sandboxes of a pool were created to the default spec of its kind. Those with network mode
//! `proxied` have no rules: they reach nothing until a claim gives them some.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use saggar_domain::template::{TemplateId, TemplateLimits};
use saggar_domain::{Draft, DraftLimits, NetworkMode, SandboxId, TemplateName, User};
use tokio::sync::Notify;

use super::admission::Slot;
use super::sizing::{Demand, PoolSize, shares};

/// How long a sandbox waits for an owner; then it ends by itself, even without a server.
pub(crate) const UNOWNED_MAX: Duration = Duration::from_secs(60 * 60);
/// This long before its end it is no longer given away.
const STALE_BEFORE: Duration = Duration::from_secs(60);
/// Maximum number of pools. Demand for more templates at once gets none.
const POOLS_MAX: usize = 256;

/// Which default spec the sandboxes of a pool have.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PoolKind {
    pub(crate) network: PoolNetwork,
    /// `None`: the built-in one.
    pub(crate) template: Option<StoredTemplate>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PoolNetwork {
    Plain,
    Proxied,
}

/// A stored template. If its name moves it is another one, so nobody gets a sandbox from what the name led to before.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StoredTemplate {
    /// Whose store it is in.
    pub(crate) project: String,
    pub(crate) name: TemplateName,
    pub(crate) id: TemplateId,
    /// The user that it names for its programs; `None` for `user`.
    pub(crate) user: Option<User>,
    /// Of its sandboxes, where a request asks for no others.
    pub(crate) limits: TemplateLimits,
}

impl PoolKind {
    pub(crate) fn built_in(network: PoolNetwork) -> Self {
        Self { network, template: None }
    }

    pub(crate) fn spec(&self) -> Draft {
        let network = match self.network {
            PoolNetwork::Plain => None,
            PoolNetwork::Proxied => Some(NetworkMode::Proxied),
        };
        let template = self.template.as_ref();
        Draft {
            network,
            template: template.map(|template| template.name.clone()),
            user: template.and_then(|template| template.user),
            limits: template.map(|template| template.limits.beside(DraftLimits::default())).unwrap_or_default(),
            ..Draft::default()
        }
    }
}

/// A sandbox without an owner.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) id: SandboxId,
    pub(crate) kind: PoolKind,
    pub(crate) slot: Slot,
    /// It ends by itself soon after: then it is no longer given away.
    fresh_until: Instant,
}

impl Ready {
    /// It ends by itself in `left`.
    pub(crate) fn new(id: SandboxId, kind: PoolKind, slot: Slot, left: Duration) -> Self {
        let fresh_until = Instant::now() + left.min(UNOWNED_MAX).saturating_sub(STALE_BEFORE);
        Self { id, kind, slot, fresh_until }
    }
}

/// The sandboxes without an owner.
#[derive(Debug)]
pub(crate) struct Pools {
    size: PoolSize,
    supplies: Mutex<BTreeMap<PoolKind, Supply>>,
    changed: Notify,
}

#[derive(Debug)]
struct Supply {
    ready: VecDeque<Ready>,
    demand: Demand,
}

/// What brings the pools nearer to their sizes.
#[derive(Debug)]
pub(crate) enum Step {
    Make(PoolKind),
    End(Ready),
}

impl Pools {
    pub(crate) fn new(size: PoolSize) -> Self {
        let plain = Supply { ready: VecDeque::new(), demand: Demand::new(size) };
        let supplies = BTreeMap::from([(PoolKind::built_in(PoolNetwork::Plain), plain)]);
        Self { size, supplies: Mutex::new(supplies), changed: Notify::new() }
    }

    /// A fresh one, if there is one. Asking counts as demand either way.
    pub(crate) fn take(&self, kind: &PoolKind) -> Option<Ready> {
        let mut supplies = self.lock();
        let now = Instant::now();
        let supply = self.supply(&mut supplies, kind)?;
        supply.demand.note(now);
        // The newest: the older ones become stale in turn, and are replaced.
        let is_fresh = supply.ready.back().is_some_and(|ready| ready.fresh_until > now);
        let ready = if is_fresh { supply.ready.pop_back() } else { None };
        drop(supplies);
        self.changed.notify_one();
        ready
    }

    /// Gives it back if it has no place: then it is to be ended.
    pub(crate) fn put(&self, ready: Ready) -> Option<Ready> {
        let mut supplies = self.lock();
        match self.supply(&mut supplies, &ready.kind) {
            Some(supply) => {
                supply.ready.push_back(ready);
                None
            }
            None => Some(ready),
        }
    }

    /// One that is no longer fresh.
    pub(crate) fn take_stale(&self) -> Option<Ready> {
        let now = Instant::now();
        self.lock().values_mut().find_map(|supply| {
            let is_stale = supply.ready.front().is_some_and(|ready| ready.fresh_until <= now);
            if is_stale { supply.ready.pop_front() } else { None }
        })
    }

    pub(crate) fn ready(&self) -> usize {
        self.lock().values().map(|supply| supply.ready.len()).sum()
    }

    pub(crate) fn has(&self, id: &SandboxId) -> bool {
        self.lock().values().any(|supply| supply.ready.iter().any(|ready| ready.id == *id))
    }

    /// The next step to the sizes that the demand asks for; `None` if they are reached. No sandbox of a kind in `except`
    /// is made.
    pub(crate) fn next(&self, except: &BTreeSet<PoolKind>) -> Option<Step> {
        let mut supplies = self.lock();
        let now = Instant::now();
        let wanted: Vec<usize> = supplies.values_mut().map(|supply| supply.demand.wanted(now)).collect();
        let sizes: Vec<usize> = shares(&wanted, self.size.most);
        let surplus = supplies
            .values_mut()
            .zip(&sizes)
            .find(|(supply, size)| supply.ready.len() > **size)
            .map(|(supply, _)| supply);
        if let Some(supply) = surplus {
            // The oldest, which has waited longest.
            return supply.ready.pop_front().map(Step::End);
        }
        let missing = supplies
            .iter()
            .zip(&sizes)
            .find(|((kind, supply), size)| supply.ready.len() < **size && !except.contains(*kind))
            .map(|((kind, _), _)| Step::Make(kind.clone()));
        // Kinds without demand are forgotten, except for the default.
        let default = PoolKind::built_in(PoolNetwork::Plain);
        let mut sizes = sizes.into_iter();
        supplies.retain(|kind, supply| {
            let size = sizes.next().unwrap_or(0);
            *kind == default || size > 0 || !supply.ready.is_empty() || supply.demand.wanted(now) > 0
        });
        missing
    }

    /// The stored templates that there are pools for.
    pub(crate) fn templates(&self) -> BTreeSet<StoredTemplate> {
        self.lock().keys().filter_map(|kind| kind.template.clone()).collect()
    }

    /// Removes the pools of a template, and returns their sandboxes.
    pub(crate) fn forget(&self, template: &StoredTemplate) -> Vec<Ready> {
        let mut supplies = self.lock();
        let kinds: Vec<PoolKind> =
            supplies.keys().filter(|kind| kind.template.as_ref() == Some(template)).cloned().collect();
        kinds.iter().filter_map(|kind| supplies.remove(kind)).flat_map(|supply| supply.ready).collect()
    }

    /// All of them, for a clean shutdown.
    pub(crate) fn drain(&self) -> Vec<Ready> {
        self.lock().values_mut().flat_map(|supply| supply.ready.drain(..).collect::<Vec<_>>()).collect()
    }

    /// Waits until one was taken, and then until none was for a while, or for `most`. May be cancelled at any await:
    /// [`Pools::next`] shows what was taken, too.
    pub(crate) async fn lull(&self, quiet: Duration, most: Duration) {
        self.changed.notified().await;
        let in_a_burst = async { while tokio::time::timeout(quiet, self.changed.notified()).await.is_ok() {} };
        // A burst that doesn't end is also a reason to refill.
        let _ = tokio::time::timeout(most, in_a_burst).await;
    }

    fn supply<'a>(&self, supplies: &'a mut BTreeMap<PoolKind, Supply>, kind: &PoolKind) -> Option<&'a mut Supply> {
        if !supplies.contains_key(kind) {
            if supplies.len() >= POOLS_MAX {
                return None;
            }
            // Only by demand: a server without proxied sandboxes has no egress process.
            let size = PoolSize { least: 0, ..self.size };
            supplies.insert(kind.clone(), Supply { ready: VecDeque::new(), demand: Demand::new(size) });
        }
        supplies.get_mut(kind)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PoolKind, Supply>> {
        self.supplies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: Duration = Duration::from_millis(20);
    const MOST: Duration = Duration::from_millis(200);

    /// The time of the lull if this many are taken, this far apart.
    async fn check_lull(takes: u32, apart: Duration, expected: Duration) {
        let pool = Pools::new(PoolSize { least: 1, most: 1 });
        let plain = PoolKind::built_in(PoolNetwork::Plain);
        let start = tokio::time::Instant::now();
        let take = async {
            for _ in 0..takes {
                pool.take(&plain);
                tokio::time::sleep(apart).await;
            }
        };
        let lull = async {
            pool.lull(QUIET, MOST).await;
            start.elapsed()
        };
        let ((), came) = tokio::join!(take, lull);
        assert!(
            (expected..expected + Duration::from_millis(5)).contains(&came),
            "{takes} takes, {apart:?} apart: {came:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_lull_comes_after_the_last_take_and_does_not_wait_for_ever() {
        check_lull(1, Duration::ZERO, QUIET).await;
        check_lull(5, Duration::from_millis(10), Duration::from_millis(40) + QUIET).await;
        check_lull(100, Duration::from_millis(10), MOST).await;
    }

    fn stored(name: &str, content: &[u8]) -> PoolKind {
        let template = StoredTemplate {
            project: "prj_x".to_owned(),
            name: TemplateName::parse(name).unwrap(),
            id: TemplateId::of(content),
            user: None,
            limits: TemplateLimits::default(),
        };
        PoolKind { network: PoolNetwork::Plain, template: Some(template) }
    }

    /// The kinds that are made in turn until the sizes are reached.
    fn made(pools: &Pools) -> Vec<PoolKind> {
        let mut kinds = Vec::new();
        let slots = super::super::admission::Slots::new(100);
        while let Some(Step::Make(kind)) = pools.next(&BTreeSet::new()) {
            let id = SandboxId::from_random([u8::try_from(kinds.len()).unwrap(); 16]);
            assert!(pools.put(Ready::new(id, kind.clone(), slots.take().unwrap(), UNOWNED_MAX)).is_none());
            kinds.push(kind);
        }
        kinds
    }

    #[test]
    fn each_template_in_demand_has_a_pool_and_together_they_stay_within_the_maximum() {
        let pools = Pools::new(PoolSize { least: 1, most: 4 });
        let (plain, first, second) = (PoolKind::built_in(PoolNetwork::Plain), stored("a", b"1"), stored("b", b"1"));
        assert_eq!(made(&pools), std::slice::from_ref(&plain), "the minimum is of the default alone");
        for kind in [&first, &first, &first, &first, &second] {
            assert!(pools.take(kind).is_none());
        }
        assert_eq!(made(&pools), [first.clone(), first.clone(), second.clone()]);
        assert_eq!(pools.take(&first).map(|ready| ready.kind), Some(first.clone()));
        assert!(pools.take(&stored("a", b"2")).is_none(), "where the name led before is another template");
        let of = |kind: &PoolKind| kind.template.clone().unwrap();
        assert_eq!(pools.forget(&of(&first)).len(), 1);
        assert!(!pools.templates().contains(&of(&first)));
        assert_eq!(pools.drain().len(), 2);
    }

    #[test]
    fn there_are_at_most_so_many_pools() {
        let pools = Pools::new(PoolSize { least: 0, most: 1 });
        for number in 0..POOLS_MAX * 2 {
            pools.take(&stored("a", &number.to_le_bytes()));
        }
        assert_eq!(pools.templates().len(), POOLS_MAX - 1);
    }
}
