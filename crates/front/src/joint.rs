//! How a program's streams are connected to ours. `saggar run` and `saggar sandbox exec` use the same rule.
//!
//! | our stdin | the program's |
//! |---|---|
//! | a pipe, a file, a socket | ours, passed through |
//! | `/dev/null` | empty |
//! | a terminal, and so are stdout and stderr | its own terminal; sequences that act on more than the screen are
//! filtered |
//! | a terminal, but output goes elsewhere | typed lines |
//! | a terminal whose foreground job is another | empty |
//!
//! `--tty` always creates a terminal and passes everything. `--stdin` sets the source of stdin; then a terminal is
//! created only with `--tty`.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;

use rustix::fs::{FileType, major, minor};
use rustix::termios::tcgetpgrp;

/// The requested connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish<'a> {
    /// `--stdin`.
    pub stdin: Option<&'a OsStr>,
    /// `--tty`.
    pub tty: bool,
    /// Whether stdout carries a report instead of the program's output.
    pub is_json: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joint {
    pub stdin: Stdin,
    /// Set if the program gets its own terminal.
    pub terminal: Option<Terminal>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stdin {
    Empty,
    Ours,
    File(OsString),
}

/// What a program may do to our terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminal {
    /// Use the screen. This is the default on a terminal.
    Screen,
    /// Anything. Only with `--tty`.
    Whole,
}

impl Joint {
    /// Decides from the streams of this process.
    pub fn of(wish: Wish<'_>) -> Self {
        let stdin = std::io::stdin();
        let has_terminal = stdin.is_terminal();
        // A terminal that doesn't control our session has no job control.
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
            // Reading there would stop this process, and then nothing would enforce the deadline.
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

/// The state of our own streams.
#[derive(Clone, Copy, Debug)]
struct Ours {
    stdin_is_terminal: bool,
    /// `/dev/null` never yields input, so it is treated as empty, which is cheaper.
    stdin_is_null: bool,
    /// Whether our process group is in the foreground, so that typed input is for us.
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
