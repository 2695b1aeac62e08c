//! Imports real and hostile images through the public face of the crate, on the real filesystem.

mod checked;
mod contents;
mod exported;
mod hostile;
mod image;
mod kept;
mod lies;
mod place;
mod registry;
mod repaired;
mod snapshots;
mod stacked;
mod tar;
