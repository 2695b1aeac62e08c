//! Files that clients send for COPY steps, before a build: archives in `templates/PROJECT/uploads`, named by the hash that the client
//! gives them.
//!
//! The hash is the client's own and covers more than the archive, so it can't be compared with it. It names files of one project
//! only. What is kept is bounded; the oldest goes first.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use rustix::fs::{AtFlags, CWD, linkat};
use saggar_domain::{ProjectId, Timestamp};

use super::import::Upload;
use super::manage::{TEMPLATES, blocking};
use crate::fault::Fault;
use crate::permit::{Action, Permit, Subject};
use crate::sandboxes::{Sandboxes, now, random};

/// Archives that a project keeps.
const KEPT_MAX: usize = 256;
/// The purpose of a signature.
const PURPOSE: &str = "template-files/v1";

/// The hash that a client gives its files: 64 lower-case digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilesHash(String);

impl FilesHash {
    pub fn parse(text: &str) -> Option<Self> {
        let is_hex = text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        is_hex.then(|| Self(text.to_owned()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Sandboxes {
    /// Whether the project has these files.
    pub async fn has_build_files(&self, permit: &Permit, hash: &FilesHash) -> Result<bool, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let path = self.uploads(permit.project()).join(hash.as_str());
        blocking("looking for files", move || Ok(path.is_file())).await
    }

    /// A signature that lets its holder send these files for the project, until a deadline.
    pub fn sign_build_files(&self, permit: &Permit, hash: &FilesHash, expires: Timestamp) -> Result<String, Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let expires = expires.as_millis().to_string();
        Ok(self.signing().sign(&[PURPOSE, permit.project().as_str(), hash.as_str(), &expires]).0)
    }

    /// The permit of a signature's holder; `None` if it isn't ours or has expired.
    pub fn build_files_permit(
        &self,
        project: &ProjectId,
        hash: &FilesHash,
        expires: Timestamp,
        signature: &str,
    ) -> Option<Permit> {
        let words = [PURPOSE, project.as_str(), hash.as_str(), &expires.as_millis().to_string()];
        if !self.signing().verify(&words, signature) || expires <= now() {
            return None;
        }
        let action = Action::Manage(TEMPLATES);
        Permit::decide(&Subject::Bearer { project: project.clone(), action: action.clone() }, action).ok()
    }

    /// Keeps files that have arrived, instead of earlier ones with the same hash.
    pub async fn keep_build_files(&self, permit: &Permit, hash: FilesHash, upload: Upload) -> Result<(), Fault> {
        permit.check(|action| *action == Action::Manage(TEMPLATES))?;
        let directory = self.uploads(permit.project());
        let bytes_max = self.settings().import_size_max.bytes();
        blocking("keeping files", move || {
            let fail = |error: std::io::Error| Fault::internal("keeping files", error);
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(fail)?;
            let file = upload.into_file();
            let beside = directory.join(format!(".{}", hex(random())));
            // The file has no name until now.
            let source = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
            linkat(CWD, source, CWD, &beside, AtFlags::SYMLINK_FOLLOW).map_err(|errno| fail(errno.into()))?;
            std::fs::rename(&beside, directory.join(hash.as_str())).map_err(fail)?;
            forget_oldest(&directory, &hash, bytes_max);
            Ok(())
        })
        .await
    }

    pub(super) fn files_of(&self, project: &ProjectId, hash: &FilesHash) -> std::io::Result<File> {
        File::open(self.uploads(project).join(hash.as_str()))
    }

    pub(super) fn contexts(&self, project: &ProjectId) -> PathBuf {
        self.settings().data_directory.join("templates").join(project.as_str()).join("contexts")
    }

    fn uploads(&self, project: &ProjectId) -> PathBuf {
        self.settings().data_directory.join("templates").join(project.as_str()).join("uploads")
    }

    /// Removes what builds of an earlier server left in a project.
    pub(super) fn forget_interrupted_builds(&self, project: &ProjectId) {
        // What can't be removed now is tried again at the next start.
        let _ = std::fs::remove_dir_all(self.contexts(project));
        for entry in std::fs::read_dir(self.uploads(project)).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with('.') {
                // As above.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

/// Keeps the newest files within the bounds, and `newest` in any case.
fn forget_oldest(directory: &std::path::Path, newest: &FilesHash, bytes_max: u64) {
    let mut files: Vec<_> = std::fs::read_dir(directory)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let stat = entry.metadata().ok()?;
            Some((stat.modified().ok()?, stat.len(), entry.path()))
        })
        .collect();
    files.sort_by(|a, b| b.cmp(a));
    let mut bytes = 0;
    for (index, (_, size, path)) in files.into_iter().enumerate() {
        bytes += size;
        let is_newest = path.file_name().is_some_and(|name| name == newest.as_str());
        if !is_newest && (index >= KEPT_MAX || bytes > bytes_max) {
            // Tried again with the next files.
            let _ = std::fs::remove_file(path);
        }
    }
}

fn hex(bits: [u8; 16]) -> String {
    bits.iter().map(|byte| format!("{byte:02x}")).collect()
}
