//! Network settings of E2B's clients, checked against the operator's settings and what can be enforced.
//!
//! There is no managed network yet: a sandbox has no network, or the host's if the operator allows that for these
//! clients. So requests for no restrictions of their own, or for less access, are granted; requests for rules are
//! refused, and never silently ignored.

use axum::extract::State;
use http::StatusCode;
use saggar_api::Code;
use saggar_domain::NetworkMode;
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change};
use saggar_http::extract::Json;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::words::unsupported;
use crate::state::Shared;

/// Everything, for both kinds of address.
const EVERYTHING: [&str; 3] = ["0.0.0.0/0", "::/0", "*"];

/// The requested network settings.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Network {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    pub(super) allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    https_ports: Option<Vec<Value>>,
    egress_proxy: Option<Value>,
    rules: Option<Map<String, Value>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

/// The network mode for such a request.
pub(super) fn mode(
    granted: NetworkMode,
    is_allowed: Option<bool>,
    network: Option<&Network>,
) -> Result<NetworkMode, Refusal> {
    let Some(network) = network else { return Ok(if is_allowed == Some(false) { NetworkMode::None } else { granted }) };
    network.check_rules()?;
    let denied = network.deny_out.as_deref().unwrap_or_default();
    let denies_everything = denied.iter().any(|place| EVERYTHING.contains(&place.as_str()));
    let is_allowed = is_allowed.or(network.allow_internet_access);
    if is_allowed == Some(false) || denies_everything {
        return Ok(NetworkMode::None);
    }
    match granted {
        NetworkMode::Host if !denied.is_empty() => Err(unsupported(
            "rules for the network (denyOut) can't be enforced on the host's network",
            "deny everything (0.0.0.0/0), or nothing",
        )),
        // Without a network the denied addresses are unreachable anyway.
        granted => Ok(granted),
    }
}

impl Network {
    /// Refuses every rule that would have to be enforced.
    fn check_rules(&self) -> Result<(), Refusal> {
        let asked = [
            ("allowOut", self.allow_out.as_ref().is_some_and(|list| !list.is_empty())),
            ("rules", self.rules.as_ref().is_some_and(|rules| !rules.is_empty())),
            ("egressProxy", self.egress_proxy.as_ref().is_some_and(|proxy| !proxy.is_null())),
            ("httpsPorts", self.https_ports.as_ref().is_some_and(|ports| !ports.is_empty())),
            ("maskRequestHost", self.mask_request_host.is_some()),
        ];
        match asked.iter().find(|(_, is_asked)| *is_asked) {
            Some((name, _)) => Err(unsupported(
                format!("rules for the network ({name}) can't be enforced yet"),
                "leave them out; a sandbox has no network unless the operator allows the host's network",
            )),
            None => Ok(()),
        }
    }
}

/// Replaces the rules of a sandbox: with none, or with what applies anyway.
pub(super) async fn update(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(network): Json<Network>,
) -> Result<StatusCode, Refusal> {
    let now = server.sandboxes.current(&allowed.permit).await?.asked.spec.network.unwrap_or(NetworkMode::None);
    if mode(server.network, None, Some(&network))? == now {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Refusal::new(
        Code::UnsupportedCapability,
        "the network of a running sandbox can't be changed yet",
        "create another sandbox with the desired `allow_internet_access`",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(granted: NetworkMode, is_allowed: Option<bool>, network: Value) -> Result<NetworkMode, ()> {
        let network: Option<Network> = serde_json::from_value(network).unwrap();
        mode(granted, is_allowed, network.as_ref()).map_err(drop)
    }

    #[test]
    fn what_can_be_kept_is_granted_and_nothing_else_is() {
        use NetworkMode::{Host, None as Nothing};
        let (none, host) = (Ok(NetworkMode::None), Ok(NetworkMode::Host));
        for (granted, is_allowed, network, expected) in [
            (Nothing, None, json!(null), none),
            (Nothing, Some(true), json!(null), none),
            (Host, None, json!(null), host),
            (Host, Some(true), json!({}), host),
            (Host, Some(false), json!(null), none),
            (Host, Some(false), json!({ "denyOut": ["10.0.0.0/8"] }), none),
            (Host, None, json!({ "denyOut": ["0.0.0.0/0"] }), none),
            (Host, None, json!({ "allow_internet_access": false }), none),
            (Host, None, json!({ "denyOut": ["10.0.0.0/8"] }), Err(())),
            (Nothing, None, json!({ "denyOut": ["10.0.0.0/8"], "allowPublicTraffic": false }), none),
            (Nothing, None, json!({ "allowOut": ["8.8.8.8"], "denyOut": ["0.0.0.0/0"] }), Err(())),
            (Host, None, json!({ "rules": { "a": [] } }), Err(())),
            (Host, None, json!({ "egressProxy": { "address": "x:1" } }), Err(())),
            (Host, None, json!({ "httpsPorts": [443] }), Err(())),
            (Host, None, json!({ "maskRequestHost": "x" }), Err(())),
        ] {
            assert_eq!(asked(granted, is_allowed, network.clone()), expected, "{granted:?} {is_allowed:?} {network}");
        }
    }
}
