//! Attempts through links: magic links of procfs, hard links across mounts, and file handles that name inodes.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;

use crate::Attempt;
use crate::out::Out;
use crate::sys::{CWD, at, call, open, path, unheeded};

pub const ATTEMPTS: &[Attempt] =
    &[("magic-links", magic_links), ("hard-links", hard_links), ("file-handles", file_handles), ("masks", masks)];

fn magic_links(out: &Out, _: &[String]) {
    let identity = |name: &str| fs::metadata(name).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let root = identity("/");
    out.examined("/proc/self/root is our root", identity("/proc/self/root") == root, "");
    out.examined("/proc/self/root/.. is our root", identity("/proc/self/root/../../..") == root, "");
    out.examined(
        "/proc/self/cwd/.. ends at our root",
        identity(&format!("/proc/self/cwd/{}", "../".repeat(64))) == root,
        "",
    );
    for name in ["root", "cwd", "exe", "fd", "fd/3", "ns/mnt", "map_files"] {
        let link = format!("/proc/1/{name}");
        out.tried_on_first(&format!("{link} as a path"), fs::metadata(&link));
    }
    out.tried_on_first("/proc/1/root/etc/shadow", fs::read("/proc/1/root/etc/shadow"));
    for fd in 0..3 {
        out.tried(
            &format!("/proc/self/fd/{fd}/../../etc/shadow"),
            fs::read(format!("/proc/self/fd/{fd}/../../etc/shadow")),
        );
    }
}

fn hard_links(out: &Out, _: &[String]) {
    for (member, from) in [
        ("/usr/bin/env", "/usr/bin/env"),
        ("/etc/passwd", "/etc/passwd"),
        ("the attacker", "/probe/saggar-attacker"),
        ("/dev/null", "/dev/null"),
        ("/proc/self/status", "/proc/self/status"),
    ] {
        for to in ["/workspace/linked", "/tmp/linked"] {
            let linked = fs::hard_link(from, to);
            if linked.is_ok() {
                // Only the new name is removed.
                unheeded(fs::remove_file(to));
            }
            out.tried(&format!("{member} to {to}"), linked);
        }
    }
    if let Ok(file) = open("/usr/bin/env", libc::O_PATH, 0) {
        let (empty, to) = (path(""), path("/workspace/linked"));
        let linked = call(
            libc::SYS_linkat,
            &[file.as_raw_fd() as usize, at(&empty), CWD, at(&to), libc::AT_EMPTY_PATH as usize],
        );
        out.tried("by descriptor", linked);
        let by_proc = path(&format!("/proc/self/fd/{}", file.as_raw_fd()));
        out.tried(
            "by /proc/self/fd",
            call(libc::SYS_linkat, &[CWD, at(&by_proc), CWD, at(&to), libc::AT_SYMLINK_FOLLOW as usize]),
        );
    }
}

fn file_handles(out: &Out, _: &[String]) {
    for name in ["/", "/workspace", "/usr"] {
        let mut handle = [0u32; 34];
        handle[0] = 128;
        let mut mount = 0i32;
        let text = path(name);
        out.tried(
            &format!("name_to_handle_at {name}"),
            call(
                libc::SYS_name_to_handle_at,
                &[CWD, at(&text), handle.as_mut_ptr() as usize, &raw mut mount as usize, 0],
            ),
        );
        // As the "shocker" exploit did: inode 2, the root of most filesystems.
        let guess: [u32; 34] = std::array::from_fn(|index| match index {
            0 => 8,
            1 => 1,
            2 => 2,
            _ => 0,
        });
        if let Ok(directory) = open(name, libc::O_RDONLY | libc::O_DIRECTORY, 0) {
            out.tried(
                &format!("open_by_handle_at {name}"),
                call(libc::SYS_open_by_handle_at, &[directory.as_raw_fd() as usize, guess.as_ptr() as usize, 0]),
            );
        }
    }
}

/// Each mask must be a mount of the right kind: not a link that was followed, not a file of the host.
fn masks(out: &Out, _: &[String]) {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    for name in [
        "acpi",
        "asound",
        "bus",
        "cmdline",
        "driver",
        "fs",
        "iomem",
        "ioports",
        "irq",
        "kallsyms",
        "kcore",
        "key-users",
        "keys",
        "kmsg",
        "latency_stats",
        "scsi",
        "sysrq-trigger",
        "timer_list",
    ] {
        let full = format!("/proc/{name}");
        match fs::symlink_metadata(&full) {
            Err(error) => {
                out.tried::<()>(name, Err(error));
            }
            Ok(metadata) if metadata.is_symlink() => out.examined(name, false, "a link"),
            Ok(_) => out.examined(
                name,
                mounts.lines().any(|line| line.split(' ').nth(4) == Some(&full)),
                "a mount of its own",
            ),
        }
    }
}
