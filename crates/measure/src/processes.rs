//! Finds our processes by the binary that they run: a private copy.
//!
//! A supervisor outlives its server and is then reparented, so its ancestry says nothing; its executable does.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    pub pid: u32,
    pub parent: u32,
}

/// All processes in /proc.
pub fn all() -> Result<Vec<Process>> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").context("reading /proc")? {
        let name = entry.context("reading /proc")?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        // It has ended in the meantime.
        let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else { continue };
        found.extend(parent_in(&stat).map(|parent| Process { pid, parent }));
    }
    Ok(found)
}

/// The processes among them that run this file.
pub fn running(program: &Path, all: &[Process]) -> BTreeSet<u32> {
    let runs_it =
        |process: &&Process| fs::read_link(format!("/proc/{}/exe", process.pid)).is_ok_and(|exe| exe == program);
    all.iter().filter(runs_it).map(|process| process.pid).collect()
}

/// The same, with all their descendants.
pub fn tree_of(program: &Path, all: &[Process]) -> BTreeSet<u32> {
    with_descendants(running(program, all), all)
}

/// A process with all its descendants.
pub fn family_of(pid: u32, all: &[Process]) -> BTreeSet<u32> {
    with_descendants([pid].into(), all)
}

fn with_descendants(mut found: BTreeSet<u32>, all: &[Process]) -> BTreeSet<u32> {
    loop {
        let before = found.len();
        let children: Vec<u32> =
            all.iter().filter(|process| found.contains(&process.parent)).map(|process| process.pid).collect();
        found.extend(children);
        if found.len() == before {
            return found;
        }
    }
}

/// The parent's id from the text of `stat`: the second field after the name, which may contain anything but ends with
/// the last `)`.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Proportional set size, in KiB.
pub fn pss_kib(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    kib_of(&text, "Pss:")
}

/// Resident set size, in KiB.
pub fn rss_kib(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    kib_of(&text, "VmRSS:")
}

/// The most that was ever resident, in KiB.
pub fn peak_kib(pid: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    kib_of(&text, "VmHWM:")
}

/// Number of open descriptors.
pub fn descriptors(pid: u32) -> Option<usize> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count())
}

fn kib_of(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_bracket_does_not_hide_the_parent() {
        assert_eq!(parent_in("12 (a) b) S 7 12 12 0"), Some(7));
        assert_eq!(parent_in("12 (a"), None);
    }

    #[test]
    fn descendants_of_whoever_runs_the_file_are_found() {
        let ours = std::env::current_exe().unwrap();
        let me = std::process::id();
        let all = [(me, 1), (70_001, me), (70_002, 70_001), (70_003, 1)].map(|(pid, parent)| Process { pid, parent });
        assert_eq!(tree_of(&ours, &all), [me, 70_001, 70_002].into());
    }

    #[test]
    fn this_process_has_memory_and_descriptors() {
        let me = std::process::id();
        assert!(pss_kib(me).unwrap() > 0.0 && rss_kib(me).unwrap() > 0.0 && descriptors(me).unwrap() >= 3);
        assert!(all().unwrap().iter().any(|process| process.pid == me));
    }
}
