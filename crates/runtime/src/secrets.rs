//! Secrets of projects: stored sealed, opened only to be handed to the egress service.
//!
//! ```text
//!  API ──value──▶ manage ──▶ vault ──sealed──▶ store
//!                              │ opened for a live sandbox that uses it
//!                              ▼
//!                            bind ──grants──▶ egress service
//! ```
//! A value is in this process only while a request is served. It is never logged, returned or stored in the clear, and a
//! sandbox gets a placeholder instead. The keys are in a file outside of the data directory.

mod bind;
mod check;
mod header;
mod key_file;
mod manage;
mod rekey;
mod seal;
mod vault;

pub(crate) use bind::{Resolved, unknown_secret};
pub(crate) use check::Opener;
pub use header::HeaderRule;
pub(crate) use header::with_headers;
pub use key_file::{KeyFault, KeyFile};
pub use manage::{SECRETS, SetSecret, Written};
pub use rekey::{OldKeys, Rekeyed, rekey};
pub(crate) use seal::{Label, SealingKey};
pub(crate) use vault::Vault;
