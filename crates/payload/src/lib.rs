//! A program that lies behind another one in the same file, and how to continue as it.
//!
//! The front of `saggar` is small, because it starts once per sandbox; the full program is large. Both are one file: the front, then the full
//! program as it was linked, then a trailer that says where it is. To continue as it, its segments are mapped from that file to a random place,
//! as the kernel would have done. Nothing is copied, `/proc/self/exe` stays the one file, and its capabilities stay in force.
//!
//! The alternative, a memfd that is executed, copies the whole program at each start, is refused where `vm.memfd_noexec` says so, loses the
//! file's capabilities, and leaves a process whose `/proc/self/exe` can't start supervisors.

mod image;
mod pack;
mod take_over;

pub use image::{Image, Malformed};
pub use pack::{Damaged, Payload, pack};
pub use take_over::TakeOverError;
