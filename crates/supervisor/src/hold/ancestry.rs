//! Finds the owner of a process: its pid and those of its ancestors, as seen inside the sandbox.

use std::fs::File;
use std::io::Read;

/// How many ancestors are followed. A longer line was made deliberately, and is attributed to no exec.
const LINE_MAX: usize = 64;
/// Maximum length of a status file.
const STATUS_LEN: u64 = 8192;

/// The pids inside the sandbox of a host thread and its ancestors. Empty if they can't be read.
pub(super) fn of(thread: u32) -> Vec<u32> {
    line(thread).into_iter().map(|process| process.inside).collect()
}

/// A process by its two pids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) outside: u32,
    pub(super) inside: u32,
}

/// A host thread and its ancestors, up to the sandbox's PID 1. Shorter if they can't be read.
pub(super) fn line(thread: u32) -> Vec<Process> {
    let mut line = Vec::new();
    let mut next = thread;
    while next > 0 && line.len() < LINE_MAX {
        let Some(Ancestor { inside, above }) = read(next) else { break };
        line.push(Process { outside: next, inside });
        // The parent of a sandbox's PID 1 is on the host.
        next = if inside == 1 { 0 } else { above };
    }
    line
}

/// The children of a process that has one thread. Empty if they can't be read; one that ends meanwhile may be left out.
pub(super) fn children(process: u32) -> Vec<Process> {
    let mut text = String::new();
    let list = File::open(format!("/proc/{process}/task/{process}/children"));
    let Ok(_) = list.and_then(|file| file.take(STATUS_LEN).read_to_string(&mut text)) else { return Vec::new() };
    let child = |number: &str| {
        let outside = number.parse().ok()?;
        read(outside).map(|Ancestor { inside, .. }| Process { outside, inside })
    };
    text.split_whitespace().filter_map(child).collect()
}

struct Ancestor {
    inside: u32,
    above: u32,
}

fn read(process: u32) -> Option<Ancestor> {
    let mut text = String::new();
    let file = File::open(format!("/proc/{process}/status")).ok()?;
    file.take(STATUS_LEN).read_to_string(&mut text).ok()?;
    parse(&text)
}

/// `NStgid` has a pid for each namespace, from ours inwards. A process controls its name in the first line, but can't
/// begin another line there.
fn parse(text: &str) -> Option<Ancestor> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    Some(Ancestor {
        inside: field("NStgid")?.split_whitespace().last()?.parse().ok()?,
        above: field("PPid")?.trim().parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_up_from_the_process() {
        let line = of(std::process::id());
        assert_eq!(line[..2], [std::process::id(), std::os::unix::process::parent_id()]);
        assert!(of(0).is_empty() && of(u32::MAX).is_empty());
    }

    #[test]
    fn children_are_those_of_the_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let parent = line(child.id())[1];
        assert_eq!(parent.outside, std::process::id());
        // The thread of this test started it, and not the first one.
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        let list = std::fs::read_to_string(format!("/proc/self/task/{thread}/children")).unwrap();
        assert!(list.split_whitespace().any(|number| number == child.id().to_string()), "{list}");
        assert!(children(u32::MAX).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_innermost_number_is_told() {
        let status = parse("Name:\tPPid:\t9\nTgid:\t40\nPPid:\t30\nNStgid:\t40\t7\n").unwrap();
        assert_eq!((status.inside, status.above), (7, 30));
        assert!(parse("Name:\tx\nPPid:\t30\n").is_none());
    }
}
