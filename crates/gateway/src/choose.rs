//! Chooses who is asked: targets by weight, then fallbacks; keys in turns, except those that cool down.
//!
//! Draws no random numbers; `chance` is an argument.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use saggar_domain::ProjectId;
use saggar_domain::secret::SecretName;

use crate::breaker::Breaker;
use crate::catalogue::{Route, Target};
use crate::failure::{Failure, FailureKind};

/// How long a key is not used that the provider refused, or limits without saying for how long.
const COOL_DOWN: Duration = Duration::from_secs(30);
const COOL_DOWN_MOST: Duration = Duration::from_secs(300);

/// The order in which the targets of a route are tried.
pub(crate) fn order(route: &Route, mut chance: u64) -> Vec<Arc<Target>> {
    let mut left: Vec<&Arc<Target>> = route.targets.iter().filter(|target| target.weight > 0).collect();
    let mut ordered = Vec::with_capacity(left.len() + route.fallbacks.len());
    while !left.is_empty() {
        let sum: u64 = left.iter().map(|target| u64::from(target.weight)).sum();
        let mut at = chance % sum;
        chance = chance.rotate_right(17) ^ 0x9e37_79b9_7f4a_7c15;
        let chosen = left
            .iter()
            .position(|target| {
                let is_here = at < u64::from(target.weight);
                at = at.saturating_sub(u64::from(target.weight));
                is_here
            })
            .unwrap_or(0);
        ordered.push(Arc::clone(left.remove(chosen)));
    }
    ordered.extend(route.fallbacks.iter().cloned());
    ordered
}

/// What is known about the health of targets and keys, for each project whose keys they are used with: whoever has none, or wrong ones,
/// must not close a target to others.
#[derive(Debug, Default)]
pub(crate) struct Health {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    breakers: HashMap<(ProjectId, String), Breaker>,
    cooling: HashMap<(ProjectId, String, SecretName), Instant>,
    turn: usize,
}

/// A target that may be asked. Dropped without an outcome, because the client left or another target was faster, it says nothing about
/// the target. Otherwise the one trial that an open breaker lets through would never end.
#[must_use]
pub(crate) struct Admitted<'a> {
    health: &'a Health,
    pub target: &'a Arc<Target>,
    keys_project: &'a ProjectId,
    is_told: bool,
}

impl Admitted<'_> {
    pub(crate) fn tell(mut self, key: Option<&SecretName>, outcome: Result<(), &Failure>, now: Instant) {
        self.is_told = true;
        self.health.tell(self.target, self.keys_project, key, outcome, now);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        if !self.is_told {
            let left = Failure::new(FailureKind::Cancelled, "nobody waits for it any more");
            self.health.tell(self.target, self.keys_project, None, Err(&left), Instant::now());
        }
    }
}

impl Health {
    /// Whether a target may be asked now.
    pub(crate) fn admit<'a>(
        &'a self,
        target: &'a Arc<Target>,
        keys_project: &'a ProjectId,
        now: Instant,
    ) -> Option<Admitted<'a>> {
        let place = (keys_project.clone(), target.label());
        let is_admitted = self.lock().breakers.entry(place).or_default().admit(now);
        is_admitted.then_some(Admitted { health: self, target, keys_project, is_told: false })
    }

    fn tell(
        &self,
        target: &Target,
        keys_project: &ProjectId,
        key: Option<&SecretName>,
        outcome: Result<(), &Failure>,
        now: Instant,
    ) {
        let mut state = self.lock();
        let breaker = state.breakers.entry((keys_project.clone(), target.label())).or_default();
        match outcome {
            Ok(()) => breaker.succeeded(),
            Err(failure) => match failure.kind {
                FailureKind::Overloaded | FailureKind::Timeout | FailureKind::Upstream | FailureKind::Torn => {
                    breaker.failed(now);
                }
                FailureKind::RateLimited
                | FailureKind::InvalidRequest
                | FailureKind::Unauthorized
                | FailureKind::Forbidden
                | FailureKind::NotFound
                | FailureKind::TooLarge
                | FailureKind::Budget
                | FailureKind::Cancelled
                | FailureKind::Internal => breaker.said_nothing(),
            },
        }
        if let (Some(key), Err(failure)) = (key, outcome)
            && failure.kind == FailureKind::RateLimited
        {
            let wait = failure.retry_after.unwrap_or(COOL_DOWN).min(COOL_DOWN_MOST);
            state.cooling.insert((keys_project.clone(), target.provider.name.clone(), key.clone()), now + wait);
        }
    }

    /// The key for the next call: in turns, except those that cool down. If all do, the one that is ready first.
    pub(crate) fn key(&self, target: &Target, keys_project: &ProjectId, now: Instant) -> Option<SecretName> {
        let keys = &target.provider.keys;
        let mut state = self.lock();
        state.turn = state.turn.wrapping_add(1);
        let turn = state.turn;
        let until = |key: &SecretName| {
            state.cooling.get(&(keys_project.clone(), target.provider.name.clone(), key.clone())).copied()
        };
        let rotated = (0..keys.len()).map(|index| &keys[(turn + index) % keys.len()]);
        rotated.min_by_key(|key| until(key).filter(|until| now < *until)).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::Catalogue;

    fn catalogue() -> Catalogue {
        Catalogue::parse(
            r#"
            [providers.a]
            kind = "compatible"
            url = "http://127.0.0.1:1/v1"
            keys = ["one", "two", "three"]
            [models.m]
            targets = [{ provider = "a", model = "x", weight = 3 }, { provider = "a", model = "y" }, { provider = "a", model = "z", weight = 0 }]
            fallbacks = [{ provider = "a", model = "last" }]
            "#,
        )
        .unwrap()
    }

    fn project() -> ProjectId {
        ProjectId::parse("prj_aaaaaaaaaaaaaaaaaaaaaaaaab").unwrap()
    }

    #[test]
    fn targets_are_chosen_by_weight_and_fallbacks_come_last() {
        let catalogue = catalogue();
        let route = catalogue.route("m").unwrap();
        let mut first = HashMap::new();
        for chance in 0..400_u64 {
            let order: Vec<String> = order(route, chance).iter().map(|target| target.model.clone()).collect();
            assert_eq!((order.len(), order[2].as_str()), (3, "last"), "{order:?}");
            *first.entry(order[0].clone()).or_insert(0) += 1;
        }
        assert_eq!((first["x"], first["y"]), (300, 100));
    }

    #[test]
    fn keys_are_used_in_turns_and_rest_when_they_are_limited() {
        let (catalogue, health, now) = (catalogue(), Health::default(), Instant::now());
        let target = &catalogue.route("m").unwrap().targets[0];
        let used = |now| -> std::collections::BTreeSet<String> {
            (0..6).map(|_| health.key(target, &project(), now).unwrap().to_string()).collect()
        };
        assert_eq!(used(now).len(), 3);
        let limited = Failure::new(FailureKind::RateLimited, "x").after(Some(Duration::from_secs(9)));
        let two = SecretName::parse("two").unwrap();
        health.tell(target, &project(), Some(&two), Err(&limited), now);
        assert!(!used(now).contains("two"));
        assert!(used(now + Duration::from_secs(9)).contains("two"));
        for name in ["one", "three"] {
            let long = Failure::new(FailureKind::RateLimited, "x").after(Some(Duration::from_secs(60)));
            health.tell(target, &project(), Some(&SecretName::parse(name).unwrap()), Err(&long), now);
        }
        assert_eq!(used(now), ["two".to_owned()].into(), "the one that is ready first");
    }

    #[test]
    fn a_trial_that_nobody_waits_for_gives_way_to_another() {
        let (catalogue, health, now) = (catalogue(), Health::default(), Instant::now());
        let (target, own) = (&catalogue.route("m").unwrap().targets[0], project());
        for _ in 0..5 {
            let failed = Failure::new(FailureKind::Upstream, "x");
            health.admit(target, &own, now).unwrap().tell(None, Err(&failed), now);
        }
        assert!(health.admit(target, &own, now).is_none());
        let other = ProjectId::parse("prj_aaaaaaaaaaaaaaaaaaaaaaaaac").unwrap();
        assert!(health.admit(target, &other, now).is_some(), "its keys may be good");
        let later = now + Duration::from_secs(5);
        let trial = health.admit(target, &own, later).unwrap();
        assert!(health.admit(target, &own, later).is_none(), "one trial at a time");
        drop(trial);
        health.admit(target, &own, later).unwrap().tell(None, Ok(()), later);
        let both = (health.admit(target, &own, later), health.admit(target, &own, later));
        assert!(both.0.is_some() && both.1.is_some());
    }
}
