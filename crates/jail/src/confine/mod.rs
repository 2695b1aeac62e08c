//! Confines a service process of ours that parses hostile bytes and holds secrets: the egress process.
//!
//! Called once, at its start, while it has one thread. Afterwards it can use the descriptors that it has, make TCP and
//! UDP connections, start threads, and allocate memory. It can't open a file, execute a program, signal or inspect
//! another process, enter a namespace, or make memory executable. Other processes of its user can't inspect it, and it
//! leaves no core. If the kernel refuses a step, the process must not serve. Landlock
//! is applied as far as the kernel knows it; a kernel without it is refused.

mod apply;
mod filter;
#[cfg(test)]
mod tests;

pub use apply::{ConfineError, ServiceIds, confine};
