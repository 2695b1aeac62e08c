//! A chore's own temporary directory, removed on drop.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

#[derive(Debug)]
pub struct Workplace(PathBuf);

impl Workplace {
    /// Creates one in the system's temporary directory that no other user can write to.
    pub fn make(chore: &str) -> Result<Self> {
        Self::make_in(&std::env::temp_dir(), chore)
    }

    /// The same in another directory.
    pub fn make_in(directory: &Path, chore: &str) -> Result<Self> {
        let path = directory.join(format!("saggar-{chore}-{}", std::process::id()));
        // Other users may pass through it: a container's root, mapped or not, has to reach its root directory.
        std::fs::DirBuilder::new().mode(0o711).create(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Workplace {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("measure: {} could not be removed: {error}", self.0.display());
        }
    }
}
