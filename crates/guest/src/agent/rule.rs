//! Rules that a check can switch off, under the jail's names for them; in ordinary builds all are on, without a
//! run-time check.

/// Whether a rule is enforced.
#[cfg(not(feature = "mutation"))]
pub(super) const fn is_on(_name: &str) -> bool {
    true
}

/// Whether a rule is enforced.
#[cfg(feature = "mutation")]
pub(super) fn is_on(name: &str) -> bool {
    // SAFETY: the name is a C string; nothing here ever changes the environment.
    let value = unsafe { libc::getenv(c"SAGGAR_MUTATE".as_ptr()) };
    if value.is_null() {
        return true;
    }
    // SAFETY: a variable's value is a C string that lives as long as the process.
    let off = unsafe { core::ffi::CStr::from_ptr(value) }.to_bytes();
    !off.split(|byte| *byte == b',').any(|entry| entry == name.as_bytes())
}
