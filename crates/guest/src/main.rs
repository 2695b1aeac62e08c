//! The agent inside a sandbox, as a program: PID 1, with the control channel at file descriptor 3.

#![cfg_attr(not(test), no_main)]
#![cfg_attr(test, allow(dead_code, reason = "a test harness brings its own main, and has nothing to run here"))]
#![cfg_attr(panic = "abort", no_std)]

extern crate alloc;

mod agent;
#[cfg(panic = "abort")]
mod freestanding;

/// Called by the C library. Arguments and environment are ignored: everything the agent does is requested in frames.
#[cfg(not(test))]
#[unsafe(no_mangle)]
pub extern "C" fn main() -> core::ffi::c_int {
    agent::run().code()
}
