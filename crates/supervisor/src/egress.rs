//! The protocol between a supervisor and the egress process.
//!
//! One connection is one session, and a session is one sandbox. The supervisor opens it with the rules, gets the
//! certificate that the sandbox has to trust, hands over the sandbox's gates, and hears of decisions until either side
//! closes. When the connection closes, the egress process drops everything of the session: gates, connections and keys.
//! A server has a connection of another kind to the process that serves all its sandboxes: it manages that process.
//!
//! A message is JSON in one packet. Two versions of Saggar may talk here, because the egress process outlives a server:
//! unknown fields are ignored, and new ones are optional.

mod management;
mod message;
mod models;
mod network;
mod refusals;
mod self_test;
mod session;
mod trust;
mod upstream;
mod wire;

pub use management::{ManageError, Management};
pub use message::{
    Connected, EGRESS, FromEgress, GateCounts, HostAnswer, MESSAGE_MAX, Open, SecretsOf, ToEgress, Upstream,
};
pub use models::{call_models, model_sockets, next_model_caller};
pub use network::{Network, SessionSecrets, Source, Told, Wants, backoff};
pub use refusals::{Refusals, denial_of, dropped, refused};
pub use session::{Heard, Session, Tape};
pub use trust::{BUNDLE_VARIABLE, REPLACED, TRUST_ADDED, host_bundle, trust_files};
pub use upstream::of_the_host as upstream_of_the_host;
pub use wire::{DESCRIPTORS_MAX, receive_with};

/// Bundles of certificates that a host may trust, in the order of preference.
pub const TRUST_BUNDLES: [&str; 4] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
