//! Models inside of sandboxes, as `model.internal`: which sandbox may call which, and on whose account.
//!
//! Programs hold a token instead of a key. It is derived from the sandbox's id, so nothing of it is stored, and it is worth nothing
//! anywhere else: a call counts only if it comes through the egress process, which says whose it is, and has the token of that sandbox.

use std::collections::BTreeSet;

use saggar_domain::model::{ModelAccess, RouteName};
use saggar_domain::net::MODEL_HOST;
use saggar_domain::{Code, Draft, Problem, SandboxId};
use saggar_gateway::Caller;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::fault::Fault;
use crate::sandboxes::Sandboxes;

/// The purpose string from which tokens are derived.
const TOKEN: &str = "models/v1";
/// What a token begins with, so that people see what it is.
const PREFIX: &str = "sgm_";
/// Routes that a message names.
const TOLD_MAX: usize = 8;

/// A connection of a sandbox to the models.
pub type ModelConnection = (SandboxId, UnixStream);

impl Sandboxes {
    /// Connections of sandboxes to the models of this server, from now on. Call it before the egress process is adopted, and once.
    pub fn model_connections(&self) -> mpsc::Receiver<ModelConnection> {
        self.egress().lead_models_here()
    }

    /// Who calls from inside of a sandbox, and what it may call. `Ok(None)`: it is not the sandbox's own token, or the sandbox is over.
    pub async fn model_caller(&self, id: &SandboxId, token: &str) -> Result<Option<Caller>, Fault> {
        let signature = token.strip_prefix(PREFIX).unwrap_or_default();
        if !self.signing().verify(&[TOKEN, id.as_str()], signature) {
            return Ok(None);
        }
        let Some(row) = self.store().sandbox_of_any(id.clone()).await? else { return Ok(None) };
        if !row.life.state().is_live() {
            return Ok(None);
        }
        let run = self.run_of(&row).await?;
        let models = row.asked.spec.models;
        Ok(Some(Caller { project: row.asked.project, run, sandbox: Some(id.clone()), models }))
    }

    /// The variables by which clients of models find them. What the sandbox's owner sets comes before.
    pub(crate) fn with_models(&self, id: &SandboxId, mut spec: Draft) -> Result<Draft, Fault> {
        if spec.models.is_none() {
            return Ok(spec);
        }
        let token = format!("{PREFIX}{}", self.signing().sign(&[TOKEN, id.as_str()]).0);
        let given = spec.env.clone().into_map();
        for (name, value) in [
            ("OPENAI_BASE_URL", format!("http://{MODEL_HOST}/v1")),
            ("OPENAI_API_KEY", token.clone()),
            ("ANTHROPIC_BASE_URL", format!("http://{MODEL_HOST}")),
            ("ANTHROPIC_API_KEY", token),
        ] {
            if !given.contains_key(name) {
                spec.env.insert(name.to_owned(), value).map_err(Fault::Refused)?;
            }
        }
        Ok(spec)
    }

    /// Refuses models that the server doesn't have.
    pub(crate) fn check_models(&self, models: &ModelAccess) -> Result<(), Fault> {
        let routes = self.model_gateway().map(|gateway| gateway.catalogue().names());
        check(models, &routes.unwrap_or_default()).map_err(Fault::Refused)
    }
}

fn check(models: &ModelAccess, routes: &BTreeSet<RouteName>) -> Result<(), Problem> {
    let missing = models.routes().find(|route| !routes.contains(*route));
    let message = match missing {
        _ if models.is_none() => return Ok(()),
        _ if routes.is_empty() => "the sandbox asks for models, and this server has none".to_owned(),
        None => return Ok(()),
        Some(missing) => {
            let some: Vec<&str> = routes.iter().map(RouteName::as_str).take(TOLD_MAX).collect();
            let more = if routes.len() > TOLD_MAX { ", …" } else { "" };
            format!(
                "the sandbox asks for the model {missing}, which this server doesn't have; it has {}{more}",
                some.join(", ")
            )
        }
    };
    let help = "`saggar models list` shows all; the operator names them in the file of the setting models_file";
    Err(Problem::new(Code::InvalidValue, message, help))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_does_not_have_is_refused_with_what_it_has() {
        let has = |names: &[&str]| names.iter().map(|name| RouteName::parse(name).unwrap()).collect::<BTreeSet<_>>();
        let asks = |json: &str| serde_json::from_str::<ModelAccess>(json).unwrap();
        for (json, routes, told) in [
            ("false", has(&[]), None),
            ("true", has(&["a"]), None),
            (r#"["a"]"#, has(&["a", "b"]), None),
            ("true", has(&[]), Some("has none")),
            (r#"["a"]"#, has(&[]), Some("has none")),
            (r#"["a", "c"]"#, has(&["a", "b"]), Some("the model c, which this server doesn't have; it has a, b")),
        ] {
            let refused = check(&asks(json), &routes).err().map(|problem| problem.message);
            match told {
                None => assert_eq!(refused, None, "{json}"),
                Some(told) => {
                    assert!(refused.as_ref().is_some_and(|message| message.contains(told)), "{json} {refused:?}")
                }
            }
        }
    }
}
