//! Checkouts other than the one at the top: linked worktrees, submodules, and a git directory that a file points to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;
use rustix::io::Errno;

use super::{
    CONFIG_LEN_MAX, Checkout, DEPTH_MAX, Finder, GitResult, INDEX_LEN_MAX, OWN, SIGNS, index, line_of, path_of,
};

impl Finder<'_> {
    /// A file that points to a git directory.
    pub(super) fn linked(&mut self, file: &Path, checkout: &Path, depth: usize) -> GitResult {
        let text = self.reading.read(file, CONFIG_LEN_MAX)?.unwrap_or_default();
        let Some(path) = text.strip_prefix(b"gitdir: ").map(|rest| path_of(line_of(rest))) else {
            return Ok(());
        };
        let target = self.lead(checkout, path)?;
        match self.reading.kind(&target).map_err(|errno| (target.clone(), errno))? {
            Some(FileType::Directory) => self.git_directory(&target, Some(checkout), depth + 1),
            _ => Ok(()),
        }
    }

    /// The `.git` file of a checkout whose git directory is elsewhere. Replacing it would mislead git.
    pub(super) fn checkout_of(&mut self, checkout: &Path) -> GitResult {
        let file = checkout.join(".git");
        match self.reading.kind(&file).map_err(|errno| (file.clone(), errno))? {
            Some(FileType::RegularFile) => self.hold(&file),
            _ => Ok(()),
        }
    }

    pub(super) fn worktrees(&mut self, directory: &Path, checkouts: &mut Vec<Checkout>) -> GitResult {
        let worktrees = directory.join("worktrees");
        for name in self.reading.directories(&worktrees)? {
            let own = worktrees.join(name);
            for file in ["commondir", "config.worktree", "gitdir"] {
                self.hold(&own.join(file))?;
            }
            let mut settings = Vec::new();
            self.read_settings(&own.join("config.worktree"), 0, &mut BTreeSet::new(), &mut settings)?;
            if let Some(top) = self.checkout_at(&own)? {
                self.checkout_of(&top)?;
                checkouts.push(Checkout { top, settings });
            }
        }
        Ok(())
    }

    /// The top of a linked worktree, as its directory in the repository says.
    pub(super) fn checkout_at(&mut self, own: &Path) -> GitResult<Option<PathBuf>> {
        let leads = self.reading.read(&own.join("gitdir"), CONFIG_LEN_MAX)?.unwrap_or_default();
        let leads = path_of(leads.trim_ascii_end());
        if leads.as_os_str().is_empty() {
            return Ok(None);
        }
        let file = self.lead(own, leads)?;
        Ok(Some(file.parent().filter(|_| file.ends_with(".git")).map_or(file.clone(), Path::to_owned)))
    }

    /// Checkouts of other repositories that the index names. git looks into them as soon as one contains a `.git`,
    /// whatever `.gitmodules` says.
    pub(super) fn submodules(&mut self, directory: &Path, checkout: &Path, hash_len: usize, depth: usize) -> GitResult {
        let mut files = vec![directory.join("index")];
        // If the index is split, most of it is in another file.
        let shared = self.reading.list(directory)?.into_iter().filter(|(name, _)| name.starts_with(b"sharedindex."));
        files.extend(shared.map(|(name, _)| directory.join(path_of(&name))));
        for file in files {
            let Some(bytes) = self.reading.read(&file, INDEX_LEN_MAX)? else { continue };
            let index = match index::parse(&bytes, hash_len) {
                Ok(index) => index,
                Err(index::Malformed) if bytes.is_empty() || !self.reading.is_inside(&file) => continue,
                Err(index::Malformed) => return Err((file, Errno::BADMSG)),
            };
            let inside =
                checkout.strip_prefix(&self.reading.workspace.path).ok().filter(|_| self.reading.is_inside(&file));
            if let Some(inside) = inside {
                let name = |path: &Vec<u8>| inside.join(path_of(path)).into_os_string().into_encoded_bytes();
                self.found.hidden.extend(index.hidden.iter().map(name));
            }
            for link in index.gitlinks {
                let place = checkout.join(path_of(&link));
                if !self.reading.is_inside(&place) {
                    continue;
                }
                match self.reading.kind(&place.join(".git")) {
                    Ok(Some(_)) => self.repository(&place, depth + 1)?,
                    Ok(None) => self.hold_directory(&place.join(".git"))?,
                    // git doesn't look behind a link.
                    Err(Errno::LOOP) => {}
                    Err(errno) => return Err((place, errno)),
                }
            }
        }
        Ok(())
    }

    /// Submodules are named by path, so their git directories may be several levels deep, and nested.
    pub(super) fn modules(&mut self, directory: &Path, depth: usize) -> GitResult {
        if depth > DEPTH_MAX {
            return Err((directory.to_owned(), Errno::LOOP));
        }
        for name in self.reading.directories(directory)? {
            if OWN.contains(&name.as_os_str().as_encoded_bytes()) {
                continue;
            }
            let path = directory.join(name);
            // An incomplete one may be completed later by the program that took a part away.
            let mut signs =
                SIGNS.iter().map(|sign| self.reading.kind(&path.join(sign)).map_err(|errno| (path.clone(), errno)));
            if signs.try_fold(false, |any, sign| sign.map(|sign| any || sign.is_some()))? {
                self.git_directory(&path, None, depth)?;
            }
            self.modules(&path, depth + 1)?;
        }
        Ok(())
    }
}
