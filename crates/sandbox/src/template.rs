//! What the root of a sandbox is made of, without what a spec adds. The built-in template `host`: the host's programs and libraries,
//! the few files of /etc that programs need, and nothing else. Or an image: its layers, and what it can't bring.

use std::collections::BTreeSet;
use std::path::Path;

use saggar_domain::NetworkMode;
use saggar_jail::{Attributes, Cover, Fate, Op, Rule, Source};

/// Top-level directories that hold programs and libraries; links on a host with a merged /usr.
const SYSTEM: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Files of /etc that are copied: public, the same for every user, and read by the C library itself.
const ETC_FILES: &[&str] = &["ld.so.cache", "protocols", "services", "ssl/openssl.cnf"];
/// Directories of /etc that are too large to copy.
const ETC_DIRECTORIES: &[&str] = &["alternatives", "fonts", "ssl/certs"];
/// Maximum size of a copied file.
const ETC_FILE_MAX: u64 = 1 << 20;
/// Devices that are safe to share: they hold no state of the host.
const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];
/// Files of /proc that reveal something about the host or act on it. All of /proc is also read-only, and files that
/// only the host's root may read stay unreadable, because no process inside is the host's root. `sched_debug` and
/// `timer_stats` are gone from every kernel that has Landlock (5.13), so no sandbox has them.
pub(crate) const MASKED_FILES: &[&str] = &[
    "proc/cmdline",
    "proc/iomem",
    "proc/ioports",
    "proc/kallsyms",
    "proc/kcore",
    "proc/key-users",
    "proc/keys",
    "proc/kmsg",
    "proc/latency_stats",
    "proc/sysrq-trigger",
    "proc/timer_list",
];
pub(crate) const MASKED_DIRECTORIES: &[&str] =
    &["proc/acpi", "proc/asound", "proc/bus", "proc/driver", "proc/fs", "proc/irq", "proc/scsi"];

const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/bash\nuser:x:1000:1000:user:/home/user:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &[u8] = b"root:x:0:\ntty:x:5:\nuser:x:1000:\nnogroup:x:65534:\n";
const NSSWITCH: &[u8] = b"passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n";
const HOSTS: &[u8] = b"127.0.0.1 localhost\n127.0.1.1 sandbox\n::1 localhost ip6-localhost ip6-loopback\n";

/// A name that our DNS answers is answered at once; one that it doesn't answer need not be asked for twice.
const RESOLV_CONF: &[u8] = b"nameserver 127.0.0.1\noptions attempts:1\n";

/// The root of the template, without what a spec adds. `has_root` says whether programs can run as root of the sandbox.
pub(crate) fn host(network: NetworkMode, has_root: bool, fate: Fate) -> Vec<Op> {
    let mut ops = Vec::with_capacity(128);
    if fate == Fate::HandedOver {
        ops.push(Op::Expose);
    }
    directories(&mut ops);
    system(&mut ops);
    etc(&mut ops);
    etc_of_the_host(&mut ops);
    names(&mut ops, network);
    devices(&mut ops, has_root);
    kernel(&mut ops);
    ops
}

/// The root of an image, without what a spec adds: its own files, and what no image can bring.
///
/// `/dev` and `/sys` are private directories over the image's own, so that nothing of the image can be in the way there.
pub(crate) fn image(network: NetworkMode, lowers: Vec<Source>, disk: Option<Source>, fate: Fate) -> Vec<Op> {
    let mut ops = Vec::with_capacity(64);
    layered(&mut ops, lowers, disk, fate);
    names(&mut ops, network);
    ops.push(Op::File { path: "etc/hostname".to_owned(), bytes: b"sandbox\n".to_vec() });
    nodes(&mut ops);
    kernel(&mut ops);
    ops
}

/// The root of the template `host`, whose own files are in layers: those of a snapshot. What is the host's is the host's of today.
pub(crate) fn host_in_layers(network: NetworkMode, lowers: Vec<Source>, disk: Option<Source>, fate: Fate) -> Vec<Op> {
    let mut ops = Vec::with_capacity(128);
    layered(&mut ops, lowers, disk, fate);
    system(&mut ops);
    etc_of_the_host(&mut ops);
    names(&mut ops, network);
    nodes(&mut ops);
    kernel(&mut ops);
    ops
}

/// Paths of the root of the template `host` that belong to the host and not to its sandbox, besides what every root has of the runtime.
pub fn paths_of_the_host() -> Vec<String> {
    let mut ops = Vec::new();
    system(&mut ops);
    etc_of_the_host(&mut ops);
    let mut paths: Vec<String> = ops
        .into_iter()
        .filter_map(|op| match op {
            Op::Directory { path, .. } if SYSTEM.contains(&path.as_str()) => Some(path),
            Op::Link { path, .. } | Op::File { path, .. } => Some(path),
            _ => None,
        })
        .collect();
    paths.extend([crate::plan::SCRATCH, ".empty", ".null"].map(str::to_owned));
    paths
}

fn layered(ops: &mut Vec<Op>, lowers: Vec<Source>, disk: Option<Source>, fate: Fate) {
    ops.push(Op::Layers { lowers, disk, fate });
    for (path, mode) in [("dev", 0o755), ("sys", 0o555)] {
        ops.push(Op::Directory { path: path.to_owned(), mode, owner: 0 });
        ops.push(Op::Private { path: path.to_owned(), mode });
    }
    for (path, mode) in [("dev/pts", 0o755), ("dev/shm", 0o1777), ("proc", 0o555), ("tmp", 0o1777)] {
        ops.push(Op::Directory { path: path.to_owned(), mode, owner: 0 });
    }
}

fn directories(ops: &mut Vec<Op>) {
    for (path, mode, owner) in [
        ("etc", 0o755, 0),
        ("etc/ssl", 0o755, 0),
        ("dev", 0o755, 0),
        ("dev/pts", 0o755, 0),
        ("dev/shm", 0o1777, 0),
        ("home", 0o755, 0),
        ("home/user", 0o755, 1000),
        ("mnt", 0o755, 0),
        ("opt", 0o755, 0),
        ("proc", 0o555, 0),
        ("root", 0o700, 0),
        ("run", 0o755, 0),
        ("srv", 0o755, 0),
        ("sys", 0o555, 0),
        ("tmp", 0o1777, 0),
        ("var", 0o755, 0),
        ("workspace", 0o755, 1000),
    ] {
        ops.push(Op::Directory { path: path.to_owned(), mode, owner });
    }
    for (path, target) in [("var/run", "/run"), ("var/tmp", "/tmp")] {
        ops.push(Op::Link { path: path.to_owned(), target: target.to_owned() });
    }
}

fn system(ops: &mut Vec<Op>) {
    for name in SYSTEM {
        let path = format!("/{name}");
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            ops.push(Op::Directory { path: (*name).to_owned(), mode: 0o755, owner: 0 });
            ops.push(Op::Bind {
                source: Source::System(path),
                target: (*name).to_owned(),
                attributes: Attributes::ReadOnly,
            });
        } else if let Some(target) =
            std::fs::read_link(&path).ok().and_then(|target| target.to_str().map(str::to_owned))
        {
            ops.push(Op::Link { path: (*name).to_owned(), target });
        }
    }
}

fn etc(ops: &mut Vec<Op>) {
    let mut file = |name: &str, bytes: Vec<u8>| ops.push(Op::File { path: format!("etc/{name}"), bytes });
    file("passwd", PASSWD.to_vec());
    file("group", GROUP.to_vec());
    file("nsswitch.conf", NSSWITCH.to_vec());
}

/// Copies of the host's files, which are never the sandbox's own.
fn etc_of_the_host(ops: &mut Vec<Op>) {
    for name in ETC_FILES {
        if let Some(bytes) = small_file(&format!("/etc/{name}")) {
            ops.push(Op::File { path: format!("etc/{name}"), bytes });
        }
    }
    for name in ["localtime", "os-release"] {
        if let Some(target) =
            std::fs::read_link(format!("/etc/{name}")).ok().and_then(|target| target.to_str().map(str::to_owned))
        {
            ops.push(Op::Link { path: format!("etc/{name}"), target });
        }
    }
}

/// The files by which names are resolved.
fn names(ops: &mut Vec<Op>, network: NetworkMode) {
    let of_the_host = |name: &str| small_file(&format!("/etc/{name}")).unwrap_or_default();
    let (hosts, resolv_conf) = match network {
        NetworkMode::Host => (of_the_host("hosts"), of_the_host("resolv.conf")),
        NetworkMode::None => (HOSTS.to_vec(), Vec::new()),
        NetworkMode::Proxied => (HOSTS.to_vec(), RESOLV_CONF.to_vec()),
    };
    for (name, bytes) in [("hosts", hosts), ("resolv.conf", resolv_conf)] {
        ops.push(Op::File { path: format!("etc/{name}"), bytes });
    }
}

/// Directories of the host's /etc that exist inside too.
pub(crate) fn etc_directories(network: NetworkMode) -> Vec<String> {
    let is_shown = |name: &&&str| network != NetworkMode::Proxied || **name != saggar_supervisor::egress::REPLACED;
    let names = ETC_DIRECTORIES.iter().filter(is_shown).map(|name| (*name).to_owned()).chain(versioned_directories());
    let is_there =
        |name: &String| Path::new("/etc").join(name).symlink_metadata().is_ok_and(|metadata| metadata.is_dir());
    names.filter(is_there).collect()
}

/// Java keeps part of itself in a directory of /etc named after its version.
fn versioned_directories() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/usr/lib/jvm") else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names
        .filter_map(|name| Some(format!("java-{}-openjdk", name.strip_prefix("java-")?.split('-').next()?)))
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect()
}

fn small_file(path: &str) -> Option<Vec<u8>> {
    let metadata = std::fs::metadata(path).ok()?;
    if !metadata.is_file() || metadata.len() > ETC_FILE_MAX {
        return None;
    }
    std::fs::read(path).ok()
}

fn devices(ops: &mut Vec<Op>, has_root: bool) {
    if has_root {
        // A separate mount, so that it can be sealed independently.
        ops.push(Op::Writable { path: "dev".to_owned() });
    }
    nodes(ops);
}

fn nodes(ops: &mut Vec<Op>) {
    ops.extend(DEVICES.iter().map(|name| Op::Device { name: (*name).to_owned() }));
    for (name, target) in [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ] {
        ops.push(Op::Link { path: format!("dev/{name}"), target: target.to_owned() });
    }
    ops.push(Op::Terminals { target: "dev/pts".to_owned() });
}

/// A private procfs with masks, and an empty /sys: programs need nothing in there, and much of it belongs to the host.
fn kernel(ops: &mut Vec<Op>) {
    ops.push(Op::Proc { target: "proc".to_owned() });
    ops.push(Op::Covers);
    let files = MASKED_FILES.iter().map(|path| (path, Cover::File));
    let directories = MASKED_DIRECTORIES.iter().map(|path| (path, Cover::Directory));
    let masks = files.chain(directories).filter(|(path, _)| Rule::Mask(path).is_on());
    ops.extend(masks.map(|(path, cover)| Op::Mask { path: (*path).to_owned(), cover }));
}
