//! Fail points: named places between two steps, at which a test can make this process die or panic.
//!
//! For this crate and those above it. Release builds have none. In a debug build the variable `FAIL_AT` names a point and an action: `kill create/row`
//! ends the process with SIGKILL, `panic keys/list` panics each time, `fail rest/recording` is an error where one is possible. `wait rekey/added` holds that one thread: it writes
//! to the named pipe `FAIL_UNTIL`, and goes on when something was written to it.

/// A place between two steps.
#[inline]
pub fn pass(point: &str) {
    #[cfg(debug_assertions)]
    injected::pass(point);
    #[cfg(not(debug_assertions))]
    let _ = point; // Without fail points the name is unused.
}

/// The same for a step that may fail.
#[inline]
pub fn check(point: &str) -> std::io::Result<()> {
    pass(point);
    #[cfg(debug_assertions)]
    return injected::check(point);
    #[cfg(not(debug_assertions))]
    Ok(())
}

/// The same for a place that is passed again and again: its name has a number.
#[inline]
pub fn pass_numbered(point: &str, number: u64) {
    #[cfg(debug_assertions)]
    injected::pass(&format!("{point}/{number}"));
    #[cfg(not(debug_assertions))]
    let _ = (point, number); // As above.
}

/// The same for a place that is passed for many things: its name ends with that of the thing.
#[inline]
pub fn pass_named(point: &str, name: &impl std::fmt::Display) {
    #[cfg(debug_assertions)]
    injected::pass(&format!("{point}/{name}"));
    #[cfg(not(debug_assertions))]
    let _ = (point, name); // As above.
}

#[cfg(debug_assertions)]
mod injected {
    use std::sync::OnceLock;

    use rustix::process::{Signal, getpid, kill_process};

    /// The action and the point.
    fn wanted() -> Option<(&'static str, &'static str)> {
        static WHAT: OnceLock<String> = OnceLock::new();
        WHAT.get_or_init(|| std::env::var("FAIL_AT").unwrap_or_default()).split_once(' ')
    }

    pub(super) fn check(point: &str) -> std::io::Result<()> {
        match wanted() {
            Some(("fail", at)) if at == point => Err(std::io::Error::other("a test wants a failure")),
            Some(_) | None => Ok(()),
        }
    }

    pub(super) fn pass(point: &str) {
        match wanted() {
            Some(("kill", at)) if at == point => loop {
                // Nothing runs after it: no destructor, no other thread.
                let _ = kill_process(getpid(), Signal::KILL);
            },
            Some(("wait", at)) if at == point => wait(),
            Some(("panic", at)) if at == point => panic!("a test wants a panic at {point}"),
            Some(_) | None => {}
        }
    }

    /// The other threads go on: one that writes to the store must not be stopped with its lock. Both calls wait for the other side.
    fn wait() {
        let Some(pipe) = std::env::var_os("FAIL_UNTIL") else { return };
        if std::fs::write(&pipe, "reached").is_ok() {
            // What it says doesn't matter.
            let _ = std::fs::read(&pipe);
        }
    }
}
