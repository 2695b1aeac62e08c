//! What a program inside can see and reach: descriptors, environment, processes, kernel files, sockets, the network.

mod harness;
mod traces;

use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use harness::probe::{REFUSED, check, check_all, check_json};
use harness::{Place, finish, is_root, not_here, probe, show};
use serde_json::json;

/// A word that occurs only where these tests put it, in halves.
const SECRET: [&str; 2] = ["swordfish-", "4711"];

#[test]
fn only_the_three_streams_are_open() {
    let place = Place::new();
    let file = std::fs::File::open(place.write("leaked", "of the host\n")).unwrap();
    let directory = std::fs::File::open("/").unwrap();
    for leaked in [&file, &directory] {
        // As a careless parent would leave it: open across the execution of saggar.
        rustix::io::fcntl_setfd(leaked, rustix::io::FdFlags::empty()).unwrap();
    }
    for flags in [&[][..], &["--user", "root"], &["--stdin", "-"]] {
        assert_eq!(place.sh(flags, "ls /proc/$$/fd; true").stdout, "0\n1\n2\n", "with {flags:?}");
    }
    check(
        &place,
        &[],
        &[
            ("[fd for fd in range(3, 4096) if os.path.lexists('/proc/self/fd/%d' % fd)]", "[]"),
            ("os.open('/tmp', os.O_RDONLY)", "3"),
            ("[fd for fd in range(3, 4096) if os.path.lexists('/proc/self/fd/%d' % fd)]", "[3]"),
            ("os.isatty(0) or os.isatty(1) or os.isatty(2)", "False"),
            ("sys.stdin.read()", ""),
        ],
    );
}

#[test]
fn the_environment_is_built_and_nothing_of_ours_is_in_it() {
    let place = Place::new();
    let secret = SECRET.concat();
    let search = format!("found({SECRET:?})");
    for (user, home) in [("user", "/home/user"), ("root", "/root")] {
        let environment = format!(
            "[('HOME', '{home}'), ('LANG', 'C.UTF-8'), ('LOGNAME', '{user}'), ('NAMED', 'value'), ('PATH', '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'), ('SHELL', '/bin/sh'), ('USER', '{user}')]"
        );
        let environment = environment.as_str();
        let cases = [
            ("sorted((name, value) for name, value in os.environ.items() if name != 'LC_CTYPE')", environment),
            (&search, "[]"),
        ];
        let attempts: Vec<&str> = cases.iter().map(|(attempt, _)| *attempt).collect();
        let program = probe::program(&attempts);
        let arguments = ["run", "--user", user, "--env", "NAMED=value", "--"].into_iter().chain(program);
        let mut command = place.command(arguments);
        command
            .env("SECRET_TOKEN", &secret)
            .env("LD_PRELOAD_OF_OURS", &secret)
            .env("NAMED", &secret)
            .env("TERM", "dumb");
        let done = finish(command.spawn().unwrap());
        probe::compare(&cases, &probe::parse(&done.stdout).unwrap_or_else(|| panic!("{done:?}")));
    }
    check(&place, &["--env", &format!("GIVEN={secret}")], &[(&search, "['environ']")]);
}

#[test]
fn processes_of_the_host_can_neither_be_seen_nor_signalled() {
    let place = Place::new();
    let mut bystander = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    for user in ["user", "root"] {
        check(
            &place,
            &["--user", user],
            &[
                ("os.getpid() < 20", "True"),
                ("[pid for pid in os.listdir('/proc') if pid.isdigit() and int(pid) > 20]", "[]"),
                (&format!("os.kill({}, 9)", bystander.id()), "ESRCH"),
                // Every process except ourselves and PID 1: there is only a child of ours.
                ("setattr(sys, 'child', subprocess.Popen(['/bin/sleep', '1000']))", "ok"),
                ("os.kill(-1, 9)", "ok"),
                ("sys.child.wait()", "-9"),
                ("os.kill(-1, 9)", "ESRCH|ok"),
            ],
        );
    }
    assert_eq!(bystander.try_wait().unwrap(), None, "it is still there");
    drop(bystander.stdin.take());
    assert!(bystander.wait().unwrap().success());
}

#[test]
fn every_namespace_is_its_own() {
    for (network, shared) in [("none", &[][..]), ("host", &["net"])] {
        for name in ["user", "mnt", "pid", "net", "ipc", "uts", "cgroup"] {
            let ours = std::fs::read_link(format!("/proc/self/ns/{name}")).unwrap();
            let done = Place::new().run(&["--net", network], &["/bin/readlink", &format!("/proc/self/ns/{name}")]);
            assert_eq!(
                (done.stdout.trim_end() == show(&ours), done.code),
                (shared.contains(&name), 0),
                "{name} with --net {network}"
            );
        }
    }
    check(
        &Place::new(),
        &[],
        &[
            ("socket.gethostname()", "sandbox"),
            ("read('/proc/self/cgroup').count('..')", "0"),
            ("read('/proc/sysvipc/shm').count(chr(10)) + read('/proc/sysvipc/msg').count(chr(10))", "0"),
        ],
    );
}

#[test]
fn the_kernels_files_tell_little_and_take_nothing() {
    let hidden = [
        "kcore",
        "kallsyms",
        "kmsg",
        "keys",
        "key-users",
        "timer_list",
        "iomem",
        "ioports",
        "cmdline",
        "sysrq-trigger",
        "latency_stats",
    ];
    let hidden = hidden.map(|name| format!("read('/proc/{name}')"));
    let hidden: Vec<&str> = hidden.iter().map(String::as_str).collect();
    let refused = [
        "write('/proc/sysrq-trigger', 0)",
        // The mask is the null device, which is writable even on a read-only mount: Landlock refuses it.
        "write('/proc/kallsyms', 0)",
        "write('/proc/sys/kernel/core_pattern', 0)",
        "write('/proc/sys/kernel/modprobe', 0)",
        "write('/proc/sys/kernel/hostname', 0)",
        "write('/proc/sys/vm/drop_caches', 0)",
        "write('/proc/sys/net/ipv4/ip_forward', 0)",
        "write('/proc/sys/fs/binfmt_misc/register', 0)",
        "write('/proc/self/uid_map', 0)",
        "write('/proc/self/setgroups', 0)",
        "write('/proc/self/oom_score_adj', 0)",
        "write('/proc/self/attr/current', 0)",
        "write('/proc/irq/default_smp_affinity', 0)",
        "write('/proc/mtrr', 0)",
        "os.mkdir('/sys/new')",
        "os.listdir('/sys/kernel')",
    ];
    for user in ["user", "root"] {
        check_all(&Place::new(), &["--user", user], &hidden, "|ENOENT|EACCES|EPERM");
        check_all(&Place::new(), &["--user", user], &refused, &format!("{REFUSED}|ENOENT"));
        check(
            &Place::new(),
            &["--user", user],
            &[
                ("set(os.listdir('/sys')) - {'fs'}", "set()"),
                ("os.path.exists('/sys/fs') and os.listdir('/sys/fs') != ['cgroup']", "False"),
                (
                    "os.listdir('/proc/bus') + os.listdir('/proc/irq') + os.listdir('/proc/fs') + os.listdir('/proc/driver')",
                    "[]",
                ),
                ("read('/proc/sys/kernel/ostype')", "Linux"),
                ("read('/proc/self/comm')", "python3"),
            ],
        );
    }
}

#[test]
fn devices_are_the_safe_ones_and_no_others() {
    for user in ["user", "root"] {
        check(
            &Place::new(),
            &["--user", user],
            &[
                (
                    "sorted(os.listdir('/dev'))",
                    "['fd', 'full', 'null', 'ptmx', 'pts', 'random', 'shm', 'stderr', 'stdin', 'stdout', 'tty', 'urandom', 'zero']",
                ),
                ("os.listdir('/dev/pts')", "['ptmx']"),
                ("os.listdir('/dev/shm')", "[]"),
                (
                    "[(name, os.major(s.st_rdev), os.minor(s.st_rdev)) for name in sorted(os.listdir('/dev')) for s in [os.lstat('/dev/' + name)] if stat.S_ISCHR(s.st_mode) or stat.S_ISBLK(s.st_mode)]",
                    "[('full', 1, 7), ('null', 1, 3), ('random', 1, 8), ('tty', 5, 0), ('urandom', 1, 9), ('zero', 1, 5)]",
                ),
                ("write('/dev/null', 0)", "ok"),
                ("write('/dev/full', 0)", "ENOSPC"),
                ("len(os.read(os.open('/dev/urandom', os.O_RDONLY), 8))", "8"),
                ("os.read(os.open('/dev/zero', os.O_RDONLY), 2)", r"b'\x00\x00'"),
                // There is no terminal to reach through it.
                ("os.open('/dev/tty', os.O_RDWR)", "ENXIO"),
                ("os.ttyname(os.openpty()[1])", "/dev/pts/0"),
                ("os.unlink('/dev/null')", REFUSED),
                ("os.chmod('/dev/null', 0o600)", REFUSED),
            ],
        );
    }
}

#[test]
fn abstract_sockets_of_the_host_are_out_of_reach() {
    let name = format!("saggar-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    let _listener = UnixListener::bind_addr(&address).unwrap();
    UnixStream::connect_addr(&address).expect("a control: from outside it answers");
    let attempt = format!(r"connect(socket.AF_UNIX, '\0{name}')");
    let place = Place::new();
    check(
        &place,
        &[],
        &[
            (attempt.as_str(), "ECONNREFUSED|EPERM"),
            (&format!("'{name}' in open('/proc/net/unix').read()"), "False"),
            (r"talk(socket.AF_UNIX, '\0own')", "ok"),
        ],
    );
    // In the host's network namespace only Landlock stands in between, from its sixth version.
    let version = probe::attempts(&place, &[], &["libc.syscall(444, None, 0, 1)"]).remove(0);
    match version.parse::<u32>() {
        Ok(6..) => check(&place, &["--net", "host"], &[(&attempt, "EPERM"), (r"talk(socket.AF_UNIX, '\0own')", "ok")]),
        _ => not_here(&format!("Landlock {version} has no scopes")),
    }
}

#[test]
fn a_socket_file_in_what_was_brought_in_answers() {
    // A known gap: a workspace may contain the socket of a host service, and neither a read-only mount nor a network
    // namespace prevents connecting to it. Only a copy (scratch) does, because the socket there is another file.
    let place = Place::new();
    let _listener = UnixListener::bind(place.path("workspace/socket")).unwrap();
    let workspace = show(&place.workspace());
    for (mode, outcome) in [("read-only", "ok"), ("workspace-write", "ok"), ("scratch", "ECONNREFUSED")] {
        check(
            &place,
            &["--workspace", &workspace, "--fs", mode],
            &[("connect(socket.AF_UNIX, '/workspace/socket')", outcome)],
        );
    }
}

#[test]
fn without_a_network_there_is_a_loopback_and_no_other_way() {
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let connect = format!("connect(socket.AF_INET, ('127.0.0.1', {}))", tcp.local_addr().unwrap().port());
    let send =
        format!("connect(socket.AF_INET, ('127.0.0.1', {}), socket.SOCK_DGRAM)", udp.local_addr().unwrap().port());
    for user in ["user", "root"] {
        let result = check_json(
            &Place::new(),
            &["--user", user],
            &[
                (&connect, "ECONNREFUSED"),
                // A datagram can be sent, but has no receiver.
                (&send, "ok"),
                ("connect(socket.AF_INET, ('192.0.2.1', 80))", "ENETUNREACH"),
                ("connect(socket.AF_INET, ('169.254.169.254', 80))", "ENETUNREACH"),
                ("connect(socket.AF_INET, ('192.0.2.1', 53), socket.SOCK_DGRAM)", "ENETUNREACH"),
                ("connect(socket.AF_INET6, ('2001:db8::1', 80))", "ENETUNREACH|EADDRNOTAVAIL|EAFNOSUPPORT"),
                ("socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('224.0.0.251', 5353))", "ENETUNREACH"),
                ("attempt(\"socket.getaddrinfo('example.org', 80)\").startswith('(') or 'no address'", "no address"),
                ("[line.split(':')[0].strip() for line in open('/proc/net/dev') if ':' in line]", "['lo']"),
                ("open('/proc/net/route').read().count(chr(10))", "1"),
                ("talk(socket.AF_INET, ('127.0.0.1', 0))", "ok"),
                ("talk(socket.AF_UNIX, '/tmp/socket')", "ok"),
            ],
        );
        assert_eq!(
            (&result["network"], &result["network_managed"], &result["denials"][0]["code"]),
            (&json!("none"), &json!(true), &json!("network_refused"))
        );
    }
    tcp.set_nonblocking(true).unwrap();
    udp.set_nonblocking(true).unwrap();
    assert_eq!(tcp.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    assert_eq!(udp.recv(&mut [0; 8]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

/// Tries to reach something, and fails if it succeeds.
fn reach(what: &str) -> Vec<String> {
    let script = format!("import socket\n{what}");
    ["/usr/bin/python3", "-c", &script].map(str::to_owned).to_vec()
}

#[test]
fn a_connection_or_a_lookup_without_a_network_is_a_denial_that_says_what_to_do() {
    let place = Place::new();
    for what in [
        "socket.create_connection(('192.0.2.1', 443), 5)",
        "socket.socket(socket.AF_INET6, socket.SOCK_STREAM).connect(('2001:db8::1', 443))",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        "socket.getaddrinfo('example.com', 443)",
    ] {
        let program = reach(what);
        let program: Vec<&str> = program.iter().map(String::as_str).collect();
        let events = place.path("events");
        let result = place.json(&["--events", &show(&events)], &program);
        assert_eq!(
            (&result["exit_code"], &result["denials"][0]["code"], &result["denials"][0]["rule"]),
            (&json!(1), &json!("network_refused"), &json!("network/none")),
            "{what}: {result}"
        );
        assert_eq!(result["denials"].as_array().map(Vec::len), Some(1), "{what}: {result}");
        let told = std::fs::read_to_string(&events).unwrap();
        assert!(told.contains("network_refused"), "{what}: {told}");
        let done = place.run(&[], &program);
        assert!(done.stderr.contains("this sandbox has no network") && done.stderr.contains("--net host"), "{done:?}");
    }
}

#[test]
fn what_needs_no_network_is_no_denial_and_a_program_that_succeeds_is_not_told_of_one() {
    let place = Place::new();
    let local = "s = socket.create_server(('127.0.0.1', 0)); socket.create_connection(s.getsockname()); exit(3)";
    let program = reach(local);
    let result = place.json(&[], &program.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!((&result["exit_code"], &result["denials"]), (&json!(3), &json!([])), "{result}");
    let tolerant = reach("try: socket.create_connection(('192.0.2.1', 443), 5)\nexcept OSError: pass");
    let tolerant: Vec<&str> = tolerant.iter().map(String::as_str).collect();
    assert_eq!(place.json(&[], &tolerant)["denials"][0]["code"], "network_refused");
    let done = place.run(&[], &tolerant);
    assert_eq!((done.code, done.stderr.contains("network")), (0, false), "{done:?}");
}

#[test]
fn the_hosts_network_is_the_hosts_and_the_result_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = format!("connect(socket.AF_INET, ('127.0.0.1', {}))", listener.local_addr().unwrap().port());
    let place = Place::new();
    let result = check_json(&place, &["--net", "host"], &[(&connect, "ok")]);
    assert_eq!((&result["network"], &result["network_managed"]), (&json!("host"), &json!(false)));
    // Capabilities inside have no effect in a namespace of the host.
    let privileged = if std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .is_ok_and(|start| start.trim() == "0")
    {
        "ok"
    } else {
        "EACCES"
    };
    check(
        &place,
        &["--net", "host", "--user", "root"],
        &[
            ("bind(socket.AF_INET, ('127.0.0.1', 81))", privileged),
            ("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1).close()", "EPERM"),
            ("write('/proc/sys/net/ipv4/ip_forward', 0)", REFUSED),
        ],
    );
}

#[test]
fn a_tier_that_is_not_built_is_refused_and_nothing_starts() {
    let place = Place::new();
    let workspace = show(&place.workspace());
    let events = place.path("events");
    let done = place.run(
        &["--json", "--tier", "vm", "--workspace", &workspace, "--events", &show(&events)],
        &["/bin/sh", "-c", "touch started"],
    );
    let result = done.json();
    assert_eq!(
        (done.code, &result["status"], &result["error"]["code"]),
        (126, &json!("refused"), &json!("unsupported_capability")),
        "{result}"
    );
    assert_eq!(result["denials"][0]["rule"], "spec/unsupported_capability", "{result}");
    assert_eq!(harness::tree::names(&place.workspace()), Vec::<String>::new());
    assert_eq!(place.records(), Vec::<String>::new());
    let events = std::fs::read_to_string(events).unwrap_or_default();
    assert!(!events.contains("\"start\""), "{events}");
    let done = place.run(&["--tier", "vm"], &["/bin/echo", "started"]);
    assert_eq!((done.code, done.stdout.as_str()), (126, ""));
    assert!(done.stderr.contains("tier vm") && done.stderr.contains("help:"), "{done:?}");
}

#[test]
fn two_sandboxes_have_different_ids_and_storage() {
    if !is_root() {
        return not_here("an ordinary user's sandboxes share that user's id");
    }
    let place = Place::new();
    let range = "read('/proc/self/uid_map').split()[1]";
    let first = probe::attempts(&place, &[], &[range, "write('/tmp/mark')"]);
    let second = probe::attempts(&place, &[], &[range, "remains('/tmp/mark')"]);
    assert_ne!(first[0], second[0]);
    assert_eq!((first[1].as_str(), second[1].as_str()), ("ok", "absent"));
}

#[test]
fn heavy_what_is_counted_per_user_inside_is_not_counted_for_the_hosts_root() {
    let most: u32 = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(u32::MAX);
    if !is_root() || most > 2000 {
        return not_here(&format!("an ordinary user has one id for both sides; {most} instances are too many to try"));
    }
    let place = Place::new();
    let fill = "
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
count = 0
while count < 4000 and libc.inotify_init1(0) >= 0: count += 1
print('full', count, errno.errorcode[ctypes.get_errno()], flush=True)
sys.stdin.read()";
    let mut command = place.command(["run", "--files", "8192", "--stdin", "-", "--", "/usr/bin/python3", "-c", fill]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().expect("built");
    let said = traces::read_until(child.stdout.as_ref().expect("piped"), "\n");
    assert_eq!(said, format!("full {most} EMFILE\n"));
    let ours = rustix::fs::inotify::init(rustix::fs::inotify::CreateFlags::CLOEXEC);
    harness::feed(&mut child, b"");
    let done = finish(child);
    assert_eq!(done.code, 0, "{done:?}");
    ours.expect("what a sandbox has is not taken from the host's root");
}

#[test]
fn a_unix_socket_tells_its_clients_the_ids_of_the_program_that_listens() {
    let script = "import os, socket, struct\n\
        server = socket.socket(socket.AF_UNIX); server.bind('/tmp/s'); server.listen()\n\
        client = socket.socket(socket.AF_UNIX); client.connect('/tmp/s')\n\
        _, user, group = struct.unpack('3i', client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))\n\
        print((user, group) == (os.getuid(), os.getgid()))";
    let done = Place::new().run(&[], &["python3", "-c", script]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("True\n", ""));
}

#[test]
fn a_socket_that_listens_again_keeps_its_backlog() {
    // The kernel tells the backlog of a listener as `tcpi_sacked`.
    let script = "import socket, struct\n\
        s = socket.socket(); s.bind(('127.0.0.1', 0))\n\
        def listen(): s.listen(100); return struct.unpack_from('I', s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 64), 28)[0]\n\
        first = listen()\n\
        print(first > 1, {listen() for _ in range(20)} == {first})";
    let done = Place::new().run(&[], &["python3", "-c", script]);
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("True True\n", ""));
}

#[test]
fn a_program_whose_refused_calls_are_slowed_down_is_told_of() {
    let script = "import ctypes, sys\n\
        libc = ctypes.CDLL(None)\n\
        for _ in range(int(sys.argv[1])): libc.mount(b'none', b'/tmp', b'tmpfs', 0, None)";
    let place = Place::new();
    let denials = |calls: &str| {
        let denials = place.json(&[], &["python3", "-c", script, calls])["denials"].clone();
        let denials = denials.as_array().unwrap().clone();
        assert!(denials.iter().all(|denial| denial["rule"] == "seccomp/mounts"), "{denials:?}");
        denials.iter().map(|denial| denial["message"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(denials("100").len(), 1);
    let slowed = denials("300");
    assert_eq!(slowed.len(), 2, "{slowed:?}");
    assert!(slowed[1].contains("called mount so often") && slowed[1].contains("every 10 ms"), "{slowed:?}");
}
