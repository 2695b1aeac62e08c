//! The spec of a sandbox: [`Draft`] is what was asked for, [`Spec`] is what is enforced.
//!
//! Only the draft is stored and sent: spec files, the command line and API requests produce one, the store keeps it, and the
//! control protocol carries it to the supervisor. Its format is `saggar.spec/v1` everywhere: a table that contains only what
//! was asked for. Unknown fields are errors, so that no part of a request is silently ignored. A spec is a draft with the
//! defaults filled in; it is never stored or sent.
//!
//! A new field that is added to both types, to [`Draft::merge`] and to [`Spec::fill`] reaches the supervisor without any
//! other change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize, Serializer};

use crate::canonical::PolicyHash;
use crate::environment::{EnvDraft, MANAGED_NETWORK_VARIABLES};
use crate::host_user::HostUser;
use crate::limit::{DraftLimits, Limits};
use crate::mode::{FsMode, NetworkMode, Storage, Template, Tier, User};
use crate::model::ModelAccess;
use crate::mount::{Mount, check_mounts};
use crate::name::TemplateName;
use crate::net::{EgressDraft, Rules, as_policy};
use crate::path::{GuestPath, HostPath, ProtectedPath};
use crate::problem::{Code, Problem};
use crate::secret::{self, SecretUse, check_uses, check_variables};
use crate::table::{joined, one_of, only_from_a_table};
use crate::template::{Account, GivenByTemplate, TemplateId};
use crate::volume::{VolumeMount, check_volumes};
use crate::workspace::{check_fs, check_scratch, protected};

/// The schema a spec may name.
const SPEC_SCHEMA: &str = "saggar.spec/v1";
/// Mount point of the workspace inside the sandbox.
const WORKSPACE: &str = "/workspace";

/// A spec in which everything is optional.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, remote = "Self")]
pub struct Draft {
    /// Which format it is in; absent means the only one there is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tier: Option<Tier>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<TemplateName>,
    /// The directory mounted at /workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<HostPath>,
    /// The user in whose name it is opened; otherwise it is opened by Saggar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_user: Option<HostUser>,
    /// Write access to the workspace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fs: Option<FsMode>,
    /// Read-only paths in the workspace, in addition to the built-in ones.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub protect: Vec<ProtectedPath>,
    /// Further files and directories of the host.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub mounts: Vec<Mount>,
    /// Volumes of the project.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// Added to the environment of every program. May contain secrets.
    #[serde(skip_serializing_if = "EnvDraft::is_empty")]
    pub env: EnvDraft,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<GuestPath>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkMode>,
    /// Rules for network mode `proxied`.
    #[serde(skip_serializing_if = "EgressDraft::is_empty")]
    pub egress: EgressDraft,
    /// Secrets that requests get on their way out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<SecretUse>,
    /// Models of the server that programs may call, in network mode `proxied`.
    #[serde(skip_serializing_if = "ModelAccess::is_none")]
    pub models: ModelAccess,
    /// Where the sandbox's own files are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage: Option<Storage>,
    #[serde(skip_serializing_if = "DraftLimits::is_empty")]
    pub limits: DraftLimits,
    /// Whether an unenforceable default limit is an error too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

only_from_a_table!(Draft);

/// The effective spec: defaults filled in, contradictions refused. Its JSON is the input of the policy hash.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Spec {
    pub tier: Tier,
    pub template: Template,
    /// The content of a template that is an image, once it is known. No part of the policy, which is about the boundary.
    #[serde(skip)]
    pub template_id: Option<TemplateId>,
    /// Without one, /workspace is private and empty.
    pub workspace: Option<HostPath>,
    /// The user in whose name it is opened.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_user: Option<HostUser>,
    pub fs: FsMode,
    /// Read-only paths in the workspace, including the built-in ones.
    pub protect: Vec<ProtectedPath>,
    pub mounts: Vec<Mount>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<VolumeMount>,
    /// The policy contains only the names: a value may be sensitive, and if it has few bits, it could be guessed from
    /// its hash.
    #[serde(serialize_with = "names_only")]
    pub env: BTreeMap<String, String>,
    pub cwd: GuestPath,
    pub user: User,
    /// The template's own user, if programs run as that one; `user` then says whether it is root.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
    pub network: NetworkMode,
    /// As it was asked for; the policy contains the rules of the sets. Empty unless the network mode is `proxied`.
    #[serde(skip_serializing_if = "EgressDraft::is_empty", serialize_with = "as_policy")]
    pub egress: EgressDraft,
    /// Only names are known here, and so the policy contains nothing else.
    #[serde(skip_serializing_if = "Vec::is_empty", serialize_with = "secret::as_policy")]
    pub secrets: Vec<SecretUse>,
    #[serde(skip_serializing_if = "ModelAccess::is_none")]
    pub models: ModelAccess,
    /// Absent from the policy if it is in memory, as it always was before there was a choice.
    #[serde(skip_serializing_if = "is_in_memory")]
    pub storage: Storage,
    pub limits: Limits,
    pub strict: bool,
}

impl Draft {
    /// Merges two drafts. Fails if they give different values for a field.
    pub fn merge(self, other: Self) -> Result<Self, Problem> {
        Ok(Self {
            schema: one_of("schema", self.schema, other.schema)?,
            tier: one_of("tier", self.tier, other.tier)?,
            template: one_of("template", self.template, other.template)?,
            workspace: one_of("workspace", self.workspace, other.workspace)?,
            workspace_user: one_of("workspace_user", self.workspace_user, other.workspace_user)?,
            fs: one_of("fs", self.fs, other.fs)?,
            protect: joined(self.protect, other.protect),
            mounts: joined(self.mounts, other.mounts),
            volumes: joined(self.volumes, other.volumes),
            env: self.env.merge(other.env)?,
            cwd: one_of("cwd", self.cwd, other.cwd)?,
            user: one_of("user", self.user, other.user)?,
            network: one_of("network", self.network, other.network)?,
            egress: self.egress.merge(other.egress)?,
            secrets: joined(self.secrets, other.secrets),
            models: self.models.merge(other.models)?,
            storage: one_of("storage", self.storage, other.storage)?,
            limits: self.limits.merge(other.limits)?,
            strict: one_of("strict", self.strict, other.strict)?,
        })
    }

    /// The name of a field that is set and refers to files of the host. Clients of a server may set none of these.
    pub fn host_field(&self) -> Option<&'static str> {
        // Exhaustive, so that adding a field forces a decision here.
        let Self {
            schema: _,
            tier: _,
            template: _,
            workspace,
            workspace_user,
            fs: _,
            protect,
            mounts,
            volumes: _,
            env: _,
            cwd: _,
            user: _,
            network: _,
            egress: _,
            secrets: _,
            models: _,
            storage: _,
            limits: _,
            strict: _,
        } = self;
        let asked = [
            ("workspace", workspace.is_some()),
            ("workspace_user", workspace_user.is_some()),
            ("protect", !protect.is_empty()),
            ("mounts", !mounts.is_empty()),
        ];
        asked.into_iter().find_map(|(name, is_asked)| is_asked.then_some(name))
    }

    /// The name of the template, with the default filled in.
    pub fn template_name(&self) -> TemplateName {
        self.template.clone().unwrap_or_default()
    }

    fn check_schema(&self) -> Result<(), Problem> {
        match self.schema.as_deref() {
            None | Some(SPEC_SCHEMA) => Ok(()),
            Some(other) => Err(Problem::new(
                Code::InvalidSpec,
                format!("the spec is of schema {other:?}"),
                format!("this version reads {SPEC_SCHEMA:?}; leave `schema` out to mean that"),
            )),
        }
    }
}

impl Spec {
    /// Fills in the defaults. Fails if values contradict each other, or if this version doesn't support one.
    pub fn resolve(draft: Draft) -> Result<Self, Problem> {
        Self::check_draft(&draft)?;
        Self::fill(draft)
    }

    /// The same for a sandbox that starts from an image, whose own defaults come before ours.
    pub fn resolve_from(draft: Draft, given: GivenByTemplate) -> Result<Self, Problem> {
        Self::check_draft(&draft)?;
        Self::fill_from(draft, Some(given))
    }

    /// Fills in the defaults, also for sandboxes that this version couldn't create: a sandbox that another version created
    /// can be shown.
    pub fn fill(draft: Draft) -> Result<Self, Problem> {
        Self::fill_from(draft, None)
    }

    /// The uid of programs, unless one is started as another user.
    pub fn uid(&self) -> u32 {
        self.account.as_ref().map_or(self.user.id(), |account| account.uid)
    }

    /// The gid of programs, unless one is started as another user.
    pub fn gid(&self) -> u32 {
        self.account.as_ref().map_or(self.user.id(), |account| account.gid)
    }

    fn check_draft(draft: &Draft) -> Result<(), Problem> {
        draft.check_schema()?;
        check_built(draft.tier, draft.network)?;
        Rules::new(draft.egress.clone())?;
        check_variables(&draft.secrets)?;
        check_storage(draft)?;
        check_scratch(draft)
    }

    fn fill_from(draft: Draft, given: Option<GivenByTemplate>) -> Result<Self, Problem> {
        draft.check_schema()?;
        let fs = check_fs(&draft)?;
        check_mounts(&draft.mounts)?;
        check_volumes(&draft)?;
        draft.egress.check_mode(draft.network)?;
        check_uses(&draft.secrets, draft.network, &draft.env)?;
        draft.models.check(draft.network)?;
        let template = Template::of(draft.template_name());
        let (template_id, mut env, given_cwd, account) = match given {
            Some(given) => (
                Some(given.id),
                given.env,
                given.cwd,
                given.account.filter(|_| matches!(draft.user, None | Some(User::Template))),
            ),
            None => Default::default(),
        };
        if draft.network == Some(NetworkMode::Proxied) {
            env.retain(|name, _| !MANAGED_NETWORK_VARIABLES.contains(&name.as_str()));
        }
        env.extend(draft.env.into_map());
        let user = match (&account, draft.user) {
            (Some(account), _) if account.uid == User::Root.id() => User::Root,
            (Some(_), Some(User::Template)) => User::Template,
            (Some(_), _) => User::User,
            (None, Some(User::Template)) if template == Template::Host => User::User,
            // Without its template a spec doesn't say who that is.
            (None, user) => user.unwrap_or(User::User),
        };
        let default_cwd = match (&given_cwd, &account) {
            _ if draft.workspace.is_some() => WORKSPACE,
            (Some(cwd), _) => cwd.as_str(),
            (None, Some(account)) if user == User::Template => account.home.as_str(),
            (None, Some(_)) => "/",
            (None, None) => user.home(),
        };
        // A home is what a stranger's /etc/passwd says.
        let default_cwd = GuestPath::parse(default_cwd).or_else(|_| GuestPath::parse("/"));
        let default_cwd = default_cwd.expect("the root is a path");
        Ok(Self {
            tier: draft.tier.unwrap_or(Tier::Namespace),
            template,
            template_id,
            protect: protected(fs, draft.workspace.is_some(), draft.protect)?,
            workspace: draft.workspace,
            workspace_user: draft.workspace_user,
            fs,
            mounts: draft.mounts,
            volumes: draft.volumes,
            env,
            cwd: draft.cwd.unwrap_or(default_cwd),
            user,
            account,
            network: draft.network.unwrap_or(NetworkMode::None),
            egress: draft.egress,
            secrets: draft.secrets,
            models: draft.models,
            storage: draft.storage.unwrap_or(Storage::Memory),
            limits: Limits::resolve(&draft.limits)?,
            strict: draft.strict.unwrap_or(false),
        })
    }

    /// The account that a program runs as if it asks for this user; `None` for the sandbox's own two.
    pub fn account_of(&self, user: User) -> Option<&Account> {
        self.account.as_ref().filter(|_| user == self.user)
    }

    /// The user that a program runs as if it asks for this one.
    pub fn acting(&self, asked: Option<User>) -> User {
        match asked {
            None => self.user,
            Some(User::Template) if self.user != User::Template => User::User,
            Some(user) => user,
        }
    }

    pub fn policy_hash(&self) -> PolicyHash {
        PolicyHash::of(self)
    }
}

/// The root of the host's own programs is a tmpfs, so that only an image's can be on disk.
fn check_storage(draft: &Draft) -> Result<(), Problem> {
    if draft.storage == Some(Storage::Disk) && Template::of(draft.template_name()) == Template::Host {
        return Err(Problem::new(
            Code::Contradiction,
            format!("storage on disk is not built for the template {:?}", draft.template_name().as_str()),
            "start from an imported template, or leave the storage in memory",
        ));
    }
    Ok(())
}

fn check_built(tier: Option<Tier>, network: Option<NetworkMode>) -> Result<(), Problem> {
    match tier {
        None | Some(Tier::Namespace) => {}
        Some(tier @ (Tier::Wasm | Tier::Oci | Tier::Vm)) => {
            return Err(Problem::new(
                Code::UnsupportedCapability,
                format!("tier {tier} is not built yet"),
                "use the namespace tier; `saggar doctor` lists what this host and this version support",
            ));
        }
    }
    match network {
        None | Some(NetworkMode::None | NetworkMode::Host | NetworkMode::Proxied) => Ok(()),
    }
}

fn is_in_memory(storage: &Storage) -> bool {
    *storage == Storage::Memory
}

fn names_only<S: Serializer>(env: &BTreeMap<String, String>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(env.keys())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::DEFAULT_PROTECTED;

    fn draft(json: &str) -> Draft {
        serde_json::from_str(json).unwrap()
    }

    fn resolve(json: &str) -> Result<Spec, Problem> {
        Spec::resolve(draft(json))
    }

    #[test]
    fn contradictions_and_what_is_not_built_are_refused_by_code() {
        for (json, code) in [
            (r#"{"fs": "workspace-write"}"#, Code::Contradiction),
            (r#"{"fs": "scratch"}"#, Code::Contradiction),
            (r#"{"protect": ["ci.yml"]}"#, Code::Contradiction),
            (r#"{"egress": {"allow": ["a.example"]}}"#, Code::Contradiction),
            (r#"{"egress": {"deny": ["a.example"]}, "network": "none"}"#, Code::Contradiction),
            (r#"{"egress": {"allow": ["*"]}, "network": "host"}"#, Code::Contradiction),
            (r#"{"egress": {"allow": ["@nothing"]}, "network": "host"}"#, Code::InvalidValue),
            (r#"{"secrets": [{"name": "a"}]}"#, Code::Contradiction),
            (r#"{"secrets": [{"name": "a"}], "network": "host"}"#, Code::Contradiction),
            (
                r#"{"secrets": [{"name": "a", "env": "A"}], "env": {"A": "1"}, "network": "proxied"}"#,
                Code::Contradiction,
            ),
            (
                r#"{"secrets": [{"name": "a", "env": "A"}, {"name": "b", "env": "A"}], "network": "proxied"}"#,
                Code::Contradiction,
            ),
            (r#"{"models": true}"#, Code::Contradiction),
            (r#"{"models": ["m"], "network": "host"}"#, Code::Contradiction),
            (r#"{"tier": "vm"}"#, Code::UnsupportedCapability),
            (r#"{"storage": "disk"}"#, Code::Contradiction),
            (r#"{"storage": "disk", "template": "base"}"#, Code::Contradiction),
            (r#"{"schema": "saggar.spec/v9"}"#, Code::InvalidSpec),
            (r#"{"limits": {"memory": "1K"}}"#, Code::InvalidValue),
            (r#"{"limits": {"pids": 1}}"#, Code::InvalidValue),
            (r#"{"limits": {"timeout": "0s"}}"#, Code::InvalidValue),
            (r#"{"mounts": [{"host": "/a", "guest": "/proc/x"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/proc/x"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/usr"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/dev/shm"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/etc/ssl"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/home/user"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/a"}, {"name": "v", "at": "/b"}]}"#, Code::InvalidMount),
            (r#"{"volumes": [{"name": "v", "at": "/a"}, {"name": "w", "at": "/a/b"}]}"#, Code::InvalidMount),
            (
                r#"{"mounts": [{"host": "/a", "guest": "/a/b"}], "volumes": [{"name": "v", "at": "/a"}]}"#,
                Code::InvalidMount,
            ),
            (r#"{"mounts": [{"host": "/a", "guest": "/"}]}"#, Code::InvalidMount),
            (r#"{"mounts": [{"host": "/a", "guest": "/workspace/x"}]}"#, Code::InvalidMount),
            (r#"{"mounts": [{"host": "/a", "guest": "/m"}, {"host": "/b", "guest": "/m/x"}]}"#, Code::InvalidMount),
        ] {
            assert_eq!(resolve(json).unwrap_err().code, code, "{json}");
        }
    }

    #[test]
    fn a_size_without_a_unit_is_told_as_bytes() {
        let refused = resolve(r#"{"limits": {"memory": "64"}}"#).unwrap_err();
        assert_eq!(refused.message, "limit memory of 64 bytes is out of range");
        assert!(refused.help.ends_with("did you mean 64M?"), "{}", refused.help);
        assert!(!resolve(r#"{"limits": {"memory": "1K"}}"#).unwrap_err().help.contains("did you mean"));
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
            r#"{"template": "mine"}"#,
        ] {
            assert_ne!(hash("{}"), hash(other), "{other}");
        }
    }

    #[test]
    fn what_an_image_says_comes_after_what_was_asked_for() {
        let account = Account { name: "app".into(), uid: 7, gid: 8, groups: vec![9], home: "/srv".into() };
        let env = [("A", "image"), ("B", "image")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        let given = |cwd: Option<&str>| GivenByTemplate {
            id: TemplateId::of(b"x"),
            env: env.clone().into(),
            cwd: cwd.map(|cwd| GuestPath::parse(cwd).unwrap()),
            account: Some(account.clone()),
        };
        let from = |json: &str, cwd| Spec::resolve_from(draft(json), given(cwd)).unwrap();
        let spec = from(r#"{"template": "mine", "env": {"A": "asked"}}"#, Some("/image"));
        assert_eq!((spec.env["A"].as_str(), spec.env["B"].as_str(), spec.cwd.as_str()), ("asked", "image", "/image"));
        assert_eq!((spec.uid(), spec.gid(), spec.user, spec.account), (7, 8, User::User, Some(account.clone())));
        assert_eq!(from(r#"{"template": "mine"}"#, None).cwd.as_str(), "/");
        let spec = from(r#"{"template": "mine", "user": "root", "cwd": "/asked"}"#, Some("/image"));
        assert_eq!((spec.uid(), spec.cwd.as_str(), spec.account), (0, "/asked", None));
        assert_eq!(from(r#"{"template": "mine", "workspace": "/w"}"#, Some("/image")).cwd.as_str(), WORKSPACE);
        let spec = from(r#"{"template": "mine", "user": "template"}"#, None);
        assert_eq!((spec.uid(), spec.user, spec.cwd.as_str()), (7, User::Template, "/srv"));
        let acting = [None, Some(User::Template), Some(User::User), Some(User::Root)].map(|asked| spec.acting(asked));
        assert_eq!(acting, [User::Template, User::Template, User::User, User::Root]);
        let accounts = acting.map(|user| spec.account_of(user).map(|account| account.uid));
        assert_eq!(accounts, [Some(7), Some(7), None, None]);
        let spec = resolve(r#"{"user": "template"}"#).unwrap();
        assert_eq!((spec.user, spec.acting(Some(User::Template))), (User::User, User::User));
        let hash = |user: &str| from(&format!(r#"{{"template": "mine"{user}}}"#), None).policy_hash();
        assert_ne!(hash(""), hash(r#", "user": "user""#), "another user is another policy");
    }

    #[test]
    fn the_policy_hash_covers_the_network_rules() {
        let hash = |egress: &str| {
            let json = format!(r#"{{"network": "proxied", "egress": {egress}}}"#);
            Spec::fill(draft(&json)).unwrap().policy_hash()
        };
        let pypi = r#"{"allow": ["GET,HEAD files.pythonhosted.org", "GET,HEAD pypi.org"]}"#;
        // The rules of a set count, not its name; order and repetition mean nothing.
        assert_eq!(hash(r#"{"allow": ["@pypi"]}"#), hash(pypi));
        assert_eq!(hash(r#"{"allow": ["HEAD,GET PyPI.org.", "@pypi"]}"#), hash(pypi));
        assert_eq!(hash("{}"), hash(r#"{"allow": [], "deny": []}"#));
        assert_eq!(hash(r#"{"deny": ["@pypi"]}"#), hash(r#"{"deny": ["pypi.org", "files.pythonhosted.org"]}"#));
        for other in [r#"{"allow": ["@npm"]}"#, r#"{"allow": ["pypi.org"]}"#, r#"{"deny": ["@pypi"]}"#, "{}"] {
            assert_ne!(hash(pypi), hash(other), "{other}");
        }
        // A set of another version can be shown.
        assert_ne!(hash(r#"{"allow": ["@nothing"]}"#), hash(r#"{"allow": ["@nothing-else"]}"#));
    }

    #[test]
    fn the_policy_hash_covers_the_names_of_secrets_and_their_variables() {
        let hash = |secrets: &str| {
            resolve(&format!(r#"{{"network": "proxied", "secrets": {secrets}}}"#)).unwrap().policy_hash()
        };
        let both = r#"[{"name": "a", "env": "A"}, {"name": "b"}]"#;
        assert_eq!(hash(both), hash(r#"[{"name": "b"}, {"name": "a", "env": "A"}]"#), "order has no meaning");
        for other in ["[]", r#"[{"name": "a", "env": "A"}]"#, r#"[{"name": "a"}, {"name": "b"}]"#] {
            assert_ne!(hash(both), hash(other), "{other}");
        }
        let many: Vec<String> = (0..65).map(|index| format!(r#"{{"name": "s{index}"}}"#)).collect();
        let refused = resolve(&format!(r#"{{"network": "proxied", "secrets": [{}]}}"#, many.join(","))).unwrap_err();
        assert_eq!(refused.code, Code::InvalidValue);
    }

    #[test]
    fn the_policy_hash_covers_the_models() {
        let hash = |models: &str| resolve(&format!(r#"{{"network": "proxied"{models}}}"#)).unwrap().policy_hash();
        assert_eq!(hash(""), hash(r#", "models": false"#));
        assert_eq!(hash(r#", "models": ["a", "b"]"#), hash(r#", "models": ["b", "a", "b"]"#));
        for other in [r#", "models": true"#, r#", "models": ["a"]"#] {
            assert_ne!(hash(""), hash(other), "{other}");
        }
    }

    #[test]
    fn a_stored_sandbox_with_a_variable_that_is_refused_now_can_be_shown() {
        let json = r#"{"network": "proxied", "secrets": [{"name": "a", "env": "PYTHONPATH"}]}"#;
        assert_eq!(resolve(json).map(drop).unwrap_err().code, Code::InvalidValue);
        assert_eq!(Spec::fill(draft(json)).map(|spec| spec.secrets.len()), Ok(1));
    }

    #[test]
    fn rules_need_the_mode_that_applies_them() {
        let problem = resolve(r#"{"egress": {"allow": ["a.example"]}}"#).unwrap_err();
        assert_eq!(problem.message, "there are network rules, and the network mode is none");
        assert!(problem.help.contains("add `--net proxied`"), "{}", problem.help);
    }

    #[test]
    fn network_rules_of_file_and_flags_are_joined() {
        let merged = draft(r#"{"egress": {"allow": ["a.example", "b.example"]}}"#)
            .merge(draft(r#"{"egress": {"allow": ["B.example", "c.example"], "deny": ["x.example"]}}"#))
            .unwrap();
        let joined = r#"{"egress":{"allow":["a.example","b.example","c.example"],"deny":["x.example"]}}"#;
        assert_eq!(serde_json::to_string(&merged).unwrap(), joined);
    }

    #[test]
    fn the_built_in_protected_paths_hold_only_where_a_workspace_is_writable() {
        assert_eq!(resolve(r#"{"workspace": "/w"}"#).unwrap().protect.len(), DEFAULT_PROTECTED.len());
        assert!(resolve(r#"{"workspace": "/w", "fs": "scratch"}"#).unwrap().protect.is_empty());
        let asked = resolve(r#"{"workspace": "/w", "fs": "scratch", "protect": ["ci.yml"]}"#).unwrap().protect;
        assert_eq!(asked, [ProtectedPath::parse("ci.yml").unwrap()], "what was asked for holds for what is applied");
    }

    /// From `spec_json` columns and `Start` messages of servers from before this type was shared, with the policy hash of each.
    const FROM_BEFORE: [(&str, &str); 4] = [
        (r#"{"network":"none"}"#, "9040d8c323aeb83c7b74c63f50e7ca0a10c38ae7e77b0f035338df88cfd7cd0f"),
        (r#"{"env":{},"network":"none"}"#, "9040d8c323aeb83c7b74c63f50e7ca0a10c38ae7e77b0f035338df88cfd7cd0f"),
        (
            r#"{"env":{"A":"1","B":"two words"},"limits":{"cpus":"0.5","disk":"100M","files":"256","memory":"512M","output":"64K","pids":"64"},"network":"none","user":"root"}"#,
            "bd55fc3d86ef0f656f861514ea3833f1ec36ec72053e6ed941abad49da3c14cc",
        ),
        (
            r#"{"limits":{"memory":"1G"},"network":"none"}"#,
            "8620f192206e9966e54db6142a09eaefc4a7af180c986c0b3f797eb8623c414f",
        ),
    ];

    #[test]
    fn a_draft_from_before_means_what_it_meant_and_is_written_as_it_was() {
        for (json, hash) in FROM_BEFORE {
            assert_eq!(resolve(json).unwrap().policy_hash().as_str(), format!("sha256:{hash}"), "{json}");
            let written: serde_json::Value = serde_json::to_value(draft(json)).unwrap();
            let mut before: serde_json::Value = serde_json::from_str(json).unwrap();
            if before["env"] == serde_json::json!({}) {
                before.as_object_mut().unwrap().remove("env");
            }
            assert_eq!(written, before);
        }
    }

    #[test]
    fn a_draft_is_the_same_after_a_way_over_the_wire() {
        let whole = r#"{"schema": "saggar.spec/v1", "tier": "vm", "template": "base", "workspace": "/w", "fs": "scratch",
            "protect": ["ci.yml"], "mounts": [{"host": "/a", "guest": "/b"}], "volumes": [{"name": "v", "at": "/v", "mode": "ro"}], "env": {"A": "1"}, "cwd": "/tmp", "user": "root",
            "network": "host", "egress": {"allow": ["@pypi", "GET a.example/x"], "deny": ["10.0.0.0/8"]}, "secrets": [{"name": "a", "env": "A"}, {"name": "b"}], "models": ["m"], "storage": "disk", "strict": true, "limits": {"timeout": "1s", "memory": "1G", "cpus": 1.5, "pids": 9, "disk": "2G",
            "files": 99, "output": "1M"}}"#;
        for json in ["{}", whole] {
            let written = serde_json::to_string(&draft(json)).unwrap();
            assert_eq!(draft(&written), draft(json), "{written}");
        }
        assert_eq!(serde_json::to_string(&Draft::default()).unwrap(), "{}");
        // No field is missing from the example above.
        assert_eq!(serde_json::to_value(draft(whole)).unwrap().as_object().unwrap().len(), 18);
    }

    #[test]
    fn what_this_version_cannot_make_can_still_be_shown() {
        assert_eq!(
            Spec::fill(draft(r#"{"tier": "vm", "network": "proxied"}"#)).map(|spec| (spec.tier, spec.network)),
            Ok((Tier::Vm, NetworkMode::Proxied))
        );
        // Earlier versions accepted it without a workspace.
        assert_eq!(Spec::fill(draft(r#"{"fs": "scratch"}"#)).map(|spec| spec.fs), Ok(FsMode::Scratch));
    }

    #[test]
    fn fields_that_name_files_of_the_host_are_known() {
        for (json, named) in [
            ("{}", None),
            (
                r#"{"tier": "vm", "template": "base", "fs": "read-only", "volumes": [{"name": "v", "at": "/v"}], "env": {"A": "1"}, "cwd": "/", "user": "root", "network": "host", "egress": {"allow": ["*"]}, "secrets": [{"name": "a"}], "strict": true, "limits": {"pids": 9}}"#,
                None,
            ),
            (r#"{"workspace": "/w"}"#, Some("workspace")),
            (r#"{"protect": ["a"]}"#, Some("protect")),
            (r#"{"mounts": [{"host": "/a", "guest": "/b"}]}"#, Some("mounts")),
        ] {
            assert_eq!(draft(json).host_field(), named, "{json}");
        }
    }

    #[test]
    fn unknown_and_doubled_fields_are_errors() {
        for wrong in [
            r#"{"netwrok": "none"}"#,
            r#"{"limits": {"ram": "1G"}}"#,
            r#"{"fs": "scratch", "fs": "read-only"}"#,
            r#"{"env": {"A": "1", "A": "2"}}"#,
            r#"{"env": {"A=B": "1"}}"#,
            r#"{"env": {"A": "\u0000"}}"#,
            r#"{"workspace": "a\u0000b"}"#,
            r#"{"limits": {"memory": "-1"}}"#,
            r#"{"mounts": [{"host": "/a", "guest": "/b", "acces": "rw"}]}"#,
            r#"[]"#,
            r#"["saggar.spec/v1", "namespace"]"#,
            r#"{"limits": ["1h"]}"#,
            r#"{"mounts": [["/a", "/b", "rw"]]}"#,
            r#"{"volumes": [{"name": "../v", "at": "/v"}]}"#,
            r#"{"volumes": [{"name": "v", "at": "/a/../v"}]}"#,
            r#"{"volumes": [{"name": "v", "at": "/v", "mode": "rwx"}]}"#,
            r#"{"volumes": [["v", "/v", "rw"]]}"#,
            r#"{"egress": {"alow": []}}"#,
            r#"{"egress": ["*"]}"#,
            r#"{"egress": {"allow": "*"}}"#,
            r#"{"egress": {"allow": ["127.1"]}}"#,
        ] {
            assert!(serde_json::from_str::<Draft>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_same_value_twice_is_fine_and_another_is_ambiguous() {
        let one = draft(r#"{"limits": {"memory": "512M"}, "env": {"A": "1"}}"#);
        let same = draft(r#"{"limits": {"memory": "524288K"}, "env": {"A": "1"}}"#);
        assert_eq!(one.clone().merge(same), Ok(one.clone()));
        for other in [r#"{"limits": {"memory": "1G"}}"#, r#"{"env": {"A": "2"}}"#] {
            assert_eq!(one.clone().merge(draft(other)).unwrap_err().code, Code::AmbiguousMerge, "{other}");
        }
    }
}
