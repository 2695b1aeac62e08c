//! The examination: every tier, filesystem mode, network mode and limit, tried one after the other.

use std::time::{Duration, Instant};

use saggar_domain::{
    ByteSize, CAPABILITIES_SCHEMA, Capabilities, Capability, Count, Cpus, DenialCode, Draft, DraftLimits, ExecStatus,
    FsMode, LimitName, NetworkMode, Support, Tier, Timeout, User,
};
use saggar_jail::cgroup::{Controller, Host};

use super::cores::cores;
use super::kvm::{KvmTrial, try_kvm};
use super::trial::{Trials, succeeded, why};
use crate::data::DataDirectory;
use crate::reaper::Leftover;
use crate::report::Report;

/// Below this a guest is interpreted, whatever calls itself KVM.
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
            let reason = format!("no trial can be made: {}", error.kind());
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
    capabilities
}

fn told(leftover: &Leftover) -> String {
    match &leftover.outcome {
        Ok(()) => format!("{}: removed", leftover.sandbox),
        Err(why) => format!("{}: not all removed: {why}", leftover.sandbox),
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
            "a sandbox was made, with a range of ids of its own"
        } else {
            "a sandbox was made; its one id is this user's own, because a range of ids needs root"
        };
        Capability::supported("namespace", mechanism, reason)
    } else {
        let remedy = report.error.as_ref().map(|error| error.help.clone()).unwrap_or_default();
        Capability::unsupported(
            "namespace",
            mechanism,
            why(&report),
            format!("user namespaces, Landlock and seccomp must be on in the kernel and open to this user; {remedy}"),
        )
    };
    let kvm = match try_kvm() {
        KvmTrial::Usable(rate) if rate >= HARDWARE_MIPS => {
            format!("KVM is usable here ({rate} million instructions a second)")
        }
        KvmTrial::Usable(rate) => format!("KVM is there and of no use: {rate} million instructions a second"),
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
        FsMode::ReadOnly => "read-only bind mount, Landlock under it",
        FsMode::WorkspaceWrite => "bind mount, protected paths held by mounts of their own",
        FsMode::Scratch => "overlay on private storage",
    };
    if !is_ready {
        return Capability::unsupported(mode.as_str(), mechanism, "the tier it needs is not ready", "see the tier");
    }
    let file = trials.workspace().join("trial");
    let kept = trials.workspace().join("kept");
    let before = std::fs::create_dir_all(&kept)
        .and_then(|()| std::fs::write(kept.join("file"), ""))
        .and_then(|()| std::fs::write(&file, "before"));
    let draft = Draft { fs: Some(mode), ..trials.with_workspace() };
    let report = trials
        .sh(draft, "echo after > trial && grep -q after trial && rm -r kept && mkdir kept && test -z \"$(ls kept)\"");
    let after = std::fs::read_to_string(&file).unwrap_or_default();
    let is_as_promised = before.is_ok()
        && match mode {
            FsMode::ReadOnly => report.status == ExecStatus::Exited && !succeeded(&report) && after == "before",
            FsMode::WorkspaceWrite => succeeded(&report) && after == "after\n",
            FsMode::Scratch => succeeded(&report) && after == "before",
        };
    if is_as_promised {
        let reason = match mode {
            FsMode::ReadOnly => "a write was refused",
            FsMode::WorkspaceWrite => "a write reached the host",
            FsMode::Scratch => "a write was seen inside and did not reach the host",
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
            let mechanism = "an empty network namespace with a loopback of its own";
            if succeeded(&report) {
                Capability::supported(mode.as_str(), mechanism, "only a loopback was found inside")
            } else {
                Capability::unsupported(
                    mode.as_str(),
                    mechanism,
                    why(&report),
                    "network namespaces must be on in the kernel",
                )
            }
        }
        NetworkMode::Proxied => {
            Capability::unsupported(mode.as_str(), "an egress process", "not built yet", "use none")
        }
        NetworkMode::Host if is_ready => Capability::supported(
            mode.as_str(),
            "the host's own network",
            "unmanaged: nothing stands between a program and the network, the host's loopback included; only when asked for by name",
        ),
        NetworkMode::Host => Capability::unsupported(
            mode.as_str(),
            "the host's own network",
            "the tier it needs is not ready",
            "see the tier",
        ),
    }
}

/// Whether a limit held, by what its trial reported and how long that took.
type Held = fn(&Report, Duration) -> bool;

/// Tries to exceed each limit.
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
                "a deadline outside of the sandbox".to_owned(),
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
                "a program that took too much was killed",
            )
        }
        LimitName::Cpus => {
            let limits = DraftLimits { cpus: Some(Cpus::millis(100)), timeout: Some(Timeout::millis(400)), ..none() };
            // Two at work, so that on a busy host their share would be too large without a limit.
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
                "one process too many was refused",
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
                "a file too large was refused",
            )
        }
        LimitName::Files => {
            let report = trials.sh(
                draft(DraftLimits { files: Some(Count::new(64)), ..none() }),
                "test \"$(ulimit -n)\" = 64 && test \"$(ulimit -Hn)\" = 64",
            );
            ("RLIMIT_NOFILE".to_owned(), report, |report, _| succeeded(report), "a program found itself limited")
        }
        LimitName::Output => {
            let report = trials
                .sh(draft(DraftLimits { output: ByteSize::parse("1000").ok(), ..none() }), "head -c 5000 /dev/zero");
            (
                "counted outside of the sandbox".to_owned(),
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

/// Whether a program had at most so many thousandths of a processor. Compared with the time that went by: on a busy host a trial takes
/// longer than it was given, and a fixed number of milliseconds would say more of the host's load than of the limit.
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
            Ok(place) => Capability::supported(&name, place.mechanism(), "a child of our own cgroup can be made here"),
            Err(why) => Capability::unsupported(&name, "none", why, AS_ROOT),
        });
    }
    found.push(match host.freezer() {
        Ok(place) => Capability::supported(
            "pause",
            format!("the freezer of {}", place.mechanism()),
            "a child of our own cgroup that can be frozen can be made here",
        ),
        Err(why) => Capability::unsupported("pause", "none", why, AS_ROOT),
    });
    found
}

/// Each version closes something more; what an older one leaves open is said, and the mounts and the filter still hold there.
fn landlock() -> Capability {
    const NEWEST: u32 = 6;
    let Some(abi) = saggar_jail::landlock_abi() else {
        return Capability::unsupported(
            "landlock",
            "none",
            "the kernel has no Landlock, or keeps it off",
            "add landlock to the kernel's lsm= parameter",
        );
    };
    let mechanism = format!("ABI {abi}");
    if abi >= NEWEST {
        return Capability::supported(
            "landlock",
            mechanism,
            "files, devices, signals and abstract sockets are fenced in",
        );
    }
    let missing = [(3, "truncation"), (5, "device ioctls"), (6, "signals and abstract sockets")];
    let missing: Vec<&str> = missing.iter().filter(|(version, _)| *version > abi).map(|(_, what)| *what).collect();
    Capability::experimental(
        "landlock",
        mechanism,
        format!("this version does not fence in: {}", missing.join(", ")),
        "a kernel of 6.12 or newer has all of it",
    )
}

fn filter(trials: &Trials<'_>) -> Capability {
    // `unshare` asks for a namespace, which the filter refuses and tells of.
    let report = trials.sh(Draft::default(), "unshare --user true");
    let is_told = report.denials.iter().any(|denial| denial.code == DenialCode::SyscallRefused);
    if is_told {
        return Capability::supported(
            "seccomp",
            "allowlist with a notifier",
            "a new namespace was refused inside, and told of",
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
            "65536 ids of its own for each sandbox; idmapped mounts for the workspace",
            "no id inside is one of the host's",
        );
    }
    Capability::experimental(
        "ids",
        "the one id of this user",
        "what a sandbox writes is written as this user, whose supplementary groups it keeps",
        "run as root for ids of its own",
    )
}
