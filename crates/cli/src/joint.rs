//! How a program's streams are joined to ours: one rule, for `saggar run` and `saggar sandbox exec`.
//!
//! | our stdin | the program's |
//! |---|---|
//! | a pipe, a file, a socket | ours, passed through |
//! | `/dev/null` | empty |
//! | a terminal, and stdout and stderr are ones too | a terminal of its own; what acts on more than its screen is filtered |
//! | a terminal, and output goes elsewhere | what is typed, line by line |
//! | a terminal that is another job's now | empty |
//!
//! `--tty` always makes a terminal, and passes everything. `--stdin` says where stdin comes from instead, and then no terminal is made by itself.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

use rustix::fs::{FileType, major, minor};
use rustix::termios::tcgetpgrp;

/// What was asked for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wish<'a> {
    /// `--stdin`.
    pub(crate) stdin: Option<&'a OsStr>,
    /// `--tty`.
    pub(crate) tty: bool,
    /// Whether stdout is for a report, and not for what the program prints.
    pub(crate) is_json: bool,
}

/// How they are joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Joint {
    pub(crate) stdin: Stdin,
    /// A terminal of the program's own.
    pub(crate) terminal: Option<Terminal>,
}

/// Where stdin comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stdin {
    Empty,
    Ours,
    File(OsString),
}

/// What a program may do to our terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// Use the screen: what a terminal gets by itself.
    Screen,
    /// Anything: asked for by name.
    Whole,
}

impl Joint {
    /// Decides by the streams that this process has.
    pub(crate) fn of(wish: Wish<'_>) -> Self {
        let stdin = std::io::stdin();
        let has_terminal = stdin.is_terminal();
        // A terminal that isn't our session's has no jobs.
        let is_ours = tcgetpgrp(&stdin).map_or(true, |group| group == rustix::process::getpgrp());
        let outputs = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let ours = Ours {
            stdin_is_terminal: has_terminal,
            stdin_is_null: is_null(&stdin),
            is_foreground: is_ours,
            outputs_are_terminals: outputs,
        };
        Self::decide(wish, ours)
    }

    fn decide(wish: Wish<'_>, ours: Ours) -> Self {
        let is_waiting = ours.stdin_is_terminal && !ours.is_foreground;
        let stdin = match wish.stdin {
            Some(word) if word == "none" => Stdin::Empty,
            Some(word) if word == "-" => Stdin::Ours,
            Some(path) => Stdin::File(path.to_owned()),
            // To read there would stop us, and nobody would watch the clock.
            None if is_waiting || ours.stdin_is_null => Stdin::Empty,
            None => Stdin::Ours,
        };
        let is_on_one = wish.stdin.is_none()
            && stdin == Stdin::Ours
            && ours.stdin_is_terminal
            && ours.outputs_are_terminals
            && !wish.is_json;
        let terminal = if wish.tty { Some(Terminal::Whole) } else { is_on_one.then_some(Terminal::Screen) };
        Self { stdin, terminal }
    }
}

/// What our own streams are.
#[derive(Clone, Copy, Debug)]
struct Ours {
    stdin_is_terminal: bool,
    /// Nothing comes from there, which is as good as an empty one and costs less.
    stdin_is_null: bool,
    /// Whether what is typed there is for us.
    is_foreground: bool,
    outputs_are_terminals: bool,
}

fn is_null(fd: impl std::os::fd::AsFd) -> bool {
    rustix::fs::fstat(fd).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && (major(stat.st_rdev), minor(stat.st_rdev)) == (1, 3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PIPE: Ours =
        Ours { stdin_is_terminal: false, stdin_is_null: false, is_foreground: true, outputs_are_terminals: false };
    const TERMINAL: Ours = Ours { stdin_is_terminal: true, outputs_are_terminals: true, ..PIPE };

    fn check(flags: &str, ours: Ours, stdin: Stdin, terminal: Option<Terminal>) {
        let value = flags.split(' ').find_map(|flag| flag.strip_prefix("--stdin="));
        let wish =
            Wish { stdin: value.map(OsStr::new), tty: flags.contains("--tty"), is_json: flags.contains("--json") };
        assert_eq!(Joint::decide(wish, ours), Joint { stdin, terminal }, "{flags:?} with {ours:?}");
    }

    #[test]
    fn a_pipe_is_passed_through_and_a_terminal_makes_one() {
        check("", PIPE, Stdin::Ours, None);
        check("", Ours { outputs_are_terminals: true, ..PIPE }, Stdin::Ours, None);
        check("", TERMINAL, Stdin::Ours, Some(Terminal::Screen));
        check("", Ours { outputs_are_terminals: false, ..TERMINAL }, Stdin::Ours, None);
        check("--json", PIPE, Stdin::Ours, None);
        check("", Ours { stdin_is_null: true, ..PIPE }, Stdin::Empty, None);
        check("--json", TERMINAL, Stdin::Ours, None);
    }

    #[test]
    fn what_is_asked_for_comes_first() {
        check("--tty", PIPE, Stdin::Ours, Some(Terminal::Whole));
        check("--tty", TERMINAL, Stdin::Ours, Some(Terminal::Whole));
        check("--stdin=none", PIPE, Stdin::Empty, None);
        check("--stdin=none", TERMINAL, Stdin::Empty, None);
        check("--stdin=none --tty", TERMINAL, Stdin::Empty, Some(Terminal::Whole));
        check("--stdin=-", TERMINAL, Stdin::Ours, None);
        check("--stdin=file", TERMINAL, Stdin::File("file".into()), None);
    }

    #[test]
    fn a_job_in_the_background_leaves_the_terminal_alone() {
        let background = Ours { is_foreground: false, ..TERMINAL };
        check("", background, Stdin::Empty, None);
        check("--json", background, Stdin::Empty, None);
        check("", Ours { is_foreground: false, ..PIPE }, Stdin::Ours, None);
    }
}
