//! Prepares a sandbox: everything that may be refused is checked, then the record is written, then placeholders are
//! created.
//!
//! Before the record nothing exists on the host. From then on every exit path removes what the record names, and the
//! record last.

use std::collections::BTreeSet;

use saggar_domain::{
    Access, Code, EventBody, ExecStatus, FsMode, HostPath, NetworkMode, NetworkReport, Problem, ProtectedPath,
    SandboxId, Spec, Storage, Template, VolumeMount,
};
use saggar_jail::Identity;
use saggar_jail::cgroup::{Group, Host, View};

use crate::borrowed::borrowed_root;
use crate::changes::Name;
use crate::data::DataDirectory;
use crate::disk::{Disk, not_root};
use crate::egress::ChildCgroups;
use crate::enforce::Enforcement;
use crate::holdback::Before;
use crate::host_tree::HostTree;
use crate::ids::random;
use crate::placeholder::{Gate, Protection, remove};
use crate::plan::{Brought, Layout, Life, MountedVolume, lay_out};
use crate::processors;
use crate::ranges::Range;
use crate::record::{Holdings, Record};
use crate::templates::HeldTemplate;
use crate::volume::{self, HeldVolume, Volumes};
use crate::worktree::{self, Checkout, ObjectId};

/// What is to be prepared.
pub(crate) struct Order<'a> {
    pub(crate) spec: &'a Spec,
    pub(crate) life: Life,
    /// The image that the spec starts from.
    pub(crate) template: Option<HeldTemplate>,
    /// Whether the caller gets the changes of that image.
    pub(crate) hands_over_root: bool,
    /// The project whose volumes the spec names.
    pub(crate) volume_project: &'a str,
    /// These volumes, if an earlier sandbox of the same spec has left them held.
    pub(crate) volumes: Option<Vec<HeldVolume>>,
}

/// A sandbox that is recorded and ready to start.
pub(crate) struct Prepared {
    pub(crate) record: Record,
    pub(crate) range: Option<Range>,
    pub(crate) host: Host,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) identity: Identity,
    pub(crate) enforcement: Enforcement,
    pub(crate) placed: Option<Placed>,
    /// The workspace below a scratch layer.
    pub(crate) scratch: Option<Scratch>,
    /// Keeps the template from being removed.
    _template: Option<HeldTemplate>,
    /// Keeps the volumes from being removed, and from others if they are exclusive.
    pub(crate) volumes: Vec<HeldVolume>,
}

pub(crate) struct Scratch {
    /// What is below the sandbox's layer: the workspace, or a checkout of it.
    pub(crate) lower: HostTree,
    /// The workspace whose checkout that is, and the commit.
    pub(crate) worktree: Option<(HostTree, ObjectId)>,
    /// When the sandbox started to see it.
    pub(crate) started_ns: i128,
    /// Paths that must not be applied to it.
    pub(crate) protect: Vec<ProtectedPath>,
}

/// Our placeholders in a writable workspace, and its git directories.
pub(crate) struct Placed {
    pub(crate) workspace: HostTree,
    pub(crate) paths: Vec<String>,
    pub(crate) git_directories: Vec<String>,
    pub(crate) git_links: Vec<Name>,
    /// Files whose edits git didn't show when the sandbox started.
    pub(crate) hidden: BTreeSet<Vec<u8>>,
    pub(crate) before: Before,
    pub(crate) started_ns: i128,
}

pub(crate) fn prepare(
    data: &DataDirectory,
    sandbox: &SandboxId,
    host: Host,
    order: Order<'_>,
    observe: &mut dyn FnMut(EventBody),
) -> Result<Prepared, Stopped> {
    let Order { spec, life, template, volume_project, volumes, hands_over_root } = order;
    if let Some(problem) = borrowed_root() {
        return Err(refused(problem));
    }
    check_held(spec, template.as_ref()).map_err(refused)?;
    let enforcement = Enforcement::decide(spec, &host).map_err(refused)?;
    let mut brought = bring(data, spec).map_err(refused)?;
    brought.template = template;
    brought.hands_over_root = hands_over_root;
    let volumes = match volumes {
        Some(held) => held,
        None => {
            let volumes = Volumes::new(data, volume_project);
            let held = spec.volumes.iter().map(|wanted| volumes.hold(data, wanted)).collect::<Result<Vec<_>, _>>();
            held.map_err(refused)?
        }
    };
    observe(EventBody::Setup {
        tier: spec.tier,
        fs: spec.fs,
        user: spec.user,
        unenforced: enforcement.unenforced.clone(),
    });
    observe(EventBody::Network(NetworkReport::from(spec.network)));
    let (identity, range) = identity(spec).map_err(|error| failed("taking a range of ids", error))?;
    let name = cgroup_name(sandbox);
    let mut holdings = Holdings::new();
    let mut cgroups = Group::paths(&host, &name, &enforcement.cgroup);
    if spec.network == NetworkMode::Proxied && matches!(life, Life::OneProgram) {
        cgroups.extend(ChildCgroups::paths(&host, sandbox));
    }
    holdings.cgroups = cgroups.iter().map(|path| path.display().to_string()).collect();
    holdings.volumes = volumes.iter().map(|held| held.record.id.clone()).collect();
    let (record, placed) = record(data, sandbox, spec, &mut brought, holdings)?;
    let views = match identity {
        Identity::Range { .. } => View::of(&host, &enforcement.cgroup),
        Identity::Single { .. } => Vec::new(),
    };
    let processors = enforcement.cgroup.cpu_millis.and_then(processors::choose);
    let mut checked_out = None;
    let laid_out = check_out(data, sandbox, spec, &mut brought).and_then(|worktree| {
        checked_out = worktree;
        brought.disk = disk(data, spec, identity)?;
        brought.volumes = mounted(spec, &volumes, identity)?;
        lay_out(spec, life, identity, &mut brought, views, processors)
    });
    match laid_out {
        Ok(layout) => {
            let keeps = matches!(spec.fs, FsMode::Scratch | FsMode::Worktree);
            let scratch = brought.workspace.take().filter(|_| keeps).map(|lower| Scratch {
                lower,
                worktree: checked_out,
                started_ns: now_ns(),
                protect: spec.protect.clone(),
            });
            Ok(Prepared {
                record,
                range,
                host,
                name,
                layout,
                identity,
                enforcement,
                placed,
                scratch,
                _template: brought.template,
                volumes,
            })
        }
        Err(problem) => {
            clean_up(data, sandbox, record, placed);
            Err(refused(problem))
        }
    }
}

/// The name of a sandbox's cgroups. Every local user can list them, so the name doesn't reveal the id.
pub(crate) fn cgroup_name(sandbox: &SandboxId) -> String {
    format!("saggar-{}", sandbox.alias())
}

/// The wall clock. Files get their times from it or, on older kernels, from one that lags a few milliseconds. A change
/// so soon after the start then counts as an earlier one, which the sandbox, not yet running, has seen.
fn now_ns() -> i128 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
    i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
}

/// Opens the host paths that the spec names, and refuses any that would expose our own records.
fn bring(data: &DataDirectory, spec: &Spec) -> Result<Brought, Problem> {
    let guard = |tree: &HostTree, path: &HostPath, code: Code, what: &str| {
        if data.overlaps(&tree.path) {
            let message = format!("{what} {path} overlaps Saggar's own data directory");
            return Err(Problem::new(
                code,
                message,
                "choose another directory, or move the data directory with --data-dir",
            ));
        }
        Ok(())
    };
    let mut brought = Brought::default();
    if let Some(path) = &spec.workspace {
        let tree = match spec.workspace_user {
            Some(user) => HostTree::open_as(path, user, Code::InvalidWorkspace, "workspace")?,
            None => HostTree::open(path, Code::InvalidWorkspace, "workspace")?,
        };
        if !tree.is_directory {
            return Err(Problem::new(
                Code::InvalidWorkspace,
                format!("workspace {path} is not a directory"),
                "name a directory; mount single files with --mount",
            ));
        }
        guard(&tree, path, Code::InvalidWorkspace, "workspace")?;
        brought.workspace = Some(tree);
    }
    for mount in &spec.mounts {
        let tree = HostTree::open(&mount.host, Code::InvalidMount, "mount source")?;
        guard(&tree, &mount.host, Code::InvalidMount, "mount source")?;
        if let Some(workspace) = &brought.workspace
            && spec.fs == FsMode::WorkspaceWrite
            && mount.access == Access::ReadWrite
            && (tree.holds(&workspace.path) || workspace.holds(&tree.path))
        {
            let message = format!(
                "writable mount source {} overlaps the workspace, and would bypass its protected paths",
                mount.host
            );
            return Err(Problem::new(
                Code::InvalidMount,
                message,
                "the workspace is writable already: leave the mount out, or make it read-only",
            ));
        }
        brought.mounts.push((mount.clone(), tree));
    }
    Ok(brought)
}

/// The filesystem on disk that the spec asks for.
fn disk(data: &DataDirectory, spec: &Spec, identity: Identity) -> Result<Option<Disk>, Problem> {
    match (spec.storage, identity) {
        (Storage::Memory, _) => Ok(None),
        (Storage::Disk, Identity::Range { base }) => Disk::make(data, spec.limits.disk.value.bytes(), base).map(Some),
        (Storage::Disk, Identity::Single { .. }) => Err(not_root()),
    }
}

/// A checkout of the workspace in its place, if the spec asks for a worktree. Returns the workspace and the commit.
fn check_out(
    data: &DataDirectory,
    sandbox: &SandboxId,
    spec: &Spec,
    brought: &mut Brought,
) -> Result<Option<(HostTree, ObjectId)>, Problem> {
    let Some(workspace) = brought.workspace.take_if(|_| spec.fs == FsMode::Worktree) else { return Ok(None) };
    let Checkout { tree, objects, commit } = Checkout::make(data, sandbox, &workspace)?;
    brought.workspace = Some(tree);
    brought.mounts.push(objects);
    Ok(Some((workspace, commit)))
}

/// The volumes that the spec asks for, each with a mount.
fn mounted(spec: &Spec, held: &[HeldVolume], identity: Identity) -> Result<Vec<MountedVolume>, Problem> {
    let mount = |(wanted, held): (&VolumeMount, &HeldVolume)| match identity {
        Identity::Range { base } => {
            let (mount, mapping) = held.mount(base, wanted.mode)?;
            Ok(MountedVolume { wanted: wanted.clone(), mount, mapping })
        }
        Identity::Single { .. } => Err(volume::not_root()),
    };
    spec.volumes.iter().zip(held).map(mount).collect()
}

/// A spec that names an image comes with that image.
fn check_held(spec: &Spec, template: Option<&HeldTemplate>) -> Result<(), Problem> {
    let is_right = match &spec.template {
        Template::Host => template.is_none(),
        Template::Image(_) => template.is_some_and(|held| spec.template_id.as_ref() == Some(&held.id)),
    };
    if is_right {
        return Ok(());
    }
    Err(Problem::new(
        Code::UnsupportedCapability,
        format!("the template {:?} was not opened", spec.template.as_str()),
        "start the sandbox with `saggar run --template` or through a server",
    ))
}

fn identity(spec: &Spec) -> std::io::Result<(Identity, Option<Range>)> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if !uid.is_root() {
        return Ok((Identity::Single { inside: spec.uid(), uid: uid.as_raw(), gid: gid.as_raw() }, None));
    }
    let range = Range::take(u32::from_ne_bytes(random().map_err(std::io::Error::other)?))?;
    Ok((Identity::Range { base: range.base() }, Some(range)))
}

/// Writes the record and creates placeholders for absent protected paths.
fn record(
    data: &DataDirectory,
    sandbox: &SandboxId,
    spec: &Spec,
    brought: &mut Brought,
    mut holdings: Holdings,
) -> Result<(Record, Option<Placed>), Stopped> {
    let create = |holdings: &Holdings| {
        Record::create(data.sandboxes(), sandbox, holdings)
            .map_err(|error| failed("writing the sandbox's record", error))
    };
    let Some(workspace) = brought.workspace.as_ref().filter(|_| spec.fs == FsMode::WorkspaceWrite) else {
        return Ok((create(&holdings)?, None));
    };
    let gate = Gate::close(data.sandboxes()).map_err(|error| failed("closing the placeholder gate", error))?;
    let protection = Protection::look(workspace, &spec.protect, data.sandboxes(), &gate).map_err(refused)?;
    brought.held = protection.held.clone();
    holdings.set_workspace(workspace);
    holdings.placeholders = protection.absent.clone();
    holdings.git_directories = protection.git_directories.clone();
    holdings.before = Some(protection.before.clone());
    holdings.git_links = protection.git_links.clone();
    holdings.started_ns = now_ns();
    let tree = workspace.try_clone().map_err(|error| failed("holding the workspace", error.kind()))?;
    let record = create(&holdings)?;
    let placed = Placed {
        workspace: tree,
        paths: protection.absent.clone(),
        git_directories: holdings.git_directories,
        git_links: holdings.git_links,
        hidden: protection.hidden.clone(),
        before: protection.before.clone(),
        started_ns: holdings.started_ns,
    };
    if let Err(problem) = protection.put(workspace, &gate) {
        drop(gate);
        clean_up(data, sandbox, record, Some(placed));
        return Err(refused(problem));
    }
    Ok((record, Some(placed)))
}

/// Removes what is left on the host. The record goes last and still within the gate, so that others find either both or
/// neither.
pub(crate) fn clean_up(data: &DataDirectory, sandbox: &SandboxId, record: Record, placed: Option<Placed>) {
    // If this fails, the next start's reaper finds it without a record.
    let _ = worktree::remove(data, sandbox.as_str());
    let Some(placed) = placed.filter(|placed| !placed.paths.is_empty()) else {
        // If this fails, the next start's reaper finds the record and nothing else to remove.
        let _ = record.remove(data.sandboxes());
        return;
    };
    // Without the gate nothing is removed: the record stays, and the reaper removes both.
    let Ok(gate) = Gate::close(data.sandboxes()) else { return };
    remove(&placed.workspace, &placed.paths, data.sandboxes(), sandbox.as_str(), &gate);
    let _ = record.remove(data.sandboxes()); // As above.
}

pub(crate) struct Stopped {
    pub(crate) status: ExecStatus,
    pub(crate) error: Problem,
}

pub(crate) fn refused(error: Problem) -> Stopped {
    Stopped { status: ExecStatus::Refused, error }
}

pub(crate) fn failed(what: &str, error: impl std::fmt::Display) -> Stopped {
    let problem = Problem::new(
        Code::SetupFailed,
        format!("{what} failed: {error}"),
        "`saggar doctor` shows what this host supports and what is missing",
    );
    Stopped { status: ExecStatus::SetupFailed, error: problem }
}
