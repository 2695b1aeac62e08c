//! What a sandbox does with its network: decisions, sums of them, and the rules in force.

use std::net::IpAddr;

use saggar_domain::net::{HostTraffic, NetDecision, Protocol, Verdict};
use saggar_domain::secret::SecretName;
use saggar_domain::{ExecId, NetworkMode, RunId};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::sandbox::EffectiveEgress;
use crate::schema;

/// A decision about a connection or a request of a sandbox. Queries of URLs are never recorded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NetworkDecision {
    /// The exec whose program asked; absent if it can't be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::ExecId>, nullable = false)]
    pub exec_id: Option<ExecId>,
    /// The run that the sandbox belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<schema::RunId>, nullable = false)]
    pub run_id: Option<RunId>,
    /// The host that was asked for.
    pub host: String,
    /// The address that was dialled, or that led to a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, nullable = false)]
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// How the program asked: `dns`, `connect`, `socks`, `http`, `https`, `tls` or `tcp`.
    #[schema(value_type = String)]
    pub protocol: Protocol,
    /// The method of a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub method: Option<String>,
    /// The path of a request, escaped and bounded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub path: Option<String>,
    /// `allowed` or `denied`.
    #[schema(value_type = schema::Verdict)]
    pub verdict: Verdict,
    /// The allow rule that matched, or the rule of the refusal.
    pub rule: String,
    /// Why it was denied, or why an allowed one failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub reason: Option<String>,
    /// Secrets that were put into the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<String>)]
    pub secrets: Vec<SecretName>,
    /// Bytes from the sandbox.
    pub bytes_up: u64,
    /// Bytes to the sandbox.
    pub bytes_down: u64,
    /// Its duration in milliseconds.
    pub duration_ms: u64,
    /// How many decisions it stands for: more than one if they came too fast to be recorded one by one. Then bytes are sums, and what
    /// they don't have in common is left out.
    #[serde(default = "once")]
    pub times: u64,
}

fn once() -> u64 {
    1
}

impl NetworkDecision {
    /// The decision of a sandbox, for the exec and the run that it belongs to.
    pub fn of(decision: NetDecision, exec_id: Option<ExecId>, run_id: Option<RunId>) -> Self {
        let NetDecision {
            host,
            address,
            port,
            protocol,
            method,
            path,
            verdict,
            rule,
            reason,
            secrets,
            bytes_up,
            bytes_down,
            duration_ms,
            connection: _,
            times,
        } = decision;
        Self {
            exec_id,
            run_id,
            host,
            address,
            port,
            protocol,
            method,
            path,
            verdict,
            rule,
            reason,
            secrets,
            bytes_up,
            bytes_down,
            duration_ms,
            times,
        }
    }
}

impl From<NetworkDecision> for NetDecision {
    fn from(shown: NetworkDecision) -> Self {
        Self {
            host: shown.host,
            address: shown.address,
            port: shown.port,
            protocol: shown.protocol,
            method: shown.method,
            path: shown.path,
            verdict: shown.verdict,
            rule: shown.rule,
            reason: shown.reason,
            secrets: shown.secrets,
            bytes_up: shown.bytes_up,
            bytes_down: shown.bytes_down,
            duration_ms: shown.duration_ms,
            connection: None,
            times: shown.times,
        }
    }
}

/// The network of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SandboxNetwork {
    /// Its network mode.
    #[schema(value_type = schema::Network)]
    pub network: NetworkMode,
    /// Its rules; absent unless the mode is `proxied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub egress: Option<EffectiveEgress>,
    /// Sums of all decisions, by host and port. Hosts beyond a bound are summed up as `others`.
    #[schema(value_type = Vec<schema::HostTrafficShape>)]
    pub hosts: Vec<HostTraffic>,
}
