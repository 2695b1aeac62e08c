//! A confined process, tried from inside and looked at from outside. Each runs in a child with one thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Instant, SystemTime};

use rustix::process::{DumpableBehavior, Gid, Pid, Uid, WaitOptions, set_dumpable_behavior, waitpid};

use super::apply::{ConfineError, ServiceIds, confine, forbid_files};
use crate::sys::exit_now;

const OTHER: ServiceIds = ServiceIds { uid: 64_123, gid: 64_124 };

#[test]
fn a_confined_process_has_the_network_threads_time_and_randomness() {
    in_child(|| {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (left, mut right) = UnixStream::pair().unwrap();
        confine(None).unwrap();
        let client = std::thread::spawn({
            let address = listener.local_addr().unwrap();
            move || {
                let mut client = TcpStream::connect(address).unwrap();
                client.set_nodelay(true).unwrap();
                client.set_nonblocking(true).unwrap();
                client.set_nonblocking(false).unwrap();
                client.write_all(b"hello").unwrap();
                // Threads are under the filter too.
                std::fs::File::open("/etc/passwd").map(|_| ()).map_err(|error| error.kind())
            }
        });
        let mut bytes = Vec::new();
        listener.accept().unwrap().0.read_to_end(&mut bytes).unwrap();
        assert_eq!((bytes.as_slice(), client.join().unwrap()), (&b"hello"[..], Err(ErrorKind::PermissionDenied)));

        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (one, other) = (UdpSocket::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
            one.send_to(b"x", other.local_addr().unwrap()).unwrap();
            assert_eq!(other.recv(&mut [0; 4]).unwrap(), 1);
        }
        // A socket that it had before stays useful, and so does a copy of it.
        left.try_clone().unwrap().write_all(b"hello").unwrap();
        assert_eq!(right.read(&mut [0; 8]).unwrap(), 5);

        assert!(Instant::now().elapsed() < std::time::Duration::from_secs(60));
        assert!(SystemTime::now() > SystemTime::UNIX_EPOCH);
        let mut random = [0u8; 32];
        assert_eq!(rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()), Ok(32));
        assert!(std::thread::available_parallelism().is_ok());
        assert_eq!(vec![1u8; 64 << 20].iter().map(|byte| usize::from(*byte)).sum::<usize>(), 64 << 20);
    });
}

#[test]
fn a_confined_process_has_nothing_else() {
    let parent = std::process::id();
    in_child(move || {
        let kept = std::fs::File::open("/etc/passwd").unwrap();
        confine(None).unwrap();
        for path in ["/etc/passwd", "/proc/self/mem", &format!("/proc/{parent}/mem"), "/dev/urandom", "."] {
            assert_eq!(std::fs::File::open(path).unwrap_err().kind(), ErrorKind::PermissionDenied, "{path}");
        }
        assert_eq!(std::fs::metadata("/etc/passwd").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(std::fs::File::create("/tmp/confined").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert!(std::process::Command::new("/bin/true").status().is_err());
        assert_eq!(UnixStream::connect("/run/docker.sock").unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(UnixDatagram::unbound().unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(UnixDatagram::pair().unwrap_err().kind(), ErrorKind::PermissionDenied);
        assert_eq!(TcpListener::bind("127.0.0.1:0").unwrap_err().kind(), ErrorKind::PermissionDenied);
        drop(kept);

        let (program, exec) = (c"/bin/true".as_ptr() as i64, i64::from(libc::PROT_EXEC | libc::PROT_READ));
        let anonymous = i64::from(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let (parent, family) = (i64::from(parent), i64::from(libc::AF_NETLINK));
        for (number, arguments, expected) in [
            (libc::SYS_execve, [program, 0, 0, 0], libc::EPERM),
            (libc::SYS_ptrace, [i64::from(libc::PTRACE_TRACEME), 0, 0, 0], libc::EPERM),
            (libc::SYS_process_vm_readv, [parent, 0, 0, 0], libc::EPERM),
            (libc::SYS_pidfd_open, [parent, 0, 0, 0], libc::EPERM),
            (libc::SYS_kill, [parent, 0, 0, 0], libc::EPERM),
            (libc::SYS_tgkill, [parent, parent, 0, 0], libc::EPERM),
            (libc::SYS_socket, [family, i64::from(libc::SOCK_RAW), 0, 0], libc::EPERM),
            (libc::SYS_socket, [i64::from(libc::AF_INET), i64::from(libc::SOCK_RAW), 1, 0], libc::EPERM),
            (libc::SYS_socket, [i64::from(libc::AF_INET), i64::from(libc::SOCK_STREAM), 262, 0], libc::EPERM),
            (libc::SYS_mmap, [0, 4096, exec, anonymous], libc::EPERM),
            (libc::SYS_mprotect, [program & !4095, 4096, exec, 0], libc::EPERM),
            (libc::SYS_unshare, [i64::from(libc::CLONE_NEWUSER), 0, 0, 0], libc::EPERM),
            (libc::SYS_clone, [i64::from(libc::SIGCHLD), 0, 0, 0], libc::EPERM),
            (libc::SYS_clone3, [0, 0, 0, 0], libc::ENOSYS),
            (libc::SYS_io_uring_setup, [1, 0, 0, 0], libc::EPERM),
            (libc::SYS_bpf, [0, 0, 0, 0], libc::EPERM),
            (libc::SYS_memfd_create, [program, 0, 0, 0], libc::EPERM),
            (libc::SYS_setresuid, [0, 0, 0, 0], libc::EPERM),
            (libc::SYS_prctl, [i64::from(libc::PR_SET_DUMPABLE), 1, 0, 0], libc::EPERM),
        ] {
            let [a, b, c, d] = arguments;
            // SAFETY: every call is refused before the kernel looks at its arguments.
            let outcome = unsafe { libc::syscall(number, a, b, c, d) };
            let errno = std::io::Error::last_os_error().raw_os_error();
            assert_eq!((outcome, errno), (-1, Some(expected)), "call {number}");
        }
    });
}

#[test]
fn landlock_alone_closes_files() {
    in_child(|| {
        rustix::thread::set_no_new_privs(true).unwrap();
        forbid_files().unwrap();
        for path in ["/etc/passwd", "/proc/self/maps", "/tmp"] {
            assert_eq!(std::fs::File::open(path).unwrap_err().raw_os_error(), Some(libc::EACCES), "{path}");
        }
    });
}

#[test]
fn a_process_with_threads_is_not_confined() {
    in_child(|| {
        let (wait, other) = std::sync::mpsc::sync_channel::<()>(0);
        let thread = std::thread::spawn(move || other.recv());
        assert!(matches!(confine(None), Err(ConfineError::Threads(2))));
        drop(wait);
        assert!(thread.join().unwrap().is_err());
    });
}

#[test]
fn seen_from_outside_it_has_no_rights_and_cannot_be_inspected() {
    let is_root = rustix::process::geteuid().is_root();
    // Root tries all three: as itself, as an ordinary user, and with a change of ids.
    let checked: &[(bool, Option<ServiceIds>)] =
        if is_root { &[(false, None), (true, None), (false, Some(OTHER))] } else { &[(false, None)] };
    for &(is_demoted, ids) in checked {
        let (mut ours, mut theirs) = UnixStream::pair().unwrap();
        let pid = fork(|| {
            if is_root {
                rustix::thread::set_thread_groups(&[Gid::from_raw(64_125)]).unwrap();
            }
            if is_demoted {
                let uid = Uid::from_raw(OTHER.uid);
                rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
                // The change of ids cleared it, and an ordinary user's process would have it.
                set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
            }
            confine(ids).unwrap();
            theirs.write_all(b"r").unwrap();
            assert_eq!(theirs.read(&mut [0]).unwrap(), 0);
        });
        drop(theirs);
        ours.read_exact(&mut [0]).unwrap();
        let place = format!("/proc/{}", pid.as_raw_nonzero());
        let status = std::fs::read_to_string(format!("{place}/status")).unwrap();
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        for (name, expected) in [("NoNewPrivs:", "1"), ("Seccomp:", "2")] {
            assert_eq!(field(name), expected, "{ids:?} {name}");
        }
        let sets = ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"];
        for name in sets.iter().chain((is_root && !is_demoted).then_some(&"CapBnd:")) {
            assert_eq!(field(name), "0000000000000000", "{ids:?} {name}");
        }
        if let Some(ServiceIds { uid, gid }) = ids {
            let same = |id: u32| [id; 4].map(|id| id.to_string()).join("\t");
            assert_eq!((field("Uid:"), field("Gid:"), field("Groups:")), (same(uid), same(gid), String::new()));
        }
        // An undumpable process's files in /proc are root's, whoever runs it.
        assert_eq!(std::fs::metadata(format!("{place}/mem")).unwrap().uid(), 0, "{ids:?}");
        let limits = std::fs::read_to_string(format!("{place}/limits")).unwrap();
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        let hard = core.split_ascii_whitespace().nth(5).unwrap();
        assert!(hard == "0" || hard == "1", "{core}");
        ours.shutdown(std::net::Shutdown::Both).unwrap();
        reap(pid);
    }
}

fn in_child(act: impl FnOnce()) {
    reap(fork(act));
}

/// The C library's fork also takes care of locks that another thread holds.
fn fork(act: impl FnOnce()) -> Pid {
    // SAFETY: the other threads of a test wait for it, and the C library makes its own state usable in the child.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = catch_unwind(AssertUnwindSafe(act));
            exit_now(if outcome.is_ok() { 0 } else { 1 })
        }
        pid => Pid::from_raw(pid).expect("fork works"),
    }
}

fn reap(pid: Pid) {
    let (_, status) = waitpid(Some(pid), WaitOptions::empty()).unwrap().expect("it has ended");
    assert_eq!(status.exit_status(), Some(0), "see what the child said above");
}
