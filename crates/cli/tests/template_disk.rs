//! Storage on disk: a limit that holds, nothing that is left, and refusals that say why.

mod harness;
#[path = "http/mod.rs"]
mod http;

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use harness::image::Image;
use harness::{Place, finish, is_root, not_here, show};
use http::eventually;

const NOBODY: u32 = 54_321;

fn place() -> Place {
    let place = Place::new();
    Image::in_data(&place.path("data")).system().named("demo");
    place
}

/// Loop devices over files of this place. Files without a name are listed by the directory that they are in.
fn loops(place: &Place) -> Vec<String> {
    let root = show(&place.path(""));
    let entries = std::fs::read_dir("/sys/block").expect("sysfs is mounted").flatten();
    let files = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("loop/backing_file")).ok());
    files.filter(|file| file.starts_with(root.trim_end_matches('/'))).collect()
}

#[test]
fn files_on_disk_are_no_memory_and_end_at_the_limit() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let place = place();
    let flags = ["--template", "demo", "--storage", "disk", "--disk", "64M", "--memory", "32M"];
    let script = "dd if=/dev/zero of=/var/lib/a bs=1048576 count=48 2>/dev/null && echo more than memory; \
                  dd if=/dev/zero of=/bin/b bs=1048576 count=48 2>/dev/null || echo full; \
                  rm /var/lib/a && echo x > /etc/x && cat /etc/x && stat -c %u:%g /etc/x && chmod 4755 /bin/cat && stat -c %a /bin/cat";
    let done = place.sh(&flags, script);
    assert_eq!((done.code, done.stdout.as_str()), (0, "more than memory\nfull\nx\n0:0\n4755\n"), "{done:?}");
    // The same in memory ends by its limit.
    let memory = ["--template", "demo", "--disk", "64M", "--memory", "32M"];
    let done =
        place.sh(&memory, "dd if=/dev/zero of=/var/lib/a bs=1048576 count=48 2>/dev/null && echo more than memory");
    assert_ne!(done.code, 0, "{done:?}");
    eventually("no loop device is left", || loops(&place).is_empty());
}

/// A disk of 128 MiB with a data directory and a template, unmounted on drop.
struct SmallDisk {
    place: Place,
    path: std::path::PathBuf,
}

impl SmallDisk {
    fn mount() -> Self {
        let place = Place::new();
        let path = place.path("small");
        std::fs::create_dir(&path).expect("ours");
        let options = ["-t", "tmpfs", "-o", "size=128m,mode=0700", "none"];
        let mounted = std::process::Command::new("mount").args(options).arg(&path).status();
        assert!(mounted.is_ok_and(|status| status.success()));
        Image::in_data(&path.join("data")).system().named("demo");
        Self { place, path }
    }

    /// A sandbox with 32 MiB on this disk. It has said that it is up, and does the rest when it is told to.
    fn start(&self, script: &str) -> std::process::Child {
        let script = format!("echo up; read line; {script}");
        let arguments =
            ["run", "--stdin", "-", "--template", "demo", "--storage", "disk", "--disk", "32M", "--", "/bin/sh", "-c"];
        let mut command = self.place.command(arguments.iter().copied().chain([script.as_str()]));
        command.env("SAGGAR_DATA_DIR", self.path.join("data")).stdin(Stdio::piped());
        let mut child = command.spawn().expect("it was built");
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut [0; 3]).expect("it says so");
        child
    }

    /// Takes all that is free.
    fn fill(&self) {
        let mut filler = std::fs::File::create(self.path.join("filler")).expect("ours");
        let chunk = vec![1; 64 << 10];
        let full = std::iter::repeat_with(|| std::io::Write::write_all(&mut filler, &chunk)).find_map(Result::err);
        assert_eq!(full.map(|error| error.kind()), Some(std::io::ErrorKind::StorageFull));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmount = || std::process::Command::new("umount").arg(&self.path).stderr(Stdio::null()).status();
        if std::thread::panicking() {
            // The failure that led here is what matters.
            let _ = unmount();
            return;
        }
        eventually("nothing uses the disk", || unmount().is_ok_and(|status| status.success()));
    }
}

fn told(mut child: std::process::Child) -> harness::Done {
    harness::feed(&mut child, b"go\n");
    finish(child)
}

#[test]
fn a_full_sandbox_and_a_full_disk_harm_no_other_sandbox() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let disk = SmallDisk::mount();
    let write = |count: u32| format!("dd if=/dev/zero of=/var/lib/a bs=1048576 count={count} 2>&1");
    let greedy = disk.start(&format!("{}; rm /var/lib/a; echo again > /var/lib/a && cat /var/lib/a", write(64)));
    let modest =
        disk.start(&format!("{} && cat /var/lib/a | wc -c; echo rest > /etc/rest && cat /etc/rest", write(20)));
    let done = told(greedy);
    assert!(done.code == 0 && done.stdout.contains("No space left on device"), "{done:?}");
    assert!(done.stdout.ends_with("again\n"), "{done:?}");
    // Even without a free block on the host's disk, a sandbox has what it was given.
    disk.fill();
    let done = told(modest);
    assert!(done.code == 0 && done.stdout.contains("20971520") && done.stdout.ends_with("rest\n"), "{done:?}");
    let mut refused =
        disk.place.command(["run", "--template", "demo", "--storage", "disk", "--disk", "32M", "--", "/bin/sh"]);
    let refused = finish(refused.env("SAGGAR_DATA_DIR", disk.path.join("data")).spawn().expect("it was built"));
    assert!(refused.code == 126 && refused.stderr.contains("no room for storage on disk"), "{refused:?}");
}

#[test]
fn nothing_is_left_of_a_killed_one() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let place = place();
    let arguments = [
        "run",
        "--template",
        "demo",
        "--storage",
        "disk",
        "--disk",
        "32M",
        "--",
        "/bin/sh",
        "-c",
        "echo up; sleep 600",
    ];
    let mut child = place.command(arguments).spawn().expect("it was built");
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut [0; 3]).expect("it says so");
    assert_eq!(loops(&place).len(), 1, "{:?}", loops(&place));
    child.kill().expect("ours");
    child.wait().expect("ours");
    eventually("no loop device is left", || loops(&place).is_empty());
    let names: Vec<_> =
        std::fs::read_dir(place.path("data")).expect("ours").flatten().map(|entry| entry.file_name()).collect();
    assert!(names.iter().all(|name| name == "templates" || name == "sandboxes" || name == "said"), "{names:?}");
    assert_eq!(place.sh(&["--template", "demo"], "true").code, 0, "the next start");
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn what_can_not_be_given_is_refused_with_the_reason() {
    let place = place();
    let refused = |flags: &[&str], why: &str| {
        let done = place.sh(flags, "true");
        assert!(done.code == 126 && done.stderr.contains(why), "{flags:?}: {done:?}");
        assert_eq!(place.records(), Vec::<String>::new());
    };
    refused(&["--storage", "disk"], "storage on disk is not built for the template \"base\"");
    if !is_root() {
        return refused(&["--template", "demo", "--storage", "disk"], "storage on disk needs root");
    }
    refused(&["--template", "demo", "--storage", "disk", "--disk", "8M"], "at least");
    refused(&["--template", "demo", "--storage", "disk", "--disk", "10T"], "no room for storage on disk");
    assert_eq!(loops(&place), Vec::<String>::new());
}

#[test]
fn an_ordinary_user_is_told_that_it_needs_root() {
    if !is_root() {
        return not_here("the other test is about an ordinary user");
    }
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let binary = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &binary);
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).expect("ours");
    std::fs::create_dir(place.path("data")).expect("ours");
    std::fs::set_permissions(place.path("data"), PermissionsExt::from_mode(0o700)).expect("ours");
    Image::in_data(&place.path("data")).imported_by(NOBODY).system().named("demo");
    let mut command = std::process::Command::new(Path::new(&binary));
    command.args(["run", "--template", "demo", "--storage", "disk", "--", "/bin/sh", "-c", "true"]);
    command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/").uid(NOBODY).gid(NOBODY);
    let done =
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("copied"));
    assert!(done.code == 126 && done.stderr.contains("storage on disk needs root"), "{done:?}");
}
