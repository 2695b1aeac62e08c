//! The operator's terminal, in raw mode while a program has it, and put back afterwards.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;

use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use saggar_sandbox::TerminalSize;

/// What a program gets when we have no terminal ourselves.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };
/// Names of terminals are short.
const NAME_LEN_MAX: usize = 64;

/// Raw mode for as long as this lives.
pub(crate) struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    /// Takes the terminal over, if stdin is one.
    pub(crate) fn enter() -> Option<Self> {
        let stdin = std::io::stdin();
        if !stdin.is_terminal() {
            return None;
        }
        let terminal = rustix::io::fcntl_dupfd_cloexec(&stdin, 0).ok()?;
        let before = tcgetattr(&terminal).ok()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(&terminal, OptionalActions::Now, &raw).ok()?;
        Some(Self { terminal, before })
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        // A terminal that went away needs no putting back.
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
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
