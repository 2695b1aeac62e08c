//! A server of this user's own, for `saggar agent run` where no server is configured.
//!
//! It is an ordinary `saggar serve` on the default data directory, on a free port of the loopback address, and stops
//! when nothing has needed it for a while. Where it is and its key are in a file that only this user can read. Two
//! commands that need one at once start one: the second waits for the lock of the first.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use saggar_api::client::{Client, ClientOptions};
use saggar_api::{KeyName, Secret};
use saggar_sandbox::DataDirectory;
use serde::{Deserialize, Serialize};

use super::arguments::ServerArguments;
use super::dispatch::note;
use super::failure::CommandFailure;
use super::settings::{self, Access};

/// Where the server is, below the data directory.
const PLACE: &str = "own-server.json";
const LOCK: &str = "own-server.lock";
const SOCKET: &str = "own-server.sock";
const UNIX: &str = "unix:";
const LOG: &str = "own-server.log";
/// Size in bytes from which the log is begun anew.
const LOG_BYTES_MAX: u64 = 4 << 20;
/// How long an idle server stays.
const IDLE: &str = "15m";
/// How long to wait for an answer that says whether a server is there.
const HEALTH_PATIENCE: Duration = Duration::from_secs(2);
/// The name of its key.
const KEY_NAME: &str = "saggar agent";

#[derive(Debug, Serialize, Deserialize)]
struct OwnServer {
    url: String,
    api_key: String,
    pid: u32,
}

/// A client for the configured server, for one that answers at the default address, or for one of this user's own, which
/// is started if it doesn't run. The last part says whether it is one of our own.
pub(crate) async fn client(arguments: &ServerArguments) -> Result<(Client, Access, bool), CommandFailure> {
    let (client, access) = settings::configured(arguments)?;
    if access.is_configured {
        return Ok((client, access, false));
    }
    let data = DataDirectory::open(None)?.path().to_owned();
    // Without a key the default address is another's server.
    if access.key.is_some() && answers(&client).await {
        return Ok((client, access, false));
    }
    if let Some(own) = read(&data.join(PLACE))
        && let Some(found) = reach(&own).await?
    {
        return Ok(found);
    }
    let lock = lock(&data)?;
    // Another command may have started one meanwhile.
    if let Some(own) = read(&data.join(PLACE))
        && let Some(found) = reach(&own).await?
    {
        return Ok(found);
    }
    let own = start(&data).await?;
    drop(lock);
    note(&format!(
        "no server is configured, so one was started as this user: {} (pid {}); it stops {IDLE} after nothing needs it, or with: kill {1}",
        own.url, own.pid
    ));
    let missing = || {
        CommandFailure::ours(
            "no_connection",
            "the server that was started doesn't answer",
            "see own-server.log in the data directory",
        )
    };
    reach(&own).await?.ok_or_else(missing)
}

/// The one that runs, for commands that start none; `None` if there is none. Only a socket of our own is asked.
pub(super) fn running() -> Option<Result<(Client, Access), CommandFailure>> {
    let own = read(&DataDirectory::default_path().ok()?.join(PLACE))?;
    std::os::unix::net::UnixStream::connect(own.url.strip_prefix(UNIX)?).ok()?;
    Some(own.access())
}

impl OwnServer {
    fn access(&self) -> Result<(Client, Access), CommandFailure> {
        let key = Secret::new(&self.api_key);
        let client = Client::new(ClientOptions::new(&self.url).with_key(key.clone()))?;
        Ok((client, Access { url: self.url.clone(), key: Some(key), is_configured: true }))
    }
}

async fn answers(client: &Client) -> bool {
    tokio::time::timeout(HEALTH_PATIENCE, client.health()).await.is_ok_and(|health| health.is_ok())
}

async fn reach(own: &OwnServer) -> Result<Option<(Client, Access, bool)>, CommandFailure> {
    let (client, access) = own.access()?;
    Ok(answers(&client).await.then_some((client, access, true)))
}

/// `None` also for a file that others could have written or that isn't ours.
fn read(path: &Path) -> Option<OwnServer> {
    let found = std::fs::symlink_metadata(path).ok()?;
    let is_private = found.is_file() && found.mode() & 0o077 == 0 && found.uid() == rustix::process::geteuid().as_raw();
    let text = is_private.then(|| std::fs::read(path).ok()).flatten()?;
    serde_json::from_slice(&text).ok().filter(|own: &OwnServer| own.url.starts_with(UNIX))
}

fn lock(data: &Path) -> Result<File, CommandFailure> {
    let path = data.join(LOCK);
    let opened = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&path);
    let file = opened.map_err(|error| CommandFailure::file(&path, "opened", &error))?;
    flock(&file, FlockOperation::LockExclusive)
        .map_err(|error| CommandFailure::file(&path, "locked", &error.into()))?;
    Ok(file)
}

async fn start(data: &Path) -> Result<OwnServer, CommandFailure> {
    let place = data.join(PLACE);
    let known = read(&place).map(|own| own.api_key);
    // A store of earlier servers has shown its first key to somebody else.
    let key = match known {
        Some(key) => Some(key),
        None => made_key(data).await?,
    };
    let failed = |error: &std::io::Error| {
        CommandFailure::ours(
            "no_server",
            format!("a server can't be started: {error}"),
            "start one with `saggar serve`, and name it with SAGGAR_URL",
        )
    };
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let mut command = Command::new(program);
    command.args(["serve", "--address", "127.0.0.1", "--port", "0", "--auth", "keys", "--tls", "false"]);
    command.args(["--stop-when-idle", IDLE]).arg("--data-dir").arg(data);
    command.arg("--socket").arg(data.join(SOCKET)).args(["--socket-mode", "0600"]);
    // Ctrl-C on our terminal is for us.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log(data)?);
    let mut child = command.spawn().map_err(|error| failed(&error))?;
    let pid = child.id();
    let stdout = child.stdout.take();
    let reading = tokio::task::spawn_blocking(move || announced(stdout));
    let shown = reading.await.ok().flatten().ok_or_else(|| {
        let log = last_line(&data.join(LOG));
        CommandFailure::ours(
            "no_server",
            format!("a server was started as this user and ended at once: {log}"),
            "if another server uses this data directory, name it with SAGGAR_URL and SAGGAR_API_KEY",
        )
    })?;
    let api_key = shown.or(key).ok_or_else(|| {
        CommandFailure::ours(
            "no_key",
            "the server that was started has no key for this command",
            "make one with: saggar key create agent --data-dir DIR",
        )
    })?;
    // The kernel says there who we are, so that we may name directories of this host. And nobody else can listen there
    // when the server is gone, as on its port, and get the key.
    let own = OwnServer { url: format!("{UNIX}{}", data.join(SOCKET).display()), api_key, pid };
    write(&place, &own)?;
    Ok(own)
}

/// A key of an existing store; `None` for a new store, whose server shows one.
async fn made_key(data: &Path) -> Result<Option<String>, CommandFailure> {
    if !saggar_server::has_store(data) {
        return Ok(None);
    }
    let name: KeyName = serde_json::from_value(KEY_NAME.into())
        .map_err(|error| CommandFailure::ours("internal", error.to_string(), ""))?;
    match saggar_server::create_key(data, None, &name, None).await {
        Ok(made) => Ok(Some(made.secret.reveal().to_owned())),
        Err(error) => Err(CommandFailure::ours(
            "no_server",
            format!(
                "no server is configured, and none can be started: {}",
                crate::settings::naming(data, &error.to_string())
            ),
            "if a server runs, name it with SAGGAR_URL and SAGGAR_API_KEY",
        )),
    }
}

/// The key, if it was shown. `None` if the server ended before it listened.
fn announced(stdout: Option<std::process::ChildStdout>) -> Option<Option<String>> {
    let mut key = None;
    for line in BufReader::new(stdout?).lines() {
        let line = line.ok()?;
        if let Some(shown) = line.strip_prefix("API key (shown this once): ") {
            key = Some(shown.trim().to_owned());
        }
        if line.starts_with("listening on ") {
            return Some(key);
        }
    }
    None
}

fn log(data: &Path) -> Result<File, CommandFailure> {
    let path = data.join(LOG);
    let is_long = std::fs::metadata(&path).is_ok_and(|found| found.len() > LOG_BYTES_MAX);
    let mut options = OpenOptions::new();
    options.create(true).mode(0o600);
    match is_long {
        true => options.write(true).truncate(true),
        false => options.append(true),
    };
    options.open(&path).map_err(|error| CommandFailure::file(&path, "opened", &error))
}

fn last_line(path: &PathBuf) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let told = text.lines().rev().find(|line| line.starts_with("error:")).or_else(|| text.lines().last());
    super::shown::line(told.unwrap_or("it said nothing"))
}

/// Replaces the file at once, so that no command reads half of it.
fn write(path: &Path, own: &OwnServer) -> Result<(), CommandFailure> {
    let failed = |error: std::io::Error| CommandFailure::file(path, "written", &error);
    let new = path.with_extension("new");
    // Left behind by a command that was killed here.
    let _ = std::fs::remove_file(&new);
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&new).map_err(failed)?;
    let text = serde_json::to_vec(own).map_err(|error| failed(error.into()))?;
    file.write_all(&text).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&new, path).map_err(failed)
}
