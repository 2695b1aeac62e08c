//! The census: counts everything on the machine that belongs to one server and its sandboxes.
//!
//! A process is recognised by its binary, its ancestors or its cgroup. A cgroup or a mount is recognised by a sandbox
//! id, or by the path of the data directory, in its name.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::machine::meminfo_kib;
use crate::patience::wait_until;
use crate::processes::{self, Process};
use crate::serving::Serving;

const CGROUPS: &str = "/sys/fs/cgroup";
/// Maximum depth of our cgroups below a hierarchy, with a margin.
const CGROUP_DEPTH: usize = 5;
/// Time limit for work in the background: the reaper runs every 15 s.
const SETTLING: Duration = Duration::from_secs(60);
/// File name of the store; SQLite's other files begin with it.
const STORE: &str = "saggar.db";

/// The counts at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Census {
    /// The server, supervisors, and processes inside.
    pub processes: usize,
    /// Mounts that are visible on the host.
    pub mounts: usize,
    pub cgroups: usize,
    /// Namespaces other than the soak's own.
    pub namespaces: usize,
    /// Descriptors of the server.
    pub descriptors: usize,
    /// Memory of the server, in KiB.
    pub rss_kib: u64,
    /// Files and directories in the data directory, except the store.
    pub files: usize,
    /// All files of the data directory, in KiB.
    pub disk_kib: u64,
    /// Unreclaimable kernel memory, in KiB. Other work on the machine is included, so it is shown but not judged.
    pub slab_kib: u64,
}

impl Census {
    /// `ids` are all sandboxes that ever existed.
    pub fn take(server: &Serving, ids: &BTreeSet<String>) -> Result<Self> {
        let ids: BTreeSet<String> = ids.iter().cloned().chain(ids_in(server.data())?).collect();
        let all = processes::all()?;
        let mut ours = processes::tree_of(server.program(), &all);
        ours.extend(all.iter().filter(|process| is_in_cgroup_of(process, &ids)).map(|process| process.pid));
        let data = server.data().to_string_lossy();
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").context("reading the mounts")?;
        let is_ours = |line: &&str| line.contains(&*data) || id_in(line).is_some_and(|id| ids.contains(id));
        let (mut files, mut bytes) = (0, 0);
        measure_tree(server.data(), &mut files, &mut bytes)?;
        Ok(Self {
            processes: ours.len(),
            mounts: mountinfo.lines().filter(is_ours).count(),
            cgroups: count_cgroups(Path::new(CGROUPS), &ids, CGROUP_DEPTH),
            namespaces: namespaces(&ours).len(),
            descriptors: processes::descriptors(server.pid()).context("the server is gone")?,
            rss_kib: processes::rss_kib(server.pid()).context("the server is gone")? as u64,
            files,
            disk_kib: bytes / 1024,
            slab_kib: meminfo_kib("SUnreclaim")?,
        })
    }

    /// The same after work in the background has ended, or has had time to.
    pub fn take_settled(
        server: &Serving,
        ids: &BTreeSet<String>,
        expected: Option<&Self>,
        pool: usize,
    ) -> Result<Self> {
        server.wait_for_sockets(pool)?;
        let mut last = Self::take(server, ids)?;
        let settled = wait_until("what ended is gone", SETTLING, || {
            let before = last;
            last = Self::take(server, ids)?;
            Ok(match expected {
                Some(expected) => last.counts() == expected.counts(),
                None => last.counts() == before.counts() && server.sockets()? == pool,
            })
        });
        // Whatever is left shows up in the census.
        if let Err(error) = settled {
            eprintln!("soak: {error:#}");
        }
        Ok(last)
    }

    /// The numbers that must be equal each time.
    fn counts(&self) -> [usize; 5] {
        [self.processes, self.mounts, self.cgroups, self.namespaces, self.files]
    }

    /// What has grown, as text.
    pub fn growth(&self, since: &Self) -> Vec<String> {
        let names = ["processes", "mounts", "cgroups", "namespaces", "files in the data directory"];
        let mut grown: Vec<String> = names
            .iter()
            .zip(since.counts().into_iter().zip(self.counts()))
            .filter(|(_, (before, after))| after > before)
            .map(|(name, (before, after))| format!("{name} grew from {before} to {after}"))
            .collect();
        let [before, after] = [since.descriptors, self.descriptors];
        if after > before + DESCRIPTORS_SLACK {
            grown.push(format!("descriptors of the server grew from {before} to {after}"));
        }
        grown
    }
}

/// Whether the server's memory grew: compares the minima of the first and the last third of the samples, because
/// short-lived needs come on top. A lasting step counts as growth, wherever it occurs.
pub fn memory_growth(samples: &[(u64, Census)]) -> Option<String> {
    let third = samples.len() / 3;
    let least = |part: &[(u64, Census)]| part.iter().map(|(_, census)| census.rss_kib).min();
    let (before, after) = (least(&samples[..third])?, least(&samples[samples.len() - third..])?);
    (after > before + RSS_SLACK_KIB).then(|| format!("memory of the server grew from {before} to {after} KiB"))
}

/// Connections whose end the server has not noticed, and store readers that it had not needed before.
const DESCRIPTORS_SLACK: usize = 8;
/// Memory that an allocator keeps and a cache may still fill: over the 7,000 life cycles between the first and the
/// last third, 600 bytes each.
const RSS_SLACK_KIB: u64 = 4 * 1024;

/// The bytes that a closed store uses: its pages minus free pages. The file itself doesn't shrink.
pub fn store_bytes_used(data: &Path) -> Result<u64> {
    let header = fs::read(data.join(STORE)).context("reading the store")?;
    used_in(&header).context("the store is no SQLite database")
}

/// From the header of SQLite's file format: page size, pages, free pages.
fn used_in(header: &[u8]) -> Option<u64> {
    let number = |at: usize, length: usize| {
        Some(header.get(at..at + length)?.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte)))
    };
    let page_len = match number(16, 2)? {
        1 => 65_536,
        length => length,
    };
    Some(number(28, 4)?.checked_sub(number(36, 4)?)? * page_len)
}

/// Sandboxes that have an entry in the data directory.
fn ids_in(data: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for place in ["control", "sandboxes", "ended"] {
        for entry in fs::read_dir(data.join(place)).with_context(|| format!("reading {place}"))? {
            // It was removed while we looked.
            let Ok(entry) = entry else { continue };
            found.extend(id_in(&entry.file_name().to_string_lossy()).map(str::to_owned));
            // Cgroups are named by a hash of the id; the record has the names.
            found.extend(cgroup_names(&fs::read_to_string(entry.path()).unwrap_or_default()));
        }
    }
    Ok(found)
}

/// The cgroup names in a record.
fn cgroup_names(record: &str) -> Vec<String> {
    let first: serde_json::Value = serde_json::from_str(record.lines().next().unwrap_or_default()).unwrap_or_default();
    let paths = first["cgroups"].as_array().into_iter().flatten().filter_map(|path| path.as_str());
    paths.filter_map(|path| path.rsplit('/').next().map(str::to_owned)).collect()
}

/// The first sandbox id in a text.
fn id_in(text: &str) -> Option<&str> {
    let start = text.find("sbx_")?;
    let length =
        text[start + 4..].find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(text.len() - start - 4);
    Some(&text[start..start + 4 + length])
}

fn is_in_cgroup_of(process: &Process, ids: &BTreeSet<String>) -> bool {
    let text = fs::read_to_string(format!("/proc/{}/cgroup", process.pid)).unwrap_or_default();
    text.lines().any(|line| line.split('/').any(|name| ids.contains(name)))
}

fn count_cgroups(directory: &Path, ids: &BTreeSet<String>, depth: usize) -> usize {
    let Ok(entries) = fs::read_dir(directory) else { return 0 };
    let mut count = 0;
    for entry in entries.filter_map(Result::ok) {
        if !entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            continue;
        }
        count += usize::from(ids.contains(&*entry.file_name().to_string_lossy()));
        if depth > 1 {
            count += count_cgroups(&entry.path(), ids, depth - 1);
        }
    }
    count
}

fn namespaces(pids: &BTreeSet<u32>) -> BTreeSet<String> {
    let of = |pid: &str| -> BTreeSet<String> {
        let Ok(entries) = fs::read_dir(format!("/proc/{pid}/ns")) else { return BTreeSet::new() };
        let links = entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
        links.map(|link| link.to_string_lossy().into_owned()).collect()
    };
    let own = of("self");
    pids.iter().flat_map(|pid| of(&pid.to_string())).filter(|namespace| !own.contains(namespace)).collect()
}

/// Counts everything below a directory, except the store's own files, and sums up all files. Entries that disappear
/// meanwhile are left out.
fn measure_tree(directory: &Path, files: &mut usize, bytes: &mut u64) -> Result<()> {
    let mut rest = vec![directory.to_owned()];
    while let Some(directory) = rest.pop() {
        let Ok(entries) = fs::read_dir(&directory) else { continue };
        for entry in entries.filter_map(Result::ok) {
            let Ok(metadata) = entry.metadata() else { continue };
            if !entry.file_name().to_string_lossy().starts_with(STORE) {
                *files += 1;
            }
            if metadata.is_dir() {
                rest.push(entry.path());
            } else {
                *bytes += metadata.len();
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const CENSUS: Census = Census {
        processes: 5,
        mounts: 0,
        cgroups: 10,
        namespaces: 14,
        descriptors: 30,
        rss_kib: 20_000,
        files: 8,
        disk_kib: 100,
        slab_kib: 50_000,
    };

    #[test]
    fn one_thing_more_is_growth_but_for_what_has_slack() {
        let grown = |now: Census| now.growth(&CENSUS);
        assert_eq!(grown(CENSUS), Vec::<String>::new());
        assert_eq!(grown(Census { cgroups: 11, ..CENSUS }), ["cgroups grew from 10 to 11"]);
        assert_eq!(grown(Census { descriptors: 38, rss_kib: 99_000, disk_kib: 9_999, ..CENSUS }), Vec::<String>::new());
        assert_eq!(grown(Census { descriptors: 39, ..CENSUS }), ["descriptors of the server grew from 30 to 39"]);
    }

    #[test]
    fn memory_grows_when_the_least_of_it_does() {
        let samples = |rss: &[u64]| -> Vec<(u64, Census)> {
            rss.iter().map(|rss_kib| (0, Census { rss_kib: *rss_kib, ..CENSUS })).collect()
        };
        assert_eq!(memory_growth(&samples(&[20_000, 60_000, 50_000, 50_000, 60_000, 24_000])), None);
        let grown = memory_growth(&samples(&[20_000, 60_000, 20_000, 20_000, 25_000, 26_000]));
        assert_eq!(grown.as_deref(), Some("memory of the server grew from 20000 to 25000 KiB"));
    }

    #[test]
    fn an_id_is_found_in_any_name() {
        for (text, expected) in
            [("sbx_abc.sock", Some("sbx_abc")), ("/tmp/data/sbx_abc/root", Some("sbx_abc")), ("nothing", None)]
        {
            assert_eq!(id_in(text), expected);
        }
    }

    #[test]
    fn a_record_names_its_cgroups() {
        let record = "{\"cgroups\":[\"/sys/fs/cgroup/memory/a/saggar-x\"]}\n{\"pid\":1}\n";
        assert_eq!(cgroup_names(record), ["saggar-x"]);
        assert_eq!(cgroup_names("no record"), Vec::<String>::new());
    }

    #[test]
    fn free_pages_of_the_store_are_not_in_use() {
        let mut header = vec![0u8; 100];
        header[16..18].copy_from_slice(&4096u16.to_be_bytes());
        header[28..32].copy_from_slice(&100u32.to_be_bytes());
        header[36..40].copy_from_slice(&60u32.to_be_bytes());
        assert_eq!(used_in(&header), Some(40 * 4096));
        assert_eq!(used_in(b"short"), None);
    }
}
