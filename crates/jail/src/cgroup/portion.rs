//! Portions: limits of one exec within the sandbox's limits, as cgroups below the sandbox's own.
//!
//! A v2 cgroup that contains processes can't delegate controllers, and the sandbox's does contain some: portions are
//! refused there.

use std::io;

use super::group::{Group, Leaf, Wanted};

impl Group {
    /// Creates cgroups below this one for the requested limits. An error of kind `Unsupported` means that this host
    /// can't.
    pub fn portion(&self, name: &str, wanted: &Wanted) -> io::Result<Group> {
        let mut leaves = Vec::new();
        for leaf in &self.leaves {
            let controllers: Vec<_> =
                leaf.controllers.iter().copied().filter(|controller| wanted.has(*controller)).collect();
            if controllers.is_empty() {
                continue;
            }
            if leaf.is_v2 {
                return Err(io::ErrorKind::Unsupported.into());
            }
            leaves.push(Leaf { path: leaf.path.join(name), is_v2: false, controllers });
        }
        let found: usize = leaves.iter().map(|leaf| leaf.controllers.len()).sum();
        let asked = super::host::Controller::ALL.iter().filter(|controller| wanted.has(**controller)).count();
        if found < asked {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut portion = Group { leaves: Vec::new() };
        portion.add(leaves.into_iter(), wanted)?;
        Ok(portion)
    }
}
