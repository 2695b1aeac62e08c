//! Network destinations and the rules about them: one canonical host parser, classes of addresses, the rule grammar, decisions, and
//! the record of a decision.
//!
//! Pure: nothing here resolves a name or opens a socket. Input comes from hostile programs. What can't be understood exactly is
//! refused, so that no two readers of the same bytes can understand different things. Deny rules match loosely and allow
//! rules match strictly.

mod address;
mod authority;
mod bound;
mod decision;
mod flood;
mod host;
mod limits;
mod method;
mod models;
mod path;
mod pattern;
mod ports;
mod refusal;
mod remedy;
mod rule;
mod rules;
mod sets;
mod spec;
mod traffic;

pub use address::{AddressClass, FAKE_V4, FAKE_V6, MODEL_HOST, Range, RangeError, SELF_TEST_NAME};
pub use authority::{Destination, parse_authority};
pub(crate) use bound::check_bound;
pub use decision::{NetDecision, Protocol, Verdict, shown_method, shown_path};
pub use flood::{Flood, Summed};
pub use host::{Host, HostError, HostName};
pub use limits::{CONNECTIONS, CONNECTIONS_PER_HOST, EgressLimits, EgressMaxima};
pub use refusal::{Refusal, RuleRef};
pub use rule::{Rule, RuleError};
pub use rules::{OVERRIDE_HEADERS, Passage, Rules, Wire};
pub use sets::{Set, SetName};
pub use spec::EgressDraft;
pub(crate) use spec::as_policy;
pub use traffic::HostTraffic;
