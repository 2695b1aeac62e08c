//! Identity: which ids of the host stand behind the ids of a sandbox.

/// How a sandbox's user namespace is mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// Ids 0 to 65535 inside are `base` to `base + 65535` outside: a range nothing else on the host uses. Needs root.
    Range {
        /// First id outside.
        base: u32,
    },
    /// One id inside is the caller's own outside: all an ordinary user can have.
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
    /// How many ids a range has.
    pub const RANGE: u32 = 65536;

    /// The group that the agent alone is in: it sees the processes of every user, and programs don't. With a single id there is no other
    /// group to be in, and every process is of the agent's own user.
    pub(crate) fn agents_group(self) -> Option<u32> {
        match self {
            Self::Range { .. } => Some(Self::RANGE - 3),
            Self::Single { .. } => None,
        }
    }

    /// The line for `uid_map`.
    pub(crate) fn uid_map(self) -> String {
        match self {
            Self::Range { base } => format!("0 {base} {}\n", Self::RANGE),
            Self::Single { inside, uid, .. } => format!("{inside} {uid} 1\n"),
        }
    }

    /// The line for `gid_map`.
    pub(crate) fn gid_map(self) -> String {
        match self {
            Self::Range { base } => format!("0 {base} {}\n", Self::RANGE),
            Self::Single { inside, gid, .. } => format!("{inside} {gid} 1\n"),
        }
    }

    /// The owner inside for a file meant for `id`: with a single id there is no other.
    pub(crate) fn owner(self, id: u32) -> u32 {
        match self {
            Self::Range { .. } => id,
            Self::Single { inside, .. } => inside,
        }
    }
}
