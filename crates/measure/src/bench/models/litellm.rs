//! LiteLLM's proxy, as PyPI installs it: as many workers as there are CPUs, no database, no callbacks.

use std::fs::File;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::{PATH, request};
use crate::http::{Ask, Client};
use crate::patience::{pause, wait_until};
use crate::processes;
use crate::provider::{Provider, QUICK};
use crate::signal::{Signal, send_signal};

const KEY: &str = "sk-bench";
/// It imports for a while.
const PATIENCE: Duration = Duration::from_secs(180);
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The proxy, running.
#[derive(Debug)]
pub struct LiteLlm {
    address: SocketAddr,
    version: String,
    child: Child,
}

impl LiteLlm {
    pub fn start(peers: &Path, place: &Path, provider: &Provider) -> Result<Self> {
        let home = peers.join("litellm/bin");
        ensure!(home.join("litellm").exists(), "it is not installed (make setup-bench)");
        let config = format!(
            "model_list:\n- model_name: {QUICK}\n  litellm_params:\n    model: openai/{QUICK}\n    api_base: http://{}/v1\n    api_key: none\n\
             general_settings:\n  master_key: {KEY}\nlitellm_settings:\n  telemetry: false\n",
            provider.address()
        );
        let file = place.join("litellm.yaml");
        std::fs::write(&file, config).context("writing LiteLLM's configuration")?;
        let address =
            TcpListener::bind("127.0.0.1:0").and_then(|held| held.local_addr()).context("finding a free port")?;
        let workers = std::thread::available_parallelism().map_or(1, usize::from).to_string();
        let log = File::create(place.join("litellm.log")).context("creating LiteLLM's log")?;
        let child = Command::new(home.join("python"))
            .arg(home.join("litellm"))
            .args(["--host", "127.0.0.1", "--port", &address.port().to_string(), "--num_workers", &workers, "--config"])
            .arg(&file)
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("LITELLM_LOG", "ERROR")
            .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
            .env("LITELLM_TELEMETRY", "False")
            .stdin(Stdio::null())
            .stdout(log.try_clone().context("its log")?)
            .stderr(log)
            // Its workers are children; they are ended with it.
            .process_group(0)
            .spawn()
            .context("starting LiteLLM")?;
        // From here on dropping this ends it.
        let litellm = Self { address, version: version(&home)?, child };
        let body = request(QUICK, false);
        let mut last = String::new();
        wait_until("LiteLLM", PATIENCE, || {
            let asked = Client::new(address, KEY).ask(Ask::post(PATH, &body));
            let is_up = asked.as_ref().is_ok_and(|answer| answer.status == 200);
            last = asked.map_or_else(|error| error.to_string(), |answer| answer.text());
            if !is_up {
                pause(LOOK_EVERY);
            }
            Ok(is_up)
        })
        .with_context(|| format!("it said {last}"))?;
        Ok(litellm)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn key(&self) -> &'static str {
        KEY
    }

    pub fn version(&self) -> String {
        self.version.clone()
    }
}

impl Drop for LiteLlm {
    fn drop(&mut self) {
        let family = processes::all().map(|all| processes::family_of(self.child.id(), &all)).unwrap_or_default();
        let family: Vec<u32> = family.into_iter().collect();
        // Some may end before they get the signal.
        let _ = send_signal(Signal::Kill, &family);
        // It was among them.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

fn version(home: &Path) -> Result<String> {
    let program = "import importlib.metadata as m; print('LiteLLM', m.version('litellm'))";
    let output = Command::new(home.join("python")).args(["-c", program]).stdin(Stdio::null()).output();
    Ok(String::from_utf8_lossy(&output.context("asking for LiteLLM's version")?.stdout).trim().to_owned())
}
