//! Holding back: takes out what a sandbox created in a writable workspace if programs of the host would act on it.
//!
//! An existing path can be protected by a mount, and an absent one by a placeholder. But a placeholder called `.git`
//! would break `git init` and `git clone`. So a program may create a repository, which is examined once the sandbox is
//! dead: hooks, settings that may name a program, and files that point git elsewhere are taken out. They are kept like
//! the changes of a scratch workspace, and restored only if a user names them. The reaper does the same after a
//! `saggar` that was killed.
//!
//! This has a gap: from the moment a program creates such a file until the end of the sandbox the file is there, and
//! git on the host would obey it. `--protect .git/` closes the gap, but then `git init` fails.
//!
//! INVARIANT: first everything is kept and its list written, and only then is it taken out. A process that dies in
//! between loses nothing, and the reaper finishes the work.

mod findings;
mod search;
mod settings;
mod take_out;

pub(crate) use findings::stays_in_checkout;
pub(crate) use search::{Before, Known};
pub(crate) use take_out::{hold_back, hold_back_within};
