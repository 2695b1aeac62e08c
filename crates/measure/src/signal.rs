//! Signals to processes of ours, by their ids. Whoever calls knows that an id is still that process's.

use std::process::Command;

use anyhow::{Context, Result, ensure};

/// What a process is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// End in good order.
    Terminate,
    Kill,
}

/// Signals processes through the shell, whose own `kill` is there on every system; the standard library only kills.
pub fn send_signal(signal: Signal, pids: &[u32]) -> Result<()> {
    let name = match signal {
        Signal::Terminate => "TERM",
        Signal::Kill => "KILL",
    };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "kill -s \"$@\"", "sh", name]).args(pids.iter().map(u32::to_string));
    let status = command.status().context("running the shell's kill")?;
    ensure!(status.success(), "sending SIG{name} failed");
    Ok(())
}
