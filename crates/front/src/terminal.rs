//! The operator's terminal: in raw mode while a program uses it, and restored afterwards.
//!
//! A program that uses the screen may enable mouse reports or hide the cursor. With `--tty` it talks to the terminal
//! directly and may also send queries, which the terminal answers as typed input. Afterwards the modes are reset as
//! far as that is possible in general, and unread input is dropped.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetwinsize, tcsetattr};
use saggar_domain::TerminalSize;

use crate::joint::Terminal;
use crate::streams;

/// Size of the program's terminal when we have none ourselves.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };
/// Maximum length of `TERM`.
const NAME_LEN_MAX: usize = 64;

/// Ends an unfinished control string. Leaves the alternate screen, without moving the cursor as 1049 would. Resets
/// margins, character sets, key modes, cursor and text attributes, mouse and focus reports, bracketed paste, keyboard
/// protocols and the palette. On a terminal in its default state all of this has no effect.
const RESET: &[u8] = b"\x1b\\\x1b[?1047l\x1b[!p\x1b[?9;1000;1001;1002;1003;1004;1005;1006;1015;1016l\x1b[?2004;2026l\x1b[?1;5l\x1b[?7;25h\x1b[>4m\x1b[=0u\x1b>\x1b(B\x0f\x1b[0m\x1b]104\x07\x1b]110\x07\x1b]111\x07\x1b]112\x07";
/// The same for a program that could only use the screen: it can't have changed the palette or the keyboard protocol.
const RESET_SCREEN: &[u8] = b"\x1b[?1047l\x1b[!p\x1b[?1000;1002;1003;1004;1006;1015l\x1b[?2004;2026l\x1b[?1;5l\x1b[?7;25h\x1b[4l\x1b>\x1b(B\x0f\x1b[0m";
/// How long to wait for a terminal that isn't being read.
const RESET_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// While this value lives, a program has the terminal.
pub struct HandedOver {
    /// The source of its input, in raw mode, with the mode to restore.
    keyboard: Option<(OwnedFd, Termios)>,
    screen: Option<OwnedFd>,
    kind: Terminal,
}

impl HandedOver {
    /// Hands over stdin and stdout, if they are terminals.
    pub fn begin(kind: Terminal) -> Self {
        let stdout = std::io::stdout();
        let screen = if stdout.is_terminal() { streams::copy(stdout.as_fd()).ok() } else { None };
        Self { keyboard: raw_stdin(), screen, kind }
    }

    /// No program used the terminal, so there is nothing to reset.
    pub fn was_not_used(&mut self) {
        self.screen = None;
    }
}

fn raw_stdin() -> Option<(OwnedFd, Termios)> {
    let stdin = std::io::stdin();
    if !stdin.is_terminal() {
        return None;
    }
    let terminal = rustix::io::fcntl_dupfd_cloexec(&stdin, 0).ok()?;
    let before = tcgetattr(&terminal).ok()?;
    let mut raw = before.clone();
    raw.make_raw();
    tcsetattr(&terminal, OptionalActions::Now, &raw).ok()?;
    Some((terminal, before))
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        if let Some(screen) = &self.screen {
            let reset = match self.kind {
                Terminal::Screen => RESET_SCREEN,
                Terminal::Whole => RESET,
            };
            // A terminal that is gone, or isn't being read, can't be reset.
            let _ = streams::write_all(screen.as_fd(), reset, Some(RESET_PATIENCE));
        }
        if let Some((terminal, before)) = &self.keyboard {
            // Drop unread input before echo is on again. TCSAFLUSH would wait for the output to be read.
            let _ = tcflush(terminal, QueueSelector::IFlush);
            // As above.
            let _ = tcsetattr(terminal, OptionalActions::Now, before);
        }
    }
}

/// The size of our terminal, or a common default.
pub fn size() -> TerminalSize {
    match tcgetwinsize(std::io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize { rows: size.ws_row, cols: size.ws_col },
        _ => DEFAULT_SIZE,
    }
}

/// The value of `TERM`, if it is a plain name.
pub fn name() -> String {
    let is_plain = |name: &String| {
        !name.is_empty()
            && name.len() <= NAME_LEN_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-+._".contains(&byte))
    };
    std::env::var("TERM").ok().filter(is_plain).unwrap_or_else(|| "xterm".to_owned())
}
