//! The store: the index of sandboxes, their history, and everything acknowledged to clients. SQLite; the only crate
//! with SQL.
//!
//! One thread writes, in groups; a few threads read. A call returns after the commit. The supervisor owns the state
//! of a live sandbox; the store owns what must survive the server. Nothing here reads a clock: every time is an
//! argument. No secret is stored in the clear: of keys and tokens there are only hashes, and values of secrets are sealed
//! before they come here.
#![forbid(unsafe_code)]

mod backup;
mod check;
mod column;
mod cursor;
mod decision;
mod error;
mod event;
mod exec;
mod fold;
mod hash;
mod json_text;
mod key;
mod lock;
mod marker;
mod meta;
mod migrate;
mod open;
mod page;
mod project;
#[cfg(test)]
mod query_plan;
mod readers;
mod restored;
mod run;
mod sandbox;
mod sandbox_call;
mod secret;
mod spending;
mod store;
mod stuck;
mod sweep;
mod wal;
mod writer;

pub use backup::{BackupError, backup, restore};
pub use check::{Checked, Finding, accept_loss, check};
pub use cursor::{Cursor, CursorError, ExecCursor, SandboxCursor};
pub use decision::{DECISIONS_PER_VERDICT_MAX, StoredDecision, TRAFFIC_HOSTS_MAX};
pub use error::Error;
pub use event::{EVENTS_PER_SANDBOX_MAX, EventPage, StoredEvent};
pub use exec::{
    EXECS_PER_SANDBOX_MAX, Exec, ExecEnd, ExecOutput, ExecProgress, ExecRecord, OUTPUTS_PER_SANDBOX_MAX, StartedExec,
    Tail,
};
pub use hash::{RequestHash, ReuseKey, TokenHash};
pub use json_text::JsonText;
pub use key::{ApiKey, KEYS_PER_PROJECT_MAX, KeyCheck, KeyName, KeySecret, NewKey, Permissions, Revoked};
pub use meta::MetaKey;
pub use open::{OpenError, Settings};
pub use page::{Page, PageLimit};
pub use project::{PROJECTS_MAX, Project};
pub use run::{
    Append, Appended, BLOB_BYTES_MAX, BlobHash, Blobs, Block, BlockKind, Claimed, FilesOfRun, Fork, ForkError,
    HandedOn, Holder, InboxError, JOURNAL_PAGE, JournalEntry, KnownCalls, LEASE_MAX, Lease, Letter, LetterRoom,
    NewLetter, NewRun, Now, Removal, ReuseNeed, RunInsertion, RunQuery, RunRow, Summary, Taken, Taking,
};
pub use sandbox::{
    Change, Changed, Ending, IDEMPOTENCY_RETENTION, Idempotency, IdempotencyKey, Insertion, LastWords, Life, Lifetime,
    NewSandbox, Sandbox, SandboxPatch, SandboxQuery, Scope,
};
pub use sandbox_call::{LeftForSandboxes, NewSandboxCall, SANDBOX_CALLS_MAX, TooMuch};
pub use secret::{
    NewSecret, Put, Removed, SECRETS_PER_PROJECT_MAX, Sealed, SealedSecret, SealingKeyId, SecretRow, WhileUsed,
};
pub use spending::{EndedCall, NewAmount, NewCall, OPEN_CALLS_MAX, SetAside, Spent};
pub use store::Store;
pub use stuck::WORKERS;
pub use sweep::{Retention, Swept};
pub use writer::Durability;
