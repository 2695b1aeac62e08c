//! Attempts on files: where they can be created, under which names, and with which attributes.

use std::ffi::{CString, OsStr};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::Attempt;
use crate::out::{AttemptOutcome, Out};
use crate::sys::{CWD, at, call, open, own, path, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("write-workspace", write_workspace),
    ("write-system", write_system),
    ("deep-paths", deep_paths),
    ("odd-names", odd_names),
    ("name-collisions", name_collisions),
    ("change-read-only", change_read_only),
    ("sparse-file", sparse_file),
    ("set-xattrs", set_xattrs),
    ("set-label", set_label),
    ("make-special-files", make_special_files),
    ("write-here", write_here),
    ("change-layers", change_layers),
    ("make-setid-files", make_setid_files),
];

/// Ordinary work, which must succeed.
fn write_workspace(out: &Out, _: &[String]) {
    out.tried("create", fs::write("/workspace/a", "written inside\n"));
    out.tried("mode", fs::set_permissions("/workspace/a", fs::Permissions::from_mode(0o640)));
    let times = [libc::timespec { tv_sec: 1_000_000_000, tv_nsec: 0 }; 2];
    let name = path("/workspace/a");
    out.tried("times", call(libc::SYS_utimensat, &[CWD, at(&name), times.as_ptr() as usize, 0]));
    out.tried("directory", fs::create_dir("/workspace/made"));
    out.tried("rename", fs::write("/workspace/b", "b").and_then(|()| fs::rename("/workspace/b", "/workspace/made/c")));
    out.tried("link", fs::hard_link("/workspace/made/c", "/workspace/d"));
    out.tried("symbolic link", std::os::unix::fs::symlink("a", "/workspace/e"));
    out.tried("remove", fs::remove_file("/workspace/d"));
}

/// With the argument `keep`, files that could be written stay, so that a check can look for them elsewhere.
fn write_system(out: &Out, arguments: &[String]) {
    let keeps = arguments.iter().any(|argument| argument == "keep");
    for directory in [
        "/",
        "/etc",
        "/etc/alternatives",
        "/etc/ssl/certs",
        "/usr",
        "/usr/bin",
        "/usr/lib",
        "/bin",
        "/lib",
        "/opt",
        "/srv",
        "/var",
        "/run",
        "/sys",
        "/sys/fs/cgroup",
        "/proc",
        "/dev",
        "/home",
        "/mnt",
        "/root",
    ] {
        let file = format!("{}/saggar-probe", directory.trim_end_matches('/'));
        if out.tried(directory, fs::write(&file, "saggar-probe\n")).is_some() && !keeps {
            // Remove the file if it could be created.
            unheeded(fs::remove_file(&file));
        }
    }
    for file in ["/etc/passwd", "/etc/hosts", "/etc/ld.so.cache", "/usr/bin/env", "/probe/setuid-attacker"] {
        let opened = out.tried(&format!("open {file}"), open(file, libc::O_WRONLY | libc::O_APPEND, 0));
        if let Some(opened) = opened.filter(|_| keeps) {
            unheeded(std::io::Write::write_all(&mut fs::File::from(opened), b"saggar-probe\n"));
        }
    }
}

/// Directory levels created at once.
const PIECE: usize = 500;

/// A tree too deep for recursion. It is built in pieces that are moved below one another, because creating a directory
/// takes longer the deeper it is on kernels that check all its parents.
fn deep_paths(out: &Out, arguments: &[String]) {
    let depth: usize = arguments.first().and_then(|text| text.parse().ok()).unwrap_or(1000);
    out.tried("path of 5000 bytes", open(&format!("/workspace/{}", "a/".repeat(2500)), libc::O_RDONLY, 0));
    out.tried("name of 256 bytes", fs::write(format!("/workspace/{}", "n".repeat(256)), "x"));
    for (member, top) in [("deep in the workspace", "/workspace"), ("deep in private storage", "/tmp")] {
        out.tried(member, deepen(top, depth));
    }
}

fn deepen(top: &str, depth: usize) -> io::Result<()> {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    let (top, name) = (open(top, flags, 0)?, path("d"));
    let mut bottom: Option<OwnedFd> = None;
    for piece in 0..depth / PIECE {
        let first = path(&format!("piece{piece}"));
        let mut here = below(&top, &first)?;
        for _ in 1..PIECE {
            here = below(&here, &name)?;
        }
        if let Some(bottom) = &bottom {
            let (from, to) = (top.as_raw_fd() as usize, bottom.as_raw_fd() as usize);
            call(libc::SYS_renameat, &[from, at(&first), to, at(&name)])?;
        }
        bottom = Some(here);
    }
    Ok(())
}

/// Creates a directory and opens it.
fn below(directory: &OwnedFd, name: &CString) -> io::Result<OwnedFd> {
    let directory = directory.as_raw_fd() as usize;
    call(libc::SYS_mkdirat, &[directory, at(name), 0o755])?;
    call(libc::SYS_openat, &[directory, at(name), (libc::O_PATH | libc::O_DIRECTORY) as usize, 0]).map(own)
}

/// Legal but awkward names: each must be preserved.
fn odd_names(out: &Out, _: &[String]) {
    let names: &[(&str, &[u8])] = &[
        ("newline", b"new\nline"),
        ("escape", b"\x1b]0;owned\x07"),
        ("bidirectional", "\u{202e}txt.exe".as_bytes()),
        ("not UTF-8", b"\xff\xfe\xfa"),
        ("leading dash", b"-rf"),
        ("only spaces", b"   "),
    ];
    for (member, bytes) in names {
        let name = OsStr::from_bytes(bytes);
        let made = fs::write(Path::new("/workspace").join(name), "odd");
        let found = fs::read_dir("/workspace")
            .is_ok_and(|mut entries| entries.any(|entry| entry.is_ok_and(|entry| entry.file_name() == name)));
        out.tried(member, made);
        out.examined(&format!("{member} listed"), found, "");
    }
}

fn name_collisions(out: &Out, _: &[String]) {
    for (index, name) in ["Name", "name", "NAME", "\u{e9}", "e\u{301}", "\u{212b}", "\u{c5}"].iter().enumerate() {
        out.tried(
            &format!("name {index}"),
            fs::OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(format!("/workspace/{name}"))
                .and_then(|mut file| io::Write::write_all(&mut file, index.to_string().as_bytes())),
        );
    }
}

/// Every known way to change a file or directory.
fn change_read_only(out: &Out, _: &[String]) {
    let file = "/workspace/file.txt";
    let name = path(file);
    out.tried("create", fs::write("/workspace/new", "x"));
    out.tried("append", fs::OpenOptions::new().append(true).open(file));
    out.tried("open for writing", open(file, libc::O_RDWR, 0));
    out.tried("open and truncate", open(file, libc::O_RDONLY | libc::O_TRUNC, 0));
    out.tried("truncate", call(libc::SYS_truncate, &[at(&name), 0]));
    out.tried("unlink", fs::remove_file(file));
    out.tried("rename", fs::rename(file, "/workspace/renamed"));
    out.tried("chmod", fs::set_permissions(file, fs::Permissions::from_mode(0o777)));
    out.tried("chown", std::os::unix::fs::lchown(file, Some(1000), Some(1000)));
    out.tried("utimes", call(libc::SYS_utimensat, &[CWD, at(&name), 0, 0]));
    out.tried("setxattr", set_xattr(file, "user.probe", b"x"));
    out.tried("mkdir", fs::create_dir("/workspace/newdir"));
    out.tried("rmdir", fs::remove_dir("/workspace/empty"));
    out.tried("symlink", std::os::unix::fs::symlink("x", "/workspace/newlink"));
    out.tried("link", fs::hard_link(file, "/workspace/hardlink"));
    out.tried("mkfifo", mknod("/workspace/fifo", libc::S_IFIFO | 0o644, 0));
    out.tried("O_TMPFILE", open("/workspace", libc::O_TMPFILE | libc::O_RDWR, 0o600));
    let Ok(readable) = open(file, libc::O_RDONLY, 0) else {
        return out.say("reading", AttemptOutcome::Refused, "the file can't even be read");
    };
    let fd = readable.as_raw_fd() as usize;
    let mapping = call(
        libc::SYS_mmap,
        &[0, 4096, (libc::PROT_READ | libc::PROT_WRITE) as usize, libc::MAP_SHARED as usize, fd, 0],
    );
    out.tried("shared writable mapping", mapping);
    out.tried("fallocate", call(libc::SYS_fallocate, &[fd, 0, 0, 4096]));
    let other = open("/workspace/dir/inner.txt", libc::O_RDONLY, 0);
    let other = other.as_ref().map_or(0, |other| other.as_raw_fd() as usize);
    out.tried("copy_file_range", call(libc::SYS_copy_file_range, &[other, 0, fd, 0, 4, 0]));
    out.tried("fchmod", call(libc::SYS_fchmod, &[fd, 0o777]));
    let flags: libc::c_long = 0;
    out.tried("FS_IOC_SETFLAGS", call(libc::SYS_ioctl, &[fd, 0x4008_6602, &raw const flags as usize]));
    out.tried("reopen through /proc", open(&format!("/proc/self/fd/{fd}"), libc::O_RDWR, 0));
}

fn sparse_file(out: &Out, _: &[String]) {
    for (member, file) in [("in the workspace", "/workspace/sparse"), ("in private storage", "/tmp/sparse")] {
        out.tried(member, fs::File::create(file).and_then(|file| file.set_len(1 << 40)));
    }
}

fn set_xattr(file: &str, name: &str, value: &[u8]) -> io::Result<usize> {
    let (file, name) = (path(file), path(name));
    call(libc::SYS_lsetxattr, &[at(&file), at(&name), value.as_ptr() as usize, value.len(), 0])
}

fn set_xattrs(out: &Out, _: &[String]) {
    // A capability in version 2, and one in version 3, which names the root of a user namespace.
    let version_2: &[u8] = &[0, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let version_3: &[u8] = &[1, 0, 0, 3, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    for (place, file) in [("workspace", "/workspace/x"), ("private", "/tmp/x")] {
        // If the file can't be created, every member reports that.
        unheeded(fs::write(file, "x"));
        out.tried(&format!("{place} security.capability v2"), set_xattr(file, "security.capability", version_2));
        out.tried(&format!("{place} security.capability v3"), set_xattr(file, "security.capability", version_3));
        out.tried(&format!("{place} trusted"), set_xattr(file, "trusted.probe", b"x"));
        out.tried(&format!("{place} trusted.overlay.opaque"), set_xattr(file, "trusted.overlay.opaque", b"y"));
        out.tried(&format!("{place} user of 70000 bytes"), set_xattr(file, "user.huge", &vec![b'x'; 70_000]));
    }
}

/// Labels that the kernel may leave to a file's owner, and files of others, which it must not.
fn set_label(out: &Out, _: &[String]) {
    // If the file can't be created, the member reports that.
    unheeded(fs::write("/workspace/x", "x"));
    out.tried("an attribute that no module knows", set_xattr("/workspace/x", "security.probe", b"x"));
    out.tried("a file of its own", set_xattr("/workspace/x", "security.selinux", b"unconfined\0"));
    for file in
        ["/workspace/.git/config", "/workspace/.git/hooks", "/usr/bin/env", "/etc/passwd", "/probe/saggar-attacker"]
    {
        out.tried(file, set_xattr(file, "security.selinux", b"unconfined\0"));
    }
}

pub fn mknod(file: &str, mode: u32, device: u64) -> io::Result<usize> {
    let file = path(file);
    call(libc::SYS_mknodat, &[CWD, at(&file), mode as usize, device as usize])
}

fn make_special_files(out: &Out, _: &[String]) {
    out.tried("fifo", mknod("/workspace/fifo", libc::S_IFIFO | 0o666, 0));
    out.tried("socket", std::os::unix::net::UnixListener::bind("/workspace/socket"));
    out.tried("character device", mknod("/workspace/null", libc::S_IFCHR | 0o666, libc::makedev(1, 3)));
    out.tried("block device", mknod("/workspace/disk", libc::S_IFBLK | 0o666, libc::makedev(8, 0)));
}

/// Writes in the directory it was started in.
fn write_here(out: &Out, _: &[String]) {
    if out.tried("write in the working directory", fs::write("saggar-probe", "x")).is_some() {
        // Remove the file if it could be created.
        unheeded(fs::remove_file("saggar-probe"));
    }
    out.tried("write above it", fs::write("../saggar-probe", "x"));
}

/// Tampers with the metadata of an overlay.
fn change_layers(out: &Out, _: &[String]) {
    let file = "/workspace/file.txt";
    out.tried("remove", fs::remove_file(file));
    out.examined("stays removed", fs::metadata(file).is_err(), "");
    out.tried("whiteout by mknod", mknod("/workspace/whiteout", libc::S_IFCHR, 0));
    let (old, new) = (path("/workspace/dir/inner.txt"), path("/workspace/moved"));
    out.tried(
        "whiteout by rename",
        call(libc::SYS_renameat2, &[CWD, at(&old), CWD, at(&new), libc::RENAME_WHITEOUT as usize]),
    );
    for name in
        ["trusted.overlay.opaque", "trusted.overlay.redirect", "trusted.overlay.metacopy", "trusted.overlay.origin"]
    {
        out.tried(name, set_xattr("/workspace/dir", name, b"/etc"));
    }
    for layer in ["/.scratch", "/.scratch/upper", "/.scratch/work", "/.scratch/lower"] {
        match fs::read_dir(layer).map(|mut entries| entries.next().is_none()) {
            Ok(true) => out.say(&format!("look into {layer}"), AttemptOutcome::Absent, "empty"),
            other => {
                out.tried(&format!("look into {layer}"), other);
            }
        }
    }
}

/// Every call that takes a mode, with a set-id bit in it.
fn make_setid_files(out: &Out, _: &[String]) {
    let file = "/workspace/program";
    out.tried("create", fs::write(file, "#!/bin/sh\n"));
    let name = path(file);
    for (member, mode) in [("4755", 0o4755usize), ("2755", 0o2755), ("6755", 0o6755)] {
        out.tried(&format!("chmod {member}"), call(libc::SYS_chmod, &[at(&name), mode]));
        out.tried(&format!("fchmodat {member}"), call(libc::SYS_fchmodat, &[CWD, at(&name), mode]));
        out.tried(&format!("fchmodat2 {member}"), call(452, &[CWD, at(&name), mode, 0]));
        if let Ok(open) = open(file, libc::O_RDONLY, 0) {
            out.tried(&format!("fchmod {member}"), call(libc::SYS_fchmod, &[open.as_raw_fd() as usize, mode]));
        }
        out.tried(
            &format!("openat {member}"),
            open(&format!("/workspace/open{member}"), libc::O_CREAT | libc::O_WRONLY, mode as u32),
        );
        out.tried(&format!("O_TMPFILE {member}"), open("/workspace", libc::O_TMPFILE | libc::O_WRONLY, mode as u32));
        let new = path(&format!("/workspace/old{member}"));
        out.tried(
            &format!("open {member}"),
            call(libc::SYS_open, &[at(&new), (libc::O_CREAT | libc::O_WRONLY) as usize, mode]).map(own),
        );
        let new = path(&format!("/workspace/creat{member}"));
        out.tried(&format!("creat {member}"), call(libc::SYS_creat, &[at(&new), mode]).map(own));
        out.tried(
            &format!("mknodat {member}"),
            mknod(&format!("/workspace/node{member}"), libc::S_IFREG | mode as u32, 0),
        );
        let new = path(&format!("/workspace/oldnode{member}"));
        out.tried(&format!("mknod {member}"), call(libc::SYS_mknod, &[at(&new), libc::S_IFREG as usize | mode, 0]));
        let how = [(libc::O_CREAT | libc::O_WRONLY) as u64, mode as u64, 0];
        let new = path(&format!("/workspace/how{member}"));
        out.tried(
            &format!("openat2 {member}"),
            call(libc::SYS_openat2, &[CWD, at(&new), how.as_ptr() as usize, 24]).map(own),
        );
        // The kernel ignores set-id bits passed to mkdir, so the resulting mode counts.
        let directory = format!("/workspace/directory{member}");
        unheeded(fs::DirBuilder::new().create(&directory));
        unheeded(fs::set_permissions(&directory, fs::Permissions::from_mode(mode as u32)));
        let has_bits = fs::metadata(&directory).is_ok_and(|metadata| metadata.mode() & 0o6000 != 0);
        out.examined(&format!("directory {member}"), !has_bits, "");
    }
    let made = fs::OpenOptions::new().write(true).create(true).truncate(false).mode(0o4755).open("/workspace/std4755");
    out.tried("the standard library", made);
}
