//! E2B's own client in a process of its own, which does and times what it is told, a line each.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// The process. It ends when nothing more can be told to it.
#[derive(Debug)]
pub struct Python {
    child: Child,
    told: Option<ChildStdin>,
    said: BufReader<ChildStdout>,
    version: String,
}

impl Python {
    /// Starts it in the environment that its tests use, which is made first if it isn't there.
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

    /// Which client it is.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Create, run and kill, in ms.
    pub fn live(&mut self, url: &str, key: &str) -> Result<f64> {
        self.ask(&format!("live {url} {key}"))?["ms"].as_f64().context("a time that is no number")
    }

    /// Many creates at once: the ms of those that succeeded, and how many did not.
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
        // It ends by itself, and how is of no interest any more.
        let _ = self.child.wait();
    }
}
