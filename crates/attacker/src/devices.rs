//! Attempts on devices and terminals.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::AsRawFd;

use crate::Attempt;
use crate::files::mknod;
use crate::out::{AttemptOutcome, Out};
use crate::sys::{ChildEnd, call, in_child, open, unheeded};

pub const ATTEMPTS: &[Attempt] = &[
    ("make-devices", make_devices),
    ("list-devices", list_devices),
    ("open-devices", open_devices),
    ("type-into-terminals", type_into_terminals),
    ("other-terminals", other_terminals),
    ("odd-ioctls", odd_ioctls),
    ("print-escapes", print_escapes),
];

fn make_devices(out: &Out, _: &[String]) {
    for (name, kind, major, minor) in [
        ("mem", libc::S_IFCHR, 1, 1),
        ("kmem", libc::S_IFCHR, 1, 2),
        ("null", libc::S_IFCHR, 1, 3),
        ("port", libc::S_IFCHR, 1, 4),
        ("kmsg", libc::S_IFCHR, 1, 11),
        ("whiteout", libc::S_IFCHR, 0, 0),
        ("fuse", libc::S_IFCHR, 10, 229),
        ("tun", libc::S_IFCHR, 10, 200),
        ("kvm", libc::S_IFCHR, 10, 232),
        ("loop0", libc::S_IFBLK, 7, 0),
        ("sda", libc::S_IFBLK, 8, 0),
        ("ram0", libc::S_IFBLK, 1, 0),
    ] {
        for directory in ["/tmp", "/workspace"] {
            let node = format!("{directory}/dev-{name}");
            if out
                .tried(&format!("{name} in {directory}"), mknod(&node, kind | 0o600, libc::makedev(major, minor)))
                .is_some()
            {
                // It was never opened.
                unheeded(fs::remove_file(&node));
            }
        }
    }
}

fn list_devices(out: &Out, _: &[String]) {
    let wanted: BTreeSet<String> =
        ["null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "fd", "stdin", "stdout", "stderr"]
            .map(str::to_owned)
            .into();
    let found: BTreeSet<String> = fs::read_dir("/dev")
        .map(|entries| {
            entries.filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned())).collect()
        })
        .unwrap_or_default();
    let extra: Vec<&str> = found.difference(&wanted).map(String::as_str).collect();
    out.examined("no device but these", extra.is_empty(), &extra.join(" "));
    for name in ["null", "zero", "full", "random", "urandom"] {
        out.tried(
            name,
            open(&format!("/dev/{name}"), libc::O_RDWR, 0)
                .or_else(|_| open(&format!("/dev/{name}"), libc::O_RDONLY, 0)),
        );
    }
    out.tried("ptmx", open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0));
    out.tried("shm", fs::write("/dev/shm/x", "x"));
}

fn open_devices(out: &Out, _: &[String]) {
    for name in [
        "kvm",
        "vhost-net",
        "vhost-vsock",
        "net/tun",
        "fuse",
        "loop-control",
        "loop0",
        "mapper/control",
        "mapper",
        "kmsg",
        "mem",
        "kmem",
        "port",
        "input",
        "sda",
        "vda",
        "nvme0",
        "rtc0",
        "watchdog",
        "uinput",
        "userfaultfd",
        "bus/usb",
        "snd",
        "dri",
        "nvidia0",
        "nvidiactl",
        "kfd",
        "console",
        "tty0",
        "tty1",
        "ttyS0",
        "vcs",
        "hpet",
        "mqueue",
        "hugepages",
        "cuse",
        "btrfs-control",
        "autofs",
        "cpu_dma_latency",
        "sev",
        "sgx_enclave",
        "vfio",
        "iommu",
        "udmabuf",
    ] {
        out.tried(name, fs::metadata(format!("/dev/{name}")));
    }
}

const TIOCSPTLCK: usize = 0x4004_5431;
const TIOCGPTN: usize = 0x8004_5430;

fn type_into_terminals(out: &Out, _: &[String]) {
    let master = match open("/dev/ptmx", libc::O_RDWR | libc::O_NOCTTY, 0) {
        Ok(master) => master,
        Err(error) => {
            out.tried::<()>("terminal", Err(error));
            return;
        }
    };
    let (unlocked, mut number) = (0i32, 0i32);
    let fd = master.as_raw_fd() as usize;
    // A terminal that can't be unlocked can't be opened, which shows below.
    unheeded(call(libc::SYS_ioctl, &[fd, TIOCSPTLCK, &raw const unlocked as usize]));
    unheeded(call(libc::SYS_ioctl, &[fd, TIOCGPTN, &raw mut number as usize]));
    let terminal = match open(&format!("/dev/pts/{number}"), libc::O_RDWR | libc::O_NOCTTY, 0) {
        Ok(terminal) => terminal,
        Err(error) => {
            out.tried::<()>("terminal", Err(error));
            return;
        }
    };
    let fd = terminal.as_raw_fd() as usize;
    let (byte, console, discipline) = (b'x', 6u8, 0i32);
    out.tried("TIOCSTI", call(libc::SYS_ioctl, &[fd, 0x5412, &raw const byte as usize]));
    // The kernel looks only at the lower half of a command.
    out.tried("TIOCSTI with high bits", call(libc::SYS_ioctl, &[fd, 0x1_0000_5412, &raw const byte as usize]));
    out.tried("TIOCLINUX", call(libc::SYS_ioctl, &[fd, 0x541C, &raw const console as usize]));
    out.tried("TIOCCONS", call(libc::SYS_ioctl, &[fd, 0x541D, 0]));
    out.tried("TIOCSETD", call(libc::SYS_ioctl, &[fd, 0x5423, &raw const discipline as usize]));
    for stream in 0..3usize {
        out.tried(
            &format!("TIOCSTI on descriptor {stream}"),
            call(libc::SYS_ioctl, &[stream, 0x5412, &raw const byte as usize]),
        );
    }
}

fn other_terminals(out: &Out, _: &[String]) {
    let names: Vec<String> = fs::read_dir("/dev/pts")
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
                .filter(|name| name != "ptmx")
                .collect()
        })
        .unwrap_or_default();
    out.examined("no terminal of others", names.is_empty(), &names.join(" "));
    for number in 0..4 {
        out.tried(&format!("/dev/pts/{number}"), open(&format!("/dev/pts/{number}"), libc::O_RDWR | libc::O_NOCTTY, 0));
    }
    out.tried("/dev/tty", open("/dev/tty", libc::O_RDWR, 0));
    out.tried("/dev/console", open("/dev/console", libc::O_RDWR | libc::O_NOCTTY, 0));
}

/// Many unusual ioctls on every device present. None may succeed at anything that needs privileges, and none may end
/// the process. The null argument makes every well-behaved one fail.
fn odd_ioctls(out: &Out, _: &[String]) {
    for name in ["null", "zero", "full", "random", "urandom"] {
        let end = in_child(|| {
            let Ok(device) = open(&format!("/dev/{name}"), libc::O_RDONLY, 0) else { return 3 };
            let fd = device.as_raw_fd() as usize;
            let mut state = 0x9E37_79B9u64;
            for _ in 0..2000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let command = (state >> 33) as usize & 0xFFFF_FFFF;
                // Errors are the expected result.
                unheeded(call(libc::SYS_ioctl, &[fd, command, 0]));
            }
            0
        });
        out.examined(name, matches!(end, ChildEnd::Code(0 | 3)), "survived");
    }
    let bits = 0i32;
    for (member, command) in [
        ("RNDADDTOENTCNT", 0x4004_5201usize),
        ("RNDZAPENTCNT", 0x5204),
        ("RNDCLEARPOOL", 0x5206),
        ("RNDRESEEDCRNG", 0x5207),
    ] {
        let device = open("/dev/urandom", libc::O_RDONLY, 0);
        let fd = device.as_ref().map_or(0, |device| device.as_raw_fd() as usize);
        out.tried(member, call(libc::SYS_ioctl, &[fd, command, &raw const bits as usize]));
    }
}

/// Prints sequences that would act on a terminal. They are only bytes: the program that displays them decides what to
/// do with them.
fn print_escapes(out: &Out, _: &[String]) {
    eprint!(
        "\x1b]52;c;b3duZWQ=\x07\x1b]8;;http://evil.invalid\x1b\\link\x1b]8;;\x1b\\\x1bP$q\"p\x1b\\\x1b]0;title\x07\x1b[21t\x1b[6n\x1b[c\u{9b}6n\
        \x1b[8mhidden\x1b[0;08mhidden\x1b[1:8mhidden\x1b[38;5;1;8mhidden\x1b[48;2;1;2;3;8mhidden\x1b[38;5;8mgrey\x1b[0m"
    );
    out.say("printed", AttemptOutcome::Allowed, "");
}
