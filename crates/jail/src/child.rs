//! The child's half of [`crate::spawn`]: from a new process in new namespaces to the agent as PID 1.
//!
//! The order matters. The id maps come first, because before them nothing has an owner. Then come the root, and the
//! cgroups, so that everything the agent starts is counted; then Landlock, which forbids mounting; then capabilities
//! and seccomp, which forbid the rest. Meanwhile other processes create the network namespace, the cgroups and the
//! agent's image.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{MoveMountFlags, move_mount};
use rustix::process::{Gid, Uid};
use rustix::thread::{sched_setaffinity, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::cgroup::View;
use crate::identity::Identity;
use crate::network::{Gates, Joined, Network};
use crate::plan::Plan;
use crate::root::{HandedOver, Root};
use crate::rule::Rule;
use crate::spawn::{CHANGES, COUNTERS, GATES, KEPT, LAYER, READY, SetupFailure, Step};
use crate::{caps, fence, seal, seccomp, supply, sys};

/// Never returns: becomes the agent, or reports a failure and exits.
pub(crate) fn run(plan: &Plan, report: OwnedFd) -> ! {
    let filter = match set_up(plan, &report) {
        Ok(filter) => filter,
        Err(failure) => tell(report.as_fd(), &failure),
    };
    // SAFETY: `set_up` has put the same socket there, and nothing closes it before the agent is executed.
    let report = unsafe { BorrowedFd::borrow_raw(seal::REPORT) };
    let failure = close_and_execute(plan, &filter, report);
    tell(report, &failure)
}

fn tell(report: BorrowedFd<'_>, failure: &SetupFailure) -> ! {
    // If the parent is gone, the report can't be delivered, and only the exit matters.
    let _ = rustix::net::send(report, &failure.to_bytes(), rustix::net::SendFlags::NOSIGNAL);
    sys::exit_now(125)
}

fn at(step: Step) -> impl Fn(Errno) -> SetupFailure {
    move |errno| SetupFailure { step, index: 0, errno }
}

/// Everything that needs privileges over the new namespaces. Afterwards only the agent's descriptors are open.
fn set_up(plan: &Plan, report: &OwnedFd) -> Result<seccomp::Filter, SetupFailure> {
    wait_for_maps(report).map_err(at(Step::Maps))?;
    take_identity(plan.identity).map_err(at(Step::Identity))?;
    sys::die_with_parent().map_err(at(Step::Identity))?;
    let network = Network::start(plan.network).map_err(at(Step::Network))?;
    if Rule::UtsNamespace.is_on() {
        rustix::system::sethostname(plan.hostname.as_bytes()).map_err(at(Step::Hostname))?;
    }
    if Rule::SessionKeyring.is_on() {
        sys::new_session_keyring().map_err(at(Step::Keyring))?;
    }
    // Our files and directories get the permissions in the plan, without the operator's umask.
    rustix::process::umask(rustix::fs::Mode::empty());
    let HandedOver { layer, changes, kept } = enter_root(plan)?;
    for (descriptor, what) in [(layer, LAYER), (changes, CHANGES)] {
        if let Some(descriptor) = descriptor {
            hand_over(report.as_fd(), &[descriptor.as_fd()], &[what]).map_err(at(Step::Supplies))?;
        }
    }
    if !kept.is_empty() {
        let all: Vec<BorrowedFd<'_>> = kept.iter().map(AsFd::as_fd).collect();
        hand_over(report.as_fd(), &all, &[KEPT]).map_err(at(Step::Supplies))?;
    }
    drop(kept);
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    if let Some(network) = network {
        let Joined { gates, counters } = network.join().map_err(|failure| at(failure.step)(failure.errno))?;
        if let Some(gates) = gates {
            let [tcp, dns_udp, dns_tcp] = gates.counts();
            hand_over(report.as_fd(), &gates.descriptors(), &[GATES, tcp, dns_udp, dns_tcp])
                .map_err(at(Step::Gates))?;
        }
        if !counters.is_empty() {
            let all: Vec<BorrowedFd<'_>> = counters.iter().map(AsFd::as_fd).collect();
            hand_over(report.as_fd(), &all, &[COUNTERS]).map_err(at(Step::Network))?;
        }
    }
    let delivery = supply::receive(report).map_err(at(Step::Supplies))?;
    for tasks in &delivery.supplies.tasks {
        rustix::io::write(tasks, b"0").map_err(at(Step::Cgroup))?;
    }
    if Rule::CgroupNamespace.is_on() {
        sys::unshare_cgroup().map_err(at(Step::Cgroup))?;
    }
    for (view, mount) in &delivery.supplies.views {
        show(*view, mount.as_fd()).map_err(at(Step::Cgroup))?;
    }
    if let Some(processors) = &plan.processors {
        sched_setaffinity(None, processors).map_err(at(Step::Limits))?;
    }
    seal::limit(plan).map_err(at(Step::Limits))?;
    if Rule::BoundingSet.is_on() {
        caps::bound_to_agent(plan.identity).map_err(at(Step::Capabilities))?;
    }
    if Rule::NoNewPrivileges.is_on() {
        set_no_new_privs(true).map_err(at(Step::Capabilities))?;
    }
    fence::close(&plan.fence).map_err(at(Step::Landlock))?;
    seal::arrange_descriptors(&plan.channel, delivery.supplies, report).map_err(at(Step::Descriptors))?;
    Ok(delivery.filter)
}

/// The mount point already exists in the new root.
fn show(view: View, mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let place = format!("/{}", view.path());
    move_mount(mount, "", rustix::fs::CWD, place, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

fn enter_root(plan: &Plan) -> Result<HandedOver, SetupFailure> {
    let root = Root::stage(plan).map_err(at(Step::Storage))?;
    for (index, op) in plan.ops.iter().enumerate() {
        root.run(op).map_err(|errno| SetupFailure { step: Step::Root, index: index as u16, errno })?;
    }
    root.enter().map_err(at(Step::Pivot))?;
    Ok(root.into_handed_over())
}

/// Drops privileges, installs the filter, and becomes the agent. Returns only on failure.
fn close_and_execute(plan: &Plan, filter: &seccomp::Filter, report: BorrowedFd<'_>) -> SetupFailure {
    let closed = || -> Result<(), SetupFailure> {
        let install =
            || filter.install().map_err(|error| at(Step::Seccomp)(Errno::from_io_error(&error).unwrap_or(Errno::IO)));
        // Without no_new_privs the kernel requires a capability that is about to be dropped.
        let early = if Rule::NoNewPrivileges.is_on() { None } else { Some(install()?) };
        caps::shrink_to_agent(plan.identity).map_err(at(Step::Capabilities))?;
        // Again, because changes of credentials clear it. If the parent died in between, its end of the channel is
        // closed and the agent exits.
        sys::die_with_parent().map_err(at(Step::Capabilities))?;
        let listener = early.map_or_else(install, Ok)?;
        hand_over(report, &[listener.as_fd()], &[READY]).map_err(at(Step::Seccomp))
    };
    match closed() {
        Ok(()) => at(Step::Execute)(sys::execute(seal::IMAGE, "saggar-guest")),
        Err(failure) => failure,
    }
}

/// The parent writes the maps and then one byte; end of file means that it died.
fn wait_for_maps(report: &OwnedFd) -> Result<(), Errno> {
    let mut byte = [0u8; 1];
    match rustix::io::read(report, &mut byte)? {
        1 => Ok(()),
        _ => Err(Errno::PIPE),
    }
}

/// Switches from the host's root, which has no id in here, to root of the range. A single id needs no change.
fn take_identity(identity: Identity) -> Result<(), Errno> {
    match identity {
        Identity::Range { .. } => {
            let group: Vec<Gid> = identity.agents_group().into_iter().map(Gid::from_raw).collect();
            set_thread_groups(&group)?;
            set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT)?;
            set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT)
        }
        Identity::Single { .. } => Ok(()),
    }
}

/// Sends descriptors to the parent: the layer of a scratch workspace, what holds the changes of the root, files that it may write, the gates of a proxied network, and the filter's
/// listener, over a socket that closes when the agent starts.
fn hand_over(report: BorrowedFd<'_>, descriptors: &[BorrowedFd<'_>], what: &[u8]) -> Result<(), Errno> {
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(Gates::COUNT_MAX))];
    let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
    if !control.push(rustix::net::SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(report, &[std::io::IoSlice::new(what)], &mut control, rustix::net::SendFlags::NOSIGNAL)?;
    Ok(())
}
