//! Targets outside a sandbox for the attacker to reach, the same for every runtime that is probed.

use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use rustix::io::FdFlags;

use crate::fixture::random_name;

/// Values that must not be found inside.
pub(crate) struct Secrets<'a> {
    pub(crate) private: &'a Path,
    pub(crate) data: &'a Path,
    /// A value in the runtime's environment.
    pub(crate) canary: &'a str,
}

/// Names of the canary in the environment of the process that runs sandboxes.
pub(crate) const CANARY_NAMES: &[&str] = &[
    "AWS_SECRET_ACCESS_KEY",
    "GITHUB_TOKEN",
    "SSH_AUTH_SOCK",
    "KUBECONFIG",
    "OPENAI_API_KEY",
    "SAGGAR_CANARY",
    "LD_PRELOAD_CANARY",
];

/// Listeners, and descriptors left open by mistake.
pub(crate) struct Outside {
    abstract_name: String,
    _abstract: UnixListener,
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    _leaks: Vec<OwnedFd>,
}

impl Outside {
    /// They stay open until this is dropped.
    pub(crate) fn new(is_leaky: bool) -> std::io::Result<Self> {
        let abstract_name = format!("saggar-probe-{}", random_name()?);
        let address = SocketAddr::from_abstract_name(&abstract_name)?;
        Ok(Self {
            abstract_name,
            _abstract: UnixListener::bind_addr(&address)?,
            tcp: TcpListener::bind("127.0.0.1:0")?,
            // A host without IPv6 has no such listener.
            tcp6: TcpListener::bind("[::1]:0").ok(),
            _leaks: if is_leaky { leaks()? } else { Vec::new() },
        })
    }

    /// Fills in an argument's placeholders.
    pub(crate) fn filled_in(&self, secrets: &Secrets<'_>, text: &str) -> String {
        let port = |listener: &TcpListener| listener.local_addr().map_or(1, |address| address.port());
        let token = secrets.private.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let pairs = [
            ("{abstract}", self.abstract_name.clone()),
            ("{listener}", format!("127.0.0.1:{}", port(&self.tcp))),
            ("{listener6}", format!("[::1]:{}", self.tcp6.as_ref().map_or(1, port))),
            ("{data}", secrets.data.display().to_string()),
            ("{token}", token),
            ("{namespaces}", namespaces()),
            ("{secret-reversed}", secrets.canary.chars().rev().collect()),
        ];
        pairs.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
    }
}

/// The runtime's own namespaces, as the kernel names them.
fn namespaces() -> String {
    let names = ["cgroup", "ipc", "mnt", "net", "pid", "user", "uts"];
    let links = names.iter().filter_map(|name| fs::read_link(format!("/proc/self/ns/{name}")).ok());
    links.map(|link| link.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
}

/// One descriptor of each kind, all inheritable by executed programs.
fn leaks() -> std::io::Result<Vec<OwnedFd>> {
    let directory = |path: &str| fs::File::open(path).map(OwnedFd::from);
    let leaks = vec![
        directory("/")?,
        directory("/etc")?,
        directory("/proc/self/ns/net")?,
        rustix::event::eventfd(0, rustix::event::EventfdFlags::empty())?,
        rustix::event::epoll::create(rustix::event::epoll::CreateFlags::empty())?,
        rustix::fs::memfd_create("leak", rustix::fs::MemfdFlags::empty())?,
        rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty())?,
        OwnedFd::from(std::os::unix::net::UnixStream::pair()?.0),
    ];
    for leak in &leaks {
        rustix::io::fcntl_setfd(leak, FdFlags::empty())?;
    }
    Ok(leaks)
}
