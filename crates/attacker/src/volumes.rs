//! Attempts on a volume at /volume: to take more than its size, to change one that is read-only, and to give its files power.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::Attempt;
use crate::memory::eat_file;
use crate::out::Out;
use crate::resources::number;
use crate::sys::{at, call, errno_name, open, path, unheeded};

pub const ATTEMPTS: &[Attempt] =
    &[("fill-volume", fill_volume), ("change-volume", change_volume), ("empower-volume", empower_volume)];

const VOLUME: &str = "/volume";
/// A device number that exists on every host: /dev/null.
const NULL_DEVICE: usize = 0x103;

fn fill_volume(out: &Out, arguments: &[String]) {
    let most = number(arguments, 0) << 20;
    let name = format!("{VOLUME}/filled");
    let end = eat_file(&name, most);
    let length = fs::metadata(&name).map_or(0, |metadata| metadata.len());
    out.examined("written", end.is_err(), end.err().and_then(|error| error.raw_os_error()).map_or("", errno_name));
    out.examined("it took less than the bound", (length as usize) < most, "");
    unheeded(fs::remove_file(&name));
    let end = open(&format!("{VOLUME}/allocated"), libc::O_RDWR | libc::O_CREAT, 0o600)
        .and_then(|file| call(libc::SYS_fallocate, &[file.as_raw_fd() as usize, 0, 0, most]));
    out.tried("fallocate", end);
    out.tried("/tmp is not full", fs::write("/tmp/beside", "x"));
}

fn change_volume(out: &Out, _: &[String]) {
    let inside = |name: &str| format!("{VOLUME}/{name}");
    out.tried("read", fs::read(inside("file")));
    out.tried("write", fs::write(inside("file"), "x"));
    out.tried("create", File::create(inside("new")));
    out.tried("mkdir", fs::create_dir(inside("directory")));
    out.tried("remove", fs::remove_file(inside("file")));
    out.tried("rename", fs::rename(inside("file"), inside("other")));
    out.tried("chmod", fs::set_permissions(inside("file"), fs::Permissions::from_mode(0o777)));
    out.tried("symlink", std::os::unix::fs::symlink("/etc/passwd", inside("link")));
    out.tried("link from /tmp", fs::hard_link(inside("file"), "/tmp/linked"));
    out.tried("the parent by ..", fs::metadata(inside("../volume/../etc/shadow-of-the-host")));
}

fn empower_volume(out: &Out, _: &[String]) {
    let copy = format!("{VOLUME}/shown");
    // SAFETY: takes no argument and can't fail.
    let before = unsafe { libc::geteuid() };
    let is_copied = fs::copy("/bin/sh", &copy).is_ok();
    // Setting the bit may be refused or not. Either way it must give no power to a process that runs the file.
    unheeded(fs::set_permissions(&copy, fs::Permissions::from_mode(0o6755)));
    let ran = Command::new(&copy)
        .args([
            "-c",
            "exec 3</proc/self/status && while read -r key a b c <&3; do case $key in Uid:) echo $b;; esac; done",
        ])
        .output();
    let seen = ran.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default();
    out.examined("a set-id program runs as who started it", is_copied && seen == before.to_string(), &seen);
    let device = path(&format!("{VOLUME}/device"));
    let made =
        call(libc::SYS_mknodat, &[libc::AT_FDCWD as usize, at(&device), (libc::S_IFCHR | 0o666) as usize, NULL_DEVICE]);
    out.tried("a device", made);
    out.tried("open the device", File::open(format!("{VOLUME}/device")));
}
