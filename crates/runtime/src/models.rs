//! The model gateway's surroundings: the way out that tools have too, keys from the vault, and the store as its ledger.

mod inside;

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use saggar_domain::ProjectId;
use saggar_domain::model::Micros;
use saggar_domain::secret::SecretName;
use saggar_gateway::{Bill, BoxFuture, Catalogue, Gateway, ProviderKey, Reservation, ReserveError, WayOut, World};
use saggar_store::{EndedCall, NewAmount, SetAside, Spent};

pub use inside::ModelConnection;

use crate::fault::Fault;
use crate::permit::{Action, Kind, Permit};
use crate::runs::Exits;
use crate::sandboxes::Sandboxes;

/// Models, as permits name them.
pub const MODELS: Kind = Kind::new("models");

const SECONDS_PER_DAY: u64 = 24 * 3600;

/// The gateway to the models of a catalogue. Sandboxes can then be given these models.
pub fn gateway(sandboxes: &Sandboxes, catalogue: Catalogue) -> Gateway {
    let surroundings = Surroundings { sandboxes: sandboxes.clone(), exits: Arc::default() };
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
}

struct Surroundings {
    sandboxes: Sandboxes,
    exits: Arc<Exits>,
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

    fn reserve(&self, reservation: Reservation) -> BoxFuture<'_, Result<(), ReserveError>> {
        Box::pin(async move {
            let Reservation { call, project, amount, limit, first_day, day } = reservation;
            match self.sandboxes.store().set_aside(NewAmount { project, call, amount, limit, first_day, day }).await {
                Ok(SetAside::Done) => Ok(()),
                Ok(SetAside::Exhausted { gone }) => Err(ReserveError::Exhausted { gone }),
                Err(error) => Err(ReserveError::Broken(error.to_string())),
            }
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

fn today() -> u64 {
    seconds() / SECONDS_PER_DAY
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
