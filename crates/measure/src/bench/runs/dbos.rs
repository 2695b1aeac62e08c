//! DBOS: workflows in one Python process, on the benchmark's own PostgreSQL.
//!
//! The cluster is as `initdb` creates it, except that it listens only on its own socket. A step's outcome is durable
//! before the next step.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::patience::wait_until;

/// Debian's directory of PostgreSQL versions.
const POSTGRESQL: &str = "/usr/lib/postgresql";
/// The owner of the cluster when we are root: PostgreSQL refuses to run as root.
const OWNER: &str = "postgres";
/// Time limit for starting the database.
const PATIENCE: Duration = Duration::from_secs(60);
/// Our program for it; its packages are installed beside it.
const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bench/peers/dbos_steps.py");

/// Workflows and their database, running.
#[derive(Debug)]
pub struct Dbos {
    version: String,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    workflows: Child,
    // Dropped after its users.
    _database: Database,
}

impl Dbos {
    /// Starts both, with data in a new directory.
    pub fn start(peers: &Path, place: &Path, tool: &str) -> Result<Self> {
        let python = peers.join("dbos/bin/python");
        ensure!(python.exists(), "it is not installed (make setup-bench)");
        let programs = programs()?;
        let database = Database::start(&programs, place)?;
        let url = format!("postgresql://{OWNER}@/postgres?host={}", place.display());
        let mut workflows = Command::new(&python)
            .args([PROGRAM, &url, tool])
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(place.with_extension("log")).context("creating DBOS's log")?)
            .spawn()
            .context("starting DBOS")?;
        let input = workflows.stdin.take();
        let output = BufReader::new(workflows.stdout.take().context("DBOS has no output")?);
        let version = format!("DBOS {} on {}", version_of(&python)?, first_line(&programs.join("postgres"))?);
        let mut dbos = Self { version, input, output, workflows, _database: database };
        let ready = dbos.read_line()?;
        ensure!(
            ready == "ready",
            "DBOS did not start; the end of its log:\n{}",
            last_words(&place.with_extension("log"))
        );
        Ok(dbos)
    }

    pub fn version(&self) -> String {
        self.version.clone()
    }

    /// Seconds for `runs` runs of `steps` steps.
    pub fn drive(&mut self, runs: usize, steps: usize) -> Result<f64> {
        let input = self.input.as_mut().context("DBOS has no input")?;
        writeln!(input, "{runs} {steps}").and_then(|()| input.flush()).context("asking DBOS")?;
        let answer = self.read_line()?;
        answer.parse().with_context(|| format!("DBOS answered {answer:?}"))
    }

    fn read_line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line).context("listening to DBOS")?;
        Ok(line.trim().to_owned())
    }
}

impl Drop for Dbos {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.workflows.kill().and_then(|()| self.workflows.wait());
    }
}

/// A running cluster.
#[derive(Debug)]
struct Database {
    programs: PathBuf,
    data: PathBuf,
}

impl Database {
    fn start(programs: &Path, place: &Path) -> Result<Self> {
        let owner = if is_root()? { &["--owner", OWNER, "--group", OWNER][..] } else { &[] };
        run(Command::new("install").args(["--directory", "--mode", "0700"]).args(owner).arg(place))?;
        let data = place.join("data");
        run(as_owner(&programs.join("initdb"))?
            .args(["--auth=trust", "--username", OWNER, "--encoding=UTF8", "--locale=C", "--pgdata"])
            .arg(&data))?;
        let database = Self { programs: programs.to_owned(), data };
        let settings = format!("-c listen_addresses='' -c unix_socket_directories='{}'", place.display());
        let log = place.join("log");
        run(database.control("start")?.arg("--log").arg(&log).args(["--wait", "--options", &settings]))?;
        let socket = place.join(".s.PGSQL.5432");
        wait_until("PostgreSQL's socket", PATIENCE, || Ok(socket.exists()))?;
        Ok(database)
    }

    fn control(&self, what: &str) -> Result<Command> {
        let mut command = as_owner(&self.programs.join("pg_ctl"))?;
        command.arg(what).arg("--pgdata").arg(&self.data);
        Ok(command)
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let stopped = self.control("stop").and_then(|mut stop| run(stop.args(["--mode", "immediate", "--wait"])));
        if let Err(error) = stopped {
            eprintln!("bench: PostgreSQL does not stop: {error:#}");
        }
    }
}

/// The newest installed version.
fn programs() -> Result<PathBuf> {
    let missing = "PostgreSQL is not installed (on Debian: apt-get install postgresql, or make setup-bench)";
    let versions = std::fs::read_dir(POSTGRESQL).context(missing)?.filter_map(Result::ok);
    let places = versions.map(|version| version.path().join("bin")).filter(|place| place.join("initdb").is_file());
    places.max().context(missing)
}

/// Runs a program as the user that owns the cluster.
fn as_owner(program: &Path) -> Result<Command> {
    if !is_root()? {
        return Ok(Command::new(program));
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", OWNER, "--regid", OWNER, "--init-groups"]).arg(program).current_dir("/");
    Ok(command)
}

fn is_root() -> Result<bool> {
    Ok(crate::machine::Machine::look()?.is_root)
}

fn run(command: &mut Command) -> Result<()> {
    // Not a pipe: processes that it starts would keep that open.
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("running {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}

fn version_of(python: &Path) -> Result<String> {
    let ask = "import importlib.metadata; print(importlib.metadata.version('dbos'))";
    let output = Command::new(python).args(["-c", ask]).output().context("asking for DBOS's version")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn first_line(program: &Path) -> Result<String> {
    let output = Command::new(program).arg("--version").output().context("asking for PostgreSQL's version")?;
    let text = String::from_utf8_lossy(&output.stdout);
    let version = text.split(' ').nth(2).unwrap_or("of unknown version");
    Ok(format!("PostgreSQL {}", version.trim()))
}

fn last_words(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(10)..].join("\n")
}
