//! Holding back: what a sandbox made in a writable workspace that programs of the host would act on.
//!
//! A path that exists can be held by a mount, and an absent one by a placeholder. But a placeholder called `.git` keeps `git init` and
//! `git clone` from working. So a repository may be made inside, and is gone through when the sandbox is dead: hooks, settings that may
//! name a program, and files that lead git elsewhere are taken out of it. They are kept like the changes of a scratch workspace, and put
//! back only when someone names them. The reaper does the same after a `saggar` that was killed.
//!
//! What it does not do: between the moment a program makes such a file and the end of the sandbox the file is there, and git on the host
//! would obey it. `--protect .git/` closes that time, at the price of `git init`.
//!
//! INVARIANT: first everything is kept and the list of it written, then it is taken out. Whoever dies in between loses nothing, and the
//! reaper finishes.

mod findings;
mod search;
mod settings;
mod take_out;

pub(crate) use findings::stays_in_checkout;
pub(crate) use search::{Before, Known};
pub(crate) use take_out::{hold_back, hold_back_within};
