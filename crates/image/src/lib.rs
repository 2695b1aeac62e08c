//! Images become templates: reads them from a directory, an archive or a registry, and keeps their layers.
//!
//! Everything that an image says is hostile until it is checked: names, sizes, digests, documents. Only what was checked
//! becomes visible, all at once. Mounting layers is not done here.
#![forbid(unsafe_code)]

mod blob;
mod diff;
mod document;
mod failure;
mod import;
mod layer;
mod limits;
mod registry;
mod source;
mod store;
mod tar;
mod upload;

pub use diff::{DiffEntry, DiffLimits, Difference, StackDiff, diff};
pub use import::{Imported, Progress, Request, SnapshotArchive, import};
pub use layer::{Beyond, Fate, GoOn, Ignored, Placement, ResolveError, Seen, Selection, View};
pub use limits::Limits;
pub use registry::{Connection, Credentials, Dial, Dialled, Direct, Pace, Reach, RegistryOptions};
pub use source::{RegistryReference, Source};
pub use store::{
    Build, CacheRest, Checked, Collected, Export, Finding, Made, NewSnapshot, Removed, Rest, SteadyNames, Store,
    Subject, Tagged, check_free, is_reserved,
};
pub use upload::unpack_upload;
