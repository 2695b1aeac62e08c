//! The questions of `--ask`: whether a program may reach a host that no rule allows.
//!
//! The terminal is shared with a program that may be hostile. While a question is open nothing of the program is shown, and it is typed
//! nothing. What was typed before, and in the moment in which the question appears, is discarded: it was meant for the program.

use std::cell::Cell;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{OptionalActions, QueueSelector, isatty, tcflush, tcgetattr, tcsetattr};
use saggar_domain::net::EgressDraft;
use saggar_domain::{Code, NetworkMode, Problem, Spec};
use saggar_sandbox::{Answers, DataDirectory, HostAnswer, Question, Signals};

use crate::args::RunArguments;
use crate::streams::{copy, write_all};

/// How long a person has to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long keys are ignored after a question appears.
const CALM: Duration = Duration::from_millis(500);
const MINUTE: Duration = Duration::from_secs(60);
const QUESTIONS_A_MINUTE: usize = 5;
/// Of a host's name. Its end says whose it is.
const NAME_MAX: usize = 120;
/// Hosts that were refused and are remembered.
const REFUSED_MAX: usize = 256;
/// Undoes what a program could have switched on to hide a question: colours, character sets, margins, a hidden cursor.
const RESET: &str = "\x1b[!p\x1b[?7;25h\x1b[?5l\x1b(B\x0f\x1b[0m\r\n";
const CTRL_C: u8 = 3;
const WINCH: i32 = Signal::WINCH.as_raw();

pub(crate) struct Desk<'a> {
    terminal: Option<OwnedFd>,
    signals: &'a Signals,
    /// Where answers are kept, and for which workspace.
    kept: Option<(Answers, String)>,
    recent: Vec<Instant>,
    refused: Vec<(String, u16)>,
    /// The terminal got a new size while a question was open.
    is_resized: Cell<bool>,
}

/// The spec with what was allowed for its workspace before.
pub(crate) fn with_answers(mut spec: Spec, arguments: &RunArguments) -> Result<Spec, Problem> {
    if !arguments.ask {
        return Ok(spec);
    }
    if spec.network != NetworkMode::Proxied {
        return Err(Problem::new(Code::Contradiction, "--ask needs the network mode proxied", "add --net proxied"));
    }
    if let Some(workspace) = workspace(&spec) {
        let data = DataDirectory::open(arguments.data_dir.as_deref())?;
        let known = Answers::of(&data).all()?.remove(&workspace).unwrap_or_default();
        let allow = known.iter().filter_map(|rule| rule.parse().ok()).collect();
        spec.egress = spec.egress.merge(EgressDraft::of(allow, Vec::new()))?;
    }
    Ok(spec)
}

fn workspace(spec: &Spec) -> Option<String> {
    let path = std::fs::canonicalize(spec.workspace.as_ref()?.as_str()).ok()?;
    path.into_os_string().into_string().ok()
}

impl<'a> Desk<'a> {
    pub(crate) fn new(spec: &Spec, data: &DataDirectory, signals: &'a Signals) -> Self {
        let stdin = std::io::stdin();
        let terminal = isatty(&stdin).then(|| copy(stdin.as_fd()).ok()).flatten();
        let kept = workspace(spec).map(|workspace| (Answers::of(data), workspace));
        Self { terminal, signals, kept, recent: Vec::new(), refused: Vec::new(), is_resized: Cell::new(false) }
    }

    pub(crate) fn ask(&mut self, question: &Question<'_>) -> HostAnswer {
        let Some(terminal) = self.terminal.as_ref() else { return HostAnswer::NoTerminal };
        if self.refused.iter().any(|(host, port)| host == question.host && *port == question.port) {
            return HostAnswer::Deny;
        }
        let now = Instant::now();
        self.recent.retain(|asked| now.duration_since(*asked) < MINUTE);
        if self.recent.len() >= QUESTIONS_A_MINUTE {
            return HostAnswer::TooMany;
        }
        self.recent.push(now);
        let Ok(before) = tcgetattr(terminal) else { return HostAnswer::NoTerminal };
        let mut raw = before.clone();
        raw.make_raw();
        if tcsetattr(terminal, OptionalActions::Now, &raw).is_err() {
            return HostAnswer::NoTerminal;
        }
        let answer = self.converse(terminal, question, (now + PATIENCE).min(question.deadline));
        // What else was typed was for the question. If the terminal is gone, nothing is left to restore.
        let _ = tcflush(terminal, QueueSelector::IFlush);
        let _ = tcsetattr(terminal, OptionalActions::Now, &before); // As above.
        if self.is_resized.take() {
            raise(WINCH);
        }
        if answer == HostAnswer::Deny && self.refused.len() < REFUSED_MAX {
            self.refused.push((question.host.to_owned(), question.port));
        }
        answer
    }

    fn converse(&self, terminal: &OwnedFd, question: &Question<'_>, deadline: Instant) -> HostAnswer {
        let program = shown(question.program.unwrap_or("a program"));
        let text = format!(
            "{RESET}saggar: {program} wants to connect to {}:{}, and no rule allows it\r\n",
            shown(question.host),
            question.port
        );
        let always = if self.kept.is_some() { ", [a]lways for this workspace" } else { "" };
        if !say(terminal, &text) || self.wait(terminal, Instant::now() + CALM, false).is_some() {
            return HostAnswer::TooLate;
        }
        // If this fails, reading fails too.
        let _ = tcflush(terminal, QueueSelector::IFlush);
        say(terminal, &format!("  allow it? [o]nce, for this [r]un{always}, [n]o: "));
        let key = self.wait(terminal, deadline, true).unwrap_or(0);
        let (word, answer) = match key {
            b'o' => ("once", HostAnswer::AllowOnce),
            b'r' => ("for this run", HostAnswer::AllowHost),
            b'a' => match self.keep(question) {
                Ok(()) => ("always for this workspace", HostAnswer::AllowHost),
                Err(_) => ("for this run; it can't be kept", HostAnswer::AllowHost),
            },
            b'n' => ("no", HostAnswer::Deny),
            _ => ("no", HostAnswer::TooLate),
        };
        say(terminal, &format!("{word}\r\n"));
        answer
    }

    /// The next key that is an answer, 0 if the run is cancelled or the terminal is gone, and nothing when the time is over. Without
    /// `reads`, keys are left alone.
    fn wait(&self, terminal: &OwnedFd, deadline: Instant, reads: bool) -> Option<u8> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
            let keys = if reads { PollFlags::IN } else { PollFlags::empty() };
            let mut polls = [PollFd::new(self.signals, PollFlags::IN), PollFd::new(terminal, keys)];
            if poll(&mut polls, Some(&left)) == Ok(0) {
                return None;
            }
            if !polls[0].revents().is_empty() {
                match self.signals.next() {
                    Ok(Some(WINCH)) => self.is_resized.set(true),
                    Ok(Some(number)) => {
                        raise(number);
                        return Some(0);
                    }
                    Ok(None) => {}
                    Err(_) => return Some(0),
                }
                continue;
            }
            let mut typed = [0; 64];
            let Ok(length @ 1..) = rustix::io::read(terminal, &mut typed[..]) else { return Some(0) };
            for key in &typed[..length] {
                match key {
                    // In raw mode the terminal sends no signal.
                    &CTRL_C => {
                        raise(Signal::INT.as_raw());
                        return Some(0);
                    }
                    b'a' if self.kept.is_none() => {}
                    b'o' | b'r' | b'a' | b'n' => return Some(*key),
                    _ => {}
                }
            }
        }
    }

    fn keep(&self, question: &Question<'_>) -> Result<(), Problem> {
        let Some((answers, workspace)) = &self.kept else { return Ok(()) };
        let host = if question.host.contains(':') { format!("[{}]", question.host) } else { question.host.to_owned() };
        let rule = if matches!(question.port, 80 | 443) { host } else { format!("{host}:{}", question.port) };
        answers.add(workspace, &rule)
    }
}

/// For the loop that attends the program: a cancellation ends the run, and a new size is passed on.
fn raise(number: i32) {
    if let Some(signal) = Signal::from_named_raw(number) {
        // The process is ours.
        let _ = kill_process(getpid(), signal);
    }
}

fn say(terminal: &OwnedFd, text: &str) -> bool {
    write_all(terminal.as_fd(), text.as_bytes(), Some(Timespec { tv_sec: 1, tv_nsec: 0 })).is_ok()
}

/// Printable, and the end of it if it is long.
fn shown(name: &str) -> String {
    let plain: Vec<char> = name.chars().map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect();
    match plain.len().checked_sub(NAME_MAX) {
        Some(cut @ 1..) => plain[cut..].iter().fold("...".to_owned(), |text, c| text + &c.to_string()),
        _ => plain.iter().collect(),
    }
}
