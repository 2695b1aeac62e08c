//! Archives at random, of entries that are known to be dangerous. Whatever they are, nothing outside changes, and what was
//! accepted reads back as it was written.
//!
//! The same archives come up every time. `SAGGAR_FUZZ_SECONDS=60` goes on for that time instead, from a seed of the clock.

#[allow(dead_code)]
#[path = "../../tests/images/tar.rs"]
mod tar;

use std::collections::BTreeMap;
use std::io::Cursor;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{CWD, Mode, openat};
use tar::{Head, Tar};

use super::{Below, Contents, Ownership, TreeDigest, unpack};
use crate::limits::{Budget, Limits};

const TRIES: usize = 1500;
const NAMES: &[&str] = &[
    "a",
    "a/",
    "a/b",
    "a/b/c",
    "./a",
    "b",
    "l",
    "l/x",
    "l/x/y",
    "l/../x",
    "../x",
    "../canary",
    "/x",
    "a/..",
    "",
    ".",
    "/",
    ".wh.a",
    ".wh.l",
    "a/.wh.b",
    "l/.wh.x",
    ".wh..wh..opq",
    "a/.wh..wh..opq",
    "l/.wh..wh..opq",
    ".wh.",
    ".wh...",
    "canary",
    "../../canary",
    "d/d/d/d",
    "\u{1b}[2J",
    "a\n",
];
const TARGETS: &[&str] =
    &["a", "b", "a/b", "l", "l/canary", "..", "../canary", "../..", "/", "/etc/passwd", "", ".", "l/../canary"];
const OUTSIDE: &[&str] = &["..", "../..", "../canary", "/", "/..", "../../l", "a/../../..", "l"];
const FLAGS: &[u8] = b"000000055552222111167SxLKg34Z\0";

impl crate::tar::Input for Cursor<Vec<u8>> {}

#[test]
fn layers_stay_in_their_directory_under_fuzzing() {
    let root = std::env::temp_dir().join(format!("saggar-fuzz-{}", std::process::id()));
    let seconds = std::env::var("SAGGAR_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok());
    let until = seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64 | 1);
    let mut random = Random(if until.is_some() { clock } else { 0x5a66 });
    let (mut tries, mut accepted) = (0, 0);
    while until.map_or(tries < TRIES, |until| Instant::now() < until) {
        // Every second one above a layer of its own, with links that lead outside.
        let lower = (random.below(2) == 0).then(|| archive(&mut random));
        accepted += usize::from(check(&root, lower, archive(&mut random)));
        tries += 1;
    }
    println!("layers: {tries} tries, {accepted} accepted");
    // If nearly all were refused, the writer would hardly be tried.
    assert!(accepted * 20 > tries, "{accepted} of {tries} were accepted");
}

/// Whether the archive was accepted.
fn check(root: &Path, lower: Option<Vec<u8>>, archive: Vec<u8>) -> bool {
    let inside = root.join("inside");
    std::fs::create_dir_all(inside.join("tree")).unwrap();
    std::fs::create_dir_all(inside.join("tree-below")).unwrap();
    std::fs::write(root.join("canary"), "alive").unwrap();
    std::fs::write(inside.join("canary"), "alive").unwrap();
    let before = (outside(root), outside(&inside));
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let open = |name: &str| -> OwnedFd { openat(CWD, inside.join(name), flags, Mode::empty()).unwrap() };
    let (tree, tree_below) = (open("tree"), open("tree-below"));
    let mut budget = Budget::new(Limits { bytes_max: 1 << 20, entries_max: 1000 });
    let has_lower = lower.is_some();
    if let Some(lower) = lower {
        // It may be refused: what it left until then is enough.
        let _ = unpack(Cursor::new(lower), open("tree-below"), Below::default(), Ownership::here(), &mut budget);
    }
    let lower_digest = || TreeDigest::of(tree_below.as_fd(), Contents::Read, Ownership::here()).unwrap();
    let lower_before = lower_digest();
    let below = if has_lower { Below::new(vec![open("tree-below")]) } else { Below::default() };
    let digits: String = archive.iter().map(|byte| format!("{byte:02x}")).collect();
    let unpacked = unpack(Cursor::new(archive), open("tree"), below, Ownership::here(), &mut budget);
    assert_eq!((outside(root), outside(&inside)), before, "{digits}");
    assert_eq!(lower_digest(), lower_before, "{digits}");
    if let Ok(unpacked) = &unpacked {
        let found = TreeDigest::of(tree.as_fd(), Contents::Read, Ownership::here()).unwrap();
        assert_eq!(found, unpacked.tree, "{digits}");
    }
    std::fs::remove_dir_all(root).unwrap();
    unpacked.is_ok()
}

/// What is in a directory, apart from the tree: names, contents, modes and owners.
fn outside(directory: &Path) -> BTreeMap<String, String> {
    use std::os::unix::fs::MetadataExt;
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().to_string_lossy().into_owned();
        let metadata = entry.metadata().unwrap();
        let content = std::fs::read_to_string(entry.path()).unwrap_or_default();
        let is_tree = name.starts_with("tree") || name == "inside";
        let facts = format!("{:o} {} {} {content}", metadata.mode(), metadata.uid(), metadata.nlink());
        found.insert(name, if is_tree { String::new() } else { facts });
    }
    found
}

fn archive(random: &mut Random) -> Vec<u8> {
    let mut tar = Tar::new();
    // Often with a link that leads outside, for the entries after it.
    if random.below(3) == 0 {
        tar = tar.link(random.pick(&["l", "a", "d"]), random.pick(OUTSIDE));
    }
    for _ in 0..=random.below(6) {
        let mut head = Head::new(random.pick(NAMES), random.pick(FLAGS));
        head.link = random.pick(TARGETS).as_bytes();
        head.mode = random.below(0o10000) as u32;
        head.uid = u64::from(random.below(100_000) as u32);
        if random.below(30) == 0 {
            head.size = Some([0, 1, 511, 512, 1 << 40, u64::MAX][random.below(6)]);
        }
        let has_data = matches!(head.flag, b'0' | b'7' | b'L' | b'K' | b'x');
        let name = random.pick(NAMES);
        let content = match head.flag {
            b'x' => format!("{} path={name}\n", name.len() + 8 + usize::from(name.len() > 1)).into_bytes(),
            b'L' => name.as_bytes().to_vec(),
            b'K' => random.pick(TARGETS).as_bytes().to_vec(),
            _ if has_data => vec![7; random.below(1500)],
            _ => Vec::new(),
        };
        if random.below(12) == 0 {
            tar = tar.pax(&[("SCHILY.xattr.user.overlay.opaque", b"y"), ("path", random.pick(NAMES).as_bytes())]);
        }
        tar = tar.add(&head, &content);
    }
    let mut bytes = tar.end();
    if random.below(20) == 0 {
        let end = random.below(bytes.len());
        bytes.truncate(end);
    }
    bytes
}

/// Numbers that are the same at every run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}
