//! What the host can give, as `saggar doctor` finds out: in a process of its own, since trying means forking, and this one has threads.

use std::process::Stdio;
use std::time::Duration;

use saggar_domain::Capabilities;
use tokio::process::Command;

use crate::fault::Fault;
use crate::sandboxes::Sandboxes;

/// How long trying everything may take.
const PATIENCE: Duration = Duration::from_secs(60);

impl Sandboxes {
    /// Tries what the host can give.
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
        // It says by its exit code whether the default tier is ready, and by what it prints everything else.
        let output = output.map_err(failed)?;
        serde_json::from_slice(&output.stdout).map_err(|error| Fault::internal("reading what the host can give", error))
    }
}
