//! The code interpreter: contexts in which pieces of code run one after another, and keep what they define.
//!
//! ```text
//!  run_code ──▶ driver ──stdin of an exec──▶ kernel (our program, in the sandbox's interpreter) ──▶ code
//!    events ◀── driver ◀─── its stdout and stderr: what the code prints, and packets with results ───┘
//! ```
//! A context is an exec: a process of the sandbox's user, under the sandbox's limits, held by the supervisor. So it
//! outlives this process, and [`contexts`] finds it again by its exec's tag. Kernel and code share a process and can
//! do anything to each other; whatever comes out is bounded, and taken for the claims of a stranger.
//!
//! INVARIANT: one execution at a time runs in a context, and a [`Running`] that is dropped is interrupted: politely,
//! then by ending the context's process.

mod asked;
mod contexts;
mod kernel;
mod message;
mod packets;
mod room;
mod run;
mod tag;
mod text;
mod warm;

pub use asked::{CODE_BYTES_MAX, Place, RunCode};
pub use contexts::{Context, NewContext};
pub use message::{CodeError, CodeResult};
pub use room::HeldCode;
pub use run::{CodeEvent, Running};

pub use warm::ModuleName;

pub(crate) use contexts::{Contexts, Found};
pub(crate) use room::CodeRoom;
pub(crate) use warm::{VARIABLE as WARM_VARIABLE, imports as warm_imports};
