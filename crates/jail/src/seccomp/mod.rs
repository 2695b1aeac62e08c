//! The system calls a sandbox may make.
//!
//! An allowlist: what ordinary programs need is allowed, what would reach past the sandbox is refused, and a number
//! that nobody has thought about does not exist (ENOSYS). There is one table, `rules`; the filter that the kernel runs
//! and the host's description of a refusal both come from it, so they cannot disagree.
//!
//! A refusal is *silent* when programs are known to probe the call and carry on, and *telling* when the host should
//! record it: then the call waits on the listener until the host has answered. A telling call is never let through:
//! the host can only choose the errno, and if the host is gone the kernel answers ENOSYS. One call, `listen`, is
//! *bounded*: the host makes it itself, on its own copy of the descriptor, as long as its bound allows.
//!
//! What this does not do: look behind pointers. A path, an address or a `struct clone_args` can be changed by another
//! thread after it was looked at, so calls that hide what matters in memory (clone3, openat2, io_uring) are absent
//! and the C libraries fall back to the ones whose arguments are plain numbers.
//!
//! A process inside may add filters of its own. The kernel then takes the strictest answer, so it can mute its own
//! refusals but never soften one.
//!
//! Another architecture is one more file beside `x86_64`: its audit constant, its numbers, and the calls only it has.

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
