//! What a program inside may do: its identity, its capabilities, refused system calls, and how they are reported.

mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use harness::probe::{check, check_all, check_json};
use harness::tree::tree;
use harness::{Place, is_root, not_here, show};
use serde_json::{Value, json};

const STATUS: &str = "{line.split(':')[0]: line.split(':')[1].split() for line in open('/proc/self/status')}";

#[test]
fn programs_have_no_capabilities_and_can_gain_none() {
    let none = "['0000000000000000']";
    let ids = "['1000', '1000', '1000', '1000']";
    let expected = [
        ("Uid", ids),
        ("Gid", ids),
        ("Groups", "[]|['65534']"),
        ("CapInh", none),
        ("CapPrm", none),
        ("CapEff", none),
        ("CapBnd", none),
        ("CapAmb", none),
        ("NoNewPrivs", "['1']"),
        ("Seccomp", "['2']"),
        ("Seccomp_filters", "['1']"),
    ];
    check_status("user", &expected);
}

#[test]
fn root_of_a_sandbox_has_the_seven_named_capabilities() {
    // CHOWN, DAC_OVERRIDE, FOWNER, KILL, SETGID, SETUID and NET_BIND_SERVICE; with a single id, the two that change
    // ids are missing.
    let none = "['0000000000000000']";
    let seven = if is_root() { "['00000000000004eb']" } else { "['000000000000042b']" };
    let ids = "['0', '0', '0', '0']";
    let expected = [
        ("Uid", ids),
        ("Gid", ids),
        ("CapInh", none),
        ("CapPrm", seven),
        ("CapEff", seven),
        ("CapBnd", seven),
        ("CapAmb", none),
        ("NoNewPrivs", "['1']"),
        ("Seccomp", "['2']"),
    ];
    check_status("root", &expected);
}

fn check_status(user: &str, expected: &[(&str, &str)]) {
    let questions: Vec<String> = expected.iter().map(|(name, _)| format!("{STATUS}['{name}']")).collect();
    let cases: Vec<(&str, &str)> =
        questions.iter().map(String::as_str).zip(expected.iter().map(|(_, value)| *value)).collect();
    check(&Place::new(), &["--user", user], &cases);
}

#[test]
fn no_id_inside_is_one_the_host_uses() {
    if !is_root() {
        return not_here("an ordinary user's sandbox has that user's own id and no other");
    }
    let first = |name: &str| {
        format!(
            "(lambda inside, outside, count: (inside, outside >= 65536, count))(*map(int, read('/proc/self/{name}').split()))"
        )
    };
    for user in ["user", "root"] {
        check(
            &Place::new(),
            &["--user", user],
            &[(&first("uid_map"), "(0, True, 65536)"), (&first("gid_map"), "(0, True, 65536)")],
        );
    }
}

#[test]
fn root_of_a_sandbox_can_do_what_installing_takes_and_a_user_can_not() {
    let mut cases = vec![
        ("os.chown('/tmp', 0, 0)", "ok", "EPERM|EINVAL"),
        ("bind(socket.AF_INET, ('127.0.0.1', 80))", "ok", "EACCES"),
        ("os.setresuid(0, 0, 0)", "ok", "EPERM|EINVAL"),
        ("os.setresgid(0, 0, 0)", "ok", "EPERM|EINVAL"),
        ("bind(socket.AF_INET, ('127.0.0.1', 8080))", "ok", "ok"),
    ];
    // With a single id there is no other to give a file to or to switch to.
    if is_root() {
        cases.push(("write('/tmp/a')", "ok", "ok"));
        cases.push(("os.chown('/tmp/a', 1234, 1234)", "ok", "EPERM"));
        cases.push(("write('/tmp/a')", "ok", "ok"));
        cases.push(("os.setgroups([0])", "ok", "EPERM"));
        cases.push(("in_child(lambda: os.setresuid(33, 33, 33))", "status 0", "status 1"));
    }
    let pick = |root: bool| -> Vec<(&str, &str)> {
        cases.iter().map(|(attempt, as_root, as_user)| (*attempt, if root { *as_root } else { *as_user })).collect()
    };
    check(&Place::new(), &["--user", "root"], &pick(true));
    check(&Place::new(), &["--user", "user"], &pick(false));
}

/// An attempt, its result, and the reported call and rule, if any.
type Refusal = (&'static str, &'static str, Option<(&'static str, &'static str)>);

/// Attempts that even root of a sandbox is refused.
const REFUSALS: &[Refusal] = &[
    // Namespaces: user, mount, network, process, time; by unshare, clone, clone3 and setns.
    ("syscall(272, 0x10000000)", "EPERM", Some(("unshare", "namespaces"))),
    ("syscall(272, 0x00020000)", "EPERM", Some(("unshare", "namespaces"))),
    ("syscall(272, 0x80)", "EPERM", Some(("unshare", "namespaces"))),
    ("syscall(56, 0x10000011, 0, 0, 0, 0)", "EPERM", Some(("clone", "namespaces"))),
    ("syscall(56, 0x40000011, 0, 0, 0, 0)", "EPERM", Some(("clone", "namespaces"))),
    ("syscall(435, 0, 0)", "ENOSYS", None),
    ("syscall(308, os.open('/proc/self/ns/net', os.O_RDONLY), 0)", "EPERM", Some(("setns", "namespaces"))),
    // Mounts, by the old interface and the new.
    ("syscall(165, b'none', b'/tmp', b'tmpfs', 0, 0)", "EPERM", Some(("mount", "mounts"))),
    ("syscall(165, b'none', b'/usr', b'', 0x20, 0)", "EPERM", Some(("mount", "mounts"))),
    ("syscall(166, b'/proc/keys', 2)", "EPERM", Some(("umount2", "mounts"))),
    ("syscall(155, b'/tmp', b'/tmp')", "EPERM", Some(("pivot_root", "mounts"))),
    ("os.chroot('/tmp')", "EPERM", Some(("chroot", "mounts"))),
    ("syscall(428, -100, b'/', 1)", "EPERM", Some(("open_tree", "mounts"))),
    ("syscall(429, -100, b'/tmp', -100, b'/home', 0)", "EPERM", Some(("move_mount", "mounts"))),
    ("syscall(430, b'proc', 0)", "EPERM", Some(("fsopen", "mounts"))),
    ("syscall(442, -100, b'/usr', 0, 0, 0)", "EPERM", Some(("mount_setattr", "mounts"))),
    ("syscall(304, -100, 0, 0)", "EPERM", Some(("open_by_handle_at", "handles"))),
    // Other processes.
    ("syscall(101, 16, 1, 0, 0)", "EPERM", Some(("ptrace", "ptrace"))),
    ("syscall(101, 0, 0, 0, 0)", "EPERM", Some(("ptrace", "ptrace"))),
    ("syscall(310, 1, 0, 0, 0, 0, 0)", "EPERM", Some(("process_vm_readv", "ptrace"))),
    ("syscall(438, 0, 0, 0)", "EPERM", Some(("pidfd_getfd", "ptrace"))),
    ("syscall(302, 1, 7, 0, 0)", "EPERM", Some(("prlimit64", "ptrace"))),
    ("syscall(302, 1, 7, struct.pack('QQ', 3, 3), 0)", "EPERM", Some(("prlimit64", "ptrace"))),
    // The kernel's own objects.
    ("syscall(250, 0, -3, 0)", "EPERM", Some(("keyctl", "keyrings"))),
    ("syscall(248, b'user', b'name', b'x', 1, -3)", "EPERM", Some(("add_key", "keyrings"))),
    ("syscall(321, 0, 0, 0)", "EPERM", Some(("bpf", "bpf"))),
    ("syscall(298, 0, 0, -1, -1, 0)", "EPERM", Some(("perf_event_open", "perf"))),
    ("syscall(323, 0)", "EPERM", Some(("userfaultfd", "userfaultfd"))),
    ("syscall(425, 1, 0)", "ENOSYS", None),
    ("syscall(426, 0, 0, 0, 0, 0)", "ENOSYS", None),
    ("syscall(206, 8, bytes(8))", "ENOSYS", None),
    ("syscall(209, 0, 0, 0)", "ENOSYS", None),
    ("syscall(313, 0, b'', 0)", "EPERM", Some(("finit_module", "modules"))),
    ("syscall(246, 0, 0, 0, 0)", "EPERM", Some(("kexec_load", "modules"))),
    ("syscall(103, 3, 0, 0)", "EPERM", Some(("syslog", "system"))),
    ("syscall(169, 0, 0, 0, 0)", "EPERM", Some(("reboot", "system"))),
    ("syscall(172, 3)", "EPERM", Some(("iopl", "system"))),
    ("syscall(227, 0, 0)", "EPERM", Some(("clock_settime", "clock"))),
    ("socket.sethostname('mine')", "EPERM", Some(("sethostname", "hostname"))),
    ("syscall(135, 0x0040000)", "EPERM", Some(("personality", "personality"))),
    ("syscall(157, 35, 0, 0, 0, 0)", "EPERM", Some(("prctl", "prctl"))),
    ("syscall(317, 1, 8, 0)", "EPERM", Some(("seccomp", "seccomp-listener"))),
    // Device nodes, and the whiteout that is one by another name.
    ("os.mknod('/tmp/mem', 0o600 | stat.S_IFCHR, os.makedev(1, 1))", "EPERM", Some(("mknodat", "device-nodes"))),
    ("os.mknod('/tmp/disk', 0o600 | stat.S_IFBLK, os.makedev(8, 0))", "EPERM", Some(("mknodat", "device-nodes"))),
    ("syscall(316, -100, b'/tmp/a', -100, b'/tmp/b', 4)", "EPERM", Some(("renameat2", "device-nodes"))),
    // Sockets of other families and kinds.
    ("socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET).close()", "EAFNOSUPPORT", Some(("socket", "sockets"))),
    ("socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM).close()", "EAFNOSUPPORT", Some(("socket", "sockets"))),
    ("socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()", "EAFNOSUPPORT", Some(("socket", "sockets"))),
    ("socket.socket(socket.AF_BLUETOOTH, socket.SOCK_STREAM, 3).close()", "EAFNOSUPPORT", Some(("socket", "sockets"))),
    // What ZeroMQ takes for a system without it; on others it aborts, and no Jupyter kernel starts.
    ("socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM).close()", "ENOTSUP", None),
    (
        "socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close()",
        "EPERM",
        Some(("socket", "sockets")),
    ),
    (
        "socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6).close()",
        "EPERM",
        Some(("socket", "sockets")),
    ),
    ("socket.socket(socket.AF_INET, 10, 768).close()", "EPERM", Some(("socket", "sockets"))),
    (
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP).close()",
        "EPROTONOSUPPORT",
        Some(("socket", "sockets")),
    ),
    // Typing into a terminal, even its own.
    ("fcntl.ioctl(os.openpty()[1], 0x5412, b'x')", "EPERM", Some(("ioctl", "tty-ioctls"))),
    ("fcntl.ioctl(os.openpty()[1], 0x5423, b'\\0' * 4)", "EPERM", Some(("ioctl", "tty-ioctls"))),
    // The x32 convention of getpid, and an unknown system call number.
    ("syscall(0x40000000 + 39)", "ENOSYS", None),
    ("syscall(4000)", "ENOSYS", None),
];

/// The closest harmless calls, which must work, or the refusals above would prove nothing.
const RELATIVES: &[&str] = &[
    "syscall(272, 0x400)",
    "in_child(lambda: 0) == 'status 0' or 1/0",
    "os.chdir('/tmp')",
    "syscall(135, 0xffffffff)",
    "syscall(157, 15, b'name', 0, 0, 0)",
    "syscall(434, os.getpid(), 0)",
    "syscall(302, 0, 7, 0, bytes(16))",
    "syscall(302, os.getpid(), 7, struct.pack('QQ', 64, 64), 0)",
    "os.mkfifo('/tmp/fifo')",
    "os.mknod('/tmp/file', 0o600 | stat.S_IFREG)",
    "syscall(316, -100, b'/tmp/file', -100, b'/tmp/fifo', 2)",
    "socket.socket(socket.AF_INET, socket.SOCK_STREAM).close()",
    "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).close()",
    "socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET).close()",
    "fcntl.ioctl(os.openpty()[1], 0x5413, b'\\0' * 8) and None",
];

#[test]
fn what_reaches_past_a_sandbox_is_refused_and_told() {
    for user in ["user", "root"] {
        let cases: Vec<(&str, &str)> = REFUSALS.iter().map(|(attempt, answer, _)| (*attempt, *answer)).collect();
        let result = check_json(&Place::new(), &["--user", user], &cases);
        let mut expected: Vec<Value> = Vec::new();
        for (syscall, group) in REFUSALS.iter().filter_map(|(_, _, told)| *told) {
            let rule = format!("seccomp/{group}");
            let message = format!(
                "a program made the system call {syscall}, which the {rule} rule refuses in every sandbox of this tier"
            );
            let denial = json!({"code": "syscall_refused", "rule": rule, "message": message});
            if !expected.contains(&denial) {
                expected.push(denial);
            }
        }
        assert_eq!(result["denials"], Value::Array(expected), "each kind once, in order");
        assert_eq!(result["status"], "exited");
    }
}

#[test]
fn their_harmless_relatives_work_and_are_not_told() {
    let cases: Vec<(&str, &str)> = RELATIVES.iter().map(|attempt| (*attempt, "ok|True")).collect();
    let result = check_json(&Place::new(), &[], &cases);
    assert_eq!(result["denials"], json!([]));
}

#[test]
fn the_32_bit_convention_is_the_end_of_who_uses_it() {
    // mov eax, 20 (getpid); int 0x80; ret. A kernel without the convention raises a fault.
    let attempt = r"in_child(lambda: machine_code(b'\xb8\x14\0\0\0\xcd\x80\xc3') and 0)";
    let control = r"in_child(lambda: machine_code(b'\xb8\x2a\0\0\0\xc3'))";
    check(&Place::new(), &[], &[(attempt, "signal 31|signal 11"), (control, "status 42")]);
}

#[test]
fn a_program_can_neither_see_nor_end_the_agent() {
    for user in ["user", "root"] {
        let seen = if user == "user" && is_root() { "absent" } else { "absent|there" };
        check(
            &Place::new(),
            &["--user", user],
            &[
                ("remains('/proc/1')", seen),
                ("read('/proc/1/environ')", "ENOENT|EACCES|EPERM"),
                ("os.listdir('/proc/1/fd')", "ENOENT|EACCES|EPERM"),
                ("os.readlink('/proc/1/root')", "ENOENT|EACCES|EPERM"),
                ("os.open('/proc/1/mem', os.O_RDONLY)", "ENOENT|EACCES|EPERM"),
                ("write('/proc/1/exe', 0)", "ENOENT|EACCES|EPERM|EROFS|ELOOP"),
                // Whether a signal may be sent depends on the user, but none has an effect.
                ("[attempt('os.kill(1, %d)' % number) for number in range(1, 65)] and None", "ok"),
                ("os.kill(os.getpid(), 0)", "ok"),
            ],
        );
    }
}

#[test]
fn no_setid_bit_can_be_put_on_a_file_of_the_workspace() {
    let mut ways = Vec::new();
    for mode in ["0o4755", "0o2755", "0o6711"] {
        ways.extend([
            format!("os.chmod('/workspace/file', {mode})"),
            format!("os.chmod('file', {mode}, dir_fd=os.open('/workspace', os.O_RDONLY))"),
            format!("os.fchmod(os.open('/workspace/file', os.O_RDONLY), {mode})"),
            format!("syscall(90, b'/workspace/file', {mode})"),
            format!("syscall(452, -100, b'/workspace/file', {mode}, 0)"),
            format!("syscall(452, -100, b'/workspace/file', {mode}, 0x100)"),
            format!("syscall(85, b'/workspace/creat', {mode})"),
            format!("syscall(2, b'/workspace/open', 0o101, {mode})"),
            format!("write('/workspace/openat', os.O_CREAT, {mode})"),
            format!("tmpfile('/workspace', {mode}, '/workspace/unnamed')"),
            format!("os.mknod('/workspace/mknod', stat.S_IFREG | {mode})"),
            format!("syscall(133, b'/workspace/mknod2', 0o100000 | {mode}, 0)"),
            format!("os.mkfifo('/workspace/fifo', {mode})"),
            format!("subprocess.run(['install', '-m', '{}', '/bin/true', '/workspace/installed'], stderr=subprocess.DEVNULL).returncode and os.chmod('/workspace/installed', {mode})", &mode[2..]),
        ]);
    }
    // openat2 passes its mode by pointer and is not available at all.
    let how = "syscall(437, -100, b'/workspace/openat2', struct.pack('QQQ', 0o101, 0o4755, 0), 24)";
    let rest = [
        (how, "ENOSYS"),
        (
            "os.setxattr('/workspace/file', 'security.capability', struct.pack('<5I', 0x02000001, 0xff, 0, 0, 0))",
            "EPERM",
        ),
        ("os.chmod('/workspace/file', 0o1777)", "ok"),
        ("tmpfile('/workspace', 0o755, '/workspace/plain')", "ok"),
    ];
    for user in ["user", "root"] {
        let place = Place::new();
        place.write("workspace/file", "");
        let workspace = show(&place.workspace());
        let flags = ["--workspace", &workspace, "--user", user];
        let cases: Vec<(&str, &str)> = ways.iter().map(|way| (way.as_str(), "EPERM")).chain(rest).collect();
        let result = check_json(&place, &flags, &cases);
        let rules: Vec<&str> =
            result["denials"].as_array().unwrap().iter().map(|denial| denial["rule"].as_str().unwrap()).collect();
        assert!(!rules.is_empty() && rules.iter().all(|rule| *rule == "seccomp/setid-bits"), "{rules:?}");
        for (name, entry) in tree(&place.workspace()) {
            let mode = u32::from_str_radix(entry.split(' ').next().unwrap(), 8).unwrap();
            assert_eq!(mode & 0o6000, 0, "{name} {entry}");
        }
    }
}

#[test]
fn a_setid_file_of_the_host_loses_the_bit_when_it_is_written() {
    for user in ["user", "root"] {
        let place = Place::new();
        let file = place.write("workspace/file", "#!/bin/sh\n");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
        check(
            &place,
            &["--workspace", &show(&place.workspace()), "--user", user],
            &[("write('/workspace/file', os.O_APPEND)", "ok")],
        );
        assert_eq!(file.metadata().unwrap().mode() & 0o7777, 0o755);
    }
}

#[test]
fn a_setid_file_of_the_host_keeps_the_bit_when_it_is_written_through_memory() {
    // A known gap: the kernel removes the bit only on write(2), and nothing of ours sees a page being dirtied. So the
    // agent can choose the contents of a set-id program that was in a writable workspace before the run.
    let place = Place::new();
    let file = place.write("workspace/file", "host\n");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o4755)).unwrap();
    check(&place, &["--workspace", &show(&place.workspace())], &[("map_shared('/workspace/file')", "ok")]);
    assert_eq!(
        (file.metadata().unwrap().mode() & 0o7777, std::fs::read_to_string(&file).unwrap().as_str()),
        (0o4755, "mmap\n")
    );
}

#[test]
fn setid_programs_give_nothing() {
    let place = Place::new();
    let id = place.path("workspace/id");
    std::fs::copy("/usr/bin/id", &id).unwrap();
    std::fs::set_permissions(&id, std::fs::Permissions::from_mode(0o6755)).unwrap();
    let workspace = show(&place.workspace());
    let flags = ["--workspace", &workspace];
    check(&place, &flags, &[("subprocess.check_output(['/workspace/id', '-u'], text=True).strip()", "1000")]);
    check_all(
        &place,
        &flags,
        &[
            "'nosuid' in next(line for line in open('/proc/self/mounts') if ' %s ' % '/usr' in line) or 1/0",
            "'nosuid' in next(line for line in open('/proc/self/mounts') if ' /workspace ' in line) or 1/0",
        ],
        "True",
    );
    for program in ["/usr/bin/su", "/usr/bin/sudo", "/usr/bin/pkexec"] {
        if std::fs::metadata(program).is_ok_and(|metadata| metadata.mode() & 0o4000 != 0) {
            let done = place.run(&flags, &[program, "-c", "id"]);
            assert!(done.code != 0 && !done.stdout.contains("uid=0"), "{program}: {done:?}");
        } else {
            not_here(&format!("{program} is not set-uid here"));
        }
    }
}
