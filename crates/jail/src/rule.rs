//! Enforcement rules by name, so that a check can switch one off and see that a conformance case fails.
//!
//! Only a build with the feature `mutation` reads `SAGGAR_MUTATE` (names separated by commas). In every other build all
//! rules are on, and `is_on` is a constant. `conformance/rules.toml` lists which case must fail without which rule.
//!
//! A rule whose absence could harm the host is not listed here. So there is none for the user namespace and its range
//! of ids (root inside would be root outside), the mount namespace and the pivot (our mounts would be the host's), the
//! pid namespace (killing all processes depends on it), and the read-only mounts of the host's /usr and similar
//! directories (only file ownership would protect them).

use crate::seccomp::Group;

#[cfg(all(feature = "mutation", not(debug_assertions)))]
compile_error!("release builds must not allow switching off rules: the feature `mutation` is only for checks");

/// The variable that names the rules to switch off, here and in the agent.
#[cfg(feature = "mutation")]
pub(crate) const VARIABLE: &str = "SAGGAR_MUTATE";

macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[$doc])* $variant,)+
            /// A group of the system call filter.
            Seccomp(Group),
            /// A masked path, from the root of the sandbox.
            Mask(&'static str),
        }

        impl Rule {
            /// All rules except filter groups and masks, which have lists of their own.
            pub const SINGLE: &[Self] = &[$(Self::$variant),+];

            pub fn name(self) -> String {
                match self {
                    $(Self::$variant => $name.to_owned(),)+
                    Self::Seccomp(group) => group.rule().to_owned(),
                    Self::Mask(path) => format!("mask/{path}"),
                }
            }
        }
    };
}

rules! {
    /// A network namespace.
    NetworkNamespace = "namespace/network",
    /// Bounds of the network namespace on memory that is charged to no cgroup.
    NetworkBounds = "network/bounds",
    /// Connections and DNS of a proxied sandbox go to its gates.
    NetworkRedirect = "network/redirect",
    /// Everything else that a proxied sandbox sends is dropped.
    NetworkDrop = "network/drop",
    /// A proxied network is tried before any program runs.
    NetworkSelfTest = "network/self-test",
    /// Only what an allow rule names may be reached.
    EgressRules = "egress/rules",
    /// Deny rules win.
    EgressDeny = "egress/deny",
    /// Each request is decided by method and path.
    EgressRequests = "egress/requests",
    /// The addresses of a name are checked before one is dialled.
    EgressAddresses = "egress/addresses",
    /// TLS asks for the name that was dialled.
    EgressServerName = "egress/server-name",
    /// TLS that passes unread hides no name.
    EgressHiddenName = "egress/hidden-name",
    /// A request is for the host that its connection leads to.
    EgressHost = "egress/host",
    /// A request has one length.
    EgressFraming = "egress/framing",
    /// Budgets of bytes.
    EgressBytes = "egress/bytes",
    /// Connections at once.
    EgressConnections = "egress/connections",
    /// Requests in a minute.
    EgressRates = "egress/rates",
    /// An IPC namespace.
    IpcNamespace = "namespace/ipc",
    /// A UTS namespace, with its own host name.
    UtsNamespace = "namespace/uts",
    /// A cgroup namespace.
    CgroupNamespace = "namespace/cgroup",
    /// Landlock on files.
    LandlockFiles = "landlock/files",
    /// Landlock's scopes: abstract sockets and signals.
    LandlockScopes = "landlock/scopes",
    /// The root itself is read-only.
    SealedRoot = "root/sealed",
    /// Read-only mounts of a spec are mounted read-only.
    ReadOnlyMounts = "mount/read-only",
    /// `nosuid` on mounts.
    NoSuid = "mount/nosuid",
    /// `nodev` on mounts.
    NoDev = "mount/nodev",
    /// Procfs is read-only.
    ReadOnlyProc = "proc/read-only",
    /// Processes of other users are not listed.
    HidePid = "proc/hidepid",
    /// Protected paths are read-only.
    HeldPaths = "protect/held",
    /// The directories above protected paths can't be renamed or removed.
    HeldAncestors = "protect/ancestors",
    /// Paths that the repository itself names are protected too: worktrees, submodules, hooks and settings elsewhere.
    FoundPaths = "protect/found",
    /// Links created in git directories are removed.
    GitLinks = "protect/git-links",
    /// Hooks and settings of a repository created inside are taken out before the host's git can act on them.
    HeldBack = "protect/held-back",
    /// A placeholder stays for as long as any sandbox needs it, whatever name it uses for the workspace.
    SharedPlaceholders = "protect/shared",
    /// A record is trusted only if no other user can have written it.
    OwnRecords = "record/own",
    /// What the kernel counts per user is counted for the sandbox's own range.
    OwnCounters = "identity/own-counters",
    /// No capability can be gained.
    BoundingSet = "privilege/bounding",
    /// Executing a program never raises privileges.
    NoNewPrivileges = "privilege/no-new-privs",
    /// A private session keyring.
    SessionKeyring = "privilege/session-keyring",
    /// No core is dumped, and no core handler is started.
    CoreLimit = "rlimit/core",
    /// Little memory can be locked.
    LockedMemoryLimit = "rlimit/memlock",
    /// Message queues are small.
    MessageQueueLimit = "rlimit/msgqueue",
    /// Few signals can wait.
    PendingSignalsLimit = "rlimit/sigpending",
    /// No priority above the default.
    PriorityLimit = "rlimit/priority",
    /// The runtime's descriptors are closed.
    Descriptors = "start/descriptors",
    /// The environment is built and not inherited.
    Environment = "start/environment",
    /// The agent's executable is sealed.
    SealedAgent = "agent/sealed",
    /// The agent's memory can't be inspected.
    UndumpableAgent = "agent/undumpable",
    /// All processes end with the exec.
    TreeKill = "end/tree-kill",
    /// Terminal escape sequences are filtered.
    EscapeFilter = "output/escape-filter",
    Timeout = "limit/timeout",
    Memory = "limit/memory",
    /// Memory in sockets, which cgroup v1 counts separately.
    SocketMemory = "limit/socket-memory",
    Cpus = "limit/cpus",
    Pids = "limit/pids",
    /// Size of private storage.
    Disk = "limit/disk",
    /// Size of a volume.
    VolumeSize = "limit/volume",
    /// Number of files in private storage.
    Inodes = "limit/inodes",
    Files = "limit/files",
    /// Captured output.
    Output = "limit/output",
    /// Terminals, of which the host has one pool.
    Terminals = "limit/terminals",
}

impl Rule {
    #[cfg(not(feature = "mutation"))]
    #[inline]
    pub const fn is_on(self) -> bool {
        true
    }

    #[cfg(feature = "mutation")]
    pub fn is_on(self) -> bool {
        let off = std::env::var(VARIABLE).unwrap_or_default();
        !off.split(',').any(|name| name == self.name())
    }
}
