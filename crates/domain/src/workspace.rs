//! The workspace: write access to it, and its read-only paths.

use crate::mode::FsMode;
use crate::path::ProtectedPath;
use crate::problem::{Code, Problem};
use crate::spec::Draft;

/// Protected in every writable workspace, because write access to any of these lets a program choose what the host's
/// git runs. `commondir` and `config.worktree` are two more places that git reads configuration from.
pub const DEFAULT_PROTECTED: &[&str] =
    &[".git/hooks/", ".git/config", ".git/config.worktree", ".git/commondir", ".saggar/"];

/// Maximum number of protected paths.
const ENTRIES_MAX: usize = 64;
pub(crate) fn check_fs(draft: &Draft) -> Result<FsMode, Problem> {
    let default = if draft.workspace.is_some() { FsMode::WorkspaceWrite } else { FsMode::Scratch };
    let fs = draft.fs.unwrap_or(default);
    if draft.workspace.is_none() && (fs == FsMode::WorkspaceWrite || !draft.protect.is_empty()) {
        let what = if fs == FsMode::WorkspaceWrite { "filesystem mode workspace-write" } else { "a protected path" };
        return Err(Problem::new(
            Code::Contradiction,
            format!("{what} needs a workspace, and none is given"),
            "name the directory with --workspace DIR",
        ));
    }
    Ok(fs)
}

/// A writable workspace also protects the built-in paths. A scratch workspace is a copy: protected paths are not
/// applied from it, and the built-in ones are checked when changes are applied.
pub(crate) fn protected(
    fs: FsMode,
    has_workspace: bool,
    asked: Vec<ProtectedPath>,
) -> Result<Vec<ProtectedPath>, Problem> {
    let built_in: &[&str] = match fs {
        FsMode::WorkspaceWrite if has_workspace => DEFAULT_PROTECTED,
        FsMode::Scratch if has_workspace => &[],
        FsMode::WorkspaceWrite | FsMode::Scratch | FsMode::ReadOnly => return Ok(Vec::new()),
    };
    let built_in = built_in.iter().map(|text| ProtectedPath::parse(text).expect("the built-in paths are well-formed"));
    let mut all: Vec<ProtectedPath> = built_in.chain(asked).collect();
    all.sort();
    all.dedup();
    if all.len() > ENTRIES_MAX {
        return Err(Problem::new(
            Code::InvalidProtect,
            format!("more than {ENTRIES_MAX} protected paths"),
            "protect the directory that holds them",
        ));
    }
    Ok(all)
}
