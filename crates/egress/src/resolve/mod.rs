//! Names of the outside world: asks the host's name servers, checks every address, and connects to a checked one.
//!
//! ```no_run
//! # use saggar_domain::net::{Destination, Rules};
//! # async fn example(to: Destination, rules: Rules) -> Result<(), saggar_egress::resolve::DialError> {
//! use saggar_egress::resolve::{DEADLINE, Dialer, Upstream};
//! let servers = vec!["192.0.2.53:53".parse().expect("an address")];
//! let dialer = Dialer::new(Upstream::new(servers, [("203.0.113.9".parse().expect("an address"), "db.example".to_owned())]));
//! let dialed = dialer.dial(&to, &rules, DEADLINE).await?;
//! println!("{}", dialed.address);
//! # Ok(()) }
//! ```
//!
//! Name servers and the entries of the host's hosts file are given as data; no file is read. Search domains are not used: a
//! name means the same in every sandbox. Nothing is asked about a name that the rules don't allow, and nothing about the
//! name that an alias leads to: the reply has its addresses.
//!
//! The client is our own. It asks for A and AAAA, and reads these and CNAME from the answer section alone. The resolver of the
//! hickory family would add 46 crates to the process that holds the secrets, its protocol crate alone 30.

mod ask;
mod cache;
mod dial;
mod flights;
mod message;
mod race;
mod upstream;
mod wildcard;

pub use self::dial::{DEADLINE, DialError, Dialed, Dialer};
pub use self::message::{Alias, Family, Query, Reply, ReplyError, WireName};
pub use self::upstream::{LookupError, Upstream};

pub(crate) use self::wildcard::labels_below_wildcard;
