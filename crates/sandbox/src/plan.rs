//! From a spec to the jail's plan: which operations make the root, and what Landlock grants on it.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::CpuSet;
use saggar_domain::{Access, Code, FsMode, Mount, Problem, Spec, Template, User};
use saggar_jail::cgroup::View;
use saggar_jail::{
    Attributes, Cover, Fate, Fence, IdPair, Identity, Mapping, MountAttributes, Op, Rule, Source, clone_tree,
    mapping_namespace, set_mount_attributes,
};

use crate::host_tree::HostTree;
use crate::{processors, template};

/// Directories of private storage that stay writable where the root is sealed.
const WRITABLE: &[&str] = &["tmp", "home/user"];
/// What copy-on-write views are made of.
pub(crate) const SCRATCH: &str = ".scratch";

/// The root of one sandbox, and the mounts it needs kept open until it is made.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) ops: Vec<Op>,
    pub(crate) fence: Fence,
    /// Keeps the detached mounts that the operations refer to.
    pub(crate) mounts: Vec<OwnedFd>,
    /// What they are mapped by, until it costs nothing to let go of.
    pub(crate) mappings: Vec<Mapping>,
    /// Which of its cgroups it sees.
    pub(crate) views: Vec<View>,
    /// Which CPUs it runs on, where they are fewer than there are.
    pub(crate) processors: Option<CpuSet>,
    /// Whether programs can run as root of the sandbox.
    has_root: bool,
    /// Whether there is a copy-on-write view.
    has_layers: bool,
}

/// What of the host a spec brings in, pinned.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) workspace: Option<HostTree>,
    pub(crate) mounts: Vec<(Mount, HostTree)>,
    /// Protected paths to hold, as names from the workspace down.
    pub(crate) held: Vec<Vec<String>>,
}

/// How long a sandbox is there, as far as its root depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// For one program, which runs as the sandbox's own user.
    OneProgram,
    /// For programs that are asked for later, as whichever user.
    Held,
}

/// Lays out the root.
///
/// Where programs can run as root of the sandbox, the private root stays writable and its owners and permissions say who may write where; all
/// but what is mounted read-only, /dev and /sys. Where none can, it is sealed as well, and Landlock grants no more than the few places that the
/// one user has: a second lock at no cost to anyone.
pub(crate) fn lay_out(
    spec: &Spec,
    life: Life,
    identity: Identity,
    brought: &Brought,
    views: Vec<View>,
    processors: Option<CpuSet>,
) -> Result<Layout, Problem> {
    let has_root = match (spec.user, life, identity) {
        (User::Root, _, _) | (User::User, Life::Held, Identity::Range { .. }) => true,
        // With a single id there is no other to become.
        (User::User, Life::Held, Identity::Single { .. }) | (User::User, Life::OneProgram, _) => false,
    };
    let mut layout = Layout {
        ops: match spec.template {
            Template::Host => template::host(spec.network, has_root),
        },
        fence: Fence::default(),
        mounts: Vec::new(),
        mappings: Vec::new(),
        views,
        processors,
        has_root,
        has_layers: false,
    };
    layout.places_for_views();
    layout.show_processors();
    layout.of_the_host(identity);
    layout.workspace(spec, identity, brought)?;
    let mut made = BTreeSet::new();
    for (mount, tree) in &brought.mounts {
        layout.mount(spec, identity, mount, tree, &mut made)?;
    }
    layout.close();
    Ok(layout)
}

impl Layout {
    /// A directory of private storage that the sandbox's user may write. Its owner is in the template.
    fn writable(&mut self, path: &str) {
        if !self.has_root {
            self.ops.push(Op::Writable { path: path.to_owned() });
            self.fence.writable.push(format!("/{path}"));
        }
    }

    /// Parts of the host's /etc. Whoever may write /etc gets a copy-on-write view of them instead of a read-only mount: to copy hundreds of
    /// files for each sandbox would take longer than all the rest.
    fn of_the_host(&mut self, identity: Identity) {
        let mapping = match identity {
            Identity::Range { base } if self.has_root => {
                let roots = IdPair { on_disk: 0, seen: base };
                mapping_namespace(roots, roots).ok()
            }
            Identity::Range { .. } | Identity::Single { .. } => None,
        };
        for name in template::etc_directories() {
            let (path, target) = (format!("/etc/{name}"), format!("etc/{name}"));
            self.ops.push(Op::Directory { path: target.clone(), mode: 0o755, owner: 0 });
            if !self.has_root {
                let source = Source::System(path);
                self.ops.push(Op::Bind { source, target, attributes: Attributes::ReadOnly });
                continue;
            }
            // What can't be mapped shows as nobody's: root inside can replace it, but not change it in place.
            let lower = mapping.as_ref().and_then(|mapping| mapped(&path, mapping.namespace()).ok());
            let lower = lower.map_or(Source::System(path), |mount| {
                let source = Source::Detached(mount.as_raw_fd());
                self.mounts.push(mount);
                source
            });
            let layer = self.layer(&name.replace('/', "-"));
            self.ops.push(Op::Directory { path: layer.clone(), mode: 0o700, owner: 0 });
            self.ops.push(Op::Overlay { lower, target, layer, fate: Fate::Dropped });
        }
        self.mappings.extend(mapping);
    }

    fn places_for_views(&mut self) {
        let parents = ["sys/fs", "sys/fs/cgroup"].into_iter().filter(|_| !self.views.is_empty());
        let places = self.views.iter().filter(|view| **view != View::Unified).map(|view| view.path());
        let directory = |path: &str| Op::Directory { path: path.to_owned(), mode: 0o555, owner: 0 };
        self.ops.extend(parents.chain(places).map(directory));
    }

    /// The CPUs that the sandbox runs on, where the C library counts them (`os.cpu_count()`, `getconf _NPROCESSORS_ONLN`).
    fn show_processors(&mut self) {
        let Some(processors) = &self.processors else { return };
        let list = processors::list(processors);
        let directories = ["sys/devices", "sys/devices/system", "sys/devices/system/cpu"];
        self.ops.extend(directories.map(|path| Op::Directory { path: path.to_owned(), mode: 0o555, owner: 0 }));
        let files = ["online", "possible"].map(|name| format!("sys/devices/system/cpu/{name}"));
        self.ops.extend(files.map(|path| Op::File { path, bytes: list.clone().into_bytes() }));
    }

    /// Where the changes of a copy-on-write view go.
    fn layer(&mut self, name: &str) -> String {
        if !self.has_layers {
            self.has_layers = true;
            self.ops.push(Op::Directory { path: SCRATCH.to_owned(), mode: 0o700, owner: 0 });
        }
        format!("{SCRATCH}/{name}")
    }

    /// What comes last: from here on the root is as the programs see it.
    fn close(&mut self) {
        // What views are made of is not for those who look at them.
        if self.has_layers && Rule::Mask(SCRATCH).is_on() {
            self.ops.push(Op::Mask { path: SCRATCH.to_owned(), cover: Cover::Directory });
        }
        self.ops.push(Op::Writable { path: "dev/shm".to_owned() });
        if self.has_root {
            self.fence.writable = vec!["/".to_owned()];
            self.ops.push(Op::Writable { path: "sys".to_owned() });
            self.ops.extend(["dev", "sys"].map(|path| Op::Seal { path: path.to_owned() }));
            return;
        }
        self.fence.writable.push("/dev/shm".to_owned());
        for path in WRITABLE {
            self.writable(path);
        }
        self.ops.push(Op::Seal { path: String::new() });
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
                let layer = self.layer("workspace");
                self.ops.push(Op::Directory { path: layer.clone(), mode: 0o700, owner: 0 });
                self.ops.push(Op::Overlay { lower, target: target(), layer, fate: Fate::HandedOver });
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
        if matches!(target.as_str(), "mnt" | "opt" | "srv") && tree.is_directory {
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
        let mapping = mapping_namespace(IdPair { on_disk: tree.uid, seen }, IdPair { on_disk: tree.gid, seen })
            .map_err(refuse("making its id map"))?;
        let mount = clone_tree(&tree.fd, "").map_err(refuse("copying its mount"))?;
        let attributes = MountAttributes {
            is_read_only: access == Access::ReadOnly && Rule::ReadOnlyMounts.is_on(),
            id_map: Some(mapping.namespace()),
            ..MountAttributes::default()
        };
        set_mount_attributes(&mount, attributes).map_err(refuse("mapping its ids"))?;
        self.mappings.push(mapping);
        let source = Source::Detached(mount.as_raw_fd());
        self.mounts.push(mount);
        Ok(source)
    }
}

/// Something of the host's root, as a mount through which it is the sandbox's root's.
fn mapped(path: &str, namespace: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mount = clone_tree(&rustix::fs::CWD, path)?;
    let attributes = MountAttributes { is_read_only: true, id_map: Some(namespace), ..MountAttributes::default() };
    set_mount_attributes(&mount, attributes)?;
    Ok(mount)
}

/// Directories that the template makes, which a mount may be put into.
fn is_template_directory(path: &str) -> bool {
    matches!(path, "home" | "home/user" | "mnt" | "opt" | "root" | "run" | "srv" | "tmp" | "var")
}
