//! Starts a prepared sandbox, up to a running agent. Used both for sandboxes with one exec and for held ones.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use saggar_domain::{Access, Code, FsMode, NetworkMode, Problem, Spec, Template};
use saggar_jail::cgroup::{Group, Wanted};
use saggar_jail::{Identity, Jailed, NetworkPlan, Op, Plan, SealedProgram, SetIds, SpawnError, Step, Supplies, spawn};

use crate::enforce::Enforcement;
use crate::guest_image::GUEST_IMAGE;
use crate::plan::Layout;
use crate::prepare::{Prepared, Stopped, failed, refused};
use crate::record::{FirstProcess, start_time};

/// Bytes of private storage per allowed file or directory.
const BYTES_PER_INODE: u64 = 4096;

impl Prepared {
    /// Creates the sandbox, with `channel` as its agent's end. Cgroups that were created are in `group` even if this
    /// fails. `meanwhile` runs while PID 1 builds its root.
    pub(crate) fn enter(
        &mut self,
        spec: &Spec,
        channel: OwnedFd,
        group: &mut Option<Group>,
        meanwhile: impl FnOnce() -> io::Result<()>,
    ) -> Result<Jailed, Stopped> {
        let Self { record, host, name, layout, identity, enforcement, .. } = self;
        // A v2 cgroup must exist when PID 1 is created; v1 cgroups can be created while it builds its root.
        let begun = Group::begin(host, name, &enforcement.cgroup)
            .map_err(|error| failed("creating the cgroups", error.kind()))?;
        let group = group.insert(begun);
        let birthplace = group.birthplace().map_err(|error| failed("opening the cgroup", error.kind()))?;
        let plan = plan(layout, *identity, spec, enforcement, birthplace, channel);
        let layout_views = &layout.views;
        let supply = || {
            group.complete(host, name, &enforcement.cgroup)?;
            meanwhile()?;
            Ok(Supplies {
                tasks: group.tasks()?,
                guest: SealedProgram::new("saggar-guest", GUEST_IMAGE)?,
                // An ordinary user may not mount them, and the layout then has no mount points for them.
                views: if layout_views.is_empty() { Vec::new() } else { group.views() },
            })
        };
        let jailed = spawn(&plan, supply).map_err(|error| explain(&error, &plan))?;
        let pid = jailed.pid.as_raw_nonzero().get();
        // If there are cgroups, the reaper finds every process in them.
        if enforcement.cgroup == Wanted::default()
            && let Some(started) = start_time(pid)
        {
            // Without this line the reaper relies on PID 1 exiting by itself, which it does.
            let _ = record.add_first_process(FirstProcess { pid, started });
        }
        // They are part of the root now.
        layout.mounts.clear();
        layout.mappings.clear();
        Ok(jailed)
    }
}

fn plan(
    layout: &mut Layout,
    identity: Identity,
    spec: &Spec,
    enforcement: &Enforcement,
    cgroup: Option<OwnedFd>,
    channel: OwnedFd,
) -> Plan {
    let disk = spec.limits.disk.value.bytes();
    Plan {
        identity,
        network: network(spec.network),
        hostname: "sandbox".to_owned(),
        storage_bytes: disk,
        storage_inodes: (disk / BYTES_PER_INODE).max(1024),
        ops: std::mem::take(&mut layout.ops),
        fence: std::mem::take(&mut layout.fence),
        set_ids: set_ids(spec),
        files: spec.limits.files.value.get(),
        processes: enforcement.processes,
        processors: layout.processors.take(),
        cgroup,
        channel,
    }
}

/// Programs of an image may set such bits if no file that they can change is visible outside. The changes of a scratch workspace may be.
fn set_ids(spec: &Spec) -> SetIds {
    let is_shared = spec.workspace.is_some() && spec.fs != FsMode::ReadOnly;
    let is_mounted = spec.mounts.iter().any(|mount| mount.access == Access::ReadWrite);
    match &spec.template {
        Template::Image(_) if !is_shared && !is_mounted => SetIds::Powerless,
        Template::Image(_) | Template::Host => SetIds::Refused,
    }
}

fn network(mode: NetworkMode) -> NetworkPlan {
    match mode {
        NetworkMode::None => NetworkPlan::None,
        NetworkMode::Proxied => NetworkPlan::Proxied,
        NetworkMode::Host => NetworkPlan::Host,
    }
}

/// Describes a failed step without naming a host path that the user did not name.
fn explain(error: &SpawnError, plan: &Plan) -> Stopped {
    match error {
        SpawnError::Step { step: Step::Root, index, errno } => {
            let op = plan.ops.get(*index);
            if let (Some(Op::Layers { .. }), Some(path)) = (plan.ops.first(), op.and_then(place_of))
                && matches!(*errno, Errno::NOTDIR | Errno::LOOP | Errno::ISDIR | Errno::EXIST | Errno::XDEV)
            {
                return in_the_way(path);
            }
            let what = match op {
                Some(Op::Layers { .. }) if *errno == Errno::INVAL => {
                    "stacking the template's layers, which needs Linux 5.19, and 6.7 for more than 25".to_owned()
                }
                Some(Op::Layers { .. }) => "stacking the template's layers".to_owned(),
                Some(
                    Op::Directory { path, .. }
                    | Op::File { path, .. }
                    | Op::Link { path, .. }
                    | Op::Writable { path }
                    | Op::WorkingDirectory { path, .. }
                    | Op::Private { path, .. }
                    | Op::Mask { path, .. },
                ) => format!("creating /{path}"),
                Some(Op::Kept { directory, name, .. }) => format!("creating /{directory}/{name}"),
                Some(Op::Bind { target, .. }) => format!("mounting /{target}"),
                Some(Op::Overlay { target, .. }) => format!("layering /{target}"),
                Some(Op::Protect { under, names }) => format!("protecting /{under}/{}", names.join("/")),
                Some(Op::Proc { target } | Op::Terminals { target }) => format!("mounting /{target}"),
                Some(Op::Device { name }) => format!("mounting /dev/{name}"),
                Some(Op::Covers) => "creating masks".to_owned(),
                Some(Op::Seal { .. } | Op::Expose) | None => "sealing the root".to_owned(),
            };
            failed(&what, errno)
        }
        SpawnError::Step { step, errno, .. } => failed(&step.to_string(), errno),
        SpawnError::Clone(errno) | SpawnError::Map(errno) | SpawnError::Channel(errno) => {
            failed(&error.to_string(), errno)
        }
        SpawnError::Supply(source) => failed(&error.to_string(), source.kind()),
        SpawnError::Died => failed("set-up", "the new process died without reporting an error"),
        SpawnError::Hung => failed("set-up", "the new process hung and was killed"),
    }
}

/// The path of the root that an operation needs.
fn place_of(op: &Op) -> Option<&str> {
    match op {
        Op::Directory { path, .. } | Op::File { path, .. } | Op::Private { path, .. } => Some(path),
        Op::Kept { directory, .. } => Some(directory),
        Op::Bind { target, .. } | Op::Overlay { target, .. } | Op::Proc { target } | Op::Terminals { target } => {
            Some(target)
        }
        Op::Link { path, .. } => Some(path),
        Op::Layers { .. }
        | Op::Expose
        | Op::Device { .. }
        | Op::Writable { .. }
        | Op::WorkingDirectory { .. }
        | Op::Protect { .. }
        | Op::Covers
        | Op::Mask { .. }
        | Op::Seal { .. } => None,
    }
}

/// A link in an image may lead anywhere, so none is followed.
fn in_the_way(path: &str) -> Stopped {
    refused(Problem::new(
        Code::UnsupportedCapability,
        format!("the template has something else than a directory at /{path}, or a link on the way to it"),
        "the sandbox needs this path for itself, or for a mount that you asked for: change the image, or mount elsewhere",
    ))
}
