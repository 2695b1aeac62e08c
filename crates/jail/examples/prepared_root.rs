//! Would one prepared tree of read-only mounts make a start faster? Times both ways to get the mounts of the template that could be
//! prepared: one by one, as a start makes them, and as one clone of a tree that exists already. As root:
//!
//! ```sh
//! cargo run --release --package saggar-jail --example prepared_root
//! ```
//!
//! The other mounts of a root can't be prepared: they lie on the sandbox's own procfs, devpts and private storage.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use saggar_jail::{MountAttributes, clone_tree, set_mount_attributes};

/// The read-only mounts of the template `host`; those that this host doesn't have are left out.
const SOURCES: [&str; 11] = [
    "/usr",
    "/etc/alternatives",
    "/etc/fonts",
    "/etc/ssl/certs",
    "/etc/java-17-openjdk",
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
];
const PREPARED: &str = "/mnt";
/// Of each way, in turns.
const STARTS: usize = 300;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match arguments.first().map(String::as_str) {
        None => in_new_mounts("compare").map(|said| print!("{said}")),
        Some("compare") => compare(),
        Some("each") => start(each),
        Some("tree") => start(tree),
        Some(other) => Err(format!("there is no way {other:?}").into()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

type Done<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Runs this program again in a new mount namespace, and returns its output.
fn in_new_mounts(way: &str) -> Done<String> {
    let program = std::env::current_exe()?;
    let output =
        Command::new("unshare").args(["--mount", "--propagation", "private"]).arg(program).arg(way).output()?;
    if !output.status.success() {
        return Err(format!("{way} failed: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

fn compare() -> Done {
    empty_tmpfs(PREPARED)?;
    for (number, source) in sources() {
        place(PREPARED, number, source)?;
        mount_one(source, &format!("{PREPARED}/{number}"))?;
    }
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..STARTS {
        for (times, way) in times.iter_mut().zip(["each", "tree"]) {
            times.push(in_new_mounts(way)?.trim().parse::<f64>()?);
        }
    }
    for (times, name) in times.iter_mut().zip(["one by one", "one prepared tree"]) {
        times.sort_by(f64::total_cmp);
        let at = |part: usize| times[times.len() * part / 100];
        println!("{name}: median {:.0} µs ({:.0}..{:.0}, p10..p90)", at(50), at(10), at(90));
    }
    Ok(())
}

/// Makes a root, and prints how long its mounts take, in microseconds.
fn start(mounts: fn() -> Done) -> Done {
    empty_tmpfs("/proc")?;
    for (number, source) in sources() {
        place("/proc", number, source)?;
    }
    std::fs::create_dir("/proc/tree")?;
    let began = Instant::now();
    mounts()?;
    println!("{}", began.elapsed().as_secs_f64() * 1e6);
    Ok(())
}

fn each() -> Done {
    sources().try_for_each(|(number, source)| mount_one(source, &format!("/proc/{number}")))
}

fn tree() -> Done {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_RECURSIVE;
    let tree = open_tree(CWD, PREPARED, flags)?;
    Ok(move_mount(&tree, "", CWD, "/proc/tree", MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

fn sources() -> impl Iterator<Item = (usize, &'static str)> {
    SOURCES.into_iter().enumerate().filter(|(_, source)| Path::new(source).exists())
}

fn empty_tmpfs(place: &str) -> Done {
    Ok(rustix::mount::mount("tmpfs", place, "tmpfs", rustix::mount::MountFlags::empty(), c"mode=755")?)
}

fn place(root: &str, number: usize, source: &str) -> Done {
    let path = format!("{root}/{number}");
    if Path::new(source).is_dir() {
        std::fs::create_dir(path)?
    } else {
        std::fs::write(path, "")?
    }
    Ok(())
}

fn mount_one(source: &str, target: &str) -> Done {
    let mount = clone_tree(&CWD, source)?;
    if Path::new(source).is_dir() {
        set_mount_attributes(&mount, MountAttributes { is_read_only: true, ..MountAttributes::default() })?;
    }
    Ok(move_mount(&mount, "", CWD, target, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}
