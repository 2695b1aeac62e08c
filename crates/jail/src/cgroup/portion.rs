//! Portions: limits of one exec within the sandbox's, as cgroups below the sandbox's own.
//!
//! In version 2 a cgroup with processes hands no controller down, and the sandbox's has processes: there a portion is refused.

use std::io;

use super::group::{Group, Leaf, Wanted};

impl Group {
    /// Makes cgroups below this one's for the limits that are wanted. An error of kind `Unsupported` means that this host can't.
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
