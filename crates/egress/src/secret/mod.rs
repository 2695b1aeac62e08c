//! Secrets of a session: put into requests on their way out, and removed from answers.
//!
//! - `held`: what a session holds of each secret, and which requests get it
//! - `fill`: a value goes into its slot, after whatever the program has put there is removed
//! - `credential`: the same for requests that are not a sandbox's
//! - `sigv4`, `payload`: AWS signatures, and the hash of a body that they need
//! - `forms`, `escapes`, `scrub`: the forms in which a value may come back, and the scrubber that finds them in a stream
//! - `frames`: the same for the messages of a WebSocket
//! - `file`: the file in which `saggar run` finds secrets
//!
//! INVARIANT: a value leaves this process only in a request whose decision is recorded, over TLS to a server whose certificate
//! was verified, in the slot of its binding.

mod credential;
mod escapes;
pub mod file;
mod fill;
mod forms;
mod frames;
mod held;
mod payload;
mod scrub;
mod sigv4;

pub use credential::Credential;
pub(crate) use fill::{decoded, fill};
pub use frames::{Frames, Unreadable};
pub(crate) use held::Secrets;
pub use scrub::{Patterns, Scrubber};
