//! Identity: the host ids behind the ids of a sandbox.

/// How a sandbox's user namespace is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Ids 0 to 65535 inside are `base` to `base + 65535` outside: a range that nothing else on the host uses. Needs
    /// root.
    Range {
        /// First id outside.
        base: u32,
    },
    /// One id inside is the caller's own outside: the only mapping available to an ordinary user.
    Single {
        /// uid and gid inside.
        inside: u32,
        /// The caller's uid.
        uid: u32,
        /// The caller's gid.
        gid: u32,
    },
}

impl Identity {
    /// Number of ids in a range.
    pub const RANGE: u32 = 65536;

    /// A group whose members see the processes of every user: the agent, and root of an image. Root could take it by itself.
    pub const AGENTS_GROUP: u32 = Self::RANGE - 3;

    /// The first id outside of its range; `None` if it has a single one.
    pub fn base(self) -> Option<u32> {
        match self {
            Self::Range { base } => Some(base),
            Self::Single { .. } => None,
        }
    }

    /// The agent's private group: its member sees the processes of every user, which programs don't. With a single id
    /// there is no other group, and every process belongs to the agent's own user.
    pub(crate) fn agents_group(self) -> Option<u32> {
        match self {
            Self::Range { .. } => Some(Self::AGENTS_GROUP),
            Self::Single { .. } => None,
        }
    }

    pub(crate) fn uid_map(self) -> String {
        match self {
            Self::Range { base } => format!("0 {base} {}\n", Self::RANGE),
            Self::Single { inside, uid, .. } => format!("{inside} {uid} 1\n"),
        }
    }

    pub(crate) fn gid_map(self) -> String {
        match self {
            Self::Range { base } => format!("0 {base} {}\n", Self::RANGE),
            Self::Single { inside, gid, .. } => format!("{inside} {gid} 1\n"),
        }
    }

    /// The owner inside of a file meant for `id`; with a single id it is always that one.
    pub(crate) fn owner(self, id: u32) -> u32 {
        match self {
            Self::Range { .. } => id,
            Self::Single { inside, .. } => inside,
        }
    }
}
