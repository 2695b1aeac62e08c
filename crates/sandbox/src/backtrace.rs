//! No backtraces in the front, which has no symbols: one would show nothing.
//!
//! The standard library's panic hook contains a reader of debug information and an unwinder. Both are reached only by what
//! `_Unwind_Backtrace` calls for each frame. With this one, which calls nothing, the linker leaves them out: 150 KB of a program
//! whose size has a limit. Only where a panic aborts, so that no unwinder is needed. The others are here because the linker takes all
//! of them from one object file or none.

use core::ffi::{c_int, c_void};
use core::ptr::null;

/// The end of the stack.
const URC_END_OF_STACK: c_int = 5;

// SAFETY: of this and the following: the signatures are those of the Itanium ABI, with pointers for contexts and functions. No argument
// is used, and there is no frame about which they could be asked.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_Backtrace(_trace: *const c_void, _argument: *mut c_void) -> c_int {
    URC_END_OF_STACK
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetIPInfo(_context: *const c_void, _is_before: *mut c_int) -> usize {
    0
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetCFA(_context: *const c_void) -> usize {
    0
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_FindEnclosingFunction(_pc: *const c_void) -> *const c_void {
    null()
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetDataRelBase(_context: *const c_void) -> usize {
    0
}

// SAFETY: as above.
#[unsafe(no_mangle)]
extern "C" fn _Unwind_GetTextRelBase(_context: *const c_void) -> usize {
    0
}
