//! The messages of a session.

use std::net::{IpAddr, SocketAddr};

use saggar_domain::net::{EgressDraft, NetDecision};
use saggar_domain::secret::{Grant, SecretName};
use saggar_domain::{Problem, SandboxId};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The version of the protocol.
pub const EGRESS: u32 = 1;
/// Maximum length of a message. The kernel's default send buffer takes one of this length.
pub const MESSAGE_MAX: usize = 128 * 1024;

/// From a supervisor or a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToEgress {
    /// The first message. Has the files attached in which the secrets are, if it names any.
    Open(Box<Open>),
    /// Has the gates attached, in the order of the fields.
    Gates(GateCounts),
    /// Replaces the rules. Connections that the new ones forbid are cut.
    Rules(EgressDraft),
    /// Report every refusal that a program can have seen by now.
    Settle {},
    /// The first message of a server, which then has no session of its own.
    Manage {
        /// The server's version of the protocol.
        v: u32,
    },
    /// Only from a server, which writes it by itself: see [`SecretsOf::bytes`].
    #[serde(skip_serializing)]
    SecretsOf(SecretsOf),
    /// For all sessions: the host's network has changed. Only from a server.
    UpstreamNow(Upstream),
    /// Has one end of [`super::model_sockets`] attached: from now on it leads to the models of this server. Only from a server.
    Models {},
    /// Take no new session, and end with the last one. Only from a server.
    Retire {},
    /// Has an empty file attached, open for appending: every exchange is written to it. After `open` and before `gates`.
    Record {},
    /// Has a recording attached, open for reading: requests are answered from it alone. After `open` and before `gates`.
    Replay {},
    /// The answer to a question.
    Answer { question: u64, answer: HostAnswer },
}

/// What a person says about a host that no rule allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAnswer {
    /// The connections that wait for this answer, and no later ones.
    AllowOnce,
    /// This host, for the rest of the session.
    AllowHost,
    Deny,
    /// Nobody can be asked.
    NoTerminal,
    /// Too many questions came within a short time.
    TooMany,
    /// Nobody answered.
    TooLate,
}

/// Replaces all secrets of a sandbox's session.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SecretsOf {
    pub sandbox_id: SandboxId,
    pub secrets: Vec<Grant>,
}

impl SecretsOf {
    /// The message, overwritten when it is dropped. A supervisor, which must be small, has no code to write values.
    pub(super) fn bytes(&self) -> Option<Zeroizing<Vec<u8>>> {
        #[derive(Serialize)]
        struct Message<'a> {
            secrets_of: &'a SecretsOf,
        }
        // Growing would leave parts behind.
        let mut bytes = Zeroizing::new(Vec::with_capacity(MESSAGE_MAX));
        serde_json::to_writer(&mut *bytes, &Message { secrets_of: self }).ok()?;
        Some(bytes)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Open {
    /// The supervisor's version of the protocol.
    pub v: u32,
    pub sandbox_id: SandboxId,
    pub egress: EgressDraft,
    #[serde(default)]
    pub upstream: Upstream,
    /// How many sessions the sandbox had before this one. Addresses that an earlier session gave to names lead nowhere in this one.
    #[serde(default)]
    pub generation: u32,
    /// Whether someone answers questions about hosts that no rule allows.
    #[serde(default)]
    pub asks: bool,
    /// Whether the supervisor wants to hear of every connection.
    #[serde(default)]
    pub attributes: bool,
    /// Secrets that the session begins with. Their values are in the files that are attached, and only the egress process reads them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretName>,
    /// Their placeholders, if an earlier session has told them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub placeholders: Vec<String>,
    /// Whether a server binds secrets to this session. Until it has, nothing that the rules allow goes out.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub awaits_secrets: bool,
    /// Whether programs may call models of a server. Which ones, the server knows.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub models: bool,
}

/// How the host reaches others, and which addresses are its own. It is read anew for each sandbox: a laptop changes its network while egress runs, and
/// egress itself can open no file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upstream {
    pub servers: Vec<SocketAddr>,
    /// The lines of the hosts file, one name each.
    pub hosts: Vec<(IpAddr, String)>,
    /// The addresses of the host's interfaces.
    #[serde(default)]
    pub own: Vec<IpAddr>,
}

/// How many descriptors of each kind are attached. IPv4 comes first; IPv6 is there if the host has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GateCounts {
    pub tcp: usize,
    pub proxy: usize,
    pub dns_udp: usize,
    pub dns_tcp: usize,
}

impl GateCounts {
    pub fn sum(self) -> usize {
        let Self { tcp, proxy, dns_udp, dns_tcp } = self;
        tcp.saturating_add(proxy).saturating_add(dns_udp).saturating_add(dns_tcp)
    }
}

/// A connection of the sandbox, as the egress process has accepted it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connected {
    /// Counts the connections of a session. Decisions name it.
    pub connection: u64,
    /// The sandbox's end.
    pub client: SocketAddr,
    /// What the sandbox has connected to.
    pub server: SocketAddr,
    /// A time at which it had been accepted, in nanoseconds on the clock that counts from boot.
    pub at_ns: u64,
    /// Whether a program still had it open after that time.
    pub is_open: bool,
}

/// From the egress process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FromEgress {
    /// The answer to `open`.
    Opened {
        /// The certificate of the session's own authority. Its key stays in the egress process.
        ca_pem: String,
        /// What programs get in place of the secrets, in the order of `open`.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        placeholders: Vec<String>,
    },
    /// The answer to `gates`.
    Listening {},
    /// The answer to `rules` and `upstream_now`.
    Ruled {},
    /// The answer to `secrets_of`. If the sandbox has no session, or the secrets can't be used, it is `failed`, and the connection stays.
    Bound {},
    /// The answer to `models`.
    ModelsKnown {},
    /// The answer to `settle`.
    Settled {},
    /// The answer to `manage`.
    Managing {
        /// The process's version of Saggar.
        version: String,
        /// How many sessions it has.
        sessions: usize,
        /// Whether it understands `models`.
        #[serde(default)]
        leads_models: bool,
    },
    /// The answer to `retire`.
    Retired {},
    /// The answer to `record`.
    Recording {},
    /// The answer to `replay`.
    Replaying {
        exchanges: u64,
        /// What is wrong with a recording that can be used nevertheless.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        warning: Option<String>,
    },
    /// The recording is incomplete from here on. Comes at most once.
    RecordingFailed { reason: String },
    /// A connection waits for an `answer`. Only if the session was opened with `asks`.
    Question {
        question: u64,
        /// In canonical form.
        host: String,
        port: u16,
        /// The sandbox's end of the connection.
        client: SocketAddr,
    },
    /// A connection of the sandbox was accepted. Comes before every decision about it, if the session was opened with `attributes`.
    Connected(Connected),
    /// Comes at any time after `open`.
    Decision(Box<NetDecision>),
    /// Decisions that this supervisor was too slow to hear of.
    Dropped { decisions: u64 },
    /// The last message was refused. The session ends.
    Failed(Problem),
}
