//! Compare: runs the portable half of the conformance suite on Saggar and on other runtimes, and compares the results
//! with what each claims.
//!
//! The attempts are those of `saggar probe --via`, and the claims are data (`conformance/peers.toml`). The runtimes
//! are tried one after another; results and claims together become the table of `docs/comparison.md`. Nothing is
//! judged by hand.

use std::os::unix::fs::{PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::document;
use crate::machine::Machine;
use page::Page;
use peers::{Peer, Peers};
use results::Results;

mod page;
mod peers;
mod results;
mod verdict;

/// The page with the table.
const DOCUMENT: &str = "docs/comparison.md";
/// Directory for results, kept between runs.
const RESULTS: &str = "target/compare";
/// An unused uid: runtimes for ordinary users are tried as a user who owns nothing.
const ORDINARY: u32 = 64_321;

const USAGE: &str = "\
usage: cargo measure compare --saggar PATH [--write] [--from-results]

  --saggar PATH    the binary that runs the probe, and is probed itself
  --write          replace the table in docs/comparison.md
  --from-results   run nothing; read the results of the last run in target/compare
";

/// Tries every runtime, prints the table, and writes it into the page if requested.
pub fn run(arguments: &[&str]) -> Result<ExitCode> {
    let (mut saggar, mut writes, mut runs) = (None, false, true);
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--saggar" => saggar = rest.next().map(PathBuf::from),
            "--write" => writes = true,
            "--from-results" => runs = false,
            "--help" | "-h" => {
                print!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            other => bail!("no such option: {other}\n{USAGE}"),
        }
    }
    let root = crate::repository()?;
    let peers = Peers::parse(&std::fs::read_to_string(root.join("conformance/peers.toml"))?)?;
    let directory = root.join(RESULTS);
    std::fs::create_dir_all(&directory)?;
    let machine = Machine::look()?;
    if runs {
        ensure!(machine.is_root, "runc and runsc are tried as root; run this as root, or use --from-results");
        let saggar = saggar.context(USAGE)?;
        std::fs::write(directory.join("saggar.jsonl"), probe_ourselves(&saggar)?)?;
        for peer in &peers.peer {
            eprintln!("compare: {}", peer.name);
            std::fs::write(directory.join(format!("{}.jsonl", peer.name)), probe(&saggar, peer, root)?)?;
        }
    }
    let read = |name: &str| -> Result<Results> {
        let path = directory.join(format!("{name}.jsonl"));
        let text = std::fs::read_to_string(&path).with_context(|| format!("reading the results of {name}"))?;
        Results::parse(&text).with_context(|| format!("the results of {name}"))
    };
    let ours = read("saggar")?;
    let theirs = peers.peer.iter().map(|peer| Ok((peer, read(&peer.name)?))).collect::<Result<Vec<_>>>()?;
    let text = Page { machine: &machine, peers: &peers, ours: &ours, theirs: &theirs }.text()?;
    print!("{text}");
    if writes {
        document::write(&root.join(DOCUMENT), "compare", &text)?;
        eprintln!("compare: wrote {DOCUMENT}");
    }
    Ok(ExitCode::SUCCESS)
}

fn probe_ourselves(saggar: &Path) -> Result<Vec<u8>> {
    eprintln!("compare: saggar");
    let place = Place::new()?;
    let mut command = Command::new(saggar);
    command.args(["probe", "--json", "--data-dir"]).arg(place.0.join("data"));
    output(command)
}

fn probe(saggar: &Path, peer: &Peer, root: &Path) -> Result<Vec<u8>> {
    let place = Place::new()?;
    let line = peer.command.replace("{repository}", &root.display().to_string());
    if peer.as_root {
        let mut command = Command::new(saggar);
        command.args(["probe", "--json", "--as-root", "--via", &line]).env("TMPDIR", &place.0);
        return output(command);
    }
    // Other users may not be able to read the build directory.
    let copy = place.0.join("saggar");
    std::fs::copy(saggar, &copy)?;
    let temporary = place.0.join("tmp");
    std::fs::create_dir(&temporary)?;
    lchown(&temporary, Some(ORDINARY), Some(ORDINARY))?;
    let id = ORDINARY.to_string();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"]).arg(&copy);
    command.args(["probe", "--json", "--via", &line]).env("TMPDIR", &temporary).env("HOME", &temporary);
    output(command)
}

/// The probe's output. Failing cases are a result; only a probe that did not run is an error.
fn output(mut command: Command) -> Result<Vec<u8>> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output().context("starting the probe")?;
    ensure!(matches!(output.status.code(), Some(0 | 1)), "the probe ended with {}", output.status);
    Ok(output.stdout)
}

/// A temporary directory that every user may enter, removed when dropped.
struct Place(PathBuf);

impl Place {
    fn new() -> Result<Self> {
        let made = Command::new("mktemp").args(["--directory", "--tmpdir", "saggar-compare-XXXXXXXX"]).output()?;
        ensure!(made.status.success(), "mktemp ended with {}", made.status);
        let path = PathBuf::from(String::from_utf8(made.stdout)?.trim());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self(path))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // A leftover is in the system's temporary directory, and contains only fixtures.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
