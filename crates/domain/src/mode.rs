//! The closed choices of a spec: tier, template, filesystem, network, user.

use serde::{Deserialize, Serialize};

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

choice!(
    /// The filesystem a sandbox starts from.
    Template {
        /// The host's own programs and libraries, read-only, and nothing else of the host.
        Host = "host",
    }
);

choice!(
    /// What a program may write in the workspace.
    FsMode {
        ReadOnly = "read-only",
        /// The workspace itself, except protected paths.
        WorkspaceWrite = "workspace-write",
        /// A copy-on-write layer; the workspace on the host stays as it is.
        Scratch = "scratch",
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
    }
);

choice!(
    Access {
        ReadOnly = "ro",
        ReadWrite = "rw",
    }
);

impl User {
    /// Both the uid and the gid inside the sandbox.
    pub fn id(self) -> u32 {
        match self {
            Self::User => 1000,
            Self::Root => 0,
        }
    }

    pub fn home(self) -> &'static str {
        match self {
            Self::User => "/home/user",
            Self::Root => "/root",
        }
    }
}
