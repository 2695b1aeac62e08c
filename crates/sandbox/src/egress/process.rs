//! What an egress process has on the host, besides its socket: cgroups of its own, and as root a user of its own.

use std::path::Path;

use saggar_domain::{Code, Problem};
use saggar_jail::cgroup::{Group, Host, Wanted};

use super::place::EgressPlace;
use crate::ids::random;
use crate::ranges::Range;
use crate::supervise::detach;

/// A service that needs more than this is ended by the kernel, and started again.
const SERVICE_MEMORY_LEAST: u64 = 1 << 30;
/// Its threads: one for each processor and a few more.
const SERVICE_THREADS: u64 = 512;

/// The process of a service, before it gives up its rights. Its user is taken while this lives.
#[derive(Debug)]
pub struct ServiceProcess {
    range: Option<Range>,
}

impl ServiceProcess {
    /// Detaches this process from the one that started it, and puts it into its cgroups. The caller has one thread.
    pub fn begin(data: &Path) -> Result<Self, Problem> {
        detach();
        let place = EgressPlace::open(data).map_err(|error| failed("opening the data directory", &error.kind()))?;
        join_cgroups(&place).map_err(|error| failed("creating its cgroups", &error.kind()))?;
        let range = match rustix::process::geteuid().is_root() {
            true => Some(random().and_then(|random| {
                Range::take(u32::from_ne_bytes(random)).map_err(|error| failed("taking a user id", &error))
            })?),
            // An ordinary user has only their own.
            false => None,
        };
        Ok(Self { range })
    }

    /// The id to run as.
    pub fn user(&self) -> Option<u32> {
        self.range.as_ref().map(Range::base)
    }
}

/// On a host without usable cgroups it has no limits.
fn join_cgroups(place: &EgressPlace) -> std::io::Result<()> {
    let host = Host::detect();
    let wanted = service_limits();
    if Group::paths(&host, "", &wanted).is_empty() {
        return Ok(());
    }
    // Until this is dropped nobody takes the cgroups for those of an ended process.
    let (name, _list) = place.list_cgroups(|name| Group::paths(&host, name, &wanted))?;
    let mut group = Group::begin(&host, &name, &wanted)?;
    group.complete(&host, &name, &wanted)?;
    group.join()
}

fn service_limits() -> Wanted {
    let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    Wanted {
        memory: Some(SERVICE_MEMORY_LEAST.max(memory_of_the_host() / 4)),
        pids: Some(SERVICE_THREADS),
        // Sandboxes and the server get the rest.
        cpu_millis: Some((u32::try_from(processors).unwrap_or(1) * 1000).saturating_sub(250).max(1000)),
        is_freezable: false,
    }
}

/// In bytes; zero if it is unknown.
fn memory_of_the_host() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

fn failed(what: &str, why: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::SetupFailed,
        format!("the egress process can't be started: {what}: {why}"),
        "`saggar doctor` shows what this host supports and what is missing",
    )
}
