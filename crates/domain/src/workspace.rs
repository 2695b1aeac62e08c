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
    if draft.workspace.is_none() && fs == FsMode::WorkspaceWrite {
        return Err(needs_workspace(&format!("filesystem mode {fs}")));
    }
    if draft.workspace.is_none() && !draft.protect.is_empty() {
        return Err(needs_workspace("a protected path"));
    }
    Ok(fs)
}

/// Refuses the scratch mode if there is nothing to make a scratch copy of: no changes would be kept. Stored drafts may
/// contain it, so this is checked for new sandboxes only. `read-only` alone stands: it makes /workspace unwritable.
pub(crate) fn check_scratch(draft: &Draft) -> Result<(), Problem> {
    let is_copy = matches!(draft.fs, Some(FsMode::Scratch | FsMode::Worktree));
    if draft.workspace_user.is_some() && (!is_copy || draft.workspace.is_none()) {
        return Err(Problem::new(
            Code::Contradiction,
            "workspace_user is for a workspace that is mounted copy-on-write, or as a worktree",
            "add fs = \"scratch\" and a workspace, or leave workspace_user out",
        ));
    }
    if draft.fs == Some(FsMode::Worktree) && !draft.protect.is_empty() {
        return Err(Problem::new(
            Code::Contradiction,
            "a protected path has no meaning in a worktree, whose changes become commits of a branch",
            "leave `protect` out, and review the branch before you merge it; or use fs = \"scratch\"",
        ));
    }
    match (draft.fs, &draft.workspace) {
        (Some(fs @ (FsMode::Scratch | FsMode::Worktree)), None) => {
            Err(needs_workspace(&format!("filesystem mode {fs}")))
        }
        (None | Some(FsMode::Scratch | FsMode::Worktree | FsMode::WorkspaceWrite | FsMode::ReadOnly), _) => Ok(()),
    }
}

fn needs_workspace(what: &str) -> Problem {
    Problem::new(
        Code::Contradiction,
        format!("{what} needs a workspace, and none is given"),
        "name the directory with --workspace DIR; --workspace . is the current one",
    )
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
        FsMode::WorkspaceWrite | FsMode::Scratch | FsMode::Worktree | FsMode::ReadOnly => return Ok(Vec::new()),
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
