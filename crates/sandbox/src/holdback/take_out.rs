//! Keeps what is held back, and then takes it out of the workspace.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fchmod, fstat, openat, readlinkat, renameat, statat, unlinkat};
use rustix::io::Errno;
use saggar_domain::{Denial, DenialCode, SandboxId};
use saggar_jail::Rule;

use super::findings::{Finding, Findings, What, examine};
use super::search::{Before, Closed, open};
use crate::acting::ActingAs;
use crate::changes::{Base, Change, Changes, Entry, Kind, Name, Pending, open_file};
use crate::data::DataDirectory;
use crate::git::remove_new_links;
use crate::host_tree::HostTree;
use crate::placeholder::{Gate, Others};

/// Maximum number of bytes kept for one sandbox. Hooks and settings are short; anything beyond this is removed without
/// being kept.
const KEPT_LEN_MAX: u64 = 64 << 20;
/// Number of names in a message.
const NAMED_MAX: usize = 8;

#[derive(Debug, Default)]
pub(crate) struct HeldBack {
    /// Number of paths that are kept, or were too long to be kept.
    pub(crate) kept: u64,
    names: Vec<String>,
    count: usize,
    links: usize,
    /// Whether everything could be examined and taken out.
    is_complete: bool,
    /// Whether something has to wait until another sandbox that protects it has ended. The record stays for that.
    pub(crate) is_postponed: bool,
    /// Why nothing could be kept. The findings are lost then.
    lost: Option<std::io::ErrorKind>,
}

/// Takes everything that programs of the host would act on out of a workspace, and keeps it under the sandbox's id. The
/// sandbox must be dead. Other sandboxes may start and end during the search, but not while files are taken out.
pub(crate) fn hold_back(
    data: &DataDirectory,
    id: &SandboxId,
    workspace: &HostTree,
    before: &Before,
    since_ns: i128,
) -> HeldBack {
    let found = look(workspace, before, since_ns);
    if found.all.is_empty() && found.made.is_empty() {
        return HeldBack { is_complete: found.is_complete, ..HeldBack::default() };
    }
    match Gate::close(data.sandboxes()) {
        Ok(gate) => take_all(data, id, workspace, found, &gate),
        Err(_) => HeldBack { is_postponed: true, ..HeldBack::default() },
    }
}

/// The same, if the caller already holds the gate.
pub(crate) fn hold_back_within(
    data: &DataDirectory,
    id: &SandboxId,
    workspace: &HostTree,
    before: &Before,
    since_ns: i128,
    gate: &Gate,
) -> HeldBack {
    take_all(data, id, workspace, look(workspace, before, since_ns), gate)
}

fn look(workspace: &HostTree, before: &Before, since_ns: i128) -> Findings {
    if !Rule::HeldBack.is_on() {
        return Findings { is_complete: true, ..Findings::default() };
    }
    let _owner = ActingAs::owner_of(workspace);
    examine(workspace, before, since_ns)
}

fn take_all(
    data: &DataDirectory,
    id: &SandboxId,
    workspace: &HostTree,
    mut findings: Findings,
    gate: &Gate,
) -> HeldBack {
    let mut held = HeldBack { is_complete: findings.is_complete, ..HeldBack::default() };
    let others = Others::look(data.sandboxes(), workspace, id.as_str(), gate);
    let is_placeholder = |finding: &Finding| {
        let is_directory = finding.what == What::TakenOut(Kind::Directory);
        others.have_placed(workspace, finding.path.as_bytes(), is_directory)
    };
    // It is removed together with the sandbox that placed it.
    findings.all.retain(|finding| !is_placeholder(finding));
    if !findings.all.is_empty() {
        // A process died, or had to wait, after keeping them: take out the rest of what is already kept.
        match Changes::open(data, id.as_str()) {
            Ok(kept) => {
                let kept: BTreeSet<&Name> = kept.entries().iter().map(|entry| &entry.path).collect();
                findings.all.retain(|finding| kept.contains(&finding.path));
            }
            Err(_) => match keep(data, id, workspace, &findings.all) {
                Ok(count) => held.kept = count,
                Err(error) => held.lost = Some(error.kind()),
            },
        }
    }
    // Removing the name would end the protection by another sandbox's mount.
    findings.all.retain(|finding| {
        let is_above = |path: &String| Name(path.clone().into_bytes()).is_within(finding.path.as_bytes());
        let is_held = others.held.iter().any(is_above);
        held.is_postponed |= is_held;
        !is_held
    });
    let _owner = ActingAs::owner_of(workspace);
    // The contents of a directory go before it.
    for finding in findings.all.iter().rev() {
        held.is_complete &= take_out(workspace, finding).is_ok();
    }
    held.count = findings.all.len();
    held.names = findings.all.iter().take(NAMED_MAX).map(|finding| finding.path.to_string()).collect();
    held.links = without_links(workspace, &findings.made, &mut held.is_complete);
    held
}

impl HeldBack {
    /// The message for the user.
    pub(crate) fn denial(&self, id: &SandboxId) -> Option<Denial> {
        let mut parts = Vec::new();
        if self.count > 0 {
            let more = if self.count > self.names.len() { " among them" } else { "" };
            let what = format!("{:?}{more}", self.names.join(", "));
            parts.push(match self.lost {
                None => format!(
                    "held back, because the host's git would act on it: {what}; see `saggar changes list {id}`, and \
                     `saggar changes apply {id} PATH` for each that you want"
                ),
                Some(kind) => format!(
                    "removed, because the host's git would act on it, and it could not be kept ({kind}): {what}; check \
                     the space and permissions of the data directory"
                ),
            });
        }
        if self.links > 0 {
            parts.push(format!("{} symbolic links in git directories were removed", self.links));
        }
        if self.is_postponed {
            parts.push(
                "some files that the host's git would act on are in use by another sandbox; they are removed \
                 at the next start after that one has ended"
                    .to_owned(),
            );
        }
        if !self.is_complete {
            parts.push(
                "the workspace could not be searched completely for repositories; check it before you use git on it"
                    .to_owned(),
            );
        }
        let message = parts.join("; ");
        (!message.is_empty()).then(|| Denial { code: DenialCode::HeldBack, rule: Rule::HeldBack.name(), message })
    }
}

/// Keeps everything, and makes the list visible only once it is complete.
fn keep(data: &DataDirectory, id: &SandboxId, workspace: &HostTree, findings: &[Finding]) -> std::io::Result<u64> {
    let mut pending = Pending::begin(data, id)?;
    let mut room = KEPT_LEN_MAX;
    for finding in findings {
        match entry_of(workspace, finding, &mut pending, &mut room) {
            Ok(entry) => pending.add(entry),
            Err(Errno::FBIG) => pending.skip(&finding.path, "too long to be held back; it was removed"),
            Err(errno) => pending.skip(&finding.path, &format!("it can't be read ({errno}); it was removed")),
        }
    }
    pending.finish(id, workspace, Vec::new(), None)
}

fn entry_of(workspace: &HostTree, finding: &Finding, pending: &mut Pending, room: &mut u64) -> Result<Entry, Errno> {
    let path = &finding.path;
    let kind = match &finding.what {
        What::TakenOut(kind) => *kind,
        What::Replaced(_) => Kind::File,
    };
    let owner = ActingAs::owner_of(workspace);
    let (above, name) = above(workspace, path)?;
    let mut stat = statat(&above, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let file = match kind {
        Kind::File => Some(open_file(workspace.fd.as_fd(), path.as_bytes())?),
        Kind::Link | Kind::Directory => None,
    };
    let target = match kind {
        Kind::Link => Some(Name(readlinkat(&above, name, Vec::new())?.into_bytes())),
        Kind::File | Kind::Directory => None,
    };
    // The directory they are kept in doesn't belong to the owner.
    drop(owner);
    let mut blob = None;
    if let Some(file) = file {
        stat = fstat(&file)?;
        if rustix::fs::FileType::from_raw_mode(stat.st_mode) != rustix::fs::FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        *room = room.checked_sub(stat.st_size as u64).ok_or(Errno::FBIG)?;
        blob = Some(pending.keep(&file, &stat, &|| Ok(()))?);
    }
    let (change, base) = match &finding.what {
        What::TakenOut(_) => (Change::Added, None),
        What::Replaced(bytes) => (Change::Modified, Some(Base::of_length(bytes.len() as u64))),
    };
    Ok(Entry {
        path: path.clone(),
        change,
        kind,
        mode: stat.st_mode & 0o777,
        size: if kind == Kind::File { stat.st_size as u64 } else { 0 },
        blob,
        target,
        base,
        changed_on_host: false,
        held: true,
    })
}

fn take_out(workspace: &HostTree, finding: &Finding) -> Result<(), Errno> {
    let (above, name) = above(workspace, &finding.path)?;
    let act = || match &finding.what {
        What::TakenOut(Kind::Directory) => unlinkat(&above, name, AtFlags::REMOVEDIR),
        What::TakenOut(Kind::File | Kind::Link) => unlinkat(&above, name, AtFlags::empty()),
        What::Replaced(bytes) => replace(&above, name, bytes),
    };
    match act() {
        Err(Errno::ACCESS) => {
            // Its directory may have been made read-only.
            fchmod(&above, Mode::from_raw_mode(fstat(&above)?.st_mode & 0o7777 | 0o700))?;
            act()
        }
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}

/// Atomic. A file that can't be replaced is removed: without settings git uses its defaults.
fn replace(above: &OwnedFd, name: &[u8], bytes: &[u8]) -> Result<(), Errno> {
    let beside = format!(".saggar-held-{}", std::process::id());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let written = openat(above, beside.as_str(), flags, Mode::from_raw_mode(0o644)).and_then(|file| {
        let mut file = std::fs::File::from(file);
        std::io::Write::write_all(&mut file, bytes).map_err(|_| Errno::IO)?;
        renameat(above, beside.as_str(), above, name)
    });
    written.or_else(|_| {
        // The first failure counts; an incomplete file is not one of git's.
        let _ = unlinkat(above, beside.as_str(), AtFlags::empty());
        unlinkat(above, name, AtFlags::empty())
    })
}

/// git creates no links in its directories, and in one created inside none belongs to the host.
fn without_links(workspace: &HostTree, made: &[Name], is_complete: &mut bool) -> usize {
    if made.is_empty() {
        return 0;
    }
    let names: Vec<String> =
        made.iter().filter_map(|name| str::from_utf8(name.as_bytes()).ok().map(str::to_owned)).collect();
    let removed = remove_new_links(workspace, &names, &[], i128::MIN / 2);
    *is_complete &= !removed.is_incomplete && names.len() == made.len();
    removed.count
}

/// The directory that contains a path, and its last component.
fn above<'a>(workspace: &HostTree, path: &'a Name) -> Result<(OwnedFd, &'a [u8]), Errno> {
    let (above, name) = path.split();
    Ok((open(workspace, if above == b"." { b"" } else { above }, Closed::Opened)?, name))
}
