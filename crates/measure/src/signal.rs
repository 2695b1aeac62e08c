//! Sends signals to our processes by pid. The caller guarantees that a pid has not been reused.

use std::process::Command;

use anyhow::{Context, Result, ensure};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// A clean stop.
    Terminate,
    Kill,
}

/// Signals processes through the shell, whose `kill` exists on every system; the standard library can only kill.
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
