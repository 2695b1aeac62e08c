//! A user of the host: in whose name a directory of the host is opened.

use serde::{Deserialize, Serialize};

/// The ids that the kernel reported for a caller. Root is no restriction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostUser {
    pub uid: u32,
    pub gid: u32,
}

impl HostUser {
    pub fn is_root(self) -> bool {
        self.uid == 0
    }
}
