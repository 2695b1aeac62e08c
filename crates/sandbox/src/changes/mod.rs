//! Changes of a `scratch` sandbox: collected from its layer, kept, shown, and applied to the workspace or dropped. What
//! was held back from a writable workspace is kept here too.
//!
//! A hostile program may have written the layer, and others may write to the workspace at the same time. So the walk is
//! by descriptor, bounded and without recursion. Contents are kept under numbers, never under names that came from
//! inside. Applying touches one path at a time, follows no link, and refuses a path that has changed.

mod apply;
mod collect;
mod compare;
mod entry;
mod guard;
mod hidden;
mod store;
mod unified;

pub use apply::{Applied, AppliedBranch, ApplyOutcome, Wanted};
pub(crate) use collect::collect;
pub(crate) use compare::{WITHIN, open_directory, open_file};
pub(crate) use entry::Base;
pub use entry::{Change, Entry, Kind, Name, Skipped, is_plain};
pub use guard::Guard;
pub use hidden::Hidden;
pub use store::Changes;
pub(crate) use store::{Pending, Worktree, forget_orphans, forget_pending};
pub use unified::Unified;
