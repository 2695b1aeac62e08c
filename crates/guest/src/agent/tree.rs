//! The tree of an exec: its keeper, and signals to everything under it.
//!
//! Signalling a tree is a pursuit: take a snapshot of its processes, signal those that have not had the signal, and
//! repeat until no process is new. Before a kill, processes are stopped first, because a stopped process creates no
//! children. One snapshot is taken in each round of the event loop, so a large tree delays the others by one snapshot
//! only. A pursuit ends after [`LOOKS_MAX`] snapshots whatever it finds.

use alloc::vec::Vec;
use core::ffi::c_int;

use super::processes::{self, Proc, Process};
use super::sys::Fd;

/// Maximum number of snapshots in a pursuit. Each finds every process that existed at one moment, and stopped processes
/// no longer multiply.
const LOOKS_MAX: u32 = 64;

pub(super) struct Tree {
    keeper: libc::pid_t,
    /// The connection to the keeper, as long as it has something to report.
    pub(super) link: Option<Fd>,
    is_keeper_gone: bool,
    pursuit: Option<Pursuit>,
}

struct Pursuit {
    signal: c_int,
    // INVARIANT: in ascending order, without duplicates.
    reached: Vec<Process>,
    looks: u32,
    step: Step,
}

/// The purpose of a snapshot.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// To stop processes before they are killed.
    Stop,
    Signal,
}

impl Tree {
    pub(super) fn new(keeper: libc::pid_t, link: Fd) -> Tree {
        Tree { keeper, link: Some(link), is_keeper_gone: false, pursuit: None }
    }

    pub(super) fn is_keeper(&self, pid: libc::pid_t) -> bool {
        !self.is_keeper_gone && self.keeper == pid
    }

    pub(super) fn keeper(&self) -> Option<libc::pid_t> {
        if self.is_keeper_gone { None } else { Some(self.keeper) }
    }

    /// The keeper has been reaped. One that exited by itself leaves no process behind. Otherwise the agent inherits its
    /// processes, and kills them.
    pub(super) fn set_keeper_gone(&mut self, left_by_itself: bool) {
        self.is_keeper_gone = true;
        self.pursuit = None;
        if !left_by_itself {
            self.pursue(libc::SIGKILL);
        }
    }

    /// Whether nothing of it is left.
    pub(super) fn is_gone(&self) -> bool {
        self.is_keeper_gone && self.pursuit.is_none()
    }

    pub(super) fn is_pursued(&self) -> bool {
        self.pursuit.is_some()
    }

    /// Starts to signal every process of the tree. No later signal replaces a kill.
    pub(super) fn pursue(&mut self, signal: c_int) {
        if self.pursuit.as_ref().is_some_and(|pursuit| pursuit.signal == libc::SIGKILL) {
            return;
        }
        let step = if signal == libc::SIGKILL { Step::Stop } else { Step::Signal };
        self.pursuit = Some(Pursuit { signal, reached: Vec::new(), looks: 0, step });
        if signal == libc::SIGKILL && !self.is_keeper_gone {
            // A program may have stopped the keeper, which has to report the end.
            // SAFETY: takes numbers only; the keeper has not been reaped, so the number is its own.
            unsafe { libc::kill(self.keeper, libc::SIGCONT) };
        }
    }

    /// Takes one snapshot. `ours` are the agent's own children: any other child of the agent has lost its keeper.
    pub(super) fn look(&mut self, ours: &[libc::pid_t]) {
        let Some(pursuit) = &mut self.pursuit else { return };
        let (keeper, is_keeper_gone) = (self.keeper, self.is_keeper_gone);
        // SAFETY: getpid has no precondition and cannot fail.
        let agent = unsafe { libc::getpid() };
        let is_first = |process: &Process| {
            if is_keeper_gone {
                process.parent == agent && !ours.contains(&process.pid)
            } else {
                process.parent == keeper
            }
        };
        let is_over = match Proc::open() {
            Ok(proc) => pursuit.look(&proc, is_first),
            // Without a snapshot no process can be found. What is left ends with the sandbox.
            Err(_) => true,
        };
        if is_over {
            self.pursuit = None;
        }
    }
}

impl Pursuit {
    /// Takes one snapshot; true once no process is left to signal.
    fn look(&mut self, proc: &Proc, is_first: impl Fn(&Process) -> bool) -> bool {
        let Ok(everyone) = proc.list() else { return true };
        self.looks += 1;
        let mut is_anyone_new = false;
        let signal = match self.step {
            Step::Stop => libc::SIGSTOP,
            Step::Signal => self.signal,
        };
        for process in processes::under(&everyone, is_first) {
            let found = self.reached.binary_search_by_key(&process.pid, |reached| reached.pid);
            match found {
                Ok(position) if self.reached[position].is_same(&process) => continue,
                Ok(position) => self.reached[position] = process,
                Err(position) => self.reached.insert(position, process),
            }
            is_anyone_new = true;
            proc.signal(&process, signal);
        }
        if self.step == Step::Stop && (!is_anyone_new || self.looks > LOOKS_MAX / 2) {
            // Everything is stopped. Now each process gets the actual signal, including any that appear after all.
            self.reached.clear();
            self.step = Step::Signal;
            return false;
        }
        !is_anyone_new || self.looks > LOOKS_MAX
    }
}
