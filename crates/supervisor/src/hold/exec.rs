//! One exec of a held sandbox: its state, its output and its pending work, driven by the agent's reports.
//!
//! ```text
//!  Starting ──Started──▶ Running ──Exited──▶ Ended (processes it left may live on until TreeGone)
//! ```
//! The agent's reports are not trusted: an impossible one is a [`Lie`], and ends the sandbox.

use std::collections::VecDeque;
use std::time::Duration;

use saggar_domain::{Denial, ExecId, ExecSpec, ExecStatus, OutputStream, Problem, Usage};
use saggar_guest::STDIN_WINDOW;
use saggar_jail::cgroup::Group;

use crate::control::ExecDescription;
use crate::deadline::Deadline;
use crate::egress::Refusals;

use super::moment::Moment;
use super::ring::Ring;

/// Bytes of output that the agent may have sent without getting credit back.
pub(crate) const OUTPUT_WINDOW: u32 = 256 * 1024;
/// Credit is returned in portions, not byte by byte.
const CREDIT_PORTION: u64 = OUTPUT_WINDOW as u64 / 4;
/// Maximum length of a remembered command line, as JSON. The command lines of all execs fit into one description.
const ARGV_LEN_MAX: usize = 2048;
/// Maximum length of a remembered tag, working directory or program name, as JSON.
const TAG_LEN_MAX: usize = 256;
/// Maximum number of remembered denials. Those of all execs fit into one description.
const DENIALS_MAX: usize = 8;
/// Kinds of refused network access among them; one more says that there were more.
const REFUSALS_MAX: u32 = 4;
/// Maximum length of a remembered denial's message, as JSON.
const DENIAL_LEN_MAX: usize = 200;
/// Processes alive this long after a program's end count as left behind; until then they may be about to exit.
const LINGER: Duration = Duration::from_millis(50);
/// Bytes of stdin sent at once.
const STDIN_LEN: usize = 32 * 1024;

/// The agent reported something impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lie;

#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) id: ExecId,
    /// The agent's number for it.
    pub(crate) number: u32,
    /// As requested, for messages.
    pub(crate) program: String,
    pub(crate) cwd: String,
    pub(crate) ring: Ring,
    pub(crate) stdin: Stdin,
    pub(crate) deadline: Option<Deadline<Moment>>,
    /// Cgroups with its own limits.
    pub(crate) portion: Option<Group>,
    /// Whether its end has yet to be reported.
    pub(crate) is_news: bool,
    pub(crate) is_storage_full: bool,
    argv: Vec<String>,
    tag: Option<String>,
    has_terminal: bool,
    started_ms: u64,
    phase: Phase,
    is_tree_gone: bool,
    /// Since when it is known that none of its processes is alive.
    gone: Option<Moment>,
    /// The process outside that keeps its tree, if that was looked for.
    pub(crate) keeper: Option<u32>,
    is_deserted: bool,
    /// Usage as the agent reports it.
    counted: Option<Counted>,
    /// Set once it has ended.
    pub(crate) usage: Option<Usage>,
    denials: Vec<Denial>,
    refusals: Refusals,
    /// The agent has been given credit up to this position.
    credited: u64,
}

#[derive(Debug)]
enum Phase {
    Starting,
    Running { pid: u32 },
    Ended { pid: u32, ended: Ended },
}

#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub(crate) at: Moment,
    pub(crate) at_ms: u64,
    pub(crate) status: ExecStatus,
    pub(crate) exit_code: Option<u8>,
    pub(crate) signal: Option<u8>,
    pub(crate) error: Option<Problem>,
}

/// Usage of an exec as the agent counted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counted {
    pub(crate) cpu_usec: u64,
    pub(crate) memory_peak: u64,
}

/// An exec that is about to start.
#[derive(Debug)]
pub(crate) struct Accepted<'a> {
    pub(crate) id: ExecId,
    pub(crate) number: u32,
    pub(crate) spec: &'a ExecSpec,
    /// The working directory that it gets, asked for or not.
    pub(crate) cwd: &'a str,
    pub(crate) output_max: usize,
    pub(crate) deadline: Option<Moment>,
    pub(crate) portion: Option<Group>,
    pub(crate) now_ms: u64,
}

impl Exec {
    pub(crate) fn new(new: Accepted<'_>) -> Self {
        let spec = new.spec;
        Self {
            id: new.id,
            number: new.number,
            program: shortened(spec.argv.first().map_or("", String::as_str), TAG_LEN_MAX),
            cwd: shortened(new.cwd, TAG_LEN_MAX),
            ring: Ring::new(new.output_max),
            stdin: Stdin { is_open: spec.stdin, outstanding: 0, pending: VecDeque::new(), wants_end: false },
            deadline: new.deadline.map(Deadline::new),
            portion: new.portion,
            is_news: false,
            is_storage_full: false,
            argv: remembered(&spec.argv),
            tag: spec.tag.as_deref().map(|tag| shortened(tag, TAG_LEN_MAX)),
            has_terminal: spec.tty.is_some(),
            started_ms: new.now_ms,
            phase: Phase::Starting,
            is_tree_gone: false,
            gone: None,
            keeper: None,
            is_deserted: false,
            counted: None,
            usage: None,
            denials: Vec::new(),
            refusals: Refusals::new(REFUSALS_MAX),
            credited: 0,
        }
    }

    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.phase, Phase::Starting)
    }

    /// Whether the program itself is running or starting.
    pub(crate) fn is_running(&self) -> bool {
        match self.phase {
            Phase::Starting | Phase::Running { .. } => true,
            Phase::Ended { .. } => false,
        }
    }

    /// Whether any of its processes may be alive.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_tree_gone
    }

    /// Since when it is known that none of its processes is alive.
    pub(crate) fn gone(&self) -> Option<Moment> {
        self.gone
    }

    /// None of its processes is alive, as of now.
    pub(crate) fn note_gone(&mut self, now: Moment) {
        self.gone.get_or_insert(now);
    }

    pub(crate) fn has_terminal(&self) -> bool {
        self.has_terminal
    }

    pub(crate) fn hear_started(&mut self, pid: u32, now_ms: u64) -> Result<(), Lie> {
        if !self.is_starting() {
            return Err(Lie);
        }
        self.phase = Phase::Running { pid };
        self.started_ms = now_ms;
        Ok(())
    }

    pub(crate) fn hear_output(&mut self, stream: OutputStream, bytes: &[u8]) -> Result<(), Lie> {
        let outstanding = self.ring.end() - self.credited;
        if !matches!(self.phase, Phase::Running { .. }) || outstanding + bytes.len() as u64 > OUTPUT_WINDOW.into() {
            return Err(Lie);
        }
        self.ring.push(stream, bytes);
        Ok(())
    }

    pub(crate) fn hear_stdin_taken(&mut self, bytes: u32) -> Result<(), Lie> {
        let left = self.stdin.outstanding.checked_sub(bytes as usize).ok_or(Lie)?;
        self.stdin.outstanding = left;
        Ok(())
    }

    pub(crate) fn hear_storage_full(&mut self) -> Result<(), Lie> {
        match self.phase {
            Phase::Running { .. } => {
                self.is_storage_full = true;
                Ok(())
            }
            Phase::Starting | Phase::Ended { .. } => Err(Lie),
        }
    }

    pub(crate) fn hear_used(&mut self, counted: Counted) -> Result<(), Lie> {
        self.check_running()?;
        if self.counted.replace(counted).is_some() { Err(Lie) } else { Ok(()) }
    }

    /// None of its processes are left.
    pub(crate) fn hear_deserted(&mut self) -> Result<(), Lie> {
        if self.is_starting() || std::mem::replace(&mut self.is_deserted, true) { Err(Lie) } else { Ok(()) }
    }

    pub(crate) fn counted(&self) -> Option<Counted> {
        self.counted
    }

    pub(crate) fn is_deserted(&self) -> bool {
        self.is_deserted || self.is_tree_gone
    }

    /// Whether its program is among these processes, given by their pids inside.
    pub(crate) fn is_in_line(&self, line: &[u32]) -> bool {
        matches!(self.phase, Phase::Running { pid } if line.contains(&pid))
    }

    /// Whether a process outside keeps its tree.
    pub(crate) fn is_kept_by(&self, process: u32) -> bool {
        self.gone.is_none() && self.keeper == Some(process)
    }

    /// Records refused network access. It has a bound of its own among the denials.
    pub(crate) fn refuse(&mut self, denial: &Denial) {
        let is_known = self.denials.contains(&bounded(denial));
        if let Some(denial) = self.refusals.admit(denial.clone(), is_known) {
            self.deny(&denial);
        }
    }

    /// Records a denial. Each kind is kept once, so that a loop can't use up memory.
    pub(crate) fn deny(&mut self, denial: &Denial) {
        let denial = bounded(denial);
        if self.denials.len() < DENIALS_MAX && !self.denials.contains(&denial) {
            self.denials.push(denial);
        }
    }

    /// Fails if an end can't be reported now.
    pub(crate) fn check_running(&self) -> Result<(), Lie> {
        match self.phase {
            Phase::Running { .. } => Ok(()),
            Phase::Starting | Phase::Ended { .. } => Err(Lie),
        }
    }

    pub(crate) fn hear_tree_gone(&mut self) -> Result<(), Lie> {
        match self.phase {
            Phase::Ended { .. } if !self.is_tree_gone => {
                self.is_tree_gone = true;
                Ok(())
            }
            Phase::Starting | Phase::Running { .. } | Phase::Ended { .. } => Err(Lie),
        }
    }

    /// It has ended, by the agent's account or with its sandbox.
    pub(crate) fn end(&mut self, ended: Ended) {
        let pid = match self.phase {
            Phase::Starting => 0,
            Phase::Running { pid } | Phase::Ended { pid, .. } => pid,
        };
        self.stdin.close();
        self.phase = Phase::Ended { pid, ended };
        self.is_news = true;
    }

    /// The whole sandbox is dead.
    pub(crate) fn bury(&mut self) {
        self.is_tree_gone = true;
    }

    /// Output up to position `taken` no longer needs room. Returns the credit for the agent, if it is worth a frame.
    pub(crate) fn credit(&mut self, taken: u64) -> Option<u32> {
        let back = taken.checked_sub(self.credited).filter(|back| *back >= CREDIT_PORTION && self.is_running())?;
        self.credited = taken;
        // Never more than the window, which fits.
        Some(u32::try_from(back).unwrap_or(OUTPUT_WINDOW))
    }

    /// When to check its deadline: while it runs, and afterwards as long as some of its processes are being ended.
    pub(crate) fn next(&self) -> Option<Moment> {
        let deadline = self.deadline.as_ref()?;
        let is_watched = self.is_running() || (self.is_live() && deadline.cause().is_some());
        deadline.next().filter(|_| is_watched)
    }

    pub(crate) fn state(&self, now: Moment) -> ExecDescription {
        let (pid, ended) = match &self.phase {
            Phase::Starting => (0, None),
            Phase::Running { pid } => (*pid, None),
            Phase::Ended { pid, ended } => (*pid, Some(ended.clone())),
        };
        let (stdout_bytes, stdout_dropped) = self.ring.counts(OutputStream::Stdout);
        let (stderr_bytes, stderr_dropped) = self.ring.counts(OutputStream::Stderr);
        ExecDescription {
            exec_id: self.id.clone(),
            argv: self.argv.clone(),
            cwd: self.cwd.clone(),
            tag: self.tag.clone(),
            pid,
            has_terminal: self.has_terminal,
            started_ms: self.started_ms,
            ended_ms: ended.as_ref().map(|ended| ended.at_ms),
            status: ended.as_ref().map(|ended| ended.status),
            exit_code: ended.as_ref().and_then(|ended| ended.exit_code),
            signal: ended.as_ref().and_then(|ended| ended.signal),
            stdout_bytes,
            stderr_bytes,
            stdout_dropped,
            stderr_dropped,
            leaves_processes: ended.as_ref().is_some_and(|ended| !self.is_tree_gone && now.since(ended.at) > LINGER),
            is_deserted: self.is_deserted(),
            usage: self.usage,
            denials: self.denials.clone(),
            error: ended.and_then(|ended| ended.error),
        }
    }
}

/// With the length that is remembered.
fn bounded(denial: &Denial) -> Denial {
    let Denial { code, rule, message } = denial;
    Denial { code: *code, rule: shortened(rule, TAG_LEN_MAX), message: shortened(message, DENIAL_LEN_MAX) }
}

#[derive(Debug)]
pub(crate) struct Stdin {
    is_open: bool,
    /// Bytes sent and not yet taken.
    outstanding: usize,
    /// Bytes to be sent. While there are any, nothing more is read from the feeder, so this is at most one frame.
    pending: VecDeque<u8>,
    wants_end: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Feed {
    Bytes(Vec<u8>),
    End,
}

impl Stdin {
    pub(crate) fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the feeder has to wait.
    pub(crate) fn is_backed_up(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Bytes after the end are dropped.
    pub(crate) fn take(&mut self, bytes: Vec<u8>) {
        if self.is_open && !self.wants_end {
            self.pending.extend(bytes);
        }
    }

    pub(crate) fn end(&mut self) {
        self.wants_end = true;
    }

    /// What can be sent now.
    pub(crate) fn next(&mut self) -> Option<Feed> {
        if !self.is_open {
            return None;
        }
        if self.pending.is_empty() {
            return self.wants_end.then(|| {
                self.is_open = false;
                Feed::End
            });
        }
        let length = self.pending.len().min(STDIN_WINDOW - self.outstanding).min(STDIN_LEN);
        if length == 0 {
            return None;
        }
        self.outstanding += length;
        let bytes = self.pending.drain(..length).collect();
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        }
        Some(Feed::Bytes(bytes))
    }

    fn close(&mut self) {
        self.is_open = false;
        self.pending = VecDeque::new();
    }
}

/// The part of a command line that is remembered.
fn remembered(argv: &[String]) -> Vec<String> {
    let mut left = ARGV_LEN_MAX;
    let mut kept = Vec::new();
    for argument in argv {
        if left == 0 {
            kept.push("…".to_owned());
            break;
        }
        let argument = shortened(argument, left);
        // Includes its quotes and the comma.
        left = left.saturating_sub(argument.chars().map(written_len).sum::<usize>() + 3);
        kept.push(argument);
    }
    kept
}

/// The beginning of a text, with a mark if it is cut. `most` is the length in JSON: the report of all execs is one
/// frame, and control characters are six times as long there.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let mut length = 0;
    let cut = text.char_indices().find(|(_, character)| {
        length += written_len(*character);
        length > most
    });
    match cut {
        None => text.to_owned(),
        Some((at, _)) => format!("{}…", &text[..at]),
    }
}

/// Length of a character in JSON, in bytes.
fn written_len(character: char) -> usize {
    match character {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        _ => character.len_utf8(),
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::DenialCode;

    use super::*;
    use crate::attend::Ending;
    use crate::control::JSON_MAX;
    use crate::ending::describe_ending;
    use crate::hold::execs::EXECS_MAX;

    fn accepted(spec: &ExecSpec) -> Accepted<'_> {
        Accepted {
            id: ExecId::from_random([1; 16]),
            number: 1,
            spec,
            cwd: "/",
            output_max: 1024,
            deadline: None,
            portion: None,
            now_ms: 0,
        }
    }

    fn exec(stdin: bool) -> Exec {
        Exec::new(accepted(&ExecSpec { argv: vec!["true".to_owned()], stdin, ..ExecSpec::default() }))
    }

    fn ended() -> Ended {
        Ended { at: Moment::at(0), at_ms: 1, status: ExecStatus::Exited, exit_code: Some(0), signal: None, error: None }
    }

    #[test]
    fn what_cannot_be_so_is_a_lie() {
        let mut fresh = exec(true);
        assert_eq!(fresh.hear_output(OutputStream::Stdout, b"x"), Err(Lie));
        assert_eq!(fresh.check_running(), Err(Lie));
        assert_eq!(fresh.hear_stdin_taken(1), Err(Lie));
        assert_eq!(fresh.hear_tree_gone(), Err(Lie));
        assert_eq!((fresh.hear_started(7, 0), fresh.hear_started(7, 0)), (Ok(()), Err(Lie)));
        fresh.end(ended());
        assert_eq!(fresh.hear_output(OutputStream::Stdout, b"x"), Err(Lie));
        assert_eq!(fresh.hear_storage_full(), Err(Lie));
        assert_eq!((fresh.hear_tree_gone(), fresh.hear_tree_gone()), (Ok(()), Err(Lie)));
    }

    #[test]
    fn output_past_the_window_is_a_lie_until_credit_is_given_back() {
        let mut exec = exec(false);
        exec.hear_started(7, 0).unwrap();
        let half = vec![0; OUTPUT_WINDOW as usize / 2];
        assert_eq!([(); 2].map(|()| exec.hear_output(OutputStream::Stdout, &half)), [Ok(()), Ok(())]);
        assert_eq!(exec.credit(10), None);
        assert_eq!(exec.credit(half.len() as u64), Some(half.len() as u32));
        assert_eq!(exec.hear_output(OutputStream::Stderr, &half), Ok(()));
        assert_eq!(exec.hear_output(OutputStream::Stderr, b"x"), Err(Lie));
    }

    #[test]
    fn stdin_keeps_within_its_window_and_ends_after_its_last_byte() {
        let mut exec = exec(true);
        exec.hear_started(7, 0).unwrap();
        exec.stdin.take(vec![b'x'; STDIN_WINDOW + 1]);
        exec.stdin.end();
        let mut sent = 0;
        while let Some(Feed::Bytes(bytes)) = exec.stdin.next() {
            sent += bytes.len();
        }
        assert_eq!((sent, exec.stdin.is_backed_up()), (STDIN_WINDOW, true));
        exec.hear_stdin_taken(STDIN_WINDOW as u32).unwrap();
        assert_eq!(exec.stdin.next(), Some(Feed::Bytes(b"x".to_vec())));
        assert_eq!((exec.stdin.next(), exec.stdin.next(), exec.stdin.is_open()), (Some(Feed::End), None, false));
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let kept = remembered(&["é".repeat(5000), "more".to_owned()]);
        assert!(kept.iter().map(String::len).sum::<usize>() <= ARGV_LEN_MAX + 10, "{kept:?}");
        assert_eq!(remembered(&["a".to_owned(), String::new()]), ["a", ""]);
    }

    /// As many execs as possible, each as long as possible: their report must fit one frame.
    #[test]
    fn all_execs_fit_one_frame_whatever_they_are_called() {
        for (argument, count) in [("\u{1}", 10_000), ("\"", 10_000), ("", 65_536), ("é", 10_000)] {
            let long = argument.repeat(count);
            for argv in [vec![long.clone()], vec![argument.to_owned(); count]] {
                let spec = ExecSpec { argv, tag: Some(long.clone()), ..ExecSpec::default() };
                let mut exec = Exec::new(Accepted { cwd: &long, ..accepted(&spec) });
                exec.hear_started(1, 0).unwrap();
                let missing = Ending::NotStarted { stage: saggar_guest::FailStage::Program, errno: 2 };
                let (status, exit_code, signal, error) = describe_ending(missing, false, &exec.program, &exec.cwd);
                exec.end(Ended { status, exit_code, signal, error, ..ended() });
                exec.usage = Some(Usage {
                    cpu_ms: Some(u64::MAX),
                    memory_peak_bytes: Some(u64::MAX),
                    processes_peak: Some(u64::MAX),
                });
                for number in 0..100 {
                    let message = format!("{number}{}", "\u{1}".repeat(1000));
                    exec.deny(&Denial {
                        code: DenialCode::SyscallRefused,
                        rule: "seccomp/unlisted".to_owned(),
                        message,
                    });
                }
                let told = serde_json::to_vec(&exec.state(Moment::at(0))).unwrap().len();
                assert!(told * EXECS_MAX < JSON_MAX * 3 / 4, "{argument:?} {}: {told} bytes each", spec.argv.len());
            }
        }
    }
}
