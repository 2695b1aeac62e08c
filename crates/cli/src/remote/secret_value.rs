//! Reads the value of a secret: from stdin, or from the terminal without showing it. Never from an argument, which other
//! users of the machine can see.

use std::io::{self, IsTerminal, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use saggar_api::Secret;
use saggar_domain::secret::SecretValue;
use zeroize::Zeroizing;

use super::failure::CommandFailure;

/// More than any value may have, so that one that is too long is seen to be.
const READ_MAX: u64 = 64 << 10;
/// Ctrl-C.
const INTERRUPT: u8 = 3;

pub(crate) fn read(name: &str) -> Result<Secret, CommandFailure> {
    let failed = |error: io::Error| {
        CommandFailure::ours("stream", format!("the value can't be read: {error}"), "give it on standard input")
    };
    let stdin = io::stdin();
    let bytes = if stdin.is_terminal() { asked(name).map_err(failed)? } else { all(stdin.lock()).map_err(failed)? };
    let wrong = |why: String| {
        CommandFailure::ours("invalid_value", why, "give the value on standard input, or type it when asked")
    };
    if bytes.contains(&INTERRUPT) {
        return Err(CommandFailure::ours("cancelled", "no value was given; nothing was stored", "").with_status(130));
    }
    let text = std::str::from_utf8(&bytes).map_err(|_| wrong("the value is not UTF-8 text".to_owned()))?;
    // A file and an `echo` end with a line break that is not part of the value.
    let text = text.strip_suffix('\n').map_or(text, |text| text.strip_suffix('\r').unwrap_or(text));
    let value = SecretValue::parse(text).map_err(|error| wrong(error.to_string()))?;
    Ok(Secret::new(value.expose()))
}

fn all(input: impl Read) -> io::Result<Zeroizing<Vec<u8>>> {
    // With room for everything, so that no copy is left behind by growing.
    let mut bytes = Zeroizing::new(Vec::with_capacity(READ_MAX as usize + 1));
    input.take(READ_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// One line from the terminal, without echo.
fn asked(name: &str) -> io::Result<Zeroizing<Vec<u8>>> {
    let mut stdin = io::stdin();
    let _hidden = Hidden::begin()?;
    write!(io::stderr(), "value of {name}: ")?;
    let mut bytes = Zeroizing::new(vec![0; READ_MAX as usize]);
    // In this mode a read returns one line, or what came before Ctrl-C or Ctrl-D.
    let length = stdin.read(&mut bytes)?;
    bytes.truncate(length);
    if !bytes.ends_with(b"\n") {
        writeln!(io::stderr())?;
    }
    Ok(bytes)
}

/// While this value lives, the terminal doesn't show what is typed. Ctrl-C ends the line and not this process, which
/// would leave the terminal like that.
struct Hidden(Termios);

impl Hidden {
    fn begin() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        hidden.local_modes &= !(LocalModes::ECHO | LocalModes::ISIG);
        hidden.local_modes |= LocalModes::ECHONL | LocalModes::ICANON;
        hidden.special_codes[SpecialCodeIndex::VEOL] = INTERRUPT;
        // What was typed before is dropped: it was meant for something else.
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // A terminal that is gone needs no mode.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}
