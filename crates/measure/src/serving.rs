//! A server to measure: on a free port, with its own data directory and its own copy of the binary.
//!
//! Supervisors outlive their server by design, so ending the server doesn't end them. They run the same copy of the
//! binary, by which all of them are found and ended when this is dropped.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::http::Client;
use crate::patience::wait_until;
use crate::processes;
use crate::signal::{Signal, send_signal};

/// Time limit for a server to listen, and to stop.
const PATIENCE: Duration = Duration::from_secs(60);
/// Maximum number of output lines read ahead.
const LINES_AHEAD: usize = 64;

/// A server that runs, unless it was killed.
#[derive(Debug)]
pub struct Serving {
    program: PathBuf,
    data: PathBuf,
    log: PathBuf,
    flags: Vec<String>,
    address: SocketAddr,
    key: String,
    child: Child,
}

impl Serving {
    /// Starts one in a new directory.
    pub fn start(saggar: &Path, directory: &Path, flags: &[&str]) -> Result<Self> {
        std::fs::create_dir(directory).with_context(|| format!("creating {}", directory.display()))?;
        let program = directory.join("saggar");
        std::fs::copy(saggar, &program).with_context(|| format!("copying {}", saggar.display()))?;
        let (data, log) = (directory.join("data"), directory.join("log"));
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let (child, said) = launch(&program, &data, &log, 0, &flags)?;
        let key = said.key.context("a server said no key at its first start")?;
        Ok(Self { program, data, log, flags, address: said.address, key, child })
    }

    /// Kills it, as a crash would. Its sandboxes live on.
    pub fn crash(&mut self) -> Result<()> {
        self.child.kill().context("killing the server")?;
        self.child.wait().context("waiting for the server")?;
        Ok(())
    }

    /// Starts it again in the same directory. Returns the time until it listened.
    pub fn start_again(&mut self) -> Result<Duration> {
        let start = Instant::now();
        let (child, said) = launch(&self.program, &self.data, &self.log, self.address.port(), &self.flags)?;
        ensure!(said.address == self.address, "the server came back at another address");
        self.child = child;
        Ok(start.elapsed())
    }

    /// Stops it cleanly. Its sandboxes live on.
    pub fn stop(&mut self) -> Result<()> {
        send_signal(Signal::Terminate, &[self.child.id()])?;
        wait_until("a server that stops", PATIENCE, || Ok(self.child.try_wait()?.is_some()))
    }

    /// A worker beside it, as a separate process.
    pub fn worker(&self, flags: &[&str]) -> Result<Worker> {
        let log = File::options().create(true).append(true).open(&self.log).context("opening the server's log")?;
        let child = Command::new(&self.program)
            .args(["worker", "--data-dir"])
            .arg(&self.data)
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .context("starting a worker")?;
        Ok(Worker(child))
    }

    /// A new connection to it.
    pub fn client(&self) -> Client {
        Client::new(self.address, &self.key)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The key from its first start.
    pub fn key(&self) -> &str {
        &self.key
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The copy of the binary that only it and its supervisors run.
    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// Number of control sockets: live sandboxes, owned or in the pool.
    pub fn sockets(&self) -> Result<usize> {
        let is_socket = |name: &std::ffi::OsStr| name.to_string_lossy().starts_with("sbx_");
        let entries = std::fs::read_dir(self.data.join("control")).context("reading the control sockets")?;
        Ok(entries.filter_map(Result::ok).filter(|entry| is_socket(&entry.file_name())).count())
    }

    /// Waits until that many sandboxes are live.
    pub fn wait_for_sockets(&self, count: usize) -> Result<()> {
        wait_until(&format!("{count} sandboxes alive"), PATIENCE, || Ok(self.sockets()? == count))
    }

    /// The last lines it logged.
    pub fn last_words(&self) -> String {
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(10)..].join("\n")
    }

    fn end_everything(&mut self) -> Result<()> {
        if self.child.try_wait()?.is_none() {
            self.stop()?;
        }
        // A supervisor that gets SIGTERM ends its sandbox too; the remaining processes are killed.
        for (signal, find) in [(Signal::Terminate, processes::running as Find), (Signal::Kill, processes::tree_of)] {
            let ours: Vec<u32> = find(&self.program, &processes::all()?).into_iter().collect();
            if ours.is_empty() {
                return Ok(());
            }
            // Some may end before they get the signal.
            let _ = send_signal(signal, &ours);
            let gone = wait_until("supervisors that end", PATIENCE, || {
                Ok(processes::tree_of(&self.program, &processes::all()?).is_empty())
            });
            if gone.is_ok() {
                return Ok(());
            }
        }
        bail!("some processes of {} don't end", self.program.display())
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Err(error) = self.end_everything() {
            eprintln!("measure: {error:#}");
            // The last resort; the failure above is already reported.
            let _ = self.child.kill().and_then(|()| self.child.wait());
        }
    }
}

/// A worker that runs, unless it was killed. Killed on drop.
#[derive(Debug)]
pub struct Worker(Child);

impl Worker {
    /// Kills it, as a crash would.
    pub fn crash(&mut self) -> Result<()> {
        self.0.kill().context("killing a worker")?;
        self.0.wait().context("waiting for a worker")?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have been killed already.
        let _ = self.crash();
    }
}

type Find = fn(&Path, &[processes::Process]) -> std::collections::BTreeSet<u32>;

/// The server's output at its start.
#[derive(Debug, PartialEq, Eq)]
struct Said {
    address: SocketAddr,
    key: Option<String>,
}

fn launch(program: &Path, data: &Path, log: &Path, port: u16, flags: &[String]) -> Result<(Child, Said)> {
    let log_file = File::options().create(true).append(true).open(log).context("opening the server's log")?;
    let mut child = Command::new(program)
        .args(["serve", "--address", "127.0.0.1", "--port", &port.to_string(), "--data-dir"])
        .arg(data)
        .args(flags)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log_file)
        .spawn()
        .context("starting the server")?;
    let stdout = child.stdout.take().expect("it was asked for above");
    match listen_to(stdout) {
        Ok(said) => Ok((child, said)),
        Err(error) => {
            // It is useless now; the failed start is what gets reported.
            let _ = child.kill().and_then(|()| child.wait());
            let log = std::fs::read_to_string(log).unwrap_or_default();
            Err(error.context(format!("the server did not start; it logged:\n{log}")))
        }
    }
}

fn listen_to(stdout: std::process::ChildStdout) -> Result<Said> {
    let (sender, lines) = sync_channel(LINES_AHEAD);
    let read = move || read_lines(BufReader::new(stdout), &sender);
    std::thread::Builder::new().name("server".into()).spawn(read).context("starting a thread")?;
    let deadline = Instant::now() + PATIENCE;
    let mut key = None;
    loop {
        let line: String = match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => bail!("a server that does not listen after {} s", PATIENCE.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("a server that ended"),
        };
        if let Some(secret) = line.strip_prefix("API key (shown this once): ") {
            key = Some(secret.trim().to_owned());
        }
        if let Some(url) = line.strip_prefix("listening on http://") {
            return Ok(Said { address: url.trim().parse().context("an address that is none")?, key });
        }
    }
}

/// Passes lines on while there is a receiver, and keeps reading without one, so that a full pipe never blocks the
/// server.
fn read_lines(reader: impl BufRead, sender: &SyncSender<String>) {
    for line in reader.lines().map_while(Result::ok) {
        // The receiver is gone.
        let _ = sender.try_send(line);
    }
}
