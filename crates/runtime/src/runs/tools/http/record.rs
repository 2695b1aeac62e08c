//! The record of one call: the same as that of a sandbox's request. It becomes part of the tool's result.

use std::net::IpAddr;
use std::time::Instant;

use ::http::Request;
use bytes::Bytes;
use http_body_util::Full;
use saggar_domain::net::{NetDecision, Protocol, Refusal, Verdict, shown_method, shown_path};
use saggar_domain::secret::SecretName;
use saggar_egress::outside::Security;
use saggar_engine::Report;

use super::Whose;
use super::arguments::{Call, Payload};
use crate::runs::tools::returned;

pub(super) struct Record {
    begun: Instant,
    decision: NetDecision,
}

impl Record {
    pub fn new(call: &Call) -> Self {
        let to = call.address.to();
        let protocol = match call.address.security() {
            Security::Plain => Protocol::Http,
            Security::Tls => Protocol::Https,
        };
        let decision = NetDecision {
            host: to.host.to_string(),
            address: None,
            port: to.port,
            protocol,
            method: Some(shown_method(call.method.as_str())),
            path: Some(shown_path(call.address.path())),
            verdict: Verdict::Denied,
            rule: "egress/undecided".to_owned(),
            reason: None,
            bytes_up: 0,
            bytes_down: 0,
            duration_ms: 0,
            connection: None,
            secrets: Vec::new(),
            times: 1,
        };
        Self { begun: Instant::now(), decision }
    }

    pub fn allow(&mut self, rule: String) {
        self.decision.verdict = Verdict::Allowed;
        self.decision.rule = rule;
    }

    pub fn dialled(&mut self, address: IpAddr) {
        self.decision.address = Some(address);
    }

    pub fn refused_at(&mut self, address: Option<IpAddr>) {
        self.decision.address = address;
    }

    pub fn up(&mut self, request: &Request<Full<Bytes>>, call: &Call) {
        let head: usize = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum();
        let body = match &call.payload {
            Payload::None => 0,
            Payload::Json(body) | Payload::Text(body) => body.len(),
        };
        self.decision.bytes_up += (head + body) as u64;
    }

    pub fn use_secret(&mut self, name: SecretName) {
        self.decision.secrets = vec![name];
    }

    pub fn down(&mut self, bytes: usize) {
        self.decision.bytes_down += bytes as u64;
    }

    /// What the model is told about a refusal.
    pub fn refused(&mut self, refusal: &Refusal, whose: Whose) -> Report {
        self.decision.verdict = Verdict::Denied;
        self.decision.rule.clone_from(&refusal.rule);
        self.decision.reason = Some(refusal.message.clone());
        let (who, remedy) = match whose {
            Whose::Operator => ("the operator doesn't allow it", "see the setting http_allowed"),
            Whose::Agent => ("the agent's own rules don't allow it", "see `egress` of the tool"),
            Whose::Secret => ("the tool's secret can't go there", refusal.help.as_str()),
        };
        returned(format!("{who}: {} (rule {}); {remedy}", refusal.message, refusal.rule), true)
    }

    /// An allowed call whose server can't be trusted.
    pub fn failed(&mut self, refusal: &Refusal) -> Report {
        self.decision.reason = Some(refusal.message.clone());
        returned(format!("{} (rule {}); {}", refusal.message, refusal.rule, refusal.help), true)
    }

    /// Adds the record to a report, whatever came of the call.
    pub fn into(mut self, report: Report) -> Report {
        self.decision.duration_ms = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        match report {
            Report::Returned { mut result, snapshot } => {
                result.network.push(self.decision);
                Report::Returned { result, snapshot }
            }
            Report::Failed { mut failure, usage } => {
                self.decision.reason.get_or_insert_with(|| failure.message.clone());
                failure.network.push(self.decision);
                Report::Failed { failure, usage }
            }
            Report::Unknown { reason, mut network } => {
                self.decision.reason.get_or_insert_with(|| reason.clone());
                network.push(self.decision);
                Report::Unknown { reason, network }
            }
            // A call of this tool doesn't end so.
            other @ (Report::Replied { .. } | Report::Kept { .. } | Report::Delayed { .. } | Report::NeverDone) => {
                other
            }
        }
    }
}
