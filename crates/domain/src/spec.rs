//! The effective spec of a sandbox: defaults filled in, contradictions refused. The sandbox enforces exactly this.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use crate::canonical::PolicyHash;
use crate::draft::{Draft, only_from_a_table};
use crate::limit::Limits;
use crate::mode::{Access, FsMode, NetworkMode, Template, Tier, User};
use crate::path::{GuestPath, HostPath, ProtectedPath};
use crate::problem::{Code, Problem};

/// Protected in every writable workspace, because write access to any of these lets a program choose what the host's
/// git runs. `commondir` and `config.worktree` are two more places that git reads configuration from.
pub const DEFAULT_PROTECTED: &[&str] =
    &[".git/hooks/", ".git/config", ".git/config.worktree", ".git/commondir", ".saggar/"];

/// Mount point of the workspace inside the sandbox.
const WORKSPACE: &str = "/workspace";
/// Maximum number of mounts, and of protected paths.
const ENTRIES_MAX: usize = 64;
/// Guest directories that belong to the template or the kernel: nothing can be mounted in them.
const RESERVED: &[&str] = &[
    "/proc",
    "/sys",
    "/dev",
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/.empty",
    "/.null",
    "/.scratch",
    "/var/run",
    "/var/tmp",
    "/workspace",
];
/// Guest directories in which mounts are allowed, but not on top of them.
const HELD: &[&str] = &["/", "/tmp", "/home", "/home/user", "/root", "/run", "/var"];

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spec {
    pub tier: Tier,
    pub template: Template,
    /// The host directory at /workspace; without one, /workspace is private and empty.
    pub workspace: Option<HostPath>,
    /// What a program may write in the workspace.
    pub fs: FsMode,
    /// Read-only paths in the workspace.
    pub protect: Vec<ProtectedPath>,
    /// Further files and directories of the host.
    pub mounts: Vec<Mount>,
    /// Added to the program's environment. The policy contains only the names: a value may be sensitive, and if it has
    /// few bits, it could be guessed from its hash.
    #[serde(serialize_with = "names_only")]
    pub env: BTreeMap<String, String>,
    pub cwd: GuestPath,
    pub user: User,
    pub network: NetworkMode,
    pub limits: Limits,
    /// Whether an unenforceable default limit is an error too.
    pub strict: bool,
}

/// A file or directory of the host, mounted at a path inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct Mount {
    pub host: HostPath,
    pub guest: GuestPath,
    #[serde(default = "read_only")]
    pub access: Access,
}

only_from_a_table!(Mount);

impl Serialize for Mount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Self::serialize(self, serializer)
    }
}

impl Mount {
    /// Parses `HOST:GUEST` or `HOST:GUEST:rw`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let complaint = || format!("{text:?} is not a mount: write HOST:GUEST or HOST:GUEST:rw");
        let (rest, access) = match text.rsplit_once(':') {
            Some((rest, "rw")) => (rest, Access::ReadWrite),
            Some((rest, "ro")) => (rest, Access::ReadOnly),
            _ => (text, Access::ReadOnly),
        };
        let (host, guest) = rest.rsplit_once(':').ok_or_else(complaint)?;
        Ok(Self { host: HostPath::parse(host)?, guest: GuestPath::parse(guest)?, access })
    }
}

impl Spec {
    /// Fills in a draft's missing values. Fails if this version doesn't support a value, or if values contradict each
    /// other.
    pub fn resolve(draft: Draft) -> Result<Self, Problem> {
        draft.check_schema()?;
        let tier = draft.tier.unwrap_or(Tier::Namespace);
        let network = draft.network.unwrap_or(NetworkMode::None);
        check_built(tier, network)?;
        let fs = check_fs(&draft)?;
        let mounts = draft.mounts;
        check_mounts(&mounts)?;
        let user = draft.user.unwrap_or(User::User);
        let default_cwd = if draft.workspace.is_some() { WORKSPACE } else { user.home() };
        let cwd = match draft.cwd {
            Some(cwd) => cwd,
            None => GuestPath::parse(default_cwd).expect("the built-in directories are well-formed"),
        };
        Ok(Self {
            tier,
            template: draft.template.unwrap_or(Template::Host),
            protect: protected(fs, draft.workspace.is_some(), draft.protect)?,
            workspace: draft.workspace,
            fs,
            mounts,
            env: draft.env.into_map(),
            cwd,
            user,
            network,
            limits: Limits::resolve(&draft.limits)?,
            strict: draft.strict.unwrap_or(false),
        })
    }

    pub fn policy_hash(&self) -> PolicyHash {
        PolicyHash::of(self)
    }
}

fn check_built(tier: Tier, network: NetworkMode) -> Result<(), Problem> {
    match tier {
        Tier::Namespace => {}
        Tier::Wasm | Tier::Oci | Tier::Vm => {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                format!("tier {tier} is not built yet"),
                "use the namespace tier; `saggar doctor` lists what this host and this version support",
            ));
        }
    }
    match network {
        NetworkMode::None | NetworkMode::Host => Ok(()),
        NetworkMode::Proxied => Err(Problem::new(
            Code::UnsupportedCapability,
            "network mode proxied is not built yet, and no other mode stands in for it",
            "use `none`; `host` shares the host's network unmanaged and must be asked for by name",
        )),
    }
}

fn check_fs(draft: &Draft) -> Result<FsMode, Problem> {
    let default = if draft.workspace.is_some() { FsMode::WorkspaceWrite } else { FsMode::Scratch };
    let fs = draft.fs.unwrap_or(default);
    if draft.workspace.is_none() && (fs == FsMode::WorkspaceWrite || !draft.protect.is_empty()) {
        let what = if fs == FsMode::WorkspaceWrite { "filesystem mode workspace-write" } else { "a protected path" };
        return Err(Problem::new(
            Code::Contradiction,
            format!("{what} needs a workspace, and none is given"),
            "name the directory with --workspace DIR",
        ));
    }
    Ok(fs)
}

fn check_mounts(mounts: &[Mount]) -> Result<(), Problem> {
    let refuse = |mount: &Mount, why: &str, help: &str| {
        Err(Problem::new(Code::InvalidMount, format!("mount target {} {why}", mount.guest), help))
    };
    if mounts.len() > ENTRIES_MAX {
        return Err(Problem::new(
            Code::InvalidMount,
            format!("more than {ENTRIES_MAX} mounts"),
            "mount a directory that holds them",
        ));
    }
    for (index, mount) in mounts.iter().enumerate() {
        if RESERVED.iter().any(|reserved| mount.guest.is_within(reserved)) || HELD.contains(&mount.guest.as_str()) {
            return refuse(mount, "belongs to the sandbox itself", "choose another path, such as /data or /mnt/NAME");
        }
        for other in &mounts[..index] {
            if mount.guest.is_within(other.guest.as_str()) || other.guest.is_within(mount.guest.as_str()) {
                return refuse(mount, &format!("overlaps {}", other.guest), "give each mount a separate path");
            }
        }
    }
    Ok(())
}

/// A writable workspace also protects the built-in paths. A scratch workspace is a copy: protected paths are not
/// applied from it, and the built-in ones are checked when changes are applied.
fn protected(fs: FsMode, has_workspace: bool, asked: Vec<ProtectedPath>) -> Result<Vec<ProtectedPath>, Problem> {
    let built_in: &[&str] = match fs {
        FsMode::WorkspaceWrite if has_workspace => DEFAULT_PROTECTED,
        FsMode::Scratch if has_workspace => &[],
        FsMode::WorkspaceWrite | FsMode::Scratch | FsMode::ReadOnly => return Ok(Vec::new()),
    };
    let built_in = built_in.iter().map(|text| ProtectedPath::parse(text).expect("the built-in paths are well-formed"));
    let mut all: Vec<ProtectedPath> = built_in.chain(asked).collect();
    all.sort();
    all.dedup();
    if all.len() > ENTRIES_MAX {
        return Err(Problem::new(
            Code::InvalidProtect,
            format!("more than {ENTRIES_MAX} protected paths"),
            "protect the directory that holds them",
        ));
    }
    Ok(all)
}

fn read_only() -> Access {
    Access::ReadOnly
}

fn names_only<S: Serializer>(env: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(env.keys())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(json: &str) -> Result<Spec, Problem> {
        Spec::resolve(serde_json::from_str(json).unwrap())
    }

    #[test]
    fn contradictions_and_what_is_not_built_are_refused_by_code() {
        for (json, code) in [
            (r#"{"fs": "workspace-write"}"#, Code::Contradiction),
            (r#"{"protect": ["ci.yml"]}"#, Code::Contradiction),
            (r#"{"network": "proxied"}"#, Code::UnsupportedCapability),
            (r#"{"tier": "vm"}"#, Code::UnsupportedCapability),
            (r#"{"schema": "saggar.spec/v9"}"#, Code::InvalidSpec),
            (r#"{"limits": {"memory": "1K"}}"#, Code::InvalidValue),
            (r#"{"limits": {"pids": 1}}"#, Code::InvalidValue),
            (r#"{"limits": {"timeout": "0s"}}"#, Code::InvalidValue),
            (r#"{"mounts": [{"host": "/a", "guest": "/proc/x"}]}"#, Code::InvalidMount),
            (r#"{"mounts": [{"host": "/a", "guest": "/"}]}"#, Code::InvalidMount),
            (r#"{"mounts": [{"host": "/a", "guest": "/workspace/x"}]}"#, Code::InvalidMount),
            (r#"{"mounts": [{"host": "/a", "guest": "/m"}, {"host": "/b", "guest": "/m/x"}]}"#, Code::InvalidMount),
        ] {
            assert_eq!(resolve(json).unwrap_err().code, code, "{json}");
        }
    }

    #[test]
    fn the_policy_hash_follows_the_boundary_and_nothing_else() {
        let hash = |json: &str| resolve(json).unwrap().policy_hash();
        assert_eq!(hash("{}"), hash(r#"{"limits": {"memory": "2G"}, "network": "none", "user": "user"}"#));
        assert_eq!(hash(r#"{"env": {"A": "1"}}"#), hash(r#"{"env": {"A": "2"}}"#));
        for other in [
            r#"{"limits": {"memory": "1G"}}"#,
            r#"{"network": "host"}"#,
            r#"{"env": {"A": "1"}}"#,
            r#"{"user": "root"}"#,
            r#"{"strict": true}"#,
        ] {
            assert_ne!(hash("{}"), hash(other), "{other}");
        }
    }

    #[test]
    fn mounts_read_from_the_command_line() {
        let mount = Mount::parse("/srv/a:b:/data:rw").unwrap();
        assert_eq!((mount.host.as_str(), mount.guest.as_str(), mount.access), ("/srv/a:b", "/data", Access::ReadWrite));
        assert_eq!(Mount::parse("/srv:/data").unwrap().access, Access::ReadOnly);
        for wrong in ["", "/srv", "/srv:data", ":/data", "/srv:/data:wr", "/srv:/data/../etc"] {
            assert!(Mount::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_built_in_protected_paths_hold_only_where_a_workspace_is_writable() {
        assert_eq!(resolve(r#"{"workspace": "/w"}"#).unwrap().protect.len(), DEFAULT_PROTECTED.len());
        assert!(resolve(r#"{"workspace": "/w", "fs": "scratch"}"#).unwrap().protect.is_empty());
        let asked = resolve(r#"{"workspace": "/w", "fs": "scratch", "protect": ["ci.yml"]}"#).unwrap().protect;
        assert_eq!(asked, [ProtectedPath::parse("ci.yml").unwrap()], "what was asked for holds for what is applied");
    }
}
