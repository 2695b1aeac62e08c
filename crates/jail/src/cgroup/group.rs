//! The leaves of one sandbox: created, limited, read and removed together.

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
    /// Whether all processes in it must be freezable.
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

/// The kernel's counters; `None` if it doesn't count one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Peak memory in bytes.
    pub memory_peak: Option<u64>,
    /// Number of processes killed because memory ran out.
    pub out_of_memory_kills: Option<u64>,
    /// Peak number of processes and threads.
    pub pids_peak: Option<u64>,
    /// How often the kernel refused one more process.
    pub pids_refused: Option<u64>,
    /// CPU time in microseconds.
    pub cpu_usec: Option<u64>,
}

/// Current use; `None` if the kernel doesn't count it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InUse {
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// Peak memory in bytes so far.
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

/// The kernel's default.
const CPU_PERIOD_USEC: u64 = 100_000;

impl Group {
    /// The directories that [`Group::begin`] and [`Group::complete`] will create, for a record that is written first.
    pub fn paths(host: &Host, name: &str, wanted: &Wanted) -> Vec<PathBuf> {
        leaves(host, name, wanted).into_iter().map(|leaf| leaf.path).collect()
    }

    /// Creates the cgroup v2 leaves, which the first process has to be created in.
    pub fn begin(host: &Host, name: &str, wanted: &Wanted) -> io::Result<Self> {
        let mut group = Self { leaves: Vec::new() };
        group.add(leaves(host, name, wanted).into_iter().filter(|leaf| leaf.is_v2), wanted)?;
        Ok(group)
    }

    /// Creates the cgroup v1 leaves, which can be joined later.
    pub fn complete(&mut self, host: &Host, name: &str, wanted: &Wanted) -> io::Result<()> {
        self.add(leaves(host, name, wanted).into_iter().filter(|leaf| !leaf.is_v2), wanted)
    }

    /// Creates leaves and sets their limits. On failure removes what it created.
    pub(super) fn add(&mut self, leaves: impl Iterator<Item = Leaf>, wanted: &Wanted) -> io::Result<()> {
        let before = self.leaves.len();
        for leaf in leaves {
            let outcome = fs::create_dir(&leaf.path).and_then(|()| leaf.limit(wanted));
            self.leaves.push(leaf);
            if let Err(error) = outcome {
                for leaf in self.leaves.drain(before..) {
                    // The first failure is the one to report.
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

    /// The cgroup v2 leaf, to create the child in.
    pub fn birthplace(&self) -> io::Result<Option<OwnedFd>> {
        let v2 = self.leaves.iter().find(|leaf| leaf.is_v2);
        v2.map(|leaf| fs::File::open(&leaf.path).map(OwnedFd::from)).transpose()
    }

    /// Puts the calling process into the leaves.
    pub fn join(&self) -> io::Result<()> {
        self.admit(0)
    }

    /// Puts a process into the leaves; 0 stands for the calling one. A process that has ended is no error.
    pub fn admit(&self, pid: u32) -> io::Result<()> {
        for leaf in &self.leaves {
            match leaf.write("cgroup.procs", pid) {
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                other => other?,
            }
        }
        Ok(())
    }

    /// The counters so far: always which limits were hit, and the usage only if requested.
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
            // Cgroup v2 counts CPU time in every cgroup, whichever controllers it has.
            if leaf.is_v2 && counters.cpu_usec.is_none() {
                counters.cpu_usec = field(path, "cpu.stat", "usage_usec");
            }
        }
        InUse { memory_peak: counters.memory_peak, cpu_usec: counters.cpu_usec, ..used }
    }

    /// Removes the leaves. The processes must have ended; any that is left is killed.
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
                            // The value exceeds the limit of a cgroup above, whose tighter limit then applies to us
                            // too.
                            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
                            other => other?,
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Swap counts too, or is turned off.
    fn limit_memory(&self, bytes: u64) -> io::Result<()> {
        if self.is_v2 {
            self.write("memory.max", bytes)?;
            return optional(self.write("memory.swap.max", 0));
        }
        self.write("memory.limit_in_bytes", bytes)?;
        // Cgroup v1 counts socket memory separately, in addition to the memory limit, and only if this is set.
        if Rule::SocketMemory.is_on() {
            optional(self.write("memory.kmem.tcp.limit_in_bytes", socket_bytes(bytes)))?;
        }
        optional(self.write("memory.memsw.limit_in_bytes", bytes))
    }

    /// One open, one write: the kernel applies a limit completely or not at all.
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

/// Limit of TCP socket memory where it comes on top of the memory limit: a small part of it, and little of the host's
/// TCP memory.
fn socket_bytes(memory: u64) -> u64 {
    (memory / 8).min(64 << 20)
}

/// A kernel without swap accounting lacks this file, and has no swap to account for.
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

/// One open, one read: these files are short, and the kernel generates them for each reader.
pub(super) fn read(directory: &Path, file: &str) -> Option<String> {
    let file = open(directory.join(file), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let mut bytes = [0u8; 1024];
    let length = rustix::io::read(&file, &mut bytes).ok()?;
    std::str::from_utf8(&bytes[..length]).ok().map(str::to_owned)
}
