//! The system calls a sandbox may make.
//!
//! An allowlist: calls that ordinary programs need are allowed, calls that would reach out of the sandbox are refused,
//! and unknown numbers answer ENOSYS. There is one table, `rules`. Both the filter that the kernel runs and the host's
//! description of a refusal come from it, so they cannot disagree.
//!
//! A refusal is *silent* if programs are known to probe the call and carry on, and *telling* if the host should record
//! it: the call then blocks on the listener until the host answers. A telling call is never let through: the host can
//! only choose the errno, and if the host is gone the kernel answers ENOSYS. One call, `listen`, is *bounded*: the host
//! makes it itself, on its own copy of the descriptor, as long as its bound allows.
//!
//! The filter doesn't look behind pointers. Another thread can change a path, an address or a `struct clone_args` after
//! it was checked. So calls that pass their essential arguments in memory (clone3, openat2, io_uring) are absent, and
//! the C libraries fall back to those whose arguments are plain numbers.
//!
//! A process inside may add its own filters. The kernel then takes the strictest answer, so it can silence its own
//! refusals but never relax one.
//!
//! Another architecture needs one more file beside `x86_64`: its audit constant, its numbers, and the calls only it
//! has.

mod filter;
mod notify;
mod rules;
mod sockets;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
use x86_64 as arch;

pub use filter::Filter;
pub use notify::{Listener, Notification, Refusal, Verdict, verdict};
pub use rules::Group;
