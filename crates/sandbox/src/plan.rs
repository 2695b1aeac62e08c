//! Turns a spec into the jail's plan: the operations that build the root, and what Landlock grants on it.

use std::collections::BTreeSet;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::thread::CpuSet;
use saggar_domain::template::{BuiltInRoot, ImageSource, Owners};
use saggar_domain::{Access, Code, FsMode, GuestPath, Mount, NetworkMode, Problem, Spec, Template, User, VolumeMount};
use saggar_jail::cgroup::View;
use saggar_jail::{
    Attributes, Cover, Fate, Fence, IdPair, Identity, Mapping, MountAttributes, Op, Rule, Source, clone_tree,
    mapping_namespace, range_mapping_namespace, set_mount_attributes,
};
use saggar_supervisor::egress::trust_files;

use crate::accounts::has_machine_id;
use crate::disk::Disk;
use crate::host_tree::HostTree;
use crate::ids::random;
use crate::prepare::failed;
use crate::ranges::STORE_IDS;
use crate::templates::{HeldTemplate, StoredLayer};
use crate::{processors, template};

/// Directories of private storage that stay writable if the root is sealed.
const WRITABLE: &[&str] = &["tmp", "home/user"];
/// What programs take for the id of the machine.
const MACHINE_ID: &str = "etc/machine-id";
/// The directory that holds the layers of copy-on-write views.
pub(crate) const SCRATCH: &str = ".scratch";

/// The root of one sandbox, and the mounts that must stay open until it is built.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) ops: Vec<Op>,
    pub(crate) fence: Fence,
    /// Keeps the detached mounts that the operations refer to.
    pub(crate) mounts: Vec<OwnedFd>,
    /// The id mappings of these mounts, kept until dropping them costs nothing.
    pub(crate) mappings: Vec<Mapping>,
    /// The cgroup views that the sandbox gets.
    pub(crate) views: Vec<View>,
    /// The CPUs it runs on; `None` for all of the host's.
    pub(crate) processors: Option<CpuSet>,
    /// Programs may write the whole root: as its root, or as far as an image's own permissions let them.
    is_open: bool,
    is_image: bool,
    has_layers: bool,
}

/// Host files and directories that a spec mounts, pinned.
#[derive(Debug, Default)]
pub(crate) struct Brought {
    pub(crate) workspace: Option<HostTree>,
    pub(crate) mounts: Vec<(Mount, HostTree)>,
    /// Protected paths, as components from the workspace down.
    pub(crate) held: Vec<Vec<String>>,
    /// The image that the root is made of.
    pub(crate) template: Option<HeldTemplate>,
    /// The filesystem for the changes of an image, if they are on disk.
    pub(crate) disk: Option<Disk>,
    /// Whether the caller gets the changes of that image.
    pub(crate) hands_over_root: bool,
    pub(crate) volumes: Vec<MountedVolume>,
}

/// A volume, mounted nowhere yet.
#[derive(Debug)]
pub(crate) struct MountedVolume {
    pub(crate) wanted: VolumeMount,
    pub(crate) mount: OwnedFd,
    pub(crate) mapping: Mapping,
}

/// The lifetime of a sandbox, as far as its root depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Life {
    /// One program, which runs as the sandbox's own user.
    OneProgram,
    /// Programs that are requested later, as any user.
    Held,
}

/// Lays out the root.
///
/// If programs can run as root of the sandbox, the private root stays writable, and owners and permissions decide who
/// may write where; read-only mounts, /dev and /sys are exceptions. Otherwise the root is sealed as well, and Landlock
/// grants only the few places that the one user has: a second barrier at no cost. The root of an image always stays
/// writable: its users have their homes where the image says.
pub(crate) fn lay_out(
    spec: &Spec,
    life: Life,
    identity: Identity,
    brought: &mut Brought,
    views: Vec<View>,
    processors: Option<CpuSet>,
) -> Result<Layout, Problem> {
    let is_open = match (spec.user, life, identity) {
        _ if brought.template.is_some() => true,
        (User::Root, _, _) | (User::User | User::Template, Life::Held, Identity::Range { .. }) => true,
        // With a single id there is no other user to switch to.
        (User::User | User::Template, Life::Held, Identity::Single { .. })
        | (User::User | User::Template, Life::OneProgram, _) => false,
    };
    let mut layout = Layout {
        ops: Vec::new(),
        fence: Fence::default(),
        mounts: Vec::new(),
        mappings: Vec::new(),
        views,
        processors,
        is_open,
        is_image: brought.template.is_some(),
        has_layers: false,
    };
    let fate = if brought.hands_over_root { Fate::HandedOver } else { Fate::Dropped };
    let is_of_the_host = brought.template.as_ref().is_none_or(|held| held.manifest.root().is_some());
    match &brought.template {
        None => layout.ops = template::host(spec.network, is_open, fate),
        Some(held) => {
            let lowers = layout.lowers(held, identity)?;
            let disk = brought.disk.take().map(|disk| layout.disk(disk));
            layout.ops = match held.manifest.root() {
                Some(BuiltInRoot::Host) => template::host_in_layers(spec.network, lowers, disk, fate),
                None => template::image(spec.network, lowers, disk, fate),
            };
            layout.homes(spec, held.manifest.defaults().cwd.as_ref());
            layout.machine_id(held)?;
        }
    }
    layout.places_for_views();
    layout.show_processors();
    if is_of_the_host {
        layout.of_the_host(identity, spec.network);
    }
    if spec.network == NetworkMode::Proxied {
        layout.ops.extend(trust_files(if is_of_the_host { &Template::Host } else { &spec.template }));
    }
    layout.workspace(spec, identity, brought)?;
    let mut made = BTreeSet::new();
    for (mount, tree) in &brought.mounts {
        layout.mount(spec, identity, mount, tree, &mut made)?;
    }
    for volume in std::mem::take(&mut brought.volumes) {
        layout.volume(volume, &mut made);
    }
    layout.close();
    Ok(layout)
}

impl Layout {
    /// A directory of private storage that the sandbox's user may write. The template sets its owner.
    fn writable(&mut self, path: &str) {
        if !self.is_open {
            self.ops.push(Op::Writable { path: path.to_owned() });
            self.fence.writable.push(format!("/{path}"));
        }
    }

    /// Parts of the host's /etc. A user who may write /etc gets a copy-on-write view of them instead of a read-only
    /// mount: copying hundreds of files for each sandbox would take longer than everything else.
    fn of_the_host(&mut self, identity: Identity, network: NetworkMode) {
        let mapping = match identity {
            Identity::Range { base } if self.is_open => {
                let roots = IdPair { on_disk: 0, seen: base };
                mapping_namespace(roots, roots).ok()
            }
            Identity::Range { .. } | Identity::Single { .. } => None,
        };
        for name in template::etc_directories(network) {
            let (path, target) = (format!("/etc/{name}"), format!("etc/{name}"));
            self.ops.push(Op::Directory { path: target.clone(), mode: 0o755, owner: 0 });
            if !self.is_open {
                let source = Source::System(path);
                self.ops.push(Op::Bind { source, target, attributes: Attributes::ReadOnly });
                continue;
            }
            // Ids that can't be mapped show as the overflow id: root inside can replace such a file, but not change it
            // in place.
            let lower = mapping.as_ref().and_then(|mapping| mapped(&path, mapping.namespace()).ok());
            let lower = lower.map_or(Source::System(path), |mount| {
                let source = Source::Detached(mount.as_raw_fd());
                self.mounts.push(mount);
                source
            });
            let layer = self.layer(&name.replace('/', "-"));
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

    /// Lists the sandbox's CPUs in the files that the C library reads (`os.cpu_count()`, `getconf _NPROCESSORS_ONLN`).
    fn show_processors(&mut self) {
        let Some(processors) = &self.processors else { return };
        let list = processors::list(processors);
        let directories = ["sys/devices", "sys/devices/system", "sys/devices/system/cpu"];
        self.ops.extend(directories.map(|path| Op::Directory { path: path.to_owned(), mode: 0o555, owner: 0 }));
        let files = ["online", "possible"].map(|name| format!("sys/devices/system/cpu/{name}"));
        self.ops.extend(files.map(|path| Op::File { path, bytes: list.clone().into_bytes() }));
    }

    /// Private storage has no path in the root of an image, so that the layers of a view there are made along with it.
    fn layer(&mut self, name: &str) -> String {
        if self.is_image {
            return format!("{SCRATCH}/{name}");
        }
        if !self.has_layers {
            self.has_layers = true;
            self.ops.push(Op::Directory { path: SCRATCH.to_owned(), mode: 0o700, owner: 0 });
        }
        let layer = format!("{SCRATCH}/{name}");
        self.ops.push(Op::Directory { path: layer.clone(), mode: 0o700, owner: 0 });
        layer
    }

    /// The last steps: from here on the root is as programs see it.
    fn close(&mut self) {
        // The layers of views must not be visible to programs.
        if self.has_layers && Rule::Mask(SCRATCH).is_on() {
            self.ops.push(Op::Mask { path: SCRATCH.to_owned(), cover: Cover::Directory });
        }
        self.ops.push(Op::Writable { path: "dev/shm".to_owned() });
        if self.is_open {
            self.fence.writable = vec!["/".to_owned()];
            if !self.is_image {
                self.ops.push(Op::Writable { path: "sys".to_owned() });
            }
            self.ops.extend(["dev", "sys"].map(|path| Op::Seal { path: path.to_owned() }));
            return;
        }
        self.fence.writable.push("/dev/shm".to_owned());
        for path in WRITABLE {
            self.writable(path);
        }
        self.ops.push(Op::Seal { path: String::new() });
    }

    /// The layers of an image, the topmost first, as the sandbox's own ids. One that the image has twice is used once: the kernel refuses it a
    /// second time, and the lower one can't be seen.
    fn lowers(&mut self, template: &HeldTemplate, identity: Identity) -> Result<Vec<Source>, Problem> {
        let refuse = |layer: &StoredLayer, why: String| {
            Problem::new(
                Code::DataDirectory,
                format!("layer {} of the template can't be used: {why}", layer.id),
                "the data directory must be on a filesystem that supports idmapped mounts (ext4, xfs, btrfs do); import the template again if it was copied from elsewhere",
            )
        };
        let base = match identity {
            Identity::Single { .. } => {
                let pinned = |layer: &StoredLayer| {
                    if layer.record.owners != Owners::Dropped {
                        return Err(refuse(layer, "it was imported by root".to_owned()));
                    }
                    pinned_tree(layer).map_err(|why| refuse(layer, why))
                };
                return different(template).map(pinned).collect();
            }
            Identity::Range { base } => base,
        };
        let mapping = range_mapping_namespace(IdPair { on_disk: STORE_IDS.start, seen: base })
            .map_err(|errno| failed("creating the id map of the template", errno).error)?;
        let mut lowers = Vec::with_capacity(template.layers.len());
        for layer in different(template) {
            if layer.record.owners != Owners::Shifted {
                return Err(refuse(layer, "it was not imported by root".to_owned()));
            }
            let attributes =
                MountAttributes { is_read_only: true, id_map: Some(mapping.namespace()), ..MountAttributes::default() };
            let mount = clone_tree(&layer.tree(), "")
                .and_then(|mount| set_mount_attributes(&mount, attributes).map(|()| mount))
                .map_err(|errno| refuse(layer, format!("mapping its ids: {errno}")))?;
            lowers.push(Source::Detached(mount.as_raw_fd()));
            self.mounts.push(mount);
        }
        self.mappings.push(mapping);
        Ok(lowers)
    }

    fn disk(&mut self, Disk { mount, mapping }: Disk) -> Source {
        let source = Source::Detached(mount.as_raw_fd());
        self.mounts.push(mount);
        self.mappings.push(mapping);
        source
    }

    /// The homes of our two users, if programs run as those. An image's own user should have one in the image; clients of a server begin there,
    /// so it is made if it is missing.
    fn homes(&mut self, spec: &Spec, given: Option<&GuestPath>) {
        let of_template = spec.account_of(User::Template);
        if let Some(account) = of_template.filter(|account| account.home != "/") {
            let path = account.home.trim_start_matches('/').to_owned();
            // The image chose it: it may lead through links, or to something else that is there.
            self.ops.push(Op::WorkingDirectory { path, owner: account.uid });
        }
        if spec.account.is_none() || of_template.is_some() {
            for (user, mode) in [(User::User, 0o755), (User::Root, 0o700)] {
                let path = user.home().trim_start_matches('/').to_owned();
                self.ops.push(Op::Directory { path, mode, owner: user.id() });
            }
        }
        // As other tools do: an image may name a working directory that it doesn't have.
        if given.is_some_and(|given| *given == spec.cwd) {
            self.ops
                .push(Op::WorkingDirectory { path: spec.cwd.as_str().trim_start_matches('/').to_owned(), owner: 0 });
        }
        if spec.workspace.is_some() {
            self.ops.push(Op::Directory { path: "workspace".to_owned(), mode: 0o755, owner: spec.uid() });
        }
    }

    /// A snapshot is of another sandbox, which has an id of its own for those who ask for the machine's.
    fn machine_id(&mut self, held: &HeldTemplate) -> Result<(), Problem> {
        if held.manifest.image().source != ImageSource::Snapshot || !has_machine_id(held) {
            return Ok(());
        }
        let random = u128::from_ne_bytes(random()?);
        self.ops.push(Op::File { path: MACHINE_ID.to_owned(), bytes: format!("{random:032x}\n").into_bytes() });
        Ok(())
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
            FsMode::Scratch | FsMode::Worktree => {
                let lower = self.source(tree, Access::ReadOnly, identity, spec, Code::InvalidWorkspace)?;
                let layer = self.layer("workspace");
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
        let target = self.place(&mount.guest, tree.is_directory, made);
        let source = self.source(tree, mount.access, identity, spec, Code::InvalidMount)?;
        self.bind(source, target, mount.access);
        Ok(())
    }

    fn volume(&mut self, volume: MountedVolume, made: &mut BTreeSet<String>) {
        let MountedVolume { wanted, mount, mapping } = volume;
        let target = self.place(&wanted.at, true, made);
        let source = Source::Detached(mount.as_raw_fd());
        self.mounts.push(mount);
        self.mappings.push(mapping);
        self.bind(source, target, wanted.mode);
    }

    fn bind(&mut self, source: Source, target: String, access: Access) {
        let attributes = match access {
            Access::ReadOnly => Attributes::ReadOnly,
            Access::ReadWrite => Attributes::ReadWrite,
        };
        if access == Access::ReadWrite {
            self.fence.writable.push(format!("/{target}"));
        }
        self.ops.push(Op::Bind { source, target, attributes });
    }

    /// Makes the place of a mount, with the directories above it.
    fn place(&mut self, path: &GuestPath, is_directory: bool, made: &mut BTreeSet<String>) -> String {
        let target = path.as_str().trim_start_matches('/').to_owned();
        let mut parent = String::new();
        let names: Vec<&str> = target.split('/').collect();
        for name in &names[..names.len() - 1] {
            parent = if parent.is_empty() { (*name).to_owned() } else { format!("{parent}/{name}") };
            if (self.is_image || !is_template_directory(&parent)) && made.insert(parent.clone()) {
                let owner = if parent.starts_with("home/user/") { User::User.id() } else { 0 };
                self.ops.push(Op::Directory { path: parent.clone(), mode: 0o755, owner });
            }
        }
        if !self.is_image && matches!(target.as_str(), "mnt" | "opt" | "srv") && is_directory {
            // The template has an empty directory there to mount on.
        } else if is_directory {
            self.ops.push(Op::Directory { path: target.clone(), mode: 0o755, owner: 0 });
        } else {
            self.ops.push(Op::File { path: target.clone(), bytes: Vec::new() });
        }
        target
    }

    /// With its own range of ids, the sandbox's user stands for the owner of the mounted files: the mount translates
    /// between the two and maps no other id. An ordinary user needs no translation, and could not have one.
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
                    format!("{:?} can't be mounted in the sandbox: {what}: {errno}", tree.path),
                    "its filesystem must support idmapped mounts (ext4, xfs, btrfs, tmpfs do); copy it to one that does",
                )
            }
        };
        let (uid, gid) = (base + spec.uid(), base + spec.gid());
        let pairs = (IdPair { on_disk: tree.uid, seen: uid }, IdPair { on_disk: tree.gid, seen: gid });
        let mapping = mapping_namespace(pairs.0, pairs.1).map_err(refuse("creating its id map"))?;
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

/// A mount that shows files of the host's root as owned by the sandbox's root.
fn mapped(path: &str, namespace: &OwnedFd) -> Result<OwnedFd, Errno> {
    let mount = clone_tree(&rustix::fs::CWD, path)?;
    let attributes = MountAttributes { is_read_only: true, id_map: Some(namespace), ..MountAttributes::default() };
    set_mount_attributes(&mount, attributes)?;
    Ok(mount)
}

/// A layer, for a child that has to open it by its name.
fn pinned_tree(layer: &StoredLayer) -> Result<Source, String> {
    let stat = rustix::fs::fstat(layer.tree()).map_err(|errno| errno.to_string())?;
    let path = layer.path().to_str().ok_or("the data directory's path is not UTF-8")?.to_owned();
    Ok(Source::Pinned { path, device: stat.st_dev, inode: stat.st_ino })
}

/// Each layer once, where it is topmost.
fn different(template: &HeldTemplate) -> impl Iterator<Item = &StoredLayer> {
    let mut known = BTreeSet::new();
    template.layers.iter().rev().filter(move |layer| known.insert(layer.id.clone()))
}

/// Directories of the template in which mounts are allowed.
fn is_template_directory(path: &str) -> bool {
    matches!(path, "home" | "home/user" | "mnt" | "opt" | "root" | "run" | "srv" | "tmp" | "var")
}
