//! E2B's own client in a separate process, which executes and times one command per line.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The process. It ends when its stdin is closed.
#[derive(Debug)]
pub struct Python {
    child: Child,
    told: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
    version: String,
}

impl Python {
    /// Starts it in the environment of its tests, which is created if missing.
    pub fn start(saggar: &Path, root: &Path) -> Result<Self> {
        let mut child = Command::new(root.join("tests/e2b/run.sh"))
            .args([saggar.as_os_str(), "bench".as_ref()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("running tests/e2b/run.sh")?;
        let (told, said) = (child.stdin.take(), child.stdout.take().context("it has a standard output")?);
        let mut python = Self { child, told, said: BufReader::new(said), version: String::new() };
        let answer = python.ask("version")?;
        python.version = answer["version"].as_str().context("a client without a version")?.to_owned();
        Ok(python)
    }

    pub fn version(&self) -> &str {
        &self.version
    }

    /// Create, run and kill. In ms.
    pub fn live(&mut self, url: &str, key: &str) -> Result<f64> {
        self.ask(&format!("live {url} {key}"))?["ms"].as_f64().context("a time that is no number")
    }

    /// Concurrent creates: the times of the successful ones in ms, and the number of failures.
    pub fn create_at_once(&mut self, url: &str, key: &str, count: usize) -> Result<(Vec<f64>, usize)> {
        let answer = self.ask(&format!("at-once {url} {key} {count}"))?;
        let times =
            answer["ms"].as_array().context("times that are no list")?.iter().filter_map(Value::as_f64).collect();
        let failures = answer["failures"].as_array().context("failures that are no list")?;
        if let Some(first) = failures.first() {
            eprintln!("bench: {} creates failed; the first: {first}", failures.len());
        }
        Ok((times, failures.len()))
    }

    fn ask(&mut self, what: &str) -> Result<Value> {
        let told = self.told.as_mut().context("it was told to end")?;
        writeln!(told, "{what}").context("the client has ended")?;
        let mut line = String::new();
        if self.said.read_line(&mut line).context("listening to the client")? == 0 {
            bail!("the client ended; what it said is above");
        }
        serde_json::from_str(&line).with_context(|| format!("the client said {line:?}"))
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        self.told = None;
        // It ends by itself, and its status doesn't matter any more.
        let _ = self.child.wait();
    }
}
