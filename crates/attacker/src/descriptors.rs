//! Attempts on leaks: open descriptors, environment, arguments, memory of other processes.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;

use crate::Attempt;
use crate::out::Out;
use crate::sys::{at, call, open, path};

pub const ATTEMPTS: &[Attempt] = &[
    ("list-descriptors", list_descriptors),
    ("climb-descriptors", climb_descriptors),
    ("list-descriptors-of-child", list_of_child),
    ("examine-streams", examine_streams),
    ("examine-environment", examine_environment),
    ("hunt-secret", hunt_secret),
    ("read-arguments", read_arguments),
];

/// All open descriptors except the one used for listing them.
fn descriptors() -> Vec<i32> {
    let Ok(directory) = open("/proc/self/fd", libc::O_RDONLY | libc::O_DIRECTORY, 0) else { return Vec::new() };
    let looking = directory.as_raw_fd();
    (0..4096)
        .filter(|fd| *fd != looking && call(libc::SYS_fcntl, &[*fd as usize, libc::F_GETFD as usize]).is_ok())
        .collect()
}

fn list_descriptors(out: &Out, _: &[String]) {
    let open = descriptors();
    out.examined("only 0, 1 and 2", open == [0, 1, 2], &format!("{open:?}"));
    for kind in [
        "eventpoll",
        "eventfd",
        "memfd:",
        "pidfd",
        "mnt:",
        "net:",
        "user:",
        "socket:",
        "signalfd",
        "timerfd",
        "inotify",
        "seccomp",
        "landlock",
    ] {
        let found = open
            .iter()
            .filter_map(|fd| fs::read_link(format!("/proc/self/fd/{fd}")).ok())
            .any(|link| link.to_string_lossy().contains(kind));
        out.examined(&format!("no {kind} inherited"), !found, "");
    }
}

fn climb_descriptors(out: &Out, _: &[String]) {
    let above = path("../../../../../../etc");
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY) as usize;
    let climbed: Vec<usize> =
        (0..1024usize).filter(|fd| call(libc::SYS_openat, &[*fd, at(&above), flags, 0]).is_ok()).collect();
    out.examined("openat by every descriptor", climbed.is_empty(), &format!("{climbed:?}"));
    let entered: Vec<usize> = (0..1024usize).filter(|fd| call(libc::SYS_fchdir, &[*fd]).is_ok()).collect();
    out.examined("fchdir to every descriptor", entered.is_empty(), &format!("{entered:?}"));
}

/// A child program must not see more than this one.
fn list_of_child(out: &Out, _: &[String]) {
    let listed = std::process::Command::new("/proc/self/exe").arg("list-descriptors").output();
    let is_clean = listed.is_ok_and(|output| !String::from_utf8_lossy(&output.stdout).contains("broken"));
    out.examined("a child's descriptors", is_clean, "");
}

fn examine_streams(out: &Out, _: &[String]) {
    for fd in 0..3usize {
        let mut settings = [0u8; 64];
        let is_terminal = call(libc::SYS_ioctl, &[fd, 0x5401, settings.as_mut_ptr() as usize]).is_ok();
        out.examined(&format!("descriptor {fd} is no terminal"), !is_terminal, "");
    }
    let mut byte = 0u8;
    out.examined(
        "stdin is empty",
        call(libc::SYS_read, &[0, &raw mut byte as usize, 1]).is_ok_and(|length| length == 0),
        "",
    );
    out.tried("/dev/tty", open("/dev/tty", libc::O_RDWR, 0));
    out.examined("a session of its own", call(libc::SYS_getsid, &[0]).is_ok_and(|session| session != 0), "");
}

/// The arguments are the allowed names.
fn examine_environment(out: &Out, arguments: &[String]) {
    let extra: Vec<String> = std::env::vars_os()
        .map(|(name, _)| name.to_string_lossy().into_owned())
        .filter(|name| !arguments.contains(name))
        .collect();
    out.examined("only the names allowed", extra.is_empty(), &extra.join(" "));
    for wanted in ["HOME", "PATH", "USER"] {
        out.examined(&format!("{wanted} is set"), std::env::var_os(wanted).is_some(), "");
    }
    for pattern in [
        "AWS_",
        "_TOKEN",
        "_KEY",
        "SSH_",
        "KUBECONFIG",
        "SAGGAR",
        "DOCKER",
        "GOOGLE",
        "AZURE",
        "GITHUB",
        "LD_",
        "DBUS",
        "XDG",
    ] {
        let found = std::env::vars_os().any(|(name, _)| {
            name.to_string_lossy().contains(pattern)
                && !arguments.iter().any(|allowed| *allowed == name.to_string_lossy())
        });
        out.examined(&format!("nothing like {pattern}"), !found, "");
    }
}

/// Maximum number of files in one search, and bytes of each.
const FILES_MAX: usize = 2000;
const BYTES_MAX: usize = 1 << 20;

/// Searches for a secret that is passed in reverse, so that the search doesn't find its own argument.
fn hunt_secret(out: &Out, arguments: &[String]) {
    let reversed = arguments.first().map(String::as_bytes).unwrap_or_default();
    out.examined(
        "environment",
        !fs::read("/proc/self/environ").is_ok_and(|bytes| contains_reversed(&bytes, reversed)),
        "",
    );
    // Comes first: everything read below is in our memory from then on.
    out.examined("own memory", !memory_contains(reversed), "");
    for name in ["auxv", "cmdline", "environ"] {
        let found = fs::read_dir("/proc").is_ok_and(|entries| {
            entries
                .flatten()
                .any(|entry| fs::read(entry.path().join(name)).is_ok_and(|bytes| contains_reversed(&bytes, reversed)))
        });
        out.examined(&format!("/proc/*/{name}"), !found, "");
    }
    let mut left = FILES_MAX;
    for directory in ["/tmp", "/home", "/root", "/run", "/var", "/etc", "/workspace", "/dev/shm", "/mnt"] {
        out.examined(directory, !hunt(Path::new(directory), reversed, &mut left, 6), "");
    }
}

fn contains_reversed(bytes: &[u8], reversed: &[u8]) -> bool {
    !reversed.is_empty() && bytes.windows(reversed.len()).any(|window| window.iter().eq(reversed.iter().rev()))
}

fn hunt(directory: &Path, reversed: &[u8], left: &mut usize, depth: usize) -> bool {
    let Ok(entries) = fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| {
        let Some(rest) = left.checked_sub(1) else { return false };
        *left = rest;
        let Ok(kind) = entry.file_type() else { return false };
        if kind.is_dir() {
            return depth > 0 && hunt(&entry.path(), reversed, left, depth - 1);
        }
        kind.is_file()
            && fs::read(entry.path())
                .is_ok_and(|bytes| contains_reversed(&bytes[..bytes.len().min(BYTES_MAX)], reversed))
    })
}

/// Every writable mapping present at the start: stack, data, and the C library's own.
fn memory_contains(reversed: &[u8]) -> bool {
    use std::os::unix::fs::FileExt;
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let Ok(memory) = fs::File::open("/proc/self/mem") else { return false };
    maps.lines().filter(|line| line.contains("[stack]") || line.contains("rw-p")).any(|line| {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let Some((Ok(from), Ok(to))) =
            range.map(|(from, to)| (u64::from_str_radix(from, 16), u64::from_str_radix(to, 16)))
        else {
            return false;
        };
        let mut bytes = vec![0; (to - from).min(1 << 22) as usize];
        memory.read_at(&mut bytes, from).is_ok() && contains_reversed(&bytes, reversed)
    })
}

fn read_arguments(out: &Out, arguments: &[String]) {
    let reversed = arguments.first().map(String::as_bytes).unwrap_or_default();
    let own = std::process::id().to_string();
    let mut others = 0;
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.bytes().all(|byte| byte.is_ascii_digit()) || name == own {
            continue;
        }
        others += usize::from(
            fs::read(entry.path().join("cmdline")).is_ok_and(|bytes| !bytes.is_empty() && bytes != b"saggar-guest\0"),
        );
    }
    out.examined("no arguments of other processes", others == 0, &others.to_string());
    let own = fs::read("/proc/self/cmdline").unwrap_or_default();
    out.examined("no secret in our own", !contains_reversed(&own, reversed), "");
}
