//! `cargo xtask pack FRONT FULL OUTPUT`: puts the full program behind the front. The output is the one file that ships.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;

/// Packs. An older output is replaced, never written to: it may be running, and cargo may keep another name for it.
pub fn run(front: &str, full: &str, output: &str) -> anyhow::Result<ExitCode> {
    let read = |path: &str| std::fs::read(path).with_context(|| format!("reading {path}"));
    let packed = saggar_payload::pack(&read(front)?, &read(full)?).with_context(|| format!("packing {full}"))?;
    let beside = format!("{output}.packing");
    std::fs::write(&beside, packed).with_context(|| format!("writing {beside}"))?;
    std::fs::set_permissions(&beside, std::fs::Permissions::from_mode(0o755)).context("making it executable")?;
    std::fs::rename(Path::new(&beside), output).with_context(|| format!("replacing {output}"))?;
    Ok(ExitCode::SUCCESS)
}
