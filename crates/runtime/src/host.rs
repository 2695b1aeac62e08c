//! The host's capabilities, as `saggar doctor` determines them: in a separate process, because its trials fork, and
//! this process has threads.

use std::process::Stdio;
use std::time::Duration;

use saggar_domain::Capabilities;
use tokio::process::Command;

use crate::fault::Fault;
use crate::sandboxes::Sandboxes;

/// Time limit of all trials.
const PATIENCE: Duration = Duration::from_secs(60);

impl Sandboxes {
    pub async fn examine_host(&self) -> Result<Capabilities, Fault> {
        let settings = self.settings();
        let doctor = Command::new(&settings.program)
            .args(["doctor", "--json", "--data-dir"])
            .arg(&settings.data_directory)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .output();
        let failed = |error: std::io::Error| Fault::internal("examining the host", error);
        let output =
            tokio::time::timeout(PATIENCE, doctor).await.map_err(|_| failed(std::io::ErrorKind::TimedOut.into()))?;
        // Its exit code only says whether the default tier is ready; its output has the rest.
        let output = output.map_err(failed)?;
        serde_json::from_slice(&output.stdout)
            .map_err(|error| Fault::internal("reading the host's capabilities", error))
    }
}
