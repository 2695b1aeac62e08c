//! Network settings of E2B's clients, checked against the operator's settings and what can be enforced.
//!
//! The operator gives these sandboxes no network, a managed one (`proxied`) or the host's. In a managed one, what clients allow and deny
//! becomes rules ([`super::egress`]). Otherwise requests for no restrictions of their own, or for less access, are granted; requests for
//! rules are refused, and never silently ignored.

use std::collections::BTreeMap;

use axum::extract::State;
use http::StatusCode;
use saggar_api::{Code, Secret};
use saggar_domain::net::EgressDraft;
use saggar_domain::secret::SecretValue;
use saggar_domain::{HostMask, NetworkMode};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, Change};
use saggar_http::extract::Json;
use saggar_runtime::HeaderRule;
use serde::Deserialize;
use serde_json::Value;

use super::egress::{self, Destinations};
use super::words::unsupported;
use crate::object::Object;
use crate::state::Shared;

/// What a reference to a secret or a token of E2B's service begins with.
const REFERENCE: &str = "${e2b.";
/// Everything, for both kinds of address.
const EVERYTHING: [&str; 3] = ["0.0.0.0/0", "::/0", "*"];

/// The requested network settings.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Network {
    allow_out: Option<Vec<String>>,
    deny_out: Option<Vec<String>>,
    dns_servers: Option<Vec<String>>,
    pub(super) allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    https_ports: Option<Vec<Value>>,
    egress_proxy: Option<Value>,
    rules: Option<BTreeMap<String, Vec<Object<HostRule>>>>,
    #[serde(rename = "allow_internet_access")]
    allow_internet_access: Option<bool>,
}

/// A rule for one host.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostRule {
    #[serde(default)]
    transform: Option<Object<Transform>>,
}

/// What requests to the host get.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Transform {
    #[serde(default)]
    headers: BTreeMap<String, Secret>,
}

/// Values are not shown.
impl std::fmt::Debug for Transform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.headers.keys()).finish()
    }
}

/// The network for a request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Given {
    pub(super) mode: NetworkMode,
    pub(super) egress: EgressDraft,
}

impl From<NetworkMode> for Given {
    fn from(mode: NetworkMode) -> Self {
        Self { mode, egress: EgressDraft::default() }
    }
}

/// What a client gets, if sandboxes of its kind may have `granted`.
pub(super) fn given(
    granted: NetworkMode,
    is_allowed: Option<bool>,
    network: Option<&Network>,
) -> Result<Given, Refusal> {
    let nothing = Network::default();
    let network = network.unwrap_or(&nothing);
    let is_allowed = is_allowed.or(network.allow_internet_access);
    network.check_unsupported()?;
    if granted == NetworkMode::Proxied {
        let egress = network.egress(is_allowed)?;
        return Ok(Given { mode: NetworkMode::Proxied, egress });
    }
    network.check_rules()?;
    if network.has_headers() {
        return Err(unsupported(
            "header rules (rules) can't be enforced without a managed network",
            "leave them out, or ask the operator for `e2b_network = \"proxied\"`",
        ));
    }
    let denied = network.deny_out.as_deref().unwrap_or_default();
    let denies_everything = denied.iter().any(|place| EVERYTHING.contains(&place.as_str()));
    if is_allowed == Some(false) || denies_everything {
        return Ok(NetworkMode::None.into());
    }
    match granted {
        NetworkMode::Host if !denied.is_empty() => Err(unsupported(
            "rules for the network (denyOut) can't be enforced on the host's network",
            "deny everything (0.0.0.0/0), or nothing",
        )),
        // Without a network the denied addresses are unreachable anyway.
        granted => Ok(granted.into()),
    }
}

impl Network {
    /// What programs inside get as `Host` of requests to their ports.
    pub(super) fn host_mask(&self) -> Result<Option<HostMask>, Refusal> {
        let mask = self.mask_request_host.as_deref().filter(|mask| !mask.is_empty()).map(HostMask::parse).transpose();
        mask.map_err(|problem| Refusal::new(Code::InvalidValue, problem.message, problem.help))
    }

    /// Its rules, in a managed network.
    fn egress(&self, is_allowed: Option<bool>) -> Result<EgressDraft, Refusal> {
        egress::rules(Destinations {
            allow: self.allow_out.as_deref().unwrap_or_default(),
            deny: self.deny_out.as_deref().unwrap_or_default(),
            name_servers: self.dns_servers.as_deref().unwrap_or_default(),
            denies_everything: is_allowed == Some(false),
        })
    }

    fn has_headers(&self) -> bool {
        self.rules.as_ref().is_some_and(|rules| rules.values().any(|of_host| !of_host.is_empty()))
    }

    /// The headers that requests get on their way out. Of two values for one header of a host, the later one counts.
    pub(super) fn headers(&self) -> Result<Vec<HeaderRule>, Refusal> {
        let mut headers = Vec::new();
        for (host, of_host) in self.rules.iter().flatten() {
            let shown: String = host.chars().take(64).collect();
            let rule = egress::name_rule(host)?;
            let transforms = of_host.iter().filter_map(|rule| rule.transform.as_deref());
            let merged: BTreeMap<String, &Secret> = transforms
                .flat_map(|transform| &transform.headers)
                .map(|(header, value)| (header.to_ascii_lowercase(), value))
                .collect();
            for (header, value) in merged {
                // Sent as it is, it would be worthless at best.
                if value.reveal().contains(REFERENCE) {
                    return Err(unsupported(
                        format!(
                            "a header for {shown:?} refers to a secret or a token of E2B's ({REFERENCE}…), and there are none here"
                        ),
                        "give the value itself: it is stored encrypted, and the sandbox never has it",
                    ));
                }
                let value = SecretValue::parse(value.reveal()).map_err(|error| {
                    let header: String = header.chars().take(64).collect();
                    let message = format!("the header {header:?} for {shown:?}: {error}");
                    Refusal::new(Code::InvalidValue, message, "header rules take values of 8 to 8192 bytes")
                })?;
                headers.push(HeaderRule { host: rule.clone(), header, value });
            }
        }
        Ok(headers)
    }

    /// Refuses what can't be enforced in any network.
    fn check_unsupported(&self) -> Result<(), Refusal> {
        let asked = [
            ("egressProxy", self.egress_proxy.as_ref().is_some_and(|proxy| !proxy.is_null())),
            ("httpsPorts", self.https_ports.as_ref().is_some_and(|ports| !ports.is_empty())),
        ];
        match asked.iter().find(|(_, is_asked)| *is_asked) {
            Some((name, _)) => Err(unsupported(
                format!("network settings of this kind ({name}) can't be enforced yet"),
                "leave them out; headers with credentials can be added by secrets of the native API",
            )),
            None => Ok(()),
        }
    }

    /// Refuses every rule that would have to be enforced.
    fn check_rules(&self) -> Result<(), Refusal> {
        match self.allow_out.as_ref().is_some_and(|list| !list.is_empty()) {
            true => Err(unsupported(
                "rules for the network (allowOut) can't be enforced without a managed network",
                "leave them out, or ask the operator for `e2b_network = \"proxied\"`",
            )),
            false => Ok(()),
        }
    }
}

/// Replaces the rules of a sandbox. Without a managed network only those that apply anyway are accepted.
pub(super) async fn update(
    allowed: Allowed<Change>,
    State(server): State<Shared>,
    Json(network): Json<Network>,
) -> Result<StatusCode, Refusal> {
    let now = server.sandboxes.current(&allowed.permit).await?.asked.spec.network.unwrap_or(NetworkMode::None);
    let granted = if now == NetworkMode::Proxied { now } else { server.network };
    let given = given(granted, None, Some(&network))?;
    if now == NetworkMode::Proxied {
        let headers = network.headers()?;
        let headers = server.sandboxes.store_headers(&allowed.permit, &headers).await?;
        server.sandboxes.set_network(&allowed.permit, given.egress, Some(headers)).await?;
        return Ok(StatusCode::NO_CONTENT);
    }
    if given.mode == now {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(Refusal::new(
        Code::UnsupportedCapability,
        "the network of this sandbox can't be changed: it is not managed",
        "create another sandbox with the desired `allow_internet_access`",
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn asked(granted: NetworkMode, is_allowed: Option<bool>, network: Value) -> Result<Given, ()> {
        let network: Option<Network> = serde_json::from_value(network).unwrap();
        given(granted, is_allowed, network.as_ref()).map_err(drop)
    }

    #[test]
    fn what_can_be_kept_is_granted_and_nothing_else_is() {
        use NetworkMode::{Host, None as Nothing};
        let (none, host) = (|| Ok(NetworkMode::None.into()), || Ok(NetworkMode::Host.into()));
        for (granted, is_allowed, network, expected) in [
            (Nothing, None, json!(null), none()),
            (Nothing, Some(true), json!(null), none()),
            (Host, None, json!(null), host()),
            (Host, Some(true), json!({}), host()),
            (Host, Some(false), json!(null), none()),
            (Host, Some(false), json!({ "denyOut": ["10.0.0.0/8"] }), none()),
            (Host, None, json!({ "denyOut": ["0.0.0.0/0"] }), none()),
            (Host, None, json!({ "allow_internet_access": false }), none()),
            (Host, None, json!({ "denyOut": ["10.0.0.0/8"] }), Err(())),
            (Nothing, None, json!({ "denyOut": ["10.0.0.0/8"], "allowPublicTraffic": false }), none()),
            (Nothing, None, json!({ "allowOut": ["8.8.8.8"], "denyOut": ["0.0.0.0/0"] }), Err(())),
            (Host, None, json!({ "rules": { "a": [] } }), host()),
            (Host, None, json!({ "rules": { "a.example": [{ "transform": { "headers": {} } }] } }), Err(())),
            (Host, None, json!({ "egressProxy": { "address": "x:1" } }), Err(())),
            (Host, None, json!({ "httpsPorts": [443] }), Err(())),
            (Host, None, json!({ "maskRequestHost": "x" }), host()),
        ] {
            assert_eq!(asked(granted, is_allowed, network.clone()), expected, "{granted:?} {is_allowed:?} {network}");
        }
    }

    #[test]
    fn in_a_managed_network_what_is_asked_for_becomes_rules() {
        for (is_allowed, network, expected) in [
            (None, json!(null), json!({ "allow": ["*:*"] })),
            (Some(true), json!({}), json!({ "allow": ["*:*"] })),
            (Some(false), json!(null), json!({})),
            (Some(false), json!({ "allowOut": ["a.example"] }), json!({ "allow": ["a.example"] })),
            (None, json!({ "allow_internet_access": false }), json!({})),
            (None, json!({ "denyOut": ["10.0.0.0/8"] }), json!({ "allow": ["*:*"], "deny": ["10.0.0.0/8:*"] })),
            (
                None,
                json!({ "allowOut": ["a.example"], "denyOut": ["0.0.0.0/0"], "dnsServers": ["1.1.1.1"] }),
                json!({ "allow": ["a.example", "1.1.1.1:*"] }),
            ),
        ] {
            let egress = serde_json::from_value(expected).unwrap();
            let expected = Given { mode: NetworkMode::Proxied, egress };
            assert_eq!(asked(NetworkMode::Proxied, is_allowed, network.clone()), Ok(expected), "{network}");
        }
        for network in [
            json!({ "egressProxy": { "address": "x:1" } }),
            json!({ "httpsPorts": [443] }),
            json!({ "allowOut": ["a.example"] }),
        ] {
            assert_eq!(asked(NetworkMode::Proxied, None, network.clone()), Err(()), "{network}");
        }
    }

    #[test]
    fn header_rules_are_for_hosts_by_name_and_the_later_value_counts() {
        let headers = |rules: Value| {
            let network: Network = serde_json::from_value(json!({ "rules": rules })).unwrap();
            assert!(!format!("{network:?}").contains("12345678"), "values are not shown");
            let texts = |rule: &HeaderRule| format!("{} {}={}", rule.host, rule.header, rule.value.expose());
            network.headers().map(|headers| headers.iter().map(texts).collect::<Vec<_>>()).map_err(drop)
        };
        let transform = |headers: Value| json!({ "transform": { "headers": headers } });
        assert_eq!(
            headers(json!({
                "a.example": [transform(json!({ "X-Key": "12345678" })), transform(json!({ "x-key": "12345678-later" }))],
                "*.b.example": [transform(json!({ "Authorization": "Bearer 12345678" })), {}],
                "c.example": [],
            })),
            Ok(vec![
                "*.b.example authorization=Bearer 12345678".to_owned(),
                "a.example x-key=12345678-later".to_owned()
            ])
        );
        for wrong in [
            json!({ "203.0.113.1": [transform(json!({ "x": "12345678" }))] }),
            json!({ "*": [transform(json!({ "x": "12345678" }))] }),
            json!({ "https://a.example": [transform(json!({ "x": "12345678" }))] }),
            json!({ "a.example": [transform(json!({ "x": "short" }))] }),
            json!({ "a.example": [transform(json!({ "x": "Bearer ${e2b.secrets.openai}" }))] }),
            json!({ "a.example": [transform(json!({ "x": "12345678\r\ny: z" }))] }),
        ] {
            assert_eq!(headers(wrong.clone()), Err(()), "{wrong}");
        }
        for unknown in [json!({ "a.example": [{ "block": true }] }), json!({ "a.example": [["transform"]] })] {
            assert!(serde_json::from_value::<Network>(json!({ "rules": unknown })).is_err(), "{unknown}");
        }
    }
}
