//! Unpacks an archive of files that a client sent for a build.

use std::io::Read;
use std::os::fd::OwnedFd;

use saggar_domain::Problem;

use crate::blob::LayerStream;
use crate::layer::{Below, Ownership, unpack};
use crate::limits::{Budget, Limits};

/// Writes an archive, plain or compressed, below an empty directory that nobody else uses. It is as hostile as a layer of an image, and read the same way;
/// whiteouts and devices have no meaning there. On an error the directory holds a part of it. Uses a thread of its own.
pub fn unpack_upload(archive: Box<dyn Read + Send>, directory: OwnedFd, limits: Limits) -> Result<(), Problem> {
    let mut budget = Budget::for_upload(limits);
    let (bytes_max, too_large) = budget.archive_max();
    let mut stream = LayerStream::new(archive, bytes_max, too_large);
    unpack(&mut stream, directory, Below::default(), Ownership::here(), &mut budget).map(drop)
}
