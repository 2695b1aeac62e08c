//! System calls that rustix does not wrap, each behind a minimal safe function.

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use rustix::io::Errno;
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::rule::Rule;

/// Attributes that `mount_setattr` sets on a tree of mounts.
#[derive(Clone, Copy, Debug, Default)]
pub struct MountAttributes<'a> {
    pub is_read_only: bool,
    /// Programs on it can't be executed.
    pub is_no_exec: bool,
    /// A user namespace by whose mapping the mount translates ids.
    pub id_map: Option<&'a OwnedFd>,
}

const MOUNT_ATTR_RDONLY: u64 = 0x1;
const MOUNT_ATTR_NOSUID: u64 = 0x2;
const MOUNT_ATTR_NODEV: u64 = 0x4;
const MOUNT_ATTR_NOEXEC: u64 = 0x8;
const MOUNT_ATTR_IDMAP: u64 = 0x0010_0000;
const AT_RECURSIVE: u32 = 0x8000;
/// Too wide for the C library's `int`.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

#[repr(C)]
struct MountAttr {
    attr_set: u64,
    attr_clr: u64,
    propagation: u64,
    userns_fd: u64,
}

/// Sets attributes on a mount and everything below it, and makes it private, so that mount events don't propagate.
pub fn set_mount_attributes(mount: &impl AsFd, attributes: MountAttributes<'_>) -> Result<(), Errno> {
    let mut attr = MountAttr { attr_set: 0, attr_clr: 0, propagation: libc::MS_PRIVATE, userns_fd: 0 };
    if Rule::NoSuid.is_on() {
        attr.attr_set |= MOUNT_ATTR_NOSUID;
    }
    if attributes.is_read_only {
        attr.attr_set |= MOUNT_ATTR_RDONLY;
    }
    if Rule::NoDev.is_on() {
        attr.attr_set |= MOUNT_ATTR_NODEV;
    }
    if attributes.is_no_exec {
        attr.attr_set |= MOUNT_ATTR_NOEXEC;
    }
    if let Some(namespace) = attributes.id_map {
        attr.attr_set |= MOUNT_ATTR_IDMAP;
        attr.userns_fd = namespace.as_raw_fd() as u64;
    }
    mount_setattr(mount.as_fd(), &attr, libc::AT_EMPTY_PATH as u32 | AT_RECURSIVE)
}

/// Makes one mount read-only; mounts on top of it keep their own flags.
pub(crate) fn make_read_only(mount: BorrowedFd<'_>) -> Result<(), Errno> {
    let attr = MountAttr { attr_set: MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    mount_setattr(mount, &attr, libc::AT_EMPTY_PATH as u32)
}

fn mount_setattr(mount: BorrowedFd<'_>, attr: &MountAttr, flags: u32) -> Result<(), Errno> {
    // SAFETY: the path is a NUL-terminated empty string, and `attr` is a live struct of the size given.
    let outcome = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            mount.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &raw const *attr,
            size_of::<MountAttr>(),
        )
    };
    checked(outcome).map(|_| ())
}

/// A detached copy of a mount tree.
pub fn clone_tree(directory: &impl AsFd, path: &str) -> Result<OwnedFd, Errno> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    open_tree(directory, path, flags | OpenTreeFlags::AT_SYMLINK_NOFOLLOW)
}

/// The result of `clone3`, on either side.
pub(crate) enum Cloned {
    Child,
    Parent { pid: i32, pidfd: OwnedFd },
}

/// `clone3` with the parent's memory copied, as `fork` does. The caller is single-threaded, so the child may continue
/// in ordinary code.
pub(crate) fn clone3(flags: u64, cgroup: Option<RawFd>) -> Result<Cloned, Errno> {
    // SAFETY: clone_args is a plain struct of integers, for which all zeroes is the documented default.
    let mut args: libc::clone_args = unsafe { std::mem::zeroed() };
    let mut pidfd: RawFd = -1;
    args.flags = flags | libc::CLONE_PIDFD as u64;
    args.pidfd = &raw mut pidfd as u64;
    args.exit_signal = libc::SIGCHLD as u64;
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup as u64;
    }
    // SAFETY: `args` is live and of the size given; neither a stack nor CLONE_VM is requested, so the child continues
    // on a copy of this stack.
    let pid = checked(unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<libc::clone_args>()) })?;
    if pid == 0 {
        return Ok(Cloned::Child);
    }
    // SAFETY: the kernel stored a new descriptor there, which nothing else owns.
    Ok(Cloned::Parent { pid: pid as i32, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })
}

/// Runs `act` with another effective user, but with root's filesystem uid: the kernel checks it against the cgroup to
/// be created in.
pub(crate) fn with_effective_uid(uid: u32, act: &impl Fn() -> Result<Cloned, Errno>) -> Result<Cloned, Errno> {
    const KEEP: libc::uid_t = libc::uid_t::MAX;
    // SAFETY: these calls change only the calling thread's ids. They are raw because the C library's would apply to all
    // threads.
    let set = |effective: libc::uid_t| checked(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, effective, KEEP) });
    set(uid)?;
    // SAFETY: as above.
    unsafe { libc::setfsuid(0) };
    let outcome = act();
    // The child takes on its own identity next, and needs no way back. For the parent it can't fail: its real and saved
    // ids are root's.
    if !matches!(outcome, Ok(Cloned::Child)) {
        set(0)?;
    }
    outcome
}

/// Moves the caller to a new cgroup namespace, rooted at its current cgroup.
pub(crate) fn unshare_cgroup() -> Result<(), Errno> {
    // SAFETY: takes flags and no pointer.
    checked(unsafe { libc::syscall(libc::SYS_unshare, libc::CLONE_NEWCGROUP) }).map(|_| ())
}

/// `pivot_root(".", ".")`: the working directory becomes the root, and the old root lies under it until it is detached.
pub(crate) fn pivot_here() -> Result<(), Errno> {
    // SAFETY: both paths are NUL-terminated.
    checked(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }).map(|_| ())
}

/// A new session keyring: no key of the parent process is reachable.
pub(crate) fn new_session_keyring() -> Result<(), Errno> {
    const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;
    // SAFETY: a null name asks for an anonymous keyring.
    match checked(unsafe {
        libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>())
    }) {
        // A kernel without keyrings has no keys to reach.
        Ok(_) | Err(Errno::NOSYS) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Requests SIGKILL when the parent dies. Changes of credentials clear it, so it is requested again after each.
pub(crate) fn die_with_parent() -> Result<(), Errno> {
    // SAFETY: takes integers only.
    checked(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong, 0, 0, 0) }.into()).map(|_| ())
}

/// Moves the caller to a new network namespace. A raw call, because errno is shared here.
pub(crate) fn unshare_network() -> Result<(), Errno> {
    // SAFETY: only the calling process's network namespace changes; no descriptor or memory is affected.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) }
}

pub(crate) fn join_network(namespace: &OwnedFd) -> Result<(), Errno> {
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(rustix::thread::LinkNameSpaceType::Network))
}

/// Brings the loopback of a new network namespace up. A raw call, because errno is shared here.
pub(crate) fn loopback_up() -> Result<(), Errno> {
    let socket = rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None)?;
    // SAFETY: ifreq is plain data for which zeroes are valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[0] = b'l' as libc::c_char;
    request.ifr_name[1] = b'o' as libc::c_char;
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: SIOCSIFFLAGS takes a pointer to one ifreq, which is what is given.
    unsafe {
        rustix::ioctl::ioctl(&socket, rustix::ioctl::Setter::<{ libc::SIOCSIFFLAGS as u32 }, libc::ifreq>::new(request))
    }
}

/// Sets a socket option that is a number. Raw, because errno is shared with the caller in the helper that uses this.
#[cfg(target_arch = "x86_64")]
pub(crate) fn set_option(socket: &OwnedFd, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    let outcome: libc::c_long;
    // SAFETY: setsockopt reads four bytes of a live local, and changes no memory of ours. The kernel overwrites rcx and r11.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") libc::SYS_setsockopt => outcome,
            in("rdi") socket.as_raw_fd(),
            in("rsi") level,
            in("rdx") name,
            in("r10") &raw const value,
            in("r8") size_of::<i32>(),
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    if outcome < 0 { Err(Errno::from_raw_os_error(-outcome as i32)) } else { Ok(()) }
}

/// Replaces this process with the program in `fd`, with one argument and no environment. Returns only on failure.
pub(crate) fn execute(fd: RawFd, name: &str) -> Errno {
    let Ok(name) = CString::new(name) else { return Errno::INVAL };
    let argv = [name.as_ptr(), std::ptr::null()];
    #[cfg(not(feature = "mutation"))]
    let envp: [*const libc::c_char; 1] = [std::ptr::null()];
    #[cfg(feature = "mutation")]
    let off = format!("{0}={1}", crate::rule::VARIABLE, std::env::var(crate::rule::VARIABLE).unwrap_or_default());
    #[cfg(feature = "mutation")]
    let off = CString::new(off).unwrap_or_default();
    #[cfg(feature = "mutation")]
    let envp: [*const libc::c_char; 2] = [off.as_ptr(), std::ptr::null()];
    // SAFETY: both arrays are null-terminated and live, and so is the empty path.
    unsafe { libc::syscall(libc::SYS_execveat, fd, c"".as_ptr(), argv.as_ptr(), envp.as_ptr(), libc::AT_EMPTY_PATH) };
    last_errno()
}

/// Waits briefly, for changes that the kernel reports by no event. The caller checks again, a bounded number of times.
pub fn pause_briefly() {
    let pause = rustix::time::Timespec { tv_sec: 0, tv_nsec: 2_000_000 };
    // Waking early is fine.
    let _ = rustix::thread::nanosleep(&pause);
}

/// Ends this process without running exit handlers or flushing buffers inherited from the parent.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: takes an integer and does not return.
    unsafe { libc::_exit(code) }
}

pub(crate) fn checked(outcome: libc::c_long) -> Result<libc::c_long, Errno> {
    if outcome < 0 { Err(last_errno()) } else { Ok(outcome) }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}
