//! Usage over time: a sample every few seconds, bounded in number.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{Mode, OFlags, fstatfs, open};
use rustix::process::Pid;
use saggar_jail::cgroup::Group;

use crate::control::{Sample, UsageReport};

use super::moment::{Moment, wall_ms};

/// Half an hour of samples while something runs.
const SAMPLES_MAX: usize = 360;
/// Interval between samples while something runs.
const INTERVAL: Duration = Duration::from_secs(5);
/// Interval between samples while only the agent runs and nothing changes.
const IDLE_INTERVAL: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub(crate) struct Samples {
    kept: VecDeque<Sample>,
    next: Moment,
    /// The root of the sandbox, for the size of its storage. Only its size is ever read.
    storage: Option<OwnedFd>,
}

impl Samples {
    pub(crate) fn new(now: Moment) -> Self {
        Self { kept: VecDeque::new(), next: now + INTERVAL, storage: None }
    }

    pub(crate) fn next(&self) -> Moment {
        self.next
    }

    /// Something runs now, so the next sample comes sooner.
    pub(crate) fn hasten(&mut self, now: Moment) {
        self.next = self.next.min(now + INTERVAL);
    }

    pub(crate) fn tick(&mut self, now: Moment, is_active: bool, group: Option<&Group>, first: Pid) {
        if now < self.next {
            return;
        }
        self.next = now + if is_active { INTERVAL } else { IDLE_INTERVAL };
        let sample = self.take(group, first);
        if self.kept.len() == SAMPLES_MAX {
            self.kept.pop_front();
        }
        self.kept.push_back(sample);
    }

    pub(crate) fn report(&mut self, group: Option<&Group>, first: Pid) -> UsageReport {
        let now = self.take(group, first);
        UsageReport { now, samples: self.kept.iter().copied().collect() }
    }

    /// Takes a sample now. `first` is PID 1 of the sandbox.
    pub(crate) fn take(&mut self, group: Option<&Group>, first: Pid) -> Sample {
        let used = group.map(Group::in_use).unwrap_or_default();
        if self.storage.is_none() {
            // If the kernel doesn't allow it, there is no value.
            let root = format!("/proc/{}/root", first.as_raw_nonzero());
            self.storage = open(root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
        }
        let stored = self.storage.as_ref().and_then(|root| fstatfs(root).ok());
        Sample {
            at_ms: wall_ms(),
            cpu_usec: used.cpu_usec,
            memory_bytes: used.memory,
            memory_peak_bytes: used.memory_peak,
            processes: used.pids,
            disk_bytes: stored.map(|stored| (stored.f_blocks - stored.f_bfree) * stored.f_bsize as u64),
        }
    }
}
