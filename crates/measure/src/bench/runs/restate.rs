//! Restate: its server and a service written with its own SDK, each a process, as npm installs them.
//!
//! Everything has its default except ports and the data directory. A step is one `ctx.run`, whose outcome is durable
//! before the next step.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::http::{Ask, Client};
use crate::patience::wait_until;

/// Time limit for starting the server.
const PATIENCE: Duration = Duration::from_secs(60);
/// The endpoint that starts a run and waits for its end.
const DRIVE: &str = "/steps/drive";

/// Its server and our service, running.
#[derive(Debug)]
pub struct Restate {
    ingress: SocketAddr,
    version: String,
    processes: [Child; 2],
}

impl Restate {
    /// Starts both, with data in a new directory.
    pub fn start(peers: &Path, place: &Path, tool: &str) -> Result<Self> {
        let home = peers.join("restate");
        let (node, packages) = (peers.join("node"), home.join("node_modules/@restatedev"));
        ensure!(packages.is_dir() && node.exists(), "it is not installed (make setup-bench)");
        std::fs::create_dir(place).context("making a place for Restate")?;
        let [ingress, admin, fabric] = free_addresses()?;
        let server = Command::new(server_in(&packages)?)
            .arg("--base-dir")
            .arg(place.join("data"))
            .env("RESTATE_INGRESS__BIND_ADDRESS", ingress.to_string())
            .env("RESTATE_ADMIN__BIND_ADDRESS", admin.to_string())
            .env("RESTATE_BIND_ADDRESS", fabric.to_string())
            .env("RESTATE_LOG_FILTER", "warn")
            .env("RESTATE_DISABLE_TELEMETRY", "true")
            .env("DO_NOT_TRACK", "1")
            .stdin(Stdio::null())
            .stdout(log(place, "server")?)
            .stderr(log(place, "server-errors")?)
            .spawn()
            .context("starting Restate's server")?;
        let mut service = Command::new(&node)
            .arg("restate.mjs")
            .arg(tool)
            .current_dir(&home)
            .env("NODE_ENV", "production")
            .env("RESTATE_LOGGING", "ERROR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log(place, "service")?)
            .spawn()
            .context("starting a service of Restate's SDK")?;
        let stdout = service.stdout.take().context("the service has no output")?;
        // From here on dropping this ends both.
        let restate = Self { ingress, version: version_in(&packages), processes: [server, service] };
        let mut port = String::new();
        BufReader::new(stdout).read_line(&mut port).context("reading the service's port")?;
        let port: u16 = port.trim().parse().context("the service did not start")?;
        register(admin, port)?;
        Ok(restate)
    }

    pub fn version(&self) -> String {
        self.version.clone()
    }

    /// Seconds for `runs` runs of `steps` steps.
    pub fn drive(&mut self, runs: usize, steps: usize) -> Result<f64> {
        let (ingress, wish) = (self.ingress, format!(r#"{{"count":{steps}}}"#));
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let one =
                || Client::new(ingress, "").ask(Ask::post(DRIVE, &wish)).context("a run of Restate's")?.expect(200);
            let asked: Vec<_> = (0..runs).map(|_| scope.spawn(one)).collect();
            asked.into_iter().try_for_each(|one| one.join().expect("a client does not panic").map(drop))
        })?;
        Ok(begun.elapsed().as_secs_f64())
    }
}

impl Drop for Restate {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // It may have ended.
            let _ = process.kill().and_then(|()| process.wait());
        }
    }
}

/// Registers the service at the server, and waits until its runs can be started.
fn register(admin: SocketAddr, port: u16) -> Result<()> {
    let wish = format!(r#"{{"uri":"http://127.0.0.1:{port}"}}"#);
    let mut last = String::new();
    let registered = wait_until("Restate's server", PATIENCE, || {
        let asked = Client::new(admin, "").ask(Ask::post("/deployments", &wish));
        let is_done = asked.as_ref().is_ok_and(|answer| matches!(answer.status, 200 | 201));
        last = asked.map_or_else(|error| error.to_string(), |answer| answer.text());
        Ok(is_done)
    });
    registered.with_context(|| format!("registering a service: {last}"))
}

/// Free ports; held together, so that they differ.
fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    let held = std::array::from_fn::<_, N, _>(|_| TcpListener::bind("127.0.0.1:0"));
    let mut addresses = Vec::new();
    for listener in &held {
        let address = listener.as_ref().map(TcpListener::local_addr).ok().context("finding a free port")?;
        addresses.push(address.context("finding a free port")?);
    }
    Ok(addresses.try_into().expect("one for each"))
}

/// The server's binary, in npm's package for this platform: the command of that name is a script around it.
fn server_in(packages: &Path) -> Result<PathBuf> {
    for entry in std::fs::read_dir(packages).context("looking for Restate's server")? {
        let program = entry.context("looking for Restate's server")?.path().join("bin/restate-server");
        if program.is_file() {
            return Ok(program);
        }
    }
    anyhow::bail!("npm has no server for this kind of machine")
}

fn version_in(packages: &Path) -> String {
    let of = |package: &str| -> Option<String> {
        let text = std::fs::read_to_string(packages.join(package).join("package.json")).ok()?;
        Some(serde_json::from_str::<Value>(&text).ok()?["version"].as_str()?.to_owned())
    };
    let [server, sdk] = ["restate-server", "restate-sdk"].map(|package| of(package).unwrap_or("?".to_owned()));
    format!("Restate {server} with its TypeScript SDK {sdk}")
}

fn log(place: &Path, name: &str) -> Result<File> {
    File::create(place.join(name)).with_context(|| format!("creating the log of Restate's {name}"))
}
