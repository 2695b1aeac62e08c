//! Words of the domain as the agent's frames have them. The frames' own types are the guest's: it depends on nothing of ours.
//!
//! Programs are converted in [`crate::program`].

use saggar_domain::{OutputStream, SignalScope, TerminalSize};

pub(crate) fn stream(stream: saggar_guest::Stream) -> OutputStream {
    match stream {
        saggar_guest::Stream::Stdout => OutputStream::Stdout,
        saggar_guest::Stream::Stderr => OutputStream::Stderr,
    }
}

pub(crate) fn scope(scope: SignalScope) -> saggar_guest::SignalScope {
    match scope {
        SignalScope::Group => saggar_guest::SignalScope::Group,
        SignalScope::Tree => saggar_guest::SignalScope::Tree,
    }
}

pub(crate) fn terminal(TerminalSize { rows, cols }: TerminalSize) -> saggar_guest::TerminalSize {
    saggar_guest::TerminalSize { rows, cols }
}
