//! The closed choices of a spec: tier, template, filesystem, network, user.

use serde::{Deserialize, Serialize};

use crate::name::TemplateName;

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $text)] $variant),+
        }

        impl $name {
            /// In display order.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The name used in flags, files, results and events.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            pub fn parse(text: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.as_str() == text)
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
pub(crate) use choice;

choice!(
    /// The isolation primitive of a sandbox.
    Tier {
        /// Linux namespaces, cgroups, seccomp and Landlock on the host's kernel.
        Namespace = "namespace",
        /// A WebAssembly engine in a jailed worker.
        Wasm = "wasm",
        /// Any OCI runtime.
        Oci = "oci",
        /// A kernel of its own.
        Vm = "vm",
    }
);

/// The filesystem a sandbox starts from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Template {
    /// The host's own programs and libraries, read-only, and nothing else of the host.
    Host,
    /// An image of its own, which is stored on the host.
    Image(TemplateName),
}

impl Template {
    /// `base` and `host` are built in.
    pub fn of(name: TemplateName) -> Self {
        if matches!(name.as_str(), "base" | "host") { Self::Host } else { Self::Image(name) }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Host => "host",
            Self::Image(name) => name.as_str(),
        }
    }
}

impl Serialize for Template {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

choice!(
    /// What a program may write in the workspace.
    FsMode {
        ReadOnly = "read-only",
        /// The workspace itself, except protected paths.
        WorkspaceWrite = "workspace-write",
        /// A copy-on-write layer; the workspace on the host stays as it is.
        Scratch = "scratch",
        /// A new worktree of the git repository that it is: the files of its current commit. Commits become a branch when they are applied.
        Worktree = "worktree",
    }
);

choice!(
    /// How a sandbox reaches the network.
    NetworkMode {
        /// No network: an empty network namespace with its own loopback.
        None = "none",
        /// Through the egress process, by rules.
        Proxied = "proxied",
        /// Unmanaged: the host's own network, its loopback included.
        Host = "host",
    }
);

choice!(
    /// The user that programs run as inside the sandbox.
    User {
        /// uid 1000, home /home/user, no capabilities at all.
        User = "user",
        /// uid 0 of the sandbox's user namespace, with a short named set of capabilities there and nothing outside.
        Root = "root",
        /// The one that the sandbox's template names, without capabilities; `user` in a sandbox whose template names none.
        Template = "template",
    }
);

choice!(
    /// Where the files are that a sandbox makes outside of its workspace and mounts. Either way `disk` is the limit.
    Storage {
        /// They count as memory too.
        Memory = "memory",
        /// On the disk of the data directory, in a filesystem of their own. For templates that are images.
        Disk = "disk",
    }
);

choice!(
    /// How many sandboxes may use a volume at once.
    Sharing {
        Exclusive = "exclusive",
        Shared = "shared",
    }
);

choice!(
    Access {
        ReadOnly = "ro",
        ReadWrite = "rw",
    }
);

impl User {
    /// Both the uid and the gid inside the sandbox. An account of the template has its own.
    pub fn id(self) -> u32 {
        match self {
            Self::User | Self::Template => 1000,
            Self::Root => 0,
        }
    }

    /// An account of the template has its own.
    pub fn home(self) -> &'static str {
        match self {
            Self::User | Self::Template => "/home/user",
            Self::Root => "/root",
        }
    }
}
