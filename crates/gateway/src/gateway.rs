//! The gateway itself: its state, and the way from a request to an answer that has begun.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use saggar_domain::ProjectId;
use saggar_domain::model::{Micros, ModelAccess, Origin, TokenUsage, UsageSource};
use saggar_domain::secret::SecretName;
use tokio::time::{sleep, timeout};

use crate::attempt::{self, Means, Purpose, Started};
use crate::cache::Cache;
use crate::catalogue::{Catalogue, Endpoint, Route, Target};
use crate::choose::{Admitted, Health, order};
use crate::failure::{Failure, FailureKind};
use crate::local::{Replay, Script};
use crate::pool::Pool;
use crate::prepare::{Asked, prepare};
use crate::rate::Rates;
use crate::under_way::UnderWay;
use crate::world::{Bill, Caller, Reservation, ReserveError, Reserved, SpendingLimit, World};

/// The longest wait before another attempt. A provider that asks for more is given up.
const WAIT_MOST: Duration = Duration::from_secs(10);
const WAIT_FIRST: Duration = Duration::from_millis(250);
/// Until a call whose booking failed is booked again. Doubles each time.
const BOOK_AGAIN_AFTER: Duration = Duration::from_millis(100);
const BOOK_AGAIN_AFTER_MAX: Duration = Duration::from_secs(60);

/// Cheap to clone.
#[derive(Clone)]
pub struct Gateway(pub(crate) Arc<Inner>);

/// Doesn't keep the gateway.
#[derive(Clone)]
pub struct WeakGateway(Weak<Inner>);

impl WeakGateway {
    pub fn upgrade(&self) -> Option<Gateway> {
        self.0.upgrade().map(Gateway)
    }
}

impl std::fmt::Debug for WeakGateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WeakGateway").finish_non_exhaustive()
    }
}

pub(crate) struct Inner {
    pub(crate) world: Arc<dyn World>,
    catalogue: RwLock<Arc<Catalogue>>,
    pub(crate) pool: Arc<Pool>,
    health: Health,
    pub(crate) rates: Mutex<HashMap<ProjectId, Rates>>,
    pub(crate) cache: Mutex<Cache>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

/// A call that is under way: who pays, what was set aside, and who was asked.
pub(crate) struct Call {
    pub gateway: Gateway,
    pub id: String,
    pub caller: Caller,
    pub route: Arc<Route>,
    pub asked: Asked,
    /// Tokens of the prompt, as we count them.
    pub input: u64,
    /// What was billed by attempts that came to nothing.
    pub lost: TokenUsage,
    /// What is billed for an attempt beside the last one, while both are under way.
    beside: TokenUsage,
    /// What an answer that is read as a whole has come to so far.
    pub so_far: Option<TokenUsage>,
    last: Option<Origin>,
    /// There is a budget, so that every reply has a limit.
    pub is_limited: bool,
    is_reserved: bool,
    is_settled: bool,
    /// Ends with the call.
    _under_way: UnderWay,
}

/// An answer that has begun, and whose it is.
pub(crate) struct Begun {
    pub target: Arc<Target>,
    pub started: Started,
}

impl Gateway {
    pub fn new(world: Arc<dyn World>, catalogue: Catalogue) -> Self {
        Self(Arc::new(Inner {
            world,
            catalogue: RwLock::new(Arc::new(catalogue)),
            pool: Arc::default(),
            health: Health::default(),
            rates: Mutex::default(),
            cache: Mutex::default(),
        }))
    }

    pub fn downgrade(&self) -> WeakGateway {
        WeakGateway(Arc::downgrade(&self.0))
    }

    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.0.catalogue.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the catalogue. Calls under way keep the one they began with.
    pub fn set(&self, catalogue: Catalogue) {
        *self.0.catalogue.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalogue);
    }

    /// The route of a name; an error names some that the caller may use.
    pub(crate) fn route(&self, models: &ModelAccess, name: &str) -> Result<Arc<Route>, Failure> {
        let catalogue = self.catalogue();
        if let Some(route) = catalogue.route(name).filter(|route| models.allows(&route.name)) {
            return Ok(Arc::clone(route));
        }
        let known = catalogue.routes().filter(|route| models.allows(&route.name));
        let known: Vec<&str> = known.map(|route| route.name.as_str()).take(8).collect();
        let help = match known.as_slice() {
            [] => "no models are set up: the operator names them in the file of the setting models_file".to_owned(),
            known => format!("there are: {}", known.join(", ")),
        };
        let name: String = name.chars().take(128).collect();
        Err(Failure::new(FailureKind::NotFound, format!("the model {name:?} does not exist; {help}")).about("model"))
    }

    /// Counts a call and, if there is a budget or a run that pays for it, sets its most expensive outcome aside.
    pub(crate) async fn open(
        &self,
        caller: Caller,
        route: Arc<Route>,
        asked: Asked,
        input: u64,
    ) -> Result<Call, Failure> {
        let catalogue = self.catalogue();
        let output = |target: &Target| target.output_tokens(asked.output_tokens()).saturating_mul(asked.replies());
        let tokens = input.saturating_add(route.all().map(|target| output(target)).max().unwrap_or(0));
        let under_way = self.count(&caller.project, tokens)?;
        let mut call = Call {
            gateway: self.clone(),
            id: new_id(),
            caller,
            route,
            asked,
            input,
            lost: TokenUsage::default(),
            beside: TokenUsage::default(),
            so_far: None,
            last: None,
            is_limited: false,
            is_reserved: false,
            is_settled: false,
            _under_way: under_way,
        };
        let budget = catalogue.budget(&call.caller.project);
        if budget.is_some() || call.caller.run_of_sandbox().is_some() {
            let (day, _) = self.0.world.now();
            let limit =
                budget.map(|budget| SpendingLimit { limit: budget.limit, first_day: budget.period.first_day(day) });
            call.is_limited = limit.is_some();
            call.set_aside(limit, day).await?;
        }
        Ok(call)
    }
}

fn output_of(asked: &Asked, target: &Target) -> u64 {
    target.output_tokens(asked.output_tokens()).saturating_mul(asked.replies())
}

impl Call {
    /// Sets the call's most expensive outcome aside.
    async fn set_aside(&mut self, limit: Option<SpendingLimit>, day: u64) -> Result<(), Failure> {
        let (route, input) = (Arc::clone(&self.route), self.input);
        let price = |target: &Arc<Target>| target.prices.cost_at_most(input, output_of(&self.asked, target));
        let most = route.all().map(price).max().unwrap_or_default();
        // An attempt that comes to nothing may be billed for its prompt.
        let prompt = route.all().map(|target| target.prices.cost_at_most(input, 0)).max().unwrap_or_default();
        let (retries, at_once) = (u64::from(route.retries), u64::from(route.at_once()));
        let lost = Micros(prompt.0.saturating_mul(retries));
        let amount = Micros(most.plus(lost).0.saturating_mul(at_once));
        let output = route.all().map(|target| output_of(&self.asked, target)).max().unwrap_or_default();
        let reservation = Reservation {
            call: self.id.clone(),
            caller: self.caller.clone(),
            route: route.name.clone(),
            input: input.saturating_mul(retries.saturating_add(1)).saturating_mul(at_once),
            output: output.saturating_mul(at_once),
            amount,
            limit,
            day,
        };
        // Before it is done: a call that is dropped meanwhile gives it back.
        self.is_reserved = true;
        let refused = match self.gateway.0.world.reserve(reservation).await {
            Ok(Reserved { by_run }) => {
                self.is_limited |= by_run;
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.is_settled = true;
        Err(match refused {
            ReserveError::Exhausted { gone } => {
                let limit = limit.map(|limit| limit.limit).unwrap_or_default();
                let left = limit.minus(gone);
                let message = format!(
                    "the project's budget of {limit} is used up: {left} are left, and this call may cost {amount}; ask for fewer \
                     tokens, or let the operator raise the budget"
                );
                Failure::new(FailureKind::Budget, message)
            }
            ReserveError::RunExhausted { budget, left, wanted } => {
                let message = format!(
                    "the run's budget of {budget} is used up: {left} are left for its sandboxes, and this call may come to {wanted}; \
                     ask for fewer tokens, or let a person raise the run's budget"
                );
                Failure::new(FailureKind::Budget, message)
            }
            ReserveError::RunOver => {
                Failure::new(FailureKind::Forbidden, "the run of this sandbox is over, and calls no models any more")
            }
            ReserveError::Broken(why) => {
                tracing::error!(error = why, "setting an amount aside for a model call failed");
                Failure::new(FailureKind::Internal, "the budget can't be checked; try again in a moment")
            }
        })
    }

    /// Tries targets until one has begun to answer. Nothing has been sent to the client yet.
    pub(crate) async fn begin(&mut self) -> Result<Begun, Failure> {
        let (gateway, route, keys_project) = (self.gateway.clone(), Arc::clone(&self.route), self.keys_project());
        let targets = order(&route, u64::from_ne_bytes(random()));
        let (mut left, mut round, mut last) = (route.retries, 0_u32, None::<Failure>);
        loop {
            let mut tried = false;
            let mut soonest = None::<Duration>;
            for (index, target) in targets.iter().enumerate() {
                let Some(admitted) = gateway.0.health.admit(target, &keys_project, Instant::now()) else { continue };
                if tried || round > 0 {
                    if left == 0 {
                        return Err(self.worst(last));
                    }
                    left -= 1;
                }
                tried = true;
                let outcome = match (route.hedge_after, targets.get(index + 1)) {
                    (Some(after), other) => Box::pin(self.hedged(admitted, other.unwrap_or(target), after)).await,
                    (None, _) => Box::pin(self.one(admitted)).await,
                };
                match outcome {
                    Ok(begun) => return Ok(begun),
                    // Another target would say the same.
                    Err(failure) if !may_go_on(failure.kind) => return Err(failure),
                    Err(failure) => {
                        let wait = failure.retry_after.unwrap_or(WAIT_FIRST.saturating_mul(1 << round.min(6)));
                        // The same target is asked again only if that may help.
                        if failure.kind.is_passing() {
                            soonest = Some(soonest.map_or(wait, |soonest| soonest.min(wait)));
                        }
                        last = Some(failure);
                    }
                }
            }
            let wait = match soonest {
                Some(wait) if left > 0 && wait <= WAIT_MOST => wait,
                Some(_) => return Err(self.worst(last)),
                None => {
                    let message =
                        "every provider of this model has failed again and again, and is left alone for a moment";
                    return Err(last.unwrap_or_else(|| {
                        Failure::new(FailureKind::Overloaded, message).after(Some(Duration::from_secs(5)))
                    }));
                }
            };
            // Up to a quarter longer, so that calls which failed together don't come back together.
            let jitter = wait.mul_f64(f64::from(random::<1>()[0]) / 1024.0);
            sleep(wait + jitter).await;
            round += 1;
        }
    }

    fn worst(&self, last: Option<Failure>) -> Failure {
        last.unwrap_or_else(|| Failure::new(FailureKind::Overloaded, "no provider of this model answers"))
    }

    /// Asks a second target if the first takes long; whoever begins first answers.
    async fn hedged(&mut self, first: Admitted<'_>, second: &Arc<Target>, after: Duration) -> Result<Begun, Failure> {
        let gateway = self.gateway.clone();
        let (asked, is_limited, project) = (self.asked.clone(), self.is_limited, self.keys_project());
        self.last = Some(first.target.origin());
        let mut one = Box::pin(attempt_of(&gateway, &asked, first.target, is_limited, &project));
        if let Ok(outcome) = timeout(after, &mut one).await {
            return self.told(first, outcome);
        }
        let Some(second) = gateway.0.health.admit(second, &project, Instant::now()) else {
            let outcome = one.await;
            return self.told(first, outcome);
        };
        // If this call is dropped now, both have read the prompt.
        self.beside = self.prompt_of(second.target);
        let mut other = Box::pin(attempt_of(&gateway, &asked, second.target, is_limited, &project));
        // The one that is dropped has read the prompt, and is billed for it.
        let (target, outcome, loser) = tokio::select! {
            outcome = &mut one => match outcome {
                Ok(begun) => (first, Ok(begun), Some(second)),
                Err(failure) => {
                    drop(self.told(first, Err(failure)));
                    (second, other.await, None)
                }
            },
            outcome = &mut other => match outcome {
                Ok(begun) => (second, Ok(begun), Some(first)),
                Err(failure) => {
                    drop(self.told(second, Err(failure)));
                    (first, one.await, None)
                }
            },
        };
        self.beside = TokenUsage::default();
        if let Some(loser) = loser {
            self.lose(loser.target);
        }
        self.told(target, outcome)
    }

    async fn one(&mut self, admitted: Admitted<'_>) -> Result<Begun, Failure> {
        let gateway = self.gateway.clone();
        let project = self.keys_project();
        self.last = Some(admitted.target.origin());
        let outcome = Box::pin(attempt_of(&gateway, &self.asked, admitted.target, self.is_limited, &project)).await;
        self.told(admitted, outcome)
    }

    /// Notes the outcome of an attempt.
    fn told(&mut self, admitted: Admitted<'_>, outcome: Tried) -> Result<Begun, Failure> {
        let target = admitted.target;
        self.last = Some(target.origin());
        let (key, outcome) = match outcome {
            Ok((key, started)) => (key, Ok(started)),
            Err(failed) => (failed.0, Err(failed.1)),
        };
        admitted.tell(key.as_ref(), outcome.as_ref().map(|_| ()), Instant::now());
        match outcome {
            Ok(started) => Ok(Begun { target: Arc::clone(target), started }),
            Err(failure) => {
                // An answer that had begun was paid for.
                if matches!(failure.kind, FailureKind::Torn | FailureKind::Timeout) {
                    self.lose(target);
                }
                tracing::debug!(target = target.label(), kind = failure.kind.as_str(), "a model call failed");
                Err(failure)
            }
        }
    }

    /// The prompt is billed, as we count it.
    fn lose(&mut self, target: &Target) {
        self.lost = self.lost.plus(self.prompt_of(target));
    }

    fn prompt_of(&self, target: &Target) -> TokenUsage {
        let mut usage = TokenUsage { input: self.input, source: UsageSource::Estimated, ..TokenUsage::default() };
        usage.cost = target.prices.cost(&usage);
        usage
    }

    /// A usage, with what earlier attempts were billed.
    pub(crate) fn with_lost(&self, usage: TokenUsage) -> TokenUsage {
        let lost = [self.lost, self.beside].into_iter().filter(|lost| *lost != TokenUsage::default());
        lost.fold(usage, TokenUsage::plus)
    }

    pub(crate) fn keys_project(&self) -> ProjectId {
        self.gateway.catalogue().keys_project.clone().unwrap_or_else(|| self.caller.project.clone())
    }

    /// Books what the call came to. Once: later calls do nothing.
    pub(crate) async fn settle(&mut self, usage: TokenUsage, outcome: &'static str) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let bill = self.bill(usage, outcome);
        // On its own, so that it is done even if this call is dropped meanwhile. Only a runtime that stops cancels it.
        let _ = tokio::spawn(book(Arc::clone(&self.gateway.0.world), bill)).await;
    }

    fn bill(&self, usage: TokenUsage, outcome: &'static str) -> Bill {
        let usage = self.with_lost(usage);
        let (day, _) = self.gateway.0.world.now();
        Bill {
            call: self.id.clone(),
            caller: self.caller.clone(),
            route: self.route.name.clone(),
            origin: self.last.clone(),
            usage,
            outcome,
            day,
            is_reserved: self.is_reserved,
        }
    }

    /// The cost of a usage at a target, with what earlier attempts have cost.
    pub(crate) fn total(&self, usage: &TokenUsage) -> Micros {
        usage.cost.plus(self.lost.cost)
    }
}

/// A call that is dropped in the middle, because the client left: its prompt may be billed, and what came of the answer.
impl Drop for Call {
    fn drop(&mut self) {
        if std::mem::replace(&mut self.is_settled, true) {
            return;
        }
        let last = self.last.as_ref().and_then(|last| self.route.all().find(|target| target.origin() == *last));
        let none = TokenUsage { source: UsageSource::Estimated, ..TokenUsage::default() };
        let usage = self.so_far.or_else(|| last.map(|target| self.prompt_of(target))).unwrap_or(none);
        let bill = self.bill(usage, FailureKind::Cancelled.as_str());
        let world = Arc::clone(&self.gateway.0.world);
        // Outside of a runtime nothing can be stored, and what was set aside stays spent.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(book(world, bill));
        }
    }
}

/// Books a call. If that fails, it is tried again without end, and nobody waits for it: until it is booked, the call counts
/// as under way with all that was set aside for it, and its run may wait for its end.
async fn book(world: Arc<dyn World>, bill: Bill) {
    if let Err(why) = world.settle(bill.clone()).await {
        tracing::error!(error = why, call = bill.call, "booking a model call failed; it is tried again");
        tokio::spawn(book_later(world, bill));
    }
}

async fn book_later(world: Arc<dyn World>, bill: Bill) {
    let mut wait = BOOK_AGAIN_AFTER;
    loop {
        tokio::time::sleep(wait).await;
        match world.settle(bill.clone()).await {
            Ok(()) => return tracing::info!(call = bill.call, "booked a model call late"),
            Err(error) => tracing::warn!(error, call = bill.call, "booking a model call failed again"),
        }
        wait = BOOK_AGAIN_AFTER_MAX.min(wait * 2);
    }
}

type Tried = Result<(Option<SecretName>, Started), (Option<SecretName>, Failure)>;

/// One attempt at one target, with the next key of its provider.
async fn attempt_of(
    gateway: &Gateway,
    asked: &Asked,
    target: &Arc<Target>,
    is_limited: bool,
    keys_project: &ProjectId,
) -> Tried {
    match &target.provider.endpoint {
        Endpoint::Scripted => asked
            .request(target)
            .and_then(|request| {
                let script = Script::parse(&target.model)
                    .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
                script.reply(&request, target.origin())
            })
            .map(|reply| (None, Started::Local(Box::new(reply))))
            .map_err(|failure| (None, failure)),
        Endpoint::Replay => asked
            .request(target)
            .and_then(|request| {
                let replay = Replay::parse(&target.model)
                    .map_err(|error| Failure::new(FailureKind::Internal, error.to_string()))?;
                replay.reply(&request)
            })
            .map(|reply| (None, Started::Local(Box::new(reply))))
            .map_err(|failure| (None, failure)),
        Endpoint::Remote { .. } => {
            let key = gateway.0.health.key(target, keys_project, Instant::now());
            let prepared = match prepare(asked, target, is_limited, Purpose::Reply) {
                Ok(prepared) => prepared,
                Err(failure) => return Err((None, failure)),
            };
            let means = Means { world: &*gateway.0.world, pool: &gateway.0.pool, keys_project };
            match Box::pin(attempt::remote(means, target, &prepared, key.as_ref())).await {
                Ok(started) => Ok((key, started)),
                Err(failure) => Err((key, failure)),
            }
        }
    }
}

/// Whether another attempt may come to more.
fn may_go_on(kind: FailureKind) -> bool {
    match kind {
        FailureKind::RateLimited
        | FailureKind::Overloaded
        | FailureKind::Timeout
        | FailureKind::Upstream
        | FailureKind::Torn
        // Of one provider: another may know the model, or take a longer prompt.
        | FailureKind::NotFound
        | FailureKind::TooLarge => true,
        FailureKind::InvalidRequest
        | FailureKind::Unauthorized
        | FailureKind::Forbidden
        | FailureKind::Budget
        | FailureKind::Cancelled
        | FailureKind::Internal => false,
    }
}

pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    // It need not be hard to guess, only spread out.
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    bytes
}

pub(crate) fn new_id() -> String {
    random::<12>().iter().fold(String::with_capacity(24), |id, byte| format!("{id}{byte:02x}"))
}
