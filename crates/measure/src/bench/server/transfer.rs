//! Uploads and downloads one big file, in turns with `cp` of the same file.
//!
//! A sandbox's private storage is a tmpfs, so `cp` copies within a tmpfs too: otherwise the comparison would measure
//! the disk. The client reads from and writes to the same tmpfs, so that a download also ends up in a file.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::life::{SANDBOXES, create, kill, timed};
use crate::bench::options::Options;
use crate::bench::statistics::Spread;
use crate::http::{Ask, Client};
use crate::serving::Serving;
use crate::workplace::Workplace;

/// Linux's world-writable tmpfs.
const TMPFS: &str = "/dev/shm";
/// Room for the file and a second one while the first is replaced.
const CREATE: &str = r#"{"ttl":"1h","limits":{"disk":"3G","memory":"4G"}}"#;
/// Path of the file in the sandbox.
const INSIDE: &str = "/home/user/big";

#[derive(Clone, Debug, PartialEq)]
pub struct Transfer {
    /// Size of the file.
    pub mib: usize,
    /// One entry per round.
    pub rounds: Vec<TransferRound>,
}

/// Times in ms, each with the `cp` before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransferRound {
    /// `cp`, then the upload.
    pub up: [f64; 2],
    /// `cp`, then the download.
    pub down: [f64; 2],
}

impl Transfer {
    /// The upload's speed relative to `cp`.
    pub fn up(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|round| round.up[0] / round.up[1]).collect::<Vec<_>>())
    }

    pub fn down(&self) -> Spread {
        Spread::of(&self.rounds.iter().map(|round| round.down[0] / round.down[1]).collect::<Vec<_>>())
    }

    /// MiB per second, from a time in ms.
    pub fn speed(&self, time: f64) -> f64 {
        self.mib as f64 * 1000.0 / time
    }
}

/// The inner error says why this can't be measured here.
pub fn measure(saggar: &Path, options: &Options, workplace: &Path) -> Result<Result<Transfer, String>> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("reading the mounts")?;
    let is_tmpfs = |line: &str| line.split(' ').skip(1).take(2).eq([TMPFS, "tmpfs"]);
    if !mounts.lines().any(is_tmpfs) {
        return Ok(Err(format!("{TMPFS} is no tmpfs")));
    }
    let place = Workplace::make_in(Path::new(TMPFS), "bench").context("making a directory on a tmpfs")?;
    let [source, copy] = ["source", "copy"].map(|name| place.path().join(name));
    let length = (options.transfer_mib as u64) << 20;
    fill(&source, length).context("making a big file")?;
    let server = Serving::start(saggar, &workplace.join("transfer"), &["--log", "warn", "--pool-max", "0"])?;
    let mut client = server.client();
    let id = create(&mut client, CREATE)?;
    let url = format!("{SANDBOXES}/{id}/files?path={INSIDE}");
    let mut rounds = Vec::new();
    for round in 0..options.rounds {
        eprintln!("bench: transfer round {} of {}", round + 1, options.rounds);
        let cp_before_up = time_cp(&source, &copy)?;
        let up = time_upload(&mut client, &url, &source, length)?;
        let cp_before_down = time_cp(&source, &copy)?;
        let down = time_download(&mut client, &url, &copy, length)?;
        ensure!(same(&source, &copy)?, "what came down is not what went up");
        client.ask(Ask::new("DELETE", &url))?.expect(204)?;
        rounds.push(TransferRound { up: [cp_before_up, up], down: [cp_before_down, down] });
    }
    kill(&mut client, &id)?;
    Ok(Ok(Transfer { mib: options.transfer_mib, rounds }))
}

fn time_cp(source: &Path, copy: &PathBuf) -> Result<f64> {
    remove(copy)?;
    let ((), time) = timed(|| {
        let status = Command::new("cp").arg(source).arg(copy).stdin(Stdio::null()).status().context("running cp")?;
        ensure!(status.success(), "cp failed");
        Ok(())
    })?;
    Ok(time)
}

fn time_upload(client: &mut Client, url: &str, source: &Path, length: u64) -> Result<f64> {
    let mut file = File::open(source)?;
    let (answer, time) = timed(|| client.upload(url, &mut file, length).context("uploading"))?;
    answer.expect(200)?;
    Ok(time)
}

fn time_download(client: &mut Client, url: &str, copy: &PathBuf, length: u64) -> Result<f64> {
    remove(copy)?;
    let mut file = File::create(copy)?;
    let (came, time) = timed(|| client.download(url, &mut file).context("downloading"))?;
    ensure!(came == (200, length), "the download came out as {came:?}");
    Ok(time)
}

fn remove(path: &PathBuf) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context("removing the last copy"),
        _ => Ok(()),
    }
}

/// Pseudo-random bytes, not zeros, so that no filesystem can leave them out.
fn fill(path: &Path, length: u64) -> Result<()> {
    let mut file = File::create(path)?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut block = vec![0u8; 1 << 20];
    for word in block.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes());
    }
    for number in 0..length >> 20 {
        block[..8].copy_from_slice(&number.to_le_bytes());
        file.write_all(&block)?;
    }
    Ok(())
}

fn same(first: &Path, second: &Path) -> Result<bool> {
    Ok(Command::new("cmp").arg("-s").arg(first).arg(second).status().context("running cmp")?.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_speed_is_in_parts_of_what_cp_did_just_before() {
        let round = |up, down| TransferRound { up: [400.0, up], down: [500.0, down] };
        let transfer = Transfer { mib: 1024, rounds: vec![round(800.0, 1000.0), round(1600.0, 2000.0)] };
        assert_eq!(transfer.up(), Spread { median: 0.375, min: 0.25, max: 0.5 });
        assert_eq!(transfer.down(), Spread { median: 0.375, min: 0.25, max: 0.5 });
        assert_eq!(transfer.speed(2000.0), 512.0);
    }
}
