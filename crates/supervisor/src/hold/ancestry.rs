//! Finds the owner of a process: its pid and those of its ancestors, as seen inside the sandbox.

use std::fs::File;
use std::io::Read;

/// How many ancestors are followed. A longer line was made deliberately, and is attributed to no exec.
const LINE_MAX: usize = 64;
/// Maximum length of a status file.
const STATUS_LEN: u64 = 8192;

/// The pids inside the sandbox of a host thread and its ancestors. Empty if they can't be read.
pub(super) fn of(thread: u32) -> Vec<u32> {
    let mut line = Vec::new();
    let mut next = thread;
    while next > 0 && line.len() < LINE_MAX {
        let Some(Ancestor { inside, above }) = read(next) else { break };
        line.push(inside);
        // The parent of a sandbox's PID 1 is on the host.
        next = if inside == 1 { 0 } else { above };
    }
    line
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
    fn the_innermost_number_is_told() {
        let status = parse("Name:\tPPid:\t9\nTgid:\t40\nPPid:\t30\nNStgid:\t40\t7\n").unwrap();
        assert_eq!((status.inside, status.above), (7, 30));
        assert!(parse("Name:\tx\nPPid:\t30\n").is_none());
    }
}
