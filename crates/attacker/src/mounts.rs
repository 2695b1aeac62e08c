//! Attempts on the mount table, with the old and the new system calls.

use std::fs;
use std::io;

use crate::Attempt;
use crate::files::mknod;
use crate::out::Out;
use crate::sys::{CWD, at, call, own, path, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("mount-filesystems", mount_filesystems),
    ("remount", remount),
    ("unmount", unmount),
    ("change-root", change_root),
    ("new-mount-calls", new_mount_calls),
    ("mount-block-device", mount_block_device),
    ("stall-readers", stall_readers),
    ("nested-procfs", nested_procfs),
];

/// The source of all our mounts, so that one that escapes can be told from the host's own.
const SOURCE: &str = "saggar-probe-mount";

fn target() -> &'static str {
    // It may exist already.
    unheeded(fs::create_dir("/tmp/mnt"));
    "/tmp/mnt"
}

fn mount(source: &str, on: &str, kind: &str, flags: libc::c_ulong, data: &str) -> io::Result<usize> {
    let (source, on, kind, data) = (path(source), path(on), path(kind), path(data));
    call(libc::SYS_mount, &[at(&source), at(&on), at(&kind), flags as usize, at(&data)])
}

fn umount(on: &str, flags: i32) -> io::Result<usize> {
    let on = path(on);
    call(libc::SYS_umount2, &[at(&on), flags as usize])
}

fn mount_filesystems(out: &Out, _: &[String]) {
    for (kind, data) in [
        ("tmpfs", "size=4k"),
        ("proc", ""),
        ("sysfs", ""),
        ("devpts", ""),
        ("mqueue", ""),
        ("cgroup", "none,name=saggar-probe"),
        ("cgroup2", ""),
        ("overlay", "lowerdir=/usr,upperdir=/tmp,workdir=/tmp"),
        ("fuse", "fd=0,rootmode=40000,user_id=0,group_id=0"),
        ("nfs", "addr=192.0.2.1"),
        ("9p", "trans=fd,rfdno=0,wfdno=1"),
        ("ext4", ""),
        ("debugfs", ""),
        ("tracefs", ""),
        ("securityfs", ""),
        ("bpf", ""),
        ("binfmt_misc", ""),
        ("ramfs", ""),
        ("devtmpfs", ""),
    ] {
        if out.tried(kind, mount(SOURCE, target(), kind, 0, data)).is_some() {
            // Otherwise it ends with the namespace.
            unheeded(umount(target(), libc::MNT_DETACH));
        }
    }
    out.tried("bind", mount("/usr", target(), "", libc::MS_BIND, ""));
    out.tried("move", mount("/tmp", target(), "", libc::MS_MOVE, ""));
}

fn remount(out: &Out, _: &[String]) {
    for on in ["/", "/usr", "/proc", "/probe", "/workspace", "/etc/ld.so.cache"] {
        out.tried(&format!("remount {on} writable"), mount("", on, "", libc::MS_REMOUNT | libc::MS_BIND, ""));
    }
    for (member, flag) in [("shared", libc::MS_SHARED), ("slave", libc::MS_SLAVE), ("private", libc::MS_PRIVATE)] {
        out.tried(&format!("propagation {member}"), mount("", "/", "", libc::MS_REC | flag, ""));
    }
    // A peer group shows in the optional fields, and would propagate mounts to the host.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    out.examined("no mount is shared with the host", !mounts.contains(" shared:"), "");
    // A mounted device node contains no program.
    let is_device = |line: &str| {
        line.split(' ').nth(4).is_some_and(|on| {
            on.starts_with("/dev/")
                && fs::metadata(on)
                    .is_ok_and(|metadata| std::os::unix::fs::FileTypeExt::is_char_device(&metadata.file_type()))
        })
    };
    // The null device covers files of /proc.
    let is_masked = |line: &str| {
        line.split(' ').nth(4).is_some_and(|on| {
            on.starts_with("/proc/") && fs::metadata(on).is_ok_and(|metadata| !metadata.is_dir() && !metadata.is_file())
        }) || line.split(' ').nth(4) == Some("/.null")
    };
    let without_nosuid = mounts
        .lines()
        .filter(|line| !line.split(' ').nth(5).is_some_and(|options| options.contains("nosuid")) && !is_device(line))
        .count();
    out.examined("every mount of files is nosuid", without_nosuid == 0, &format!("{without_nosuid} without"));
    // Terminals are devices, and the kernel creates no other kind there.
    let without_nodev = mounts
        .lines()
        .filter(|line| !line.split(' ').nth(5).is_some_and(|options| options.contains("nodev")) && !is_device(line))
        .filter(|line| line.split(' ').nth(4) != Some("/dev/pts") && !is_masked(line))
        .count();
    out.examined("every mount of files is nodev", without_nodev == 0, &format!("{without_nodev} without"));
}

fn unmount(out: &Out, _: &[String]) {
    for on in [
        "/proc/kcore",
        "/proc/keys",
        "/proc/sysrq-trigger",
        "/proc/acpi",
        "/proc",
        "/dev/null",
        "/usr",
        "/workspace",
        "/",
    ] {
        // Needs the same privilege, and the first call only marks an unused mount.
        out.tried(on, umount(on, libc::MNT_EXPIRE));
    }
}

fn change_root(out: &Out, _: &[String]) {
    let here = path(target());
    out.tried("chroot", call(libc::SYS_chroot, &[at(&here)]));
    out.tried("pivot_root", call(libc::SYS_pivot_root, &[at(&here), at(&here)]));
    // The classic escape: a new root below the working directory, then upwards.
    let stood = (|| {
        call(libc::SYS_chroot, &[at(&here)])?;
        let up = path(&"../".repeat(64));
        call(libc::SYS_chdir, &[at(&up)])?;
        let dot = path(".");
        call(libc::SYS_chroot, &[at(&dot)])
    })();
    out.tried("double chroot", stood);
}

fn new_mount_calls(out: &Out, _: &[String]) {
    let (tmpfs, root, empty, here) = (path("tmpfs"), path("/"), path(""), path(target()));
    out.tried("fsopen", call(libc::SYS_fsopen, &[at(&tmpfs), 0]).map(own));
    out.tried("fsconfig", call(libc::SYS_fsconfig, &[0, 6, 0, 0, 0]));
    out.tried("fsmount", call(libc::SYS_fsmount, &[0, 0, 0]));
    out.tried("fspick", call(libc::SYS_fspick, &[CWD, at(&root), 0]).map(own));
    out.tried("open_tree", call(libc::SYS_open_tree, &[CWD, at(&root), 1]).map(own));
    out.tried("open_tree_attr", call(467, &[CWD, at(&root), 1, 0, 0]).map(own));
    out.tried("move_mount", call(libc::SYS_move_mount, &[CWD, at(&empty), CWD, at(&here), 0]));
    let attributes = [0u64; 4];
    out.tried("mount_setattr", call(libc::SYS_mount_setattr, &[CWD, at(&root), 0, attributes.as_ptr() as usize, 32]));
    let request = [32u64; 8];
    let mut answer = [0u64; 64];
    out.tried("statmount", call(457, &[request.as_ptr() as usize, answer.as_mut_ptr() as usize, 512, 0]));
    out.tried("listmount", call(458, &[request.as_ptr() as usize, answer.as_mut_ptr() as usize, 64, 0]));
}

fn mount_block_device(out: &Out, _: &[String]) {
    for (name, major, minor) in [("sda", 8, 0), ("vda", 254, 0), ("loop0", 7, 0), ("nvme0n1", 259, 0)] {
        let node = format!("/tmp/{name}");
        out.tried(&format!("mknod {name}"), mknod(&node, libc::S_IFBLK | 0o600, libc::makedev(major, minor)));
        out.tried(&format!("open /dev/{name}"), fs::File::open(format!("/dev/{name}")));
        // Read-only, in case it succeeds.
        out.tried(&format!("mount {name}"), mount(&node, target(), "ext4", libc::MS_RDONLY, ""));
    }
}

fn stall_readers(out: &Out, _: &[String]) {
    out.tried("/dev/fuse", fs::File::open("/dev/fuse"));
    out.tried("/dev/userfaultfd", fs::File::open("/dev/userfaultfd"));
    out.tried("userfaultfd", call(libc::SYS_userfaultfd, &[(libc::O_NONBLOCK | libc::O_CLOEXEC) as usize]).map(own));
    out.tried(
        "userfaultfd of user mode only",
        call(libc::SYS_userfaultfd, &[(libc::O_NONBLOCK | libc::O_CLOEXEC) as usize | 1]).map(own),
    );
    out.tried("mount fuse", mount(SOURCE, target(), "fuse", 0, "fd=0,rootmode=40000,user_id=0,group_id=0"));
    out.tried("mount debugfs", mount(SOURCE, target(), "debugfs", 0, ""));
}

fn nested_procfs(out: &Out, _: &[String]) {
    out.tried(
        "user namespace",
        call(libc::SYS_unshare, &[(libc::CLONE_NEWUSER | libc::CLONE_NEWNS | libc::CLONE_NEWPID) as usize]),
    );
    out.tried("procfs", mount(SOURCE, target(), "proc", 0, ""));
    out.tried("procfs without masks", fs::read(format!("{}/kcore", target())));
}
