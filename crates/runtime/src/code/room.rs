//! Room for code that this process holds in memory: requests that arrive, and code until its kernel has read it.
//!
//! There is a bound for each project and one for all. What is beyond it is refused at once and is not read. Nothing waits for room:
//! the client is told when to try again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use saggar_domain::ProjectId;

use crate::fault::Fault;
use crate::permit::Permit;
use crate::sandboxes::Sandboxes;

/// Bytes of one project, and of all: many ordinary pieces of code, or a few of the largest.
const OF_PROJECT: usize = 128 << 20;
const OF_ALL: usize = 4 * OF_PROJECT;
/// When a client may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct CodeRoom(Arc<Mutex<Taken>>);

#[derive(Debug, Default)]
struct Taken {
    of: HashMap<ProjectId, usize>,
    all: usize,
}

/// Room for one piece of code, or for the request that has it. It is given back when this is dropped.
#[derive(Debug)]
pub struct HeldCode {
    room: CodeRoom,
    project: ProjectId,
    bytes: usize,
}

impl Sandboxes {
    /// Room for so many bytes of code, or of a request that has code.
    pub fn room_for_code(&self, permit: &Permit, bytes: usize) -> Result<HeldCode, Fault> {
        self.code_room().take(permit.project(), bytes)
    }
}

impl CodeRoom {
    fn take(&self, project: &ProjectId, bytes: usize) -> Result<HeldCode, Fault> {
        let mut taken = self.lock();
        let own = taken.of.get(project).copied().unwrap_or(0);
        if own.saturating_add(bytes) > OF_PROJECT {
            return Err(full(&format!("of project {project}"), OF_PROJECT));
        }
        if taken.all.saturating_add(bytes) > OF_ALL {
            return Err(full("of all projects", OF_ALL));
        }
        taken.all += bytes;
        taken.of.insert(project.clone(), own + bytes);
        Ok(HeldCode { room: self.clone(), project: project.clone(), bytes })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn full(whose: &str, most: usize) -> Fault {
    let most = most >> 20;
    let what =
        format!("code {whose} that arrives or waits for its turn may have {most} MiB together, and this is more");
    Fault::Capacity { what, retry_after: RETRY_AFTER }
}

impl HeldCode {
    /// Gives back what the code of an arrived request doesn't need.
    pub(super) fn shrink(&mut self, bytes: usize) {
        let less = self.bytes.saturating_sub(bytes);
        self.give_back(less);
        self.bytes -= less;
    }

    fn give_back(&self, bytes: usize) {
        let mut taken = self.room.lock();
        taken.all -= bytes;
        let own = taken.of.get(&self.project).map_or(0, |own| own - bytes);
        match own {
            0 => taken.of.remove(&self.project),
            own => taken.of.insert(self.project.clone(), own),
        };
    }
}

impl Drop for HeldCode {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_project_has_more_room_than_its_own_and_all_have_an_end() {
        let room = CodeRoom::default();
        let project = |number: u8| ProjectId::from_random([number; 16]);
        let refused = |number: u8, bytes: usize| match room.take(&project(number), bytes) {
            Err(Fault::Capacity { what, .. }) => what,
            other => panic!("{other:?}"),
        };
        let mut held: Vec<HeldCode> = (0..4).map(|number| room.take(&project(number), OF_PROJECT).unwrap()).collect();
        assert!(refused(0, 1).contains(&project(0).to_string()));
        assert!(refused(9, 1).contains("of all projects"));
        assert!(room.take(&project(0), 0).is_ok(), "what is empty needs none");
        held[1].shrink(10);
        assert!(room.take(&project(1), OF_PROJECT - 10).is_ok(), "and is given back");
        drop(held);
        let taken = room.lock();
        assert_eq!((taken.all, taken.of.len()), (0, 0));
    }
}
