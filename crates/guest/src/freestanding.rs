//! Replaces the standard library in the shipped agent: an allocator, and a panic handler.
//!
//! Every start of a sandbox copies the agent, so it contains no formatting, no backtraces and no runtime. This works
//! only if panics abort; profiles that unwind (those of the tests) link the standard library instead.

use core::alloc::{GlobalAlloc, Layout};
use core::panic::PanicInfo;

// The standard library would have linked it.
#[cfg_attr(target_env = "musl", link(name = "c", kind = "static", modifiers = "-bundle"))]
#[cfg_attr(not(target_env = "musl"), link(name = "c"))]
unsafe extern "C" {}

/// The exit status of an agent with a bug.
const EXIT_PANIC: i32 = 13;

/// The alignment that `malloc` guarantees on 64-bit Linux.
const MALLOC_ALIGN: usize = 16;

struct Malloc;

#[global_allocator]
static ALLOCATOR: Malloc = Malloc;

// SAFETY: malloc, realloc and free keep the contract of GlobalAlloc for alignments up to MALLOC_ALIGN, and larger ones are refused with null.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > MALLOC_ALIGN {
            return core::ptr::null_mut();
        }
        // SAFETY: malloc has no precondition.
        unsafe { libc::malloc(layout.size()).cast() }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, _: Layout) {
        // SAFETY: the caller got `pointer` from `alloc` or `realloc` of this allocator, hence from malloc or realloc.
        unsafe { libc::free(pointer.cast()) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, _: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`; the alignment was accepted by `alloc`, and realloc keeps it.
        unsafe { libc::realloc(pointer.cast(), size).cast() }
    }
}

/// Ends the agent at once, and with it the sandbox. (`abort` would not work: PID 1 ignores signals it sends itself.)
#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    // SAFETY: _exit has no precondition and does not return.
    unsafe { libc::_exit(EXIT_PANIC) }
}
