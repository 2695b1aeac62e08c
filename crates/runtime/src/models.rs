//! The model gateway's surroundings: the way out that tools have too, keys from the vault, and the store as its ledger.

mod inside;
mod over;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use saggar_domain::ProjectId;
use saggar_domain::model::Micros;
use saggar_domain::secret::SecretName;
use saggar_gateway::{
    Bill, BoxFuture, Caller, Catalogue, Gateway, ProviderKey, Reservation, ReserveError, Reserved, SpendingLimit,
    WayOut, World,
};
use saggar_store::{EndedCall, NewAmount, NewCall, NewSandboxCall, SetAside, Spent, TooMuch};

pub use inside::ModelConnection;

use crate::fault::Fault;
use crate::permit::{Action, Kind, Permit};
use crate::runs::Exits;
use crate::sandboxes::Sandboxes;
use over::Over;

/// Models, as permits name them.
pub const MODELS: Kind = Kind::new("models");

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// The gateway to the models of a catalogue. Sandboxes can then be given these models.
pub fn gateway(sandboxes: &Sandboxes, catalogue: Catalogue) -> Gateway {
    let surroundings = Surroundings { sandboxes: sandboxes.clone(), exits: Arc::default(), over: Over::default() };
    let gateway = Gateway::new(Arc::new(surroundings), catalogue);
    sandboxes.know_models(&gateway);
    gateway
}

impl Sandboxes {
    /// What the permit's project has spent on models.
    pub async fn model_spending(&self, permit: &Permit) -> Result<Spent, Fault> {
        permit.check(|action| *action == Action::Manage(MODELS))?;
        Ok(self.store().spent(permit.project().clone(), today()).await?)
    }

    /// Bills calls of programs in sandboxes of runs that were under way when an earlier server died: all that was set aside for
    /// them. Call it before sandboxes reach the models. Returns their number.
    pub async fn bill_lost_model_calls(&self) -> Result<usize, Fault> {
        Ok(self.store().bill_lost_sandbox_calls().await?)
    }
}

struct Surroundings {
    sandboxes: Sandboxes,
    exits: Arc<Exits>,
    over: Over,
}

impl World for Surroundings {
    fn way_out(&self) -> BoxFuture<'_, Result<WayOut, String>> {
        Box::pin(async move {
            let outside = self.exits.outside().await.map_err(|problem| problem.message)?;
            let own = self.exits.own_addresses().await.map_err(|problem| problem.message)?;
            Ok(WayOut { outside, own })
        })
    }

    fn key<'a>(&'a self, project: &'a ProjectId, name: &'a SecretName) -> BoxFuture<'a, Result<ProviderKey, String>> {
        Box::pin(async move {
            let found = self.sandboxes.store().secret(project.clone(), name.clone()).await;
            let found = found
                .map_err(|error| error.to_string())?
                .ok_or_else(|| format!("the secret {name} does not exist; store it with: saggar secret set {name}"))?;
            let value = self.sandboxes.vault().open(&found).await.map_err(|fault| fault.to_string())?;
            Ok(ProviderKey { binding: found.row.binding, value })
        })
    }

    fn reserve(&self, reservation: Reservation) -> BoxFuture<'_, Result<Reserved, ReserveError>> {
        Box::pin(async move {
            let Reservation { call, caller, route, input, output, amount, limit, day } = reservation;
            let of_run = caller.run_of_sandbox().map(|run| NewSandboxCall {
                run: run.clone(),
                model: route.to_string(),
                input,
                output,
                cost: amount,
            });
            let project = caller.project;
            let account =
                limit.map(|SpendingLimit { limit, first_day }| NewAmount { project, amount, limit, first_day, day });
            match self.sandboxes.store().set_aside(NewCall { call, account, of_run }).await {
                Ok(SetAside::Done { by_run }) => Ok(Reserved { by_run }),
                Ok(SetAside::Exhausted { gone }) => Err(ReserveError::Exhausted { gone }),
                Ok(SetAside::RunExhausted(too_much)) => Err(run_exhausted(too_much)),
                Ok(SetAside::RunOver) => Err(ReserveError::RunOver),
                Err(error) => Err(ReserveError::Broken(error.to_string())),
            }
        })
    }

    fn over(&self, caller: &Caller) -> BoxFuture<'static, String> {
        let Some(run) = caller.run_of_sandbox().cloned() else { return Box::pin(std::future::pending()) };
        let (over, store) = (self.over.clone(), self.sandboxes.store().clone());
        Box::pin(async move {
            over.wait(&store, run).await;
            "the run of this sandbox is over, and its calls of models have ended with it".to_owned()
        })
    }

    fn settle(&self, bill: Bill) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async move {
            tracing::info!(
                project = %bill.caller.project,
                run = bill.caller.run.as_ref().map(tracing::field::display),
                sandbox = bill.caller.sandbox.as_ref().map(tracing::field::display),
                model = %bill.route,
                provider = bill.origin.as_ref().map(|origin| origin.provider.as_str()),
                outcome = bill.outcome,
                input_tokens = bill.usage.input,
                output_tokens = bill.usage.output,
                micros = bill.usage.cost.0,
                "called a model"
            );
            // Nothing was asked of any provider, and nothing is set aside.
            if !bill.is_reserved && bill.usage.tokens() == 0 && bill.usage.cost == Micros::ZERO {
                return Ok(());
            }
            let Bill { call, caller, route, usage, day, .. } = bill;
            let ended = EndedCall { project: caller.project, call, route: route.to_string(), usage, day };
            self.sandboxes.store().book(ended).await.map_err(|error| error.to_string())
        })
    }

    fn now(&self) -> (u64, u64) {
        (today(), seconds())
    }
}

fn run_exhausted(too_much: TooMuch) -> ReserveError {
    match too_much {
        TooMuch::Tokens { left, wanted } => {
            ReserveError::RunExhausted { budget: "tokens", left: left.to_string(), wanted: wanted.to_string() }
        }
        TooMuch::Micros { left, wanted } => ReserveError::RunExhausted {
            budget: "money",
            left: Micros(left).to_string(),
            wanted: Micros(wanted).to_string(),
        },
    }
}

fn today() -> u64 {
    seconds() / SECONDS_PER_DAY
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
