//! From a spec to the jail's plan: which operations make the root, and what Landlock grants on it.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use saggar_domain::{Access, Code, FsMode, Mount, Problem, Spec, Template, User};
use saggar_jail::{
    Attributes, Cover, Fence, IdPair, Identity, MountAttributes, Op, Rule, Source, clone_tree, mapping_namespace,
    set_mount_attributes,
};

use crate::host_tree::HostTree;
use crate::template;

/// Directories of private storage that stay writable.
const WRITABLE: &[&str] = &["tmp", "home/user", "dev/shm"];
/// What a copy-on-write view is made of.
pub(crate) const SCRATCH: &str = ".scratch";

/// The root of one sandbox, and the mounts it needs kept open until it is made.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) ops: Vec<Op>,
    pub(crate) fence: Fence,
    /// Keeps the detached mounts that the operations refer to.
    pub(crate) mounts: Vec<OwnedFd>,
}

/// What of the host a spec brings in, pinned.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) workspace: Option<HostTree>,
    pub(crate) mounts: Vec<(Mount, HostTree)>,
    /// Protected paths to hold, as names from the workspace down.
    pub(crate) held: Vec<Vec<String>>,
}

/// Lays out the root.
pub(crate) fn lay_out(spec: &Spec, identity: Identity, brought: &Brought) -> Result<Layout, Problem> {
    let mut layout = Layout {
        ops: match spec.template {
            Template::Host => template::host(spec.network),
        },
        fence: Fence::default(),
        mounts: Vec::new(),
    };
    layout.workspace(spec, identity, brought)?;
    let mut made = BTreeSet::new();
    for (mount, tree) in &brought.mounts {
        layout.mount(spec, identity, mount, tree, &mut made)?;
    }
    for path in WRITABLE {
        layout.writable(path);
    }
    match spec.user {
        User::User => {}
        User::Root => layout.writable("root"),
    }
    layout.ops.push(Op::Seal);
    Ok(layout)
}

impl Layout {
    fn writable(&mut self, path: &str) {
        self.ops.push(Op::Writable { path: path.to_owned() });
        self.fence.writable.push(format!("/{path}"));
    }

    fn workspace(&mut self, spec: &Spec, identity: Identity, brought: &Brought) -> Result<(), Problem> {
        let target = || "workspace".to_owned();
        let Some(tree) = &brought.workspace else {
            if spec.fs != FsMode::ReadOnly {
                self.writable("workspace");
            }
            return Ok(());
        };
        match spec.fs {
            FsMode::ReadOnly => {
                let source = self.source(tree, Access::ReadOnly, identity, spec, Code::InvalidWorkspace)?;
                self.ops.push(Op::Bind { source, target: target(), attributes: Attributes::ReadOnly });
            }
            FsMode::WorkspaceWrite => {
                let source = self.source(tree, Access::ReadWrite, identity, spec, Code::InvalidWorkspace)?;
                self.ops.push(Op::Bind { source, target: target(), attributes: Attributes::ReadWrite });
                for names in &brought.held {
                    self.ops.push(Op::Protect { under: target(), names: names.clone() });
                }
                self.fence.writable.push("/workspace".to_owned());
            }
            FsMode::Scratch => {
                let lower = self.source(tree, Access::ReadOnly, identity, spec, Code::InvalidWorkspace)?;
                self.ops.push(Op::Directory { path: SCRATCH.to_owned(), mode: 0o700, owner: 0 });
                self.ops.push(Op::Overlay { lower, target: target(), layer: SCRATCH.to_owned() });
                // What the view is made of is not for those who look at it.
                if Rule::Mask(SCRATCH).is_on() {
                    self.ops.push(Op::Mask { path: SCRATCH.to_owned(), cover: Cover::Directory });
                }
                self.fence.writable.push("/workspace".to_owned());
            }
        }
        Ok(())
    }

    fn mount(
        &mut self,
        spec: &Spec,
        identity: Identity,
        mount: &Mount,
        tree: &HostTree,
        made: &mut BTreeSet<String>,
    ) -> Result<(), Problem> {
        let target = mount.guest.as_str().trim_start_matches('/').to_owned();
        let mut parent = String::new();
        let names: Vec<&str> = target.split('/').collect();
        for name in &names[..names.len() - 1] {
            parent = if parent.is_empty() { (*name).to_owned() } else { format!("{parent}/{name}") };
            if !is_template_directory(&parent) && made.insert(parent.clone()) {
                let owner = if parent.starts_with("home/user/") { User::User.id() } else { 0 };
                self.ops.push(Op::Directory { path: parent.clone(), mode: 0o755, owner });
            }
        }
        if target == "mnt" && tree.is_directory {
            // The template has it, empty, to be mounted on.
        } else if tree.is_directory {
            self.ops.push(Op::Directory { path: target.clone(), mode: 0o755, owner: 0 });
        } else {
            self.ops.push(Op::File { path: target.clone(), bytes: Vec::new() });
        }
        let source = self.source(tree, mount.access, identity, spec, Code::InvalidMount)?;
        let attributes = match mount.access {
            Access::ReadOnly => Attributes::ReadOnly,
            Access::ReadWrite => Attributes::ReadWrite,
        };
        if mount.access == Access::ReadWrite {
            self.fence.writable.push(mount.guest.as_str().to_owned());
        }
        self.ops.push(Op::Bind { source, target, attributes });
        Ok(())
    }

    /// With a range of its own, the sandbox's user stands in for the owner of what is brought in: the mount translates the
    /// two into one another and knows no other id. An ordinary user needs no translation, and could not have one.
    fn source(
        &mut self,
        tree: &HostTree,
        access: Access,
        identity: Identity,
        spec: &Spec,
        code: Code,
    ) -> Result<Source, Problem> {
        let base = match identity {
            Identity::Single { .. } => {
                let path = tree.path.to_str().map(str::to_owned).ok_or_else(|| {
                    Problem::new(
                        code,
                        format!("{:?} has a name that is not UTF-8", tree.path),
                        "rename it, or mount a directory above it",
                    )
                })?;
                return Ok(Source::Pinned { path, device: tree.device, inode: tree.inode });
            }
            Identity::Range { base } => base,
        };
        let refuse = |what: &'static str| {
            move |errno: rustix::io::Errno| {
                Problem::new(
                    code,
                    format!("{:?} can't be brought into the sandbox: {what}: {errno}", tree.path),
                    "its filesystem must support idmapped mounts (ext4, xfs, btrfs, tmpfs do); copy it to one that does",
                )
            }
        };
        let seen = base + spec.user.id();
        let namespace = mapping_namespace(IdPair { on_disk: tree.uid, seen }, IdPair { on_disk: tree.gid, seen })
            .map_err(refuse("making its id map"))?;
        let mount = clone_tree(&tree.fd, "").map_err(refuse("copying its mount"))?;
        let attributes = MountAttributes {
            is_read_only: access == Access::ReadOnly && Rule::ReadOnlyMounts.is_on(),
            id_map: Some(&namespace),
            ..MountAttributes::default()
        };
        set_mount_attributes(&mount, attributes).map_err(refuse("mapping its ids"))?;
        let source = Source::Detached(mount.as_raw_fd());
        self.mounts.push(mount);
        Ok(source)
    }
}

/// Directories that the template makes, which a mount may be put into.
fn is_template_directory(path: &str) -> bool {
    matches!(path, "home" | "home/user" | "mnt" | "root" | "run" | "tmp" | "var")
}
