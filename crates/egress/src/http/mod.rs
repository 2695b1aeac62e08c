//! HTTP between a program in the sandbox and a server outside: every request is checked, decided, sent on and recorded.
//!
//! - `conn`: one connection of a program, HTTP/1.1 or HTTP/2
//! - `check`: whether a request is unambiguous, and meant for the connection's destination
//! - `forward`: one request, from its decision to its answer
//! - `framing`: whether the lengths of a client's messages are unambiguous
//! - `interim`, `heads`: answers before the answer (1xx), over HTTP/1.1 and HTTP/2
//! - `headers`: headers that belong to one hop only
//! - `upstream`: connections to servers
//! - `replayed`: answers from a recording, instead of a server
//! - `body`: bodies that are counted while they pass
//! - `upgrade`: WebSockets
//!
//! Nothing is buffered beyond the named limits, and nothing is decompressed. Secrets are put in by `crate::secret`, between the
//! decision and the sending.

mod body;
mod check;
mod conn;
mod forward;
mod framing;
pub(crate) mod headers;
mod heads;
mod interim;
mod replayed;
mod upgrade;
mod upstream;

pub(crate) use self::body::Body;
pub(crate) use self::check::Scheme;
pub(crate) use self::conn::{Conn, Mode};
pub(crate) use self::forward::nowhere;
