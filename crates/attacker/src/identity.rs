//! Attempts to change identity or gain privileges.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::Attempt;
use crate::out::Out;
use crate::sys::{ChildEnd, call, in_child, open, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("examine-credentials", examine_credentials),
    ("compare-namespaces", compare_namespaces),
    ("run-setid-programs", run_setid_programs),
    ("say-identity", say_identity),
    ("change-identity", change_identity),
    ("change-label", change_label),
    ("dump-core", dump_core),
];

fn status(field: &str) -> String {
    let text = fs::read_to_string("/proc/self/status").unwrap_or_default();
    text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')).unwrap_or_default().trim().to_owned()
}

/// Whether this is the host's root in the host's own mount namespace. Without a boundary, an attempt would only do
/// damage.
pub fn is_unconfined() -> bool {
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    /// In a private pid namespace the attacker's pid is small.
    const EARLY_PID: u32 = 64;
    let capabilities = u64::from_str_radix(&status("CapEff"), 16).unwrap_or(0);
    let mounts = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let shares_mounts = mounts("1").is_some_and(|first| mounts("self") == Some(first));
    capabilities & CAP_SYS_ADMIN != 0 && std::process::id() > EARLY_PID && shares_mounts
}

fn examine_credentials(out: &Out, _: &[String]) {
    for field in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        let value = status(field);
        out.examined(field, !value.is_empty() && value.bytes().all(|byte| byte == b'0'), &value);
    }
    out.examined("NoNewPrivs", status("NoNewPrivs") == "1", &status("NoNewPrivs"));
    out.examined("Seccomp", status("Seccomp") == "2", &status("Seccomp"));
    out.examined("Seccomp_filters", status("Seccomp_filters").parse::<u32>().is_ok_and(|count| count >= 1), "");
    out.examined("user", status("Uid").split_whitespace().all(|id| id == "1000"), "");
    out.examined("group", status("Gid").split_whitespace().all(|id| id == "1000"), "");
    let groups = status("Groups");
    out.examined("no group of the host", groups.split_whitespace().all(|id| id == "65534" || id == "1000"), &groups);
}

/// Compares each namespace with the runtime's own, which are passed as arguments.
fn compare_namespaces(out: &Out, arguments: &[String]) {
    for kind in ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"] {
        match fs::read_link(format!("/proc/self/ns/{kind}")) {
            Ok(ours) => {
                let ours = ours.to_string_lossy().into_owned();
                out.examined(kind, !arguments.iter().any(|theirs| theirs.split(' ').any(|one| one == ours)), "its own");
            }
            Err(error) => {
                out.tried::<()>(kind, Err(error));
            }
        }
    }
}

/// A set-id copy of this program reports its identity when it runs.
fn run_setid_programs(out: &Out, _: &[String]) {
    let before = status("Uid");
    for name in ["/probe/setuid-attacker", "/probe/setgid-attacker"] {
        match Command::new(name).arg("say-identity").output() {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                out.examined(
                    name,
                    said.contains(&format!("\"detail\":\"{} {}\"", id(libc::SYS_geteuid), id(libc::SYS_getegid))),
                    "the same user and group",
                );
            }
            Err(error) => {
                out.tried::<()>(name, Err(error));
            }
        }
    }
    // A program that would ask for a password gets no input. What matters is that the kernel grants it nothing.
    for name in ["su", "mount", "umount", "passwd", "newgrp", "chsh", "sudo", "pkexec", "newuidmap", "ping"] {
        let mut command = Command::new(format!("/usr/bin/{name}"));
        // SAFETY: between fork and exec only an alarm is set, which is safe there.
        unsafe {
            command.pre_exec(|| {
                crate::sys::set_alarm(2);
                Ok(())
            });
        }
        match command.arg("--version").stdin(std::process::Stdio::null()).output() {
            Ok(_) => out.examined(name, status("Uid") == before, "ran without a gain"),
            Err(error) => {
                out.tried::<()>(name, Err(error));
            }
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let is_nosuid = |on: &str| {
        mounts
            .lines()
            .filter(|line| line.split(' ').nth(4) == Some(on))
            .all(|line| line.split(' ').nth(5).is_some_and(|options| options.contains("nosuid")))
    };
    out.examined("programs of the host are nosuid", is_nosuid("/usr") && is_nosuid("/probe") && is_nosuid("/"), "");
}

fn id(number: libc::c_long) -> usize {
    call(number, &[]).unwrap_or(usize::MAX)
}

fn say_identity(out: &Out, _: &[String]) {
    let detail = format!("{} {}", id(libc::SYS_geteuid), id(libc::SYS_getegid));
    out.say("identity", crate::out::AttemptOutcome::Held, &detail);
}

fn change_identity(out: &Out, _: &[String]) {
    let none = u32::MAX as usize;
    out.tried("setuid 0", call(libc::SYS_setuid, &[0]));
    out.tried("setgid 0", call(libc::SYS_setgid, &[0]));
    out.tried("setreuid 0", call(libc::SYS_setreuid, &[none, 0]));
    out.tried("setregid 0", call(libc::SYS_setregid, &[none, 0]));
    out.tried("setresuid 0", call(libc::SYS_setresuid, &[0, 0, 0]));
    out.tried("setresgid 0", call(libc::SYS_setresgid, &[0, 0, 0]));
    let groups = [0u32, 27];
    out.tried("setgroups", call(libc::SYS_setgroups, &[2, groups.as_ptr() as usize]));
    // These two always return the previous id, so a second call shows the effect.
    unheeded(call(libc::SYS_setfsuid, &[0]));
    out.examined("setfsuid 0", call(libc::SYS_setfsuid, &[none]).is_ok_and(|id| id != 0), "");
    unheeded(call(libc::SYS_setfsgid, &[0]));
    out.examined("setfsgid 0", call(libc::SYS_setfsgid, &[none]).is_ok_and(|id| id != 0), "");
    let header = [0x2008_0522u32, 0];
    let all = [u32::MAX; 6];
    out.tried("capset", call(libc::SYS_capset, &[header.as_ptr() as usize, all.as_ptr() as usize]));
    let prctl =
        |option: i32, argument: usize, more: usize| call(libc::SYS_prctl, &[option as usize, argument, more, 0, 0]);
    out.tried("ambient capability", prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as usize, 21));
    out.tried("bounding set", prctl(libc::PR_CAPBSET_DROP, 0, 0));
    out.tried("securebits", prctl(libc::PR_SET_SECUREBITS, 1, 0));
    out.tried("no_new_privs off", prctl(libc::PR_SET_NO_NEW_PRIVS, 0, 0));
}

fn change_label(out: &Out, _: &[String]) {
    for name in
        ["current", "exec", "fscreate", "keycreate", "sockcreate", "apparmor/current", "apparmor/exec", "smack/current"]
    {
        out.tried(name, open(&format!("/proc/self/attr/{name}"), libc::O_WRONLY, 0));
    }
    let context = [0u64; 8];
    out.tried("lsm_set_self_attr", call(460, &[100, context.as_ptr() as usize, 64, 0]));
}

/// Tries every way to change the limit, and reports whether it is unchanged.
fn change_core_limit(out: &Out, before: [u64; 2]) {
    let core = libc::RLIMIT_CORE as usize;
    let (none, more) = ([0u64; 2], [1u64 << 20; 2]);
    let (none, more) = (none.as_ptr() as usize, more.as_ptr() as usize);
    let mut old = [0u64; 2];
    let old = old.as_mut_ptr() as usize;
    // Zeroes at an address whose lower half is zero too.
    let low = 1usize << 32;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    unheeded(call(libc::SYS_mmap, &[low, 4096, libc::PROT_READ as usize, flags as usize, usize::MAX, 0]));
    let own = std::process::id() as usize;
    for (member, number, arguments) in [
        ("raise it", libc::SYS_prlimit64, &[0, core, more, 0][..]),
        ("lower it", libc::SYS_prlimit64, &[0, core, none, 0]),
        ("lower it by pid", libc::SYS_prlimit64, &[own, core, none, 0]),
        ("lower it with high bits", libc::SYS_prlimit64, &[0, core | 1 << 40, none, 0]),
        ("lower it and ask", libc::SYS_prlimit64, &[0, core, none, old]),
        ("lower it from a round address", libc::SYS_prlimit64, &[0, core, low, 0]),
        ("lower it by setrlimit", libc::SYS_setrlimit, &[core, none]),
    ] {
        unheeded(call(number, arguments));
        let mut now = [u64::MAX; 2];
        let asked = call(libc::SYS_prlimit64, &[0, core, 0, now.as_mut_ptr() as usize]);
        out.examined(member, asked.is_ok() && now == before, &format!("{now:?}"));
    }
}

fn dump_core(out: &Out, _: &[String]) {
    let mut limit = [1u64; 2];
    let asked = call(libc::SYS_prlimit64, &[0, libc::RLIMIT_CORE as usize, 0, limit.as_mut_ptr() as usize]);
    // With a limit of zero the kernel still starts a handler that it pipes cores to; with one byte it doesn't.
    let is_piped = fs::read_to_string("/proc/sys/kernel/core_pattern").is_ok_and(|text| text.starts_with('|'));
    let is_low = asked.is_ok() && (limit == [1, 1] || limit == [0, 0] && !is_piped);
    out.examined("RLIMIT_CORE is one byte", is_low, &limit[0].to_string());
    change_core_limit(out, limit);
    for (member, signal) in [("SIGABRT", libc::SIGABRT), ("SIGSEGV", libc::SIGSEGV), ("SIGQUIT", libc::SIGQUIT)] {
        let end = in_child(|| {
            let own = std::process::id() as usize;
            // The standard library installs its own SIGSEGV handler.
            // SAFETY: the default disposition runs no code.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
            unheeded(call(libc::SYS_kill, &[own, signal as usize]));
            crate::sys::pause_ms(100);
            1
        });
        let is_clean = match end {
            ChildEnd::Signal { has_core, .. } => !has_core,
            ChildEnd::Code(_) | ChildEnd::Unborn(_) => false,
        };
        out.examined(member, is_clean, "died without a core");
    }
    let is_core = fs::read_dir(".").is_ok_and(|mut entries| {
        entries.any(|entry| entry.is_ok_and(|entry| entry.file_name().to_string_lossy().starts_with("core")))
    });
    out.examined("no core file", !is_core, "");
}
