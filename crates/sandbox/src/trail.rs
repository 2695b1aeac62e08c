//! Trails: resolves a path step by step, and records which links of a workspace it goes through.
//!
//! Links outside the workspace belong to the host, and are followed. A sandbox could change a link inside, so it is
//! recorded: to protect the end of a trail, the caller must protect these links too, or refuse. Nothing is opened; the
//! result is a list of names.

use std::collections::VecDeque;
use std::path::{Component, Path, PathBuf};

use saggar_domain::{Code, HostPath, Problem, ProtectedPath};

use crate::host_tree::HostTree;

/// The kernel's own limit.
const LINKS_MAX: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Trail {
    /// Links of the workspace on the way.
    pub(crate) links: Vec<PathBuf>,
    /// The end, without any link. It need not exist.
    pub(crate) end: PathBuf,
}

impl Trail {
    pub(crate) fn follow(workspace: &Path, path: &Path) -> Self {
        let mut links = Vec::new();
        let mut end = PathBuf::from("/");
        let mut rest: VecDeque<PathBuf> = parts(path);
        let mut followed = 0;
        while let Some(part) = rest.pop_front() {
            if part.as_os_str() == ".." {
                end.pop();
                continue;
            }
            let next = end.join(&part);
            let target = if followed < LINKS_MAX { std::fs::read_link(&next).ok() } else { None };
            let Some(target) = target else {
                end = next;
                continue;
            };
            followed += 1;
            if next.starts_with(workspace) && next != workspace {
                links.push(next);
            }
            if target.is_absolute() {
                end = PathBuf::from("/");
            }
            for part in parts(&target).into_iter().rev() {
                rest.push_front(part);
            }
        }
        Self { links, end }
    }
}

fn parts(path: &Path) -> VecDeque<PathBuf> {
    let named = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::ParentDir => Some(PathBuf::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    });
    named.collect()
}

/// What has to be protected in a workspace so that `file` can't be changed; empty if it lies elsewhere.
pub fn held_for(workspace: &HostPath, file: &Path) -> Result<Vec<ProtectedPath>, Problem> {
    let tree = HostTree::open(workspace, Code::InvalidWorkspace, "workspace")?;
    let fail = |why: &str| {
        Problem::new(
            Code::InvalidProtect,
            format!("{:?} is in the workspace and can't be protected there: {why}", file.display().to_string()),
            "keep it outside the workspace",
        )
    };
    let whole = std::path::absolute(file).map_err(|error| fail(&error.kind().to_string()))?;
    let Trail { links, end } = Trail::follow(&tree.path, &whole);
    let inside = links.iter().chain([&end]).filter_map(|path| path.strip_prefix(&tree.path).ok());
    inside
        .map(|path| path.to_str().ok_or_else(|| fail("its name is not UTF-8")))
        .map(|path| path.and_then(|path| ProtectedPath::parse(path).map_err(|why| fail(&why))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn links_inside_are_named_and_links_outside_are_followed() {
        let root = std::env::temp_dir().canonicalize().unwrap().join(format!("saggar-trail-{}", std::process::id()));
        let workspace = root.join("workspace");
        std::fs::create_dir_all(workspace.join("real")).unwrap();
        symlink("workspace", root.join("alias")).unwrap();
        symlink("real", workspace.join("link")).unwrap();
        symlink("loop", workspace.join("loop")).unwrap();
        let inside = |name: &str| workspace.join(name);
        for (path, links, end) in [
            (inside("real/file"), vec![], inside("real/file")),
            (root.join("alias/real/absent"), vec![], inside("real/absent")),
            (inside("link/file"), vec![inside("link")], inside("real/file")),
            (root.join("alias/./link/../real"), vec![inside("link")], inside("real")),
            (inside("../elsewhere"), vec![], root.join("elsewhere")),
            (inside("/etc/../etc/hostname"), vec![], PathBuf::from("/etc/hostname")),
        ] {
            assert_eq!(Trail::follow(&workspace, &path), Trail { links, end }, "{path:?}");
        }
        assert_eq!(Trail::follow(&workspace, &inside("loop")).links.len(), LINKS_MAX);
        std::fs::remove_dir_all(root).unwrap();
    }
}
