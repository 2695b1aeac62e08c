//! The operator's terminal, in raw mode while a program has it, and put back afterwards.
//!
//! A program that has the screen may switch on the mouse or hide the cursor; with `--tty` it speaks to the terminal itself, and may also ask a
//! question that the terminal answers by typing. Afterwards the modes are put back, as far as that can be said in general, and what was
//! typed and not read is dropped.

use std::io::IsTerminal;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::Timespec;
use rustix::termios::{OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetwinsize, tcsetattr};
use saggar_domain::TerminalSize;

use crate::joint::Terminal;
use crate::streams;

/// What a program gets when we have no terminal ourselves.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };
/// Names of terminals are short.
const NAME_LEN_MAX: usize = 64;

/// Ends whatever string was begun; leaves the other screen, without moving the cursor as 1049 would; margins, character sets, keys, cursor
/// and text as usual; no reports of mouse and focus, no pasting in brackets, no other keyboard; the usual colours. All of it is nothing to a
/// terminal that is as usual already.
const RESET: &[u8] = b"\x1b\\\x1b[?1047l\x1b[!p\x1b[?9;1000;1001;1002;1003;1004;1005;1006;1015;1016l\x1b[?2004;2026l\x1b[?1;5l\x1b[?7;25h\x1b[>4m\x1b[=0u\x1b>\x1b(B\x0f\x1b[0m\x1b]104\x07\x1b]110\x07\x1b]111\x07\x1b]112\x07";
/// The same for a terminal whose program could only use the screen: no colours of the palette to put back, and no keyboard.
const RESET_SCREEN: &[u8] = b"\x1b[?1047l\x1b[!p\x1b[?1000;1002;1003;1004;1006;1015l\x1b[?2004;2026l\x1b[?1;5l\x1b[?7;25h\x1b[4l\x1b>\x1b(B\x0f\x1b[0m";
/// How long a terminal that nobody reads is waited for.
const RESET_PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A program has the terminal for as long as this lives.
pub(crate) struct HandedOver {
    /// Where its keys come from, in raw mode, with what it was before.
    keyboard: Option<(OwnedFd, Termios)>,
    /// Where its output goes.
    screen: Option<OwnedFd>,
    kind: Terminal,
}

impl HandedOver {
    /// Hands over stdin and stdout, as far as they are terminals.
    pub(crate) fn begin(kind: Terminal) -> Self {
        let stdout = std::io::stdout();
        let screen = if stdout.is_terminal() { streams::copy(stdout.as_fd()).ok() } else { None };
        Self { keyboard: raw_stdin(), screen, kind }
    }

    /// No program has had it: there is nothing on the screen to put back.
    pub(crate) fn was_not_used(&mut self) {
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
            // A terminal that went away, or that nobody reads, is not put back.
            let _ = streams::write_all(screen.as_fd(), reset, Some(RESET_PATIENCE));
        }
        if let Some((terminal, before)) = &self.keyboard {
            // Before it echoes again. TCSAFLUSH would wait for whoever reads the screen.
            let _ = tcflush(terminal, QueueSelector::IFlush);
            // As above.
            let _ = tcsetattr(terminal, OptionalActions::Now, before);
        }
    }
}

/// The size of our terminal, or a usual one.
pub(crate) fn size() -> TerminalSize {
    match tcgetwinsize(std::io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => TerminalSize { rows: size.ws_row, cols: size.ws_col },
        _ => DEFAULT_SIZE,
    }
}

/// The kind of our terminal, if its name is an ordinary one.
pub(crate) fn name() -> String {
    let is_plain = |name: &String| {
        !name.is_empty()
            && name.len() <= NAME_LEN_MAX
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-+._".contains(&byte))
    };
    std::env::var("TERM").ok().filter(is_plain).unwrap_or_else(|| "xterm".to_owned())
}
