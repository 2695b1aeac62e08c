//! Attempts on /proc and /sys: what they reveal about the host, and what writing to them would do.

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;

use crate::Attempt;
use crate::out::{AttemptOutcome, Out};
use crate::sys::{call, open};

pub const ATTEMPTS: &[Attempt] = &[
    ("read-other-processes", read_other_processes),
    ("write-kernel-settings", write_kernel_settings),
    ("overwrite-running-program", overwrite_running_program),
    ("read-kernel-secrets", read_kernel_secrets),
    ("find-host-paths", find_host_paths),
    ("write-own-proc", write_own_proc),
    ("look-into-sys", look_into_sys),
    ("control-cgroups", control_cgroups),
    ("list-host-sockets", list_host_sockets),
    ("learn-of-host", learn_of_host),
    ("learn-of-machine", learn_of_machine),
];

/// Opens for writing without creating or changing anything; reports `absent` if the file doesn't exist.
fn open_for_writing(out: &Out, file: &str) {
    out.tried(file, open(file, libc::O_WRONLY, 0));
}

fn read_other_processes(out: &Out, _: &[String]) {
    for name in ["environ", "cmdline", "maps", "mem", "auxv", "stack", "syscall", "io", "status"] {
        let file = format!("/proc/1/{name}");
        match fs::read(&file) {
            Ok(bytes) if bytes.is_empty() => out.say(&file, AttemptOutcome::Absent, "empty"),
            other => {
                out.tried_on_first(&file, other);
            }
        }
    }
    let own = std::process::id();
    let others: Vec<u32> = fs::read_dir("/proc")
        .map(|entries| {
            entries
                .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
                .filter(|pid| *pid != own && *pid != 1)
                .collect()
        })
        .unwrap_or_default();
    out.examined("no process but ours", others.is_empty(), &format!("{} others", others.len()));
    out.examined("our pid is small", own < 100, "");
}

fn write_kernel_settings(out: &Out, _: &[String]) {
    for file in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hotplug",
        "/proc/sys/kernel/poweroff_cmd",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/kernel/panic",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/ns_last_pid",
        "/proc/sys/kernel/yama/ptrace_scope",
        "/proc/sys/kernel/unprivileged_bpf_disabled",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/fs/protected_symlinks",
        "/proc/sys/fs/suid_dumpable",
        "/proc/sys/fs/pipe-user-pages-hard",
        "/proc/sysrq-trigger",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/vm/mmap_min_addr",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv4/conf/all/route_localnet",
        "/proc/sys/net/ipv4/conf/lo/route_localnet",
        "/proc/sys/net/ipv6/conf/all/disable_ipv6",
        "/proc/sys/user/max_user_namespaces",
        "/proc/irq/default_smp_affinity",
        "/proc/mtrr",
        "/proc/acpi/wakeup",
        "/proc/scsi/scsi",
    ] {
        match fs::metadata(file) {
            // A mask is the null device: it accepts writes and ignores them.
            Ok(metadata) if std::os::unix::fs::FileTypeExt::is_char_device(&metadata.file_type()) => {
                out.say(file, AttemptOutcome::Absent, "masked")
            }
            _ => open_for_writing(out, file),
        }
    }
}

fn overwrite_running_program(out: &Out, _: &[String]) {
    open_for_writing(out, "/proc/self/exe");
    out.tried("/proc/self/exe truncated", open("/proc/self/exe", libc::O_WRONLY | libc::O_TRUNC, 0));
    out.tried_on_first("/proc/1/exe", open("/proc/1/exe", libc::O_RDONLY, 0));
    // If it can be opened, its seals show whether it could ever be written.
    match open("/proc/1/exe", libc::O_RDONLY, 0) {
        Ok(agent) if std::process::id() != 1 => {
            let seals = call(libc::SYS_fcntl, &[agent.as_raw_fd() as usize, libc::F_GET_SEALS as usize]).unwrap_or(0);
            out.examined("the agent is sealed", seals & libc::F_SEAL_WRITE as usize != 0, "");
        }
        other => {
            out.tried_on_first("the agent is sealed", other);
        }
    }
    out.tried_on_first("/proc/1/exe for writing", open("/proc/1/exe", libc::O_WRONLY, 0));
    out.tried_on_first("/proc/1/fd/4", open("/proc/1/fd/4", libc::O_RDWR, 0));
    out.tried_on_first("run /proc/1/exe", std::process::Command::new("/proc/1/exe").spawn());
}

/// Reports whether reading returns any data, but not the data.
fn read_some(out: &Out, file: &str) {
    let mut bytes = [0u8; 256];
    match open(file, libc::O_RDONLY | libc::O_NONBLOCK, 0)
        .map(fs::File::from)
        .and_then(|mut file| file.read(&mut bytes))
    {
        Ok(0) => out.say(file, AttemptOutcome::Absent, "empty"),
        Ok(_) if file.ends_with("kallsyms") && bytes.starts_with(b"0000000000000000") => {
            out.say(file, AttemptOutcome::Absent, "zeroed")
        }
        other => {
            out.tried(file, other);
        }
    }
}

fn read_kernel_secrets(out: &Out, _: &[String]) {
    for file in [
        "/proc/kcore",
        "/proc/kallsyms",
        "/proc/kmsg",
        "/proc/iomem",
        "/proc/ioports",
        "/proc/keys",
        "/proc/key-users",
        "/proc/sched_debug",
        "/proc/timer_list",
        "/proc/timer_stats",
        "/proc/latency_stats",
        "/proc/cmdline",
        "/proc/kpagecount",
        "/proc/kpageflags",
        "/proc/kpagecgroup",
        "/proc/vmallocinfo",
        "/proc/slabinfo",
        "/proc/pagetypeinfo",
        "/proc/sys/kernel/usermodehelper/bset",
        "/proc/sys/fs/binfmt_misc/status",
        "/proc/sysvipc/shm/x",
        "/dev/kmsg",
        "/dev/mem",
        "/boot/vmlinuz",
        "/sys/kernel/notes",
    ] {
        read_some(out, file);
    }
    for directory in [
        "/proc/acpi",
        "/proc/asound",
        "/proc/bus",
        "/proc/driver",
        "/proc/fs",
        "/proc/irq",
        "/proc/scsi",
        "/proc/dynamic_debug",
    ] {
        match fs::read_dir(directory) {
            Ok(mut entries) => match entries.next() {
                None => out.say(directory, AttemptOutcome::Absent, "empty"),
                Some(_) => out.say(directory, AttemptOutcome::Allowed, "listed"),
            },
            Err(error) => {
                out.tried::<()>(directory, Err(error));
            }
        }
    }
    let mut log = [0u8; 64];
    out.tried("syslog", call(libc::SYS_syslog, &[3, log.as_mut_ptr() as usize, log.len()]));
    out.tried("syslog size", call(libc::SYS_syslog, &[10, 0, 0]));
}

/// Looks for paths of the host. They are passed as arguments and not printed.
fn find_host_paths(out: &Out, arguments: &[String]) {
    for file in [
        "/proc/self/mountinfo",
        "/proc/self/mounts",
        "/proc/self/mountstats",
        "/proc/mounts",
        "/proc/self/maps",
        "/proc/self/cgroup",
        "/proc/self/environ",
        "/proc/swaps",
        "/proc/self/fdinfo/1",
    ] {
        let text = fs::read(file).unwrap_or_default();
        let is_found = arguments
            .iter()
            .any(|needle| !needle.is_empty() && text.windows(needle.len()).any(|window| window == needle.as_bytes()));
        out.examined(file, !is_found, if is_found { "names a directory of the host" } else { "" });
    }
    // The kernel shows the root of each mount. Only the mounts that were requested may show a directory of the runtime
    // there.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_brought = |line: &str| {
        let place = line.split(' ').nth(4).unwrap_or_default();
        ["/workspace", "/probe"].iter().any(|top| place == *top || place.starts_with(&format!("{top}/")))
    };
    let others = mounts.lines().filter(|line| !is_brought(line));
    let named =
        others.filter(|line| arguments.iter().any(|needle| !needle.is_empty() && line.contains(needle))).count();
    out.examined("mounts of the runtime's own", named == 0, &named.to_string());
}

fn write_own_proc(out: &Out, _: &[String]) {
    for name in [
        "uid_map",
        "gid_map",
        "projid_map",
        "setgroups",
        "oom_score_adj",
        "oom_adj",
        "mem",
        "clear_refs",
        "attr/current",
        "attr/exec",
        "attr/fscreate",
        "attr/keycreate",
        "attr/sockcreate",
        "attr/apparmor/exec",
        "timerslack_ns",
        "coredump_filter",
        "loginuid",
        "comm",
        "autogroup",
        "sched",
        "make-it-fail",
        "task/self/x",
        "ns/user",
        "timens_offsets",
    ] {
        open_for_writing(out, &format!("/proc/self/{name}"));
    }
    for name in ["mem", "pagemap", "clear_refs", "oom_score_adj", "environ"] {
        out.tried_on_first(&format!("/proc/1/{name}"), open(&format!("/proc/1/{name}"), libc::O_RDONLY, 0));
    }
}

fn look_into_sys(out: &Out, _: &[String]) {
    for name in [
        "/sys/kernel/debug",
        "/sys/kernel/tracing",
        "/sys/kernel/security",
        "/sys/kernel/uevent_helper",
        "/sys/kernel/vmcoreinfo",
        "/sys/firmware/efi",
        "/sys/firmware/efi/efivars",
        "/sys/class/net",
        "/sys/module",
        "/sys/fs/cgroup",
        "/sys/fs/bpf",
        "/sys/block",
        "/sys/bus",
        "/sys/power/state",
        "/sys/devices",
        "/sys/hypervisor",
    ] {
        out.tried(name, fs::metadata(name));
    }
    let has_only = |directory: &str, name: &str| {
        fs::read_dir(directory)
            .map_or(true, |mut entries| entries.all(|entry| entry.is_ok_and(|entry| entry.file_name() == name)))
    };
    let is_bare = has_only("/sys", "fs") && has_only("/sys/fs", "cgroup");
    out.examined("/sys has nothing but the sandbox's cgroups", is_bare, "");
}

fn control_cgroups(out: &Out, _: &[String]) {
    for name in [
        "cgroup.procs",
        "cgroup.subtree_control",
        "cgroup.kill",
        "memory.max",
        "release_agent",
        "memory/tasks",
        "pids/pids.max",
        "devices/devices.allow",
        "rdma/release_agent",
    ] {
        open_for_writing(out, &format!("/sys/fs/cgroup/{name}"));
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The fourth field is the part of its filesystem that a mount shows, the sixth its options.
    let is_own = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        words.get(3) == Some(&"/")
            && words.get(5).is_some_and(|options| options.split(',').any(|option| option == "ro"))
    };
    let is_cgroup = |line: &&str| line.split(" - ").nth(1).is_some_and(|kind| kind.starts_with("cgroup"));
    out.examined(
        "cgroup filesystems are read-only and the sandbox's own",
        mounts.lines().filter(is_cgroup).all(is_own),
        "",
    );
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let is_named = groups.lines().any(|line| line.contains("saggar"));
    out.examined("/proc/self/cgroup names no group of the sandbox", !is_named, "");
    out.tried("/proc/cgroups", open("/proc/cgroups", libc::O_WRONLY, 0));
}

fn list_host_sockets(out: &Out, _: &[String]) {
    let unix = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let named = unix.lines().skip(1).filter(|line| line.split_whitespace().nth(7).is_some()).count();
    out.examined("/proc/net/unix", named == 0, &format!("{named} named sockets"));
    for table in ["tcp", "tcp6", "udp", "udp6", "raw", "icmp", "packet", "arp", "route"] {
        let file = format!("/proc/net/{table}");
        match fs::read_to_string(&file) {
            Ok(text) => out.examined(&file, text.lines().count() <= 1, "only a heading"),
            Err(error) => {
                out.tried::<()>(&file, Err(error));
            }
        }
    }
    // The kernel has some of its own in every network namespace; they belong to no process.
    let netlink = fs::read_to_string("/proc/net/netlink").unwrap_or_default();
    let owned = netlink.lines().skip(1).filter(|line| line.split_whitespace().nth(2) != Some("0")).count();
    out.examined("/proc/net/netlink", owned == 0, &format!("{owned} of processes"));
    let devices = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    let names: Vec<&str> = devices.lines().skip(2).filter_map(|line| line.split(':').next()).map(str::trim).collect();
    out.examined("/proc/net/dev", names == ["lo"], "only a loopback");
}

fn learn_of_host(out: &Out, _: &[String]) {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    out.examined("hostname", name.trim() == "sandbox", "");
    let domain = fs::read_to_string("/proc/sys/kernel/domainname").unwrap_or_default();
    out.examined("domainname", matches!(domain.trim(), "" | "(none)"), "");
    for file in [
        "/etc/machine-id",
        "/var/lib/dbus/machine-id",
        "/etc/hostname",
        "/etc/shadow",
        "/etc/ssh/ssh_host_rsa_key",
        "/etc/ssh/ssh_host_ed25519_key",
        "/sys/class/dmi/id/product_uuid",
        "/sys/class/dmi/id/board_serial",
        "/sys/hypervisor/uuid",
        "/proc/cmdline",
    ] {
        read_some(out, file);
    }
}

/// What /proc tells any user about the whole machine.
fn learn_of_machine(out: &Out, _: &[String]) {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    let is_zero = |line: &str| line.split(' ').nth(5).is_none_or(|address| address == "0x0000000000000000");
    out.examined("no address of the kernel in /proc/modules", modules.lines().all(is_zero), "");
    for file in [
        "/proc/sys/kernel/random/boot_id",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/loadavg",
        "/proc/uptime",
        "/proc/stat",
        "/proc/version",
        "/proc/partitions",
        "/proc/diskstats",
        "/proc/modules",
        "/proc/interrupts",
        "/proc/devices",
        "/proc/swaps",
        "/proc/filesystems",
        "/proc/pressure/cpu",
        "/proc/vmstat",
        "/proc/zoneinfo",
        "/proc/buddyinfo",
        "/proc/softirqs",
        "/proc/schedstat",
        "/proc/locks",
        "/proc/consoles",
        "/proc/misc",
        "/proc/crypto",
        "/proc/config.gz",
    ] {
        read_some(out, file);
    }
}
