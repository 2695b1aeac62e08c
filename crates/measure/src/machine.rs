//! The machine of a measurement: facts that affect the numbers, and nothing that identifies the machine or its owner.

use std::process::Command;

use anyhow::{Context, Result, ensure};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// In UTC.
    pub date: String,
    /// The kernel's version without the distributor's suffix.
    pub kernel: String,
    pub cpus: usize,
    pub cpu_model: String,
    /// Whether it is a virtual machine.
    pub is_virtual: bool,
    /// In MiB.
    pub memory_mib: u64,
    /// The mounted cgroup versions.
    pub cgroups: &'static str,
    pub is_root: bool,
}

impl Machine {
    pub fn look() -> Result<Self> {
        let cpuinfo = read("/proc/cpuinfo")?;
        let mounts = read("/proc/self/mounts")?;
        Ok(Self {
            date: date()?,
            kernel: upstream_version(read("/proc/sys/kernel/osrelease")?.trim()).to_owned(),
            cpus: std::thread::available_parallelism()?.get(),
            cpu_model: field(&cpuinfo, "model name").unwrap_or("unknown CPU").to_owned(),
            is_virtual: field(&cpuinfo, "flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            memory_mib: meminfo_kib("MemTotal")? / 1024,
            cgroups: cgroups(&mounts),
            is_root: is_root()?,
        })
    }

    /// In one line.
    pub fn text(&self) -> String {
        let Self { kernel, cpus, cpu_model, memory_mib, cgroups, .. } = self;
        let virtual_ = if self.is_virtual { ", a virtual machine" } else { "" };
        let user = if self.is_root { "root" } else { "an ordinary user" };
        format!(
            "Linux {kernel}, {cpus} CPUs ({cpu_model}{virtual_}), {memory_mib} MiB of memory, {cgroups}, run as {user}"
        )
    }
}

/// Load averages over 1, 5 and 15 minutes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Load(pub [f64; 3]);

impl Load {
    pub fn now() -> Result<Self> {
        Self::parse(&read("/proc/loadavg")?).context("/proc/loadavg has another form")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(|word| word.parse().ok());
        Some(Self([numbers.next()??, numbers.next()??, numbers.next()??]))
    }
}

impl std::fmt::Display for Load {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [one, five, fifteen] = self.0;
        write!(f, "{one:.2} {five:.2} {fifteen:.2}")
    }
}

/// MemAvailable, in KiB.
pub fn mem_available_kib() -> Result<f64> {
    Ok(meminfo_kib("MemAvailable")? as f64)
}

/// Makes the kernel drop its clean caches. Needs root.
pub fn drop_caches() -> Result<()> {
    let status = Command::new("sync").status().context("running sync")?;
    ensure!(status.success(), "sync failed");
    std::fs::write("/proc/sys/vm/drop_caches", "3").context("writing /proc/sys/vm/drop_caches")
}

fn read(path: &str) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {path}"))
}

fn date() -> Result<String> {
    let output = Command::new("date").args(["-u", "+%F"]).output().context("running date")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn is_root() -> Result<bool> {
    let status = read("/proc/self/status")?;
    let uids = field(&status, "Uid").context("/proc/self/status has no Uid")?;
    Ok(uids.split_whitespace().nth(1) == Some("0"))
}

/// A line of /proc/meminfo, in KiB.
pub fn meminfo_kib(name: &str) -> Result<u64> {
    let text = read("/proc/meminfo")?;
    let value = field(&text, name).and_then(|value| value.strip_suffix(" kB")?.parse().ok());
    value.with_context(|| format!("/proc/meminfo has no {name}"))
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim());
    text.lines().find_map(value)
}

/// `6.1.0` of `6.1.0-18-amd64`: the suffix may name a cloud or a company.
fn upstream_version(release: &str) -> &str {
    release.split(['-', '+']).next().unwrap_or(release)
}

fn cgroups(mounts: &str) -> &'static str {
    let has = |kind: &str| mounts.lines().any(|line| line.split(' ').nth(2) == Some(kind));
    match (has("cgroup"), has("cgroup2")) {
        (true, true) => "cgroups v1 and v2",
        (true, false) => "cgroups v1",
        (false, true) => "cgroups v2",
        (false, false) => "no cgroups",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "MemTotal:       16000 kB\nmodel name\t: A CPU @ 2 GHz\nMemTotalX: 1\n";
        assert_eq!(field(text, "MemTotal"), Some("16000 kB"));
        assert_eq!(field(text, "model name"), Some("A CPU @ 2 GHz"));
        assert_eq!(field(text, "Mem"), None);
    }

    #[test]
    fn a_kernel_is_known_by_its_upstream_version() {
        for (release, version) in [("6.1.0-18-amd64", "6.1.0"), ("6.12.3+rpt", "6.12.3"), ("6.6", "6.6")] {
            assert_eq!(upstream_version(release), version);
        }
    }

    #[test]
    fn loads_are_three_numbers() {
        assert_eq!(Load::parse("0.29 1.33 1.00 1/163 52\n"), Some(Load([0.29, 1.33, 1.0])));
        assert_eq!(Load::parse("0.29 1.33"), None);
    }

    #[test]
    fn cgroup_versions_are_seen_in_the_mounts() {
        assert_eq!(cgroups("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"), "cgroups v2");
        assert_eq!(cgroups("c /a/memory cgroup rw 0 0\nc /a/unified cgroup2 rw 0 0\n"), "cgroups v1 and v2");
        assert_eq!(cgroups("proc /proc proc rw 0 0\n"), "no cgroups");
    }
}
