//! Removes or repairs an unused volume.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, open, renameat_with};
use rustix::io::Errno;
use saggar_domain::{Code, Problem, VolumeName};

use super::create::sync_directory;
use super::hold::{Hold, in_use, not_root};
use super::project::{GONE, Volumes};
use crate::data::DataDirectory;
use crate::fail_point::pass;
use crate::loop_device::LoopDevice;

/// Where the program that repairs the filesystem may be.
const REPAIRERS: &[&str] = &["/usr/sbin/e2fsck", "/sbin/e2fsck", "/usr/bin/e2fsck"];
/// The exit statuses of e2fsck up to this one mean that the filesystem is in order now.
const REPAIRED: i32 = 1;

impl Volumes {
    /// Refused while a sandbox uses it. One whose record can't be read can be removed too.
    pub fn remove(&self, data: &DataDirectory, name: &VolumeName) -> Result<(), Problem> {
        let fail = |what: &'static str| {
            move |errno: Errno| {
                Problem::new(
                    Code::DataDirectory,
                    format!("volume {name} can't be removed: {what}: {errno}"),
                    "check the data directory's permissions and its disk",
                )
            }
        };
        let Some(record) = self.open_record(name)? else { return Err(self.missing(name)) };
        let _turn = self.lock()?;
        self.sweep();
        let _held = match self.open(name) {
            Ok(_) => self.locked(data, name, Hold::Alone)?.0,
            // It names no sandbox, so the lock alone decides.
            Err(_) => match flock(&record, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => record,
                Err(errno) => return Err(fail("it is in use")(errno)),
            },
        };
        pass("volume/locked");
        let gone = self.root.join(format!("{GONE}{name}"));
        renameat_with(CWD, self.root.join(name.as_str()), CWD, &gone, RenameFlags::NOREPLACE)
            .and_then(|()| sync_directory(&self.root))
            .map_err(fail("taking its name"))?;
        pass("volume/unnamed");
        // It is no volume any more. What is left is removed by the next one that makes or removes a volume.
        let _ = std::fs::remove_dir_all(&gone);
        pass("volume/removed");
        Ok(())
    }

    /// Lets e2fsck repair the filesystem of an unused volume.
    pub fn repair(&self, data: &DataDirectory, name: &VolumeName) -> Result<(), Problem> {
        if !rustix::process::geteuid().is_root() {
            return Err(not_root());
        }
        let fail = |why: String, help: &str| {
            Problem::new(Code::DataDirectory, format!("volume {name} can't be repaired: {why}"), help)
        };
        const DISK: &str = "check the data directory's disk, or restore the volume from a backup";
        let (_lock, record) = self.locked(data, name, Hold::Alone)?;
        let file = open(self.content_path(name), OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty())
            .map_err(|errno| fail(format!("opening its content: {errno}"), DISK))?;
        // The kernel unmounts it a moment after its last user, and somebody else may have mounted it.
        let shown = LoopDevice::showing(&file).map_err(|errno| fail(errno.to_string(), DISK))?;
        if shown.is_some() {
            return Err(in_use(data, &record));
        }
        let repairer = REPAIRERS
            .iter()
            .find(|path| Path::new(path).exists())
            .ok_or_else(|| fail("this host has no e2fsck".to_owned(), "install e2fsprogs"))?;
        let place = format!("/proc/{}/fd/{}", std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&file));
        let mut command = Command::new(repairer);
        command.arg0("e2fsck").env_clear().current_dir("/").args(["-f", "-y", &place]);
        let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
        match status {
            Ok(status) if status.code().is_some_and(|code| code <= REPAIRED) => Ok(()),
            Ok(status) => Err(fail(format!("e2fsck: {status}"), DISK)),
            Err(error) => Err(fail(format!("e2fsck: {}", error.kind()), DISK)),
        }
    }
}
