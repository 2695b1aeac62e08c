//! What a `scratch` sandbox changed: collected from its layer, kept, shown, and applied to the workspace or dropped. What was held back
//! from a writable workspace is kept here too.
//!
//! The layer is whatever a hostile program left, and the workspace may be written by others meanwhile. So the walk is by
//! descriptor, bounded and without recursion; contents are kept under numbers, never under names that came from inside; and
//! applying touches one path at a time, follows no link, and refuses what is no longer as it was.

mod apply;
mod collect;
mod compare;
mod entry;
mod guard;
mod hidden;
mod store;

pub use apply::{Applied, Outcome as ApplyOutcome, Wanted};
pub(crate) use collect::collect;
pub(crate) use compare::open_file;
pub(crate) use entry::Base;
pub use entry::{Change, Entry, Kind, Name, Skipped, is_plain};
pub use guard::Guard;
pub use hidden::Hidden;
pub use store::{Changes, Difference};
pub(crate) use store::{Pending, forget_orphans, forget_pending};
