//! Fail points: named places between two steps, at which a test can make this process die.
//!
//! Release builds have none. In a debug build the variable `FAIL_AT` names a point: `kill volume/recorded`. For this crate and those above it.

/// A place between two steps.
#[inline]
pub fn pass(point: &str) {
    #[cfg(not(debug_assertions))]
    let _ = point; // Without fail points the name is unused.
    #[cfg(debug_assertions)]
    {
        use std::sync::OnceLock;
        static WHAT: OnceLock<String> = OnceLock::new();
        let what = WHAT.get_or_init(|| std::env::var("FAIL_AT").unwrap_or_default());
        if what.strip_prefix("kill ") == Some(point) {
            // As `kill -9` would: no destructor runs.
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL)
                .expect("a process may kill itself");
        }
    }
}
