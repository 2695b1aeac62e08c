//! The leaves of one sandbox: made, limited, read and removed together.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

use super::host::{Controller, Host, Place};
use super::reap::remove_leaf;
use crate::rule::Rule;

/// The limits to set; `None` leaves a controller alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Bytes, swap included.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Thousandths of a CPU.
    pub cpu_millis: Option<u32>,
    /// Whether everything in it must be able to be frozen.
    pub is_freezable: bool,
}

impl Wanted {
    pub(super) fn has(&self, controller: Controller) -> bool {
        match controller {
            Controller::Memory => self.memory.is_some(),
            Controller::Pids => self.pids.is_some(),
            Controller::Cpu => self.cpu_millis.is_some(),
        }
    }
}

/// What the kernel counted; `None` where it doesn't.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Most memory at once.
    pub memory_peak: Option<u64>,
    /// Processes killed because memory was used up.
    pub out_of_memory_kills: Option<u64>,
    /// Most processes and threads at once.
    pub pids_peak: Option<u64>,
    /// How often one more process was refused.
    pub pids_refused: Option<u64>,
    /// CPU time in microseconds.
    pub cpu_usec: Option<u64>,
}

/// What is in use now; `None` where the kernel doesn't count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Most bytes of memory so far.
    pub memory_peak: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// CPU time so far, in microseconds.
    pub cpu_usec: Option<u64>,
}

/// The cgroups of one sandbox.
#[derive(Debug)]
pub struct Group {
    pub(super) leaves: Vec<Leaf>,
}

/// One directory in one hierarchy.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) path: PathBuf,
    pub(super) is_v2: bool,
    pub(super) controllers: Vec<Controller>,
}

/// The kernel's own default.
const CPU_PERIOD_USEC: u64 = 100_000;

impl Group {
    /// The directories [`Group::begin`] and [`Group::complete`] will make, for a record that is written first.
    pub fn paths(host: &Host, name: &str, wanted: &Wanted) -> Vec<PathBuf> {
        leaves(host, name, wanted).into_iter().map(|leaf| leaf.path).collect()
    }

    /// Makes the leaves that the first process has to be born in: those of version 2.
    pub fn begin(host: &Host, name: &str, wanted: &Wanted) -> io::Result<Self> {
        let mut group = Self { leaves: Vec::new() };
        group.add(leaves(host, name, wanted).into_iter().filter(|leaf| leaf.is_v2), wanted)?;
        Ok(group)
    }

    /// Makes the leaves that can be joined later: those of version 1.
    pub fn complete(&mut self, host: &Host, name: &str, wanted: &Wanted) -> io::Result<()> {
        self.add(leaves(host, name, wanted).into_iter().filter(|leaf| !leaf.is_v2), wanted)
    }

    /// Makes leaves and sets the limits; on failure removes what it made.
    pub(super) fn add(&mut self, leaves: impl Iterator<Item = Leaf>, wanted: &Wanted) -> io::Result<()> {
        let before = self.leaves.len();
        for leaf in leaves {
            let outcome = fs::create_dir(&leaf.path).and_then(|()| leaf.limit(wanted));
            self.leaves.push(leaf);
            if let Err(error) = outcome {
                for leaf in self.leaves.drain(before..) {
                    // The first failure is the one to tell.
                    let _ = fs::remove_dir(&leaf.path);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// The `tasks` files of the version 1 leaves, open for the child to write itself into.
    pub fn tasks(&self) -> io::Result<Vec<OwnedFd>> {
        let v1 = self.leaves.iter().filter(|leaf| !leaf.is_v2);
        v1.map(|leaf| fs::OpenOptions::new().write(true).open(leaf.path.join("tasks")).map(OwnedFd::from)).collect()
    }

    /// The version 2 leaf, to be born in.
    pub fn birthplace(&self) -> io::Result<Option<OwnedFd>> {
        let v2 = self.leaves.iter().find(|leaf| leaf.is_v2);
        v2.map(|leaf| fs::File::open(&leaf.path).map(OwnedFd::from)).transpose()
    }

    /// What the kernel counted so far: always what was hit, and how much was used where someone wants to know.
    pub fn counters(&self, wants_usage: bool) -> Counters {
        let mut counters = Counters::default();
        for leaf in &self.leaves {
            for controller in &leaf.controllers {
                leaf.count_hits(*controller, &mut counters);
                if wants_usage {
                    leaf.count_usage(*controller, &mut counters);
                }
            }
        }
        counters
    }

    /// What is in use now.
    pub fn in_use(&self) -> InUse {
        let mut counters = Counters::default();
        let mut used = InUse::default();
        for leaf in &self.leaves {
            let path = leaf.path.as_path();
            for controller in &leaf.controllers {
                leaf.count_usage(*controller, &mut counters);
                match controller {
                    Controller::Memory => {
                        let file = if leaf.is_v2 { "memory.current" } else { "memory.usage_in_bytes" };
                        used.memory = number(path, file);
                    }
                    Controller::Pids => used.pids = number(path, "pids.current"),
                    Controller::Cpu => {}
                }
            }
            // Version 2 counts time in every cgroup, whichever controllers it has.
            if leaf.is_v2 && counters.cpu_usec.is_none() {
                counters.cpu_usec = field(path, "cpu.stat", "usage_usec");
            }
        }
        InUse { memory_peak: counters.memory_peak, cpu_usec: counters.cpu_usec, ..used }
    }

    /// Removes the leaves. The processes must be gone; if one isn't, it is killed.
    pub fn remove(self) -> io::Result<()> {
        self.leaves.iter().map(|leaf| remove_leaf(&leaf.path)).fold(Ok(()), Result::and)
    }
}

pub(super) fn leaves(host: &Host, name: &str, wanted: &Wanted) -> Vec<Leaf> {
    let mut leaves: Vec<Leaf> = Vec::new();
    for controller in Controller::ALL.iter().copied().filter(|controller| wanted.has(*controller)) {
        let Ok(place) = host.place(controller) else { continue };
        let path = place.directory().join(name);
        match leaves.iter_mut().find(|leaf| leaf.path == path) {
            Some(leaf) => leaf.controllers.push(controller),
            None => leaves.push(Leaf { path, is_v2: matches!(place, Place::V2(_)), controllers: vec![controller] }),
        }
    }
    // Any cgroup of version 2 can be frozen.
    if wanted.is_freezable
        && !leaves.iter().any(|leaf| leaf.is_v2)
        && let Ok(place) = host.freezer()
    {
        let is_v2 = matches!(place, Place::V2(_));
        leaves.push(Leaf { path: place.directory().join(name), is_v2, controllers: Vec::new() });
    }
    leaves
}

impl Leaf {
    fn limit(&self, wanted: &Wanted) -> io::Result<()> {
        for controller in &self.controllers {
            match controller {
                Controller::Memory if !Rule::Memory.is_on() => {}
                Controller::Pids if !Rule::Pids.is_on() => {}
                Controller::Cpu if !Rule::Cpus.is_on() => {}
                Controller::Memory => self.limit_memory(wanted.memory.unwrap_or(u64::MAX))?,
                Controller::Pids => self.write("pids.max", wanted.pids.unwrap_or(u64::MAX))?,
                Controller::Cpu => {
                    let quota = u64::from(wanted.cpu_millis.unwrap_or(u32::MAX)) * CPU_PERIOD_USEC / 1000;
                    if self.is_v2 {
                        self.write("cpu.max", format_args!("{quota} {CPU_PERIOD_USEC}"))?;
                    } else {
                        match self.write("cpu.cfs_quota_us", quota) {
                            // More than a cgroup above has: then that one's, which is tighter, holds for us too.
                            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                            other => other?,
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Swap is no way out: it counts too, or there is none.
    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        if self.is_v2 {
            self.write("memory.max", bytes)?;
            return optional(self.write("memory.swap.max", 0));
        }
        self.write("memory.limit_in_bytes", bytes)?;
        // What waits in sockets is counted apart in version 1, and only when this is set. It comes on top.
        if Rule::SocketMemory.is_on() {
            optional(self.write("memory.kmem.tcp.limit_in_bytes", socket_bytes(bytes)))?;
        }
        optional(self.write("memory.memsw.limit_in_bytes", bytes))
    }

    /// One open, one write: the kernel takes a limit whole or not at all.
    pub(super) fn write(&self, file: &str, value: impl std::fmt::Display) -> io::Result<()> {
        let text = value.to_string();
        let file = open(self.path.join(file), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        match rustix::io::write(&file, text.as_bytes())? {
            length if length == text.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    fn count_hits(&self, controller: Controller, counters: &mut Counters) {
        let path = self.path.as_path();
        match controller {
            Controller::Memory => {
                let file = if self.is_v2 { "memory.events" } else { "memory.oom_control" };
                counters.out_of_memory_kills = field(path, file, "oom_kill");
            }
            Controller::Pids => counters.pids_refused = field(path, "pids.events", "max"),
            Controller::Cpu => {}
        }
    }

    fn count_usage(&self, controller: Controller, counters: &mut Counters) {
        let path = self.path.as_path();
        match controller {
            Controller::Memory => {
                let file = if self.is_v2 { "memory.peak" } else { "memory.max_usage_in_bytes" };
                counters.memory_peak = number(path, file);
            }
            Controller::Pids => counters.pids_peak = number(path, "pids.peak"),
            Controller::Cpu if self.is_v2 => counters.cpu_usec = field(path, "cpu.stat", "usage_usec"),
            Controller::Cpu => counters.cpu_usec = number(path, "cpuacct.usage").map(|nanoseconds| nanoseconds / 1000),
        }
    }
}

/// What may wait in TCP sockets, where it comes on top of the memory: a small part of it, and little of what all of the host's TCP may have.
fn socket_bytes(memory: u64) -> u64 {
    (memory / 8).min(64 << 20)
}

/// A kernel without swap accounting has no such file, and no swap to account for here.
fn optional(outcome: io::Result<()>) -> io::Result<()> {
    match outcome {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

pub(super) fn number(directory: &Path, file: &str) -> Option<u64> {
    read(directory, file)?.trim().parse().ok()
}

pub(super) fn field(directory: &Path, file: &str, name: &str) -> Option<u64> {
    let text = read(directory, file)?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// One open, one read: these files are short, and the kernel writes them anew for each reader.
pub(super) fn read(directory: &Path, file: &str) -> Option<String> {
    let file = open(directory.join(file), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0u8; 1024];
    let length = rustix::io::read(&file, &mut bytes).ok()?;
    std::str::from_utf8(&bytes[..length]).ok().map(str::to_owned)
}
