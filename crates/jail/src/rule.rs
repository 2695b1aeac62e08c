//! Rules of enforcement by name, so that a check can switch one off and see that a conformance case notices.
//!
//! Only a build with the feature `mutation` reads `SAGGAR_MUTATE` (names with commas between them); in every other build a rule is on
//! and the question is a constant. What must notice which rule is data: `conformance/rules.toml`.
//!
//! No rule may be here whose absence could harm the host. So there is none for the user namespace and its range of ids (root inside
//! would be root outside), the mount namespace and the pivot (our mounts would be the host's), the pid namespace (the end of all
//! processes hangs on it), and the read-only mounts of the host's own /usr and its like (only their owners would stand between).

use crate::seccomp::Group;

#[cfg(all(feature = "mutation", not(debug_assertions)))]
compile_error!("a build for use has no rule that can be switched off: the feature `mutation` is for checks");

/// The variable that names what is off, here and in the agent.
#[cfg(feature = "mutation")]
pub(crate) const VARIABLE: &str = "SAGGAR_MUTATE";

macro_rules! rules {
    ($($(#[$doc:meta])* $variant:ident = $name:literal),+ $(,)?) => {
        /// Something that is enforced.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Rule {
            $($(#[$doc])* $variant,)+
            /// A group of the system call filter.
            Seccomp(Group),
            /// A path that is covered, from the root of the sandbox.
            Mask(&'static str),
        }

        impl Rule {
            /// Every rule that stands by itself; groups of the filter and masks have lists of their own.
            pub const SINGLE: &[Self] = &[$(Self::$variant),+];

            /// The stable name.
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
    /// An IPC namespace.
    IpcNamespace = "namespace/ipc",
    /// A UTS namespace, and a name in it.
    UtsNamespace = "namespace/uts",
    /// A cgroup namespace.
    CgroupNamespace = "namespace/cgroup",
    /// Landlock on files.
    LandlockFiles = "landlock/files",
    /// Landlock's scopes: abstract sockets and signals.
    LandlockScopes = "landlock/scopes",
    /// The root itself is read-only.
    SealedRoot = "root/sealed",
    /// What a spec brings in read-only is mounted so.
    ReadOnlyMounts = "mount/read-only",
    /// No set-id bits by mount.
    NoSuid = "mount/nosuid",
    /// No device nodes by mount.
    NoDev = "mount/nodev",
    /// Procfs is read-only.
    ReadOnlyProc = "proc/read-only",
    /// Processes of others are not listed.
    HidePid = "proc/hidepid",
    /// Protected paths are held.
    HeldPaths = "protect/held",
    /// So are the directories above them.
    HeldAncestors = "protect/ancestors",
    /// So is what the repository itself names: worktrees, submodules, hooks and settings elsewhere.
    FoundPaths = "protect/found",
    /// Links that were made in git directories are removed.
    GitLinks = "protect/git-links",
    /// What the host's git would act on in a repository that was made inside is held back.
    HeldBack = "protect/held-back",
    /// A placeholder stays as long as anyone needs it, by whatever name they know the workspace.
    SharedPlaceholders = "protect/shared",
    /// A record is believed only if nobody else can have written it.
    OwnRecords = "record/own",
    /// What the kernel counts per user is counted for the sandbox's own range.
    OwnCounters = "identity/own-counters",
    /// No capability can be gained.
    BoundingSet = "privilege/bounding",
    /// No program has more rights than who executes it.
    NoNewPrivileges = "privilege/no-new-privs",
    /// A keyring of its own.
    SessionKeyring = "privilege/session-keyring",
    /// No core is dumped, and nobody is started to take one.
    CoreLimit = "rlimit/core",
    /// Little memory can be locked.
    LockedMemoryLimit = "rlimit/memlock",
    /// Message queues are small.
    MessageQueueLimit = "rlimit/msgqueue",
    /// Few signals can wait.
    PendingSignalsLimit = "rlimit/sigpending",
    /// No priority above the usual.
    PriorityLimit = "rlimit/priority",
    /// Descriptors of the runtime's are closed.
    Descriptors = "start/descriptors",
    /// The environment is built and not inherited.
    Environment = "start/environment",
    /// The agent's program is sealed.
    SealedAgent = "agent/sealed",
    /// Nobody looks into the agent.
    UndumpableAgent = "agent/undumpable",
    /// All processes end with the exec.
    TreeKill = "end/tree-kill",
    /// What acts on a terminal is filtered.
    EscapeFilter = "output/escape-filter",
    Timeout = "limit/timeout",
    Memory = "limit/memory",
    /// Memory in sockets, which cgroups of version 1 count apart.
    SocketMemory = "limit/socket-memory",
    Cpus = "limit/cpus",
    Pids = "limit/pids",
    /// Bytes of private storage.
    Disk = "limit/disk",
    /// Files of private storage.
    Inodes = "limit/inodes",
    Files = "limit/files",
    /// Output that is kept.
    Output = "limit/output",
    /// Terminals, of which the host has one pool.
    Terminals = "limit/terminals",
}

impl Rule {
    /// Whether it is enforced.
    #[cfg(not(feature = "mutation"))]
    #[inline]
    pub const fn is_on(self) -> bool {
        true
    }

    /// Whether it is enforced.
    #[cfg(feature = "mutation")]
    pub fn is_on(self) -> bool {
        let off = std::env::var(VARIABLE).unwrap_or_default();
        !off.split(',').any(|name| name == self.name())
    }
}
