//! Starts an egress process that outlives this one.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use saggar_domain::Problem;
use saggar_sandbox::{EGRESS, EGRESS_SERVICE, EgressLock, EgressPlace};
use saggar_supervisor::egress::BUNDLE_VARIABLE;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::failed;

/// How long it may take to give up its rights and to serve.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// Longer than any problem that it tells.
const PROBLEM_MAX: u64 = 64 * 1024;

/// Returns when it serves, and has the name that supervisors know.
pub(super) async fn start(place: &EgressPlace, program: &Path, lock: &EgressLock) -> Result<(), Problem> {
    let (socket, name) = place.listen(lock).map_err(|error| failed(&error.kind()))?;
    let mut command = Command::new(program);
    command.arg0("saggar").args([EGRESS, EGRESS_SERVICE]).arg(place.path()).env_clear();
    if let Some(bundle) = std::env::var_os(BUNDLE_VARIABLE) {
        command.env(BUNDLE_VARIABLE, bundle);
    }
    let stdin = Stdio::from(std::fs::File::from(socket));
    let spawned = command.current_dir("/").stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut child = spawned.map_err(|error| failed(&error.kind()))?;
    // It closes its standard output when it serves, and says there why it can't.
    let mut said = Vec::new();
    let stdout = child.stdout.take();
    let read = async {
        match stdout {
            Some(stdout) => stdout.take(PROBLEM_MAX).read_to_end(&mut said).await,
            None => Ok(0),
        }
    };
    let outcome = match tokio::time::timeout(START_TIMEOUT, read).await {
        Ok(Ok(0)) => place.publish(&name, lock).map_err(|error| failed(&error.kind())),
        Ok(Ok(_)) => Err(serde_json::from_slice(&said).unwrap_or_else(|_| failed(&"it said nothing that can be read"))),
        Ok(Err(error)) => Err(failed(&error.kind())),
        Err(_) => Err(failed(&"it took too long")),
    };
    if outcome.is_err() {
        // It may have ended already. Its name is removed by the next sweep.
        let _ = child.start_kill();
    }
    // It lives on without us; if it ends first, its exit status is collected.
    tokio::spawn(async move { child.wait().await });
    outcome
}
