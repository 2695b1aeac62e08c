//! Volumes on a small disk: what they take of it, and what stays free.

mod harness;
#[path = "http/mod.rs"]
mod http;

use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::Command;

use harness::{Done, Place, finish, is_root, not_here};
use http::eventually;

const MIB: u64 = 1 << 20;

/// A disk of 96 MiB with the data directory, unmounted on drop. A twentieth of it stays free.
struct SmallDisk {
    place: Place,
    path: PathBuf,
}

impl SmallDisk {
    fn mount() -> Self {
        let place = Place::new();
        let path = place.path("small");
        std::fs::create_dir(&path).expect("ours");
        let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=96m,mode=0700", "none"]).arg(&path).status();
        assert!(mount.is_ok_and(|status| status.success()));
        Self { place, path }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.place.command(arguments);
        command.env("SAGGAR_DATA_DIR", self.path.join("data"));
        command
    }

    fn saggar(&self, arguments: &[&str]) -> Done {
        finish(self.command(arguments).spawn().expect("it was built"))
    }

    fn used(&self, name: &str) -> Done {
        let done = self.saggar(&["run", "--volume", &format!("{name}:/data"), "--", "/bin/cat", "/data/file"]);
        self.wait_until_unmounted();
        done
    }

    fn content(&self, name: &str) -> PathBuf {
        self.path.join(format!("data/volumes/local/{name}/content"))
    }

    fn allocated(&self, name: &str) -> u64 {
        self.content(name).metadata().expect("it is there").blocks() * 512
    }

    /// Takes blocks from the file of an unused volume. Nothing was written there, so its content stays the same.
    fn punch(&self, name: &str, from: u64, length: u64) {
        let mut content = vec![1; usize::try_from(length).expect("small")];
        let file = std::fs::File::open(self.content(name)).expect("ours");
        file.read_exact_at(&mut content, from).expect("ours");
        assert!(content.iter().all(|byte| *byte == 0), "something is there");
        let range = [from.to_string(), length.to_string()];
        let mut command = Command::new("fallocate");
        command.args(["--punch-hole", "--offset", &range[0], "--length", &range[1]]).arg(self.content(name));
        assert!(command.status().is_ok_and(|status| status.success()));
    }

    fn wait_until_unmounted(&self) {
        eventually("no loop device is left", || {
            let devices = std::fs::read_dir("/sys/block").expect("sysfs is mounted").flatten();
            let mut shown =
                devices.filter_map(|device| std::fs::read_to_string(device.path().join("loop/backing_file")).ok());
            let path = harness::show(&self.path);
            !shown.any(|file| file.starts_with(&path))
        });
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmount = Command::new("umount").arg(&self.path).status();
        assert!(std::thread::panicking() || unmount.is_ok_and(|status| status.success()), "it is still in use");
    }
}

#[test]
fn a_volume_that_lost_blocks_gets_them_back_and_needs_room_for_no_others() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let disk = SmallDisk::mount();
    let made = disk.saggar(&["volume", "create", "data", "--size", "64M"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert!(disk.allocated("data") >= 64 * MIB, "{}", disk.allocated("data"));
    let write = disk.saggar(&["run", "--volume", "data:/data", "--", "/bin/sh", "-c", "echo kept > /data/file"]);
    assert_eq!(write.code, 0, "{write:?}");
    disk.wait_until_unmounted();
    disk.punch("data", 48 * MIB, 8 * MIB);
    assert!(disk.allocated("data") <= 56 * MIB, "{}", disk.allocated("data"));
    // 40 MiB are free, and the volume has 64.
    let done = disk.used("data");
    assert_eq!((done.code, done.stdout.as_str()), (0, "kept\n"), "{done:?}");
    assert!(disk.allocated("data") >= 64 * MIB, "{}", disk.allocated("data"));
    // Without room for what it lacks it isn't used, and nothing is taken.
    disk.punch("data", 48 * MIB, 8 * MIB);
    assert!(disk.allocated("data") <= 56 * MIB, "{}", disk.allocated("data"));
    let filler = disk.path.join("filler");
    let taken = Command::new("fallocate").args(["--length", "30M"]).arg(&filler).status();
    assert!(taken.is_ok_and(|status| status.success()));
    let refused = disk.used("data");
    assert!(refused.code == 126 && refused.stderr.contains("no room for volume data"), "{refused:?}");
    assert!(disk.allocated("data") <= 56 * MIB, "{}", disk.allocated("data"));
    std::fs::remove_file(&filler).expect("ours");
    assert_eq!(disk.used("data").stdout, "kept\n");
}

#[test]
fn volumes_that_are_made_at_the_same_moment_leave_the_reserve() {
    if !is_root() {
        return not_here("volumes need root");
    }
    let disk = SmallDisk::mount();
    let pipe = disk.place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    // As two projects: 2 x 46 MiB of 96 fit, but not beside a twentieth that stays free.
    let make = |data: &str| {
        let mut command = disk.command(&["volume", "create", "data", "--size", "46M"]);
        command.env("SAGGAR_DATA_DIR", disk.path.join(data));
        command
    };
    let held = make("one").env("FAIL_AT", "wait disk/room").env("FAIL_UNTIL", &pipe).spawn().expect("it was built");
    // It has seen that there is room, and waits before it takes it.
    assert_eq!(std::fs::read_to_string(&pipe).expect("ours"), "reached");
    let mut other = make("two").spawn().expect("it was built");
    eventually("the other one waits for its turn, or is done", || {
        let locks = std::fs::read_to_string("/proc/locks").expect("proc is mounted");
        let waits = locks.lines().any(|line| line.contains("->") && line.contains(&format!(" {} ", other.id())));
        waits || other.try_wait().expect("ours").is_some()
    });
    std::fs::write(&pipe, "on").expect("ours");
    // It comes here once more, for blocks that mkfs may have freed.
    std::fs::remove_file(&pipe).expect("ours");
    let (one, two) = (finish(held), finish(other));
    assert_eq!(one.code, 0, "{one:?}");
    assert!(two.code != 0 && two.stderr.contains("no room for volume data"), "{two:?}");
}
