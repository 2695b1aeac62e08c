//! The examination: tries every tier, filesystem mode, network mode and limit, one after the other.

use std::time::{Duration, Instant};

use saggar_domain::{
    ByteSize, CAPABILITIES_SCHEMA, Capabilities, Capability, Count, Cpus, DenialCode, Draft, DraftLimits, ExecStatus,
    FsMode, LimitName, NetworkMode, Problem, Support, Tier, Timeout, User,
};
use saggar_jail::cgroup::{Controller, Host};

use super::cores::cores;
use super::kvm::{KvmTrial, try_kvm};
use super::proxied::proxied;
use super::trial::{Trials, succeeded, why};
use crate::data::DataDirectory;
use crate::disk;
use crate::reaper::Leftover;
use crate::report::Report;
use crate::volume;
use crate::worktree::plant_repository;

/// Below this rate a guest is interpreted, even if KVM is present.
const HARDWARE_MIPS: u64 = 50;
const AS_ROOT: &str = "run as root, or have the controller delegated to this user";

/// Tries everything. `leftovers` is what the reaper found at this start.
pub fn examine(data: &DataDirectory, leftovers: &[Leftover]) -> Capabilities {
    let is_root = rustix::process::geteuid().is_root();
    let mut capabilities = Capabilities {
        schema: CAPABILITIES_SCHEMA.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        host: host_name(),
        identity: if is_root { "root" } else { "ordinary user" }.into(),
        is_ready: false,
        tiers: Vec::new(),
        filesystem: Vec::new(),
        network: Vec::new(),
        limits: Vec::new(),
        mechanisms: Vec::new(),
        reaped: leftovers.iter().map(told).collect(),
    };
    let trials = match Trials::new(data) {
        Ok(trials) => trials,
        Err(error) => {
            let reason = format!("no trial can be run: {}", error.kind());
            capabilities.tiers.push(Capability::unsupported(
                Tier::Namespace.as_str(),
                "",
                reason,
                "make the data directory writable",
            ));
            return capabilities;
        }
    };
    capabilities.tiers = tiers(&trials, is_root);
    capabilities.is_ready = capabilities
        .tiers
        .iter()
        .any(|tier| tier.name == Tier::Namespace.as_str() && tier.status == Support::Supported);
    let host = Host::detect_with_freezer();
    capabilities.filesystem =
        FsMode::ALL.iter().map(|mode| filesystem(&trials, *mode, capabilities.is_ready)).collect();
    capabilities.network = NetworkMode::ALL.iter().map(|mode| network(&trials, *mode, capabilities.is_ready)).collect();
    capabilities.limits = LimitName::ALL.iter().map(|name| limit(&trials, *name, &host)).collect();
    capabilities.mechanisms = mechanisms(&trials, &host, is_root);
    capabilities.mechanisms.extend(on_disk(data));
    capabilities
}

fn told(leftover: &Leftover) -> String {
    match &leftover.outcome {
        Ok(()) => format!("{}: removed", leftover.sandbox),
        Err(why) => format!("{}: not removed completely: {why}", leftover.sandbox),
    }
}

fn host_name() -> String {
    let name = rustix::system::uname();
    let text = |part: &std::ffi::CStr| part.to_string_lossy().into_owned();
    format!("{} {} {}", text(name.sysname()), text(name.release()), text(name.machine()))
}

fn tiers(trials: &Trials<'_>, is_root: bool) -> Vec<Capability> {
    let mechanism = "user, mount, pid, network, ipc, uts and cgroup namespaces; seccomp; Landlock";
    let report = trials.sh(Draft::default(), "exit 0");
    let namespace = if succeeded(&report) {
        let reason = if is_root {
            "a sandbox was created, with its own range of ids"
        } else {
            "a sandbox was created; its single id is this user's own, because a range of ids needs root"
        };
        Capability::supported("namespace", mechanism, reason)
    } else {
        let remedy = report.error.as_ref().map(|error| error.help.clone()).unwrap_or_default();
        Capability::unsupported(
            "namespace",
            mechanism,
            why(&report),
            format!(
                "user namespaces, Landlock and seccomp must be enabled in the kernel and available to this user; {remedy}"
            ),
        )
    };
    let kvm = match try_kvm() {
        KvmTrial::Usable(rate) if rate >= HARDWARE_MIPS => {
            format!("KVM is usable here ({rate} million instructions a second)")
        }
        KvmTrial::Usable(rate) => format!("KVM is present but too slow: {rate} million instructions a second"),
        KvmTrial::Unusable(why) => format!("KVM is not usable here: {why}"),
    };
    let later = |tier: Tier, mechanism: &str, more: &str| {
        Capability::unsupported(tier.as_str(), mechanism, format!("not built yet{more}"), "use the namespace tier")
    };
    vec![
        namespace,
        later(Tier::Wasm, "wasmtime", ""),
        later(Tier::Oci, "an OCI runtime", ""),
        later(Tier::Vm, "QEMU or Firecracker", &format!("; {kvm}")),
    ]
}

fn filesystem(trials: &Trials<'_>, mode: FsMode, is_ready: bool) -> Capability {
    let mechanism = match mode {
        FsMode::ReadOnly => "read-only bind mount, and Landlock",
        FsMode::WorkspaceWrite => "bind mount, protected paths on read-only mounts",
        FsMode::Scratch => "overlay on private storage",
        FsMode::Worktree => "overlay over a checkout that Saggar makes itself",
    };
    if !is_ready {
        return Capability::unsupported(mode.as_str(), mechanism, "the tier it needs is not ready", "see the tier");
    }
    let file = trials.workspace().join("trial");
    let kept = trials.workspace().join("kept");
    let before = std::fs::create_dir_all(&kept)
        .and_then(|()| std::fs::write(kept.join("file"), ""))
        .and_then(|()| std::fs::write(&file, "before"))
        .and_then(|()| if mode == FsMode::Worktree { plant_repository(trials.workspace(), b"before") } else { Ok(()) });
    let draft = Draft { fs: Some(mode), ..trials.with_workspace() };
    let report = trials
        .sh(draft, "echo after > trial && grep -q after trial && rm -r kept && mkdir kept && test -z \"$(ls kept)\"");
    let after = std::fs::read_to_string(&file).unwrap_or_default();
    let is_as_promised = before.is_ok()
        && match mode {
            FsMode::ReadOnly => report.status == ExecStatus::Exited && !succeeded(&report) && after == "before",
            FsMode::WorkspaceWrite => succeeded(&report) && after == "after\n",
            FsMode::Scratch | FsMode::Worktree => succeeded(&report) && after == "before",
        };
    if is_as_promised {
        let reason = match mode {
            FsMode::ReadOnly => "a write was refused",
            FsMode::WorkspaceWrite => "a write reached the host",
            FsMode::Scratch | FsMode::Worktree => "a write was seen inside and did not reach the host",
        };
        return Capability::supported(mode.as_str(), mechanism, reason);
    }
    Capability::unsupported(
        mode.as_str(),
        mechanism,
        why(&report),
        "as root the filesystem must support idmapped mounts; scratch needs extended attributes on tmpfs (Linux 6.6)",
    )
}

fn network(trials: &Trials<'_>, mode: NetworkMode, is_ready: bool) -> Capability {
    match mode {
        NetworkMode::None => {
            let report = trials
                .sh(Draft::default(), "test \"$(grep -c : /proc/net/dev)\" = 1 && grep -q '^ *lo:' /proc/net/dev");
            let mechanism = "an empty network namespace with its own loopback";
            if succeeded(&report) {
                Capability::supported(mode.as_str(), mechanism, "only a loopback was found inside")
            } else {
                Capability::unsupported(
                    mode.as_str(),
                    mechanism,
                    why(&report),
                    "network namespaces must be enabled in the kernel",
                )
            }
        }
        NetworkMode::Proxied => proxied(),
        NetworkMode::Host if is_ready => Capability::supported(
            mode.as_str(),
            "the host's own network",
            "unmanaged: nothing restricts a program's network access, including to the host's loopback; only on explicit request",
        ),
        NetworkMode::Host => Capability::unsupported(
            mode.as_str(),
            "the host's own network",
            "the tier it needs is not ready",
            "see the tier",
        ),
    }
}

/// Whether a limit was enforced, by its trial's report and duration.
type Held = fn(&Report, Duration) -> bool;

fn limit(trials: &Trials<'_>, name: LimitName, host: &Host) -> Capability {
    let draft = |limits: DraftLimits| Draft { limits, ..Draft::default() };
    let none = DraftLimits::default;
    let by_cgroup = |controller: Controller| {
        host.place(controller)
            .map_or("no cgroup".to_owned(), |place| format!("{} {}", place.mechanism(), controller.as_str()))
    };
    let start = Instant::now();
    let (mechanism, report, is_held, told): (String, Report, Held, &str) = match name {
        LimitName::Timeout => {
            let report = trials.sh(draft(DraftLimits { timeout: Some(Timeout::millis(50)), ..none() }), "sleep 60");
            (
                "a deadline outside the sandbox".to_owned(),
                report,
                |report, _| report.status == ExecStatus::TimedOut,
                "a sleeping program was ended",
            )
        }
        LimitName::Memory => {
            let report = trials.sh(
                draft(DraftLimits { memory: Some(ByteSize::mebibytes(16)), ..none() }),
                "head -c 200000000 /dev/zero | tail -c 1000000000 | wc -c",
            );
            (
                by_cgroup(Controller::Memory),
                report,
                |report, _| has_hit(report, "limit/memory"),
                "a program that used too much was killed",
            )
        }
        LimitName::Cpus => {
            let limits = DraftLimits { cpus: Some(Cpus::millis(100)), timeout: Some(Timeout::millis(400)), ..none() };
            // Two busy loops, so that without a limit their share would be too large even on a busy host.
            let report = trials.sh(draft(limits), "while :; do :; done & while :; do :; done");
            (
                by_cgroup(Controller::Cpu),
                report,
                |report, elapsed| report.status == ExecStatus::TimedOut && has_at_most(report, elapsed, 300),
                "a busy program was slowed down",
            )
        }
        LimitName::Pids => {
            let report = trials.sh(
                draft(DraftLimits { pids: Some(Count::new(6)), ..none() }),
                "for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done",
            );
            let mechanism = if host.place(Controller::Pids).is_ok() {
                by_cgroup(Controller::Pids)
            } else {
                "RLIMIT_NPROC in the sandbox's user namespace".to_owned()
            };
            (
                mechanism,
                report,
                |report, _| report.status == ExecStatus::Exited && !succeeded(report),
                "one process more was refused",
            )
        }
        LimitName::Disk => {
            let report = trials.sh(
                draft(DraftLimits { disk: Some(ByteSize::mebibytes(1)), ..none() }),
                "head -c 4000000 /dev/zero > /tmp/trial",
            );
            (
                "size of the private tmpfs, which counts as memory; a workspace-write workspace is not covered"
                    .to_owned(),
                report,
                |report, _| report.status == ExecStatus::Exited && !succeeded(report),
                "a file that was too large was refused",
            )
        }
        LimitName::Files => {
            let report = trials.sh(
                draft(DraftLimits { files: Some(Count::new(64)), ..none() }),
                "test \"$(ulimit -n)\" = 64 && test \"$(ulimit -Hn)\" = 64",
            );
            ("RLIMIT_NOFILE".to_owned(), report, |report, _| succeeded(report), "a program saw the limit")
        }
        LimitName::Output => {
            let report = trials
                .sh(draft(DraftLimits { output: ByteSize::parse("1000").ok(), ..none() }), "head -c 5000 /dev/zero");
            (
                "counted outside the sandbox".to_owned(),
                report,
                |report, _| report.output.stdout.len() == 1000 && report.output.stdout_dropped == 4000,
                "output past the limit was dropped and counted",
            )
        }
    };
    if is_held(&report, start.elapsed()) {
        return Capability::supported(name.as_str(), mechanism, told);
    }
    Capability::unsupported(name.as_str(), mechanism, why(&report), AS_ROOT)
}

/// Whether a program used at most this many thousandths of a CPU. Compared with the elapsed time, because on a busy
/// host a trial takes longer than planned, and a fixed number of milliseconds would measure the host's load rather than
/// the limit.
fn has_at_most(report: &Report, elapsed: Duration, thousandths: u128) -> bool {
    report.usage.cpu_ms.is_some_and(|used| u128::from(used) * 1000 < elapsed.as_millis() * thousandths)
}

fn has_hit(report: &Report, rule: &str) -> bool {
    report.denials.iter().any(|denial| denial.code == DenialCode::LimitReached && denial.rule == rule)
}

fn mechanisms(trials: &Trials<'_>, host: &Host, is_root: bool) -> Vec<Capability> {
    let mut found = vec![landlock(), filter(trials), root_inside(trials), identity(is_root), cores(trials)];
    for controller in Controller::ALL {
        let name = format!("cgroup {}", controller.as_str());
        found.push(match host.place(*controller) {
            Ok(place) => {
                Capability::supported(&name, place.mechanism(), "a child of our own cgroup can be created here")
            }
            Err(why) => Capability::unsupported(&name, "none", why, AS_ROOT),
        });
    }
    found.push(match host.freezer() {
        Ok(place) => Capability::supported(
            "pause",
            format!("the freezer of {}", place.mechanism()),
            "a freezable child of our own cgroup can be created here",
        ),
        Err(why) => Capability::unsupported("pause", "none", why, AS_ROOT),
    });
    found
}

/// The mechanism of files on disk: of one sandbox, and of volumes.
fn on_disk(data: &DataDirectory) -> Vec<Capability> {
    let outcome = disk::attempt(data);
    let capability = |name: &str, not_root: Problem| match &outcome {
        Ok(()) => Capability::supported(
            name,
            "ext4 in a fully allocated file, on a loop device",
            "a small filesystem was made and mounted, and is gone again",
        ),
        Err(_) if !rustix::process::geteuid().is_root() => {
            Capability::unsupported(name, "none", not_root.message, not_root.help)
        }
        Err(problem) => Capability::unsupported(name, "none", problem.message.clone(), problem.help.clone()),
    };
    vec![capability("storage on disk", disk::not_root()), capability("volumes", volume::not_root())]
}

/// Each version restricts something more. What an older one leaves open is reported; the mounts and the filter still
/// apply there.
fn landlock() -> Capability {
    const NEWEST: u32 = 6;
    let Some(abi) = saggar_jail::landlock_abi() else {
        return Capability::unsupported(
            "landlock",
            "none",
            "the kernel has no Landlock, or has it disabled",
            "add landlock to the kernel's lsm= parameter",
        );
    };
    let mechanism = format!("ABI {abi}");
    if abi >= NEWEST {
        return Capability::supported(
            "landlock",
            mechanism,
            "files, devices, signals and abstract sockets are restricted",
        );
    }
    let missing = [(3, "truncation"), (5, "device ioctls"), (6, "signals and abstract sockets")];
    let missing: Vec<&str> = missing.iter().filter(|(version, _)| *version > abi).map(|(_, what)| *what).collect();
    Capability::experimental(
        "landlock",
        mechanism,
        format!("this version does not restrict: {}", missing.join(", ")),
        "Linux 6.12 or newer restricts all of these",
    )
}

fn filter(trials: &Trials<'_>) -> Capability {
    // `unshare` creates a namespace, which the filter refuses and reports.
    let report = trials.sh(Draft::default(), "unshare --user true");
    let is_told = report.denials.iter().any(|denial| denial.code == DenialCode::SyscallRefused);
    if is_told {
        return Capability::supported(
            "seccomp",
            "allowlist with a notifier",
            "a new namespace was refused inside, and reported",
        );
    }
    Capability::unsupported(
        "seccomp",
        "allowlist with a notifier",
        why(&report),
        "the kernel must have seccomp filters with user notification (Linux 5.5)",
    )
}

fn root_inside(trials: &Trials<'_>) -> Capability {
    let report =
        trials.sh(Draft { user: Some(User::Root), ..Draft::default() }, "test \"$(id -u)\" = 0 && touch /root/trial");
    if succeeded(&report) {
        return Capability::supported(
            "root inside",
            "uid 0 of the user namespace with a short set of capabilities",
            "a program ran as root of the sandbox",
        );
    }
    Capability::unsupported("root inside", "uid 0 of the user namespace", why(&report), "run programs as user")
}

fn identity(is_root: bool) -> Capability {
    if is_root {
        return Capability::supported(
            "ids",
            "65536 private ids for each sandbox; idmapped mounts for the workspace",
            "no id inside is in use on the host",
        );
    }
    Capability::experimental(
        "ids",
        "this user's own id",
        "a sandbox writes files as this user, and keeps this user's supplementary groups",
        "run as root for private ids",
    )
}
