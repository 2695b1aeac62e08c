//! The flags that describe a sandbox, the same for one of this host (`run`) and one of a server (`sandbox create`).

use std::convert::Infallible;
use std::str::FromStr;

use clap::Args;
use saggar_domain::net::{EgressDraft, EgressLimits, Rule};
use saggar_domain::secret::SecretUse;
use saggar_domain::{
    ByteSize, Code, Count, Cpus, Draft, DraftLimits, EnvDraft, NetworkMode, Problem, Storage, User, VolumeMount,
};

/// Limits take values that begin with a hyphen, so that `--memory -1` is told of as a size and not as an unknown flag.
#[derive(Args, Clone, Debug)]
pub struct SpecFlags {
    /// Set an environment variable for every program (repeatable); nothing is inherited
    #[arg(short = 'e', long, value_name = "K=V", value_parser = env_entry)]
    pub env: Vec<(String, String)>,
    /// User that programs run as: user (uid 1000, no capabilities) or root (of the sandbox only) [default: user]
    #[arg(short = 'u', long, value_name = "USER", value_parser = user)]
    pub user: Option<User>,
    /// Network: none, proxied (by the rules of --allow and --deny), or host (unmanaged: shares the host's network,
    /// including loopback) [default: none]
    #[arg(long = "net", visible_alias = "network", value_name = "MODE", value_parser = network_mode)]
    pub network: Option<NetworkMode>,
    #[command(flatten)]
    pub rules: RuleFlags,
    #[command(flatten)]
    pub network_limits: NetworkLimitFlags,
    /// Secret that requests get on their way out; with a variable, programs find a placeholder in it (repeatable)
    #[arg(long = "secret", value_name = "[VARIABLE=]NAME")]
    secret_uses: Vec<GivenUse>,
    /// Memory limit of the whole process tree, private storage included [default: 2G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub memory: Option<ByteSize>,
    /// CPU limit, in CPUs [default: 2]
    #[arg(long, value_name = "N", value_parser = Cpus::parse, allow_hyphen_values = true)]
    pub cpus: Option<Cpus>,
    /// Maximum number of processes and threads [default: 512]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub pids: Option<Count>,
    /// Storage limit of the sandbox (/tmp, home, scratch layer); a workspace-write workspace is not covered [default:
    /// 1G]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub disk: Option<ByteSize>,
    /// Where these files are: memory, or disk (in the data directory, for a template that is an image; needs root)
    /// [default: memory]
    #[arg(long, value_name = "PLACE", value_parser = storage)]
    pub storage: Option<Storage>,
    /// Mount a volume of the project at a path inside, writable unless :ro (repeatable)
    #[arg(long = "volume", value_name = "NAME:PATH[:ro]", value_parser = VolumeMount::parse)]
    pub volumes: Vec<VolumeMount>,
    /// Maximum number of open files per process [default: 4096]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub files: Option<Count>,
    /// Bytes kept of stdout and of stderr [default: 8M; unlimited when `run` passes them through]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub output: Option<ByteSize>,
}

/// A secret as it was named. It is checked later than other values: the parser of arguments repeats what is wrong, and that may be the
/// value of a secret.
#[derive(Clone, Debug)]
struct GivenUse(Result<SecretUse, String>);

impl FromStr for GivenUse {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(text.parse()))
    }
}

impl GivenUse {
    fn checked(&self) -> Result<SecretUse, Problem> {
        self.0.clone().map_err(|complaint| {
            Problem::new(
                Code::InvalidValue,
                format!(
                    "a value of --secret can't be understood, and is not shown because it may be a secret: {complaint}"
                ),
                "write it as NAME or VARIABLE=NAME; the secret's value is read from a file, the keyring or the server",
            )
        })
    }
}

/// Network rules, for a sandbox or for an explanation.
#[derive(Args, Clone, Debug)]
pub struct RuleFlags {
    /// Network rule: a destination that is allowed, such as api.example.com, 'GET *.example.com' or @pypi
    /// (repeatable); `saggar net` explains rules
    #[arg(long, value_name = "RULE")]
    pub allow: Vec<Rule>,
    /// Network rule: a destination that is denied, whatever is allowed (repeatable)
    #[arg(long, value_name = "RULE")]
    pub deny: Vec<Rule>,
}

impl RuleFlags {
    pub fn draft(&self) -> EgressDraft {
        let mut draft = EgressDraft::default();
        for (list, rules) in [(&mut draft.allow, &self.allow), (&mut draft.deny, &self.deny)] {
            for rule in rules {
                if !list.contains(rule) {
                    list.push(rule.clone());
                }
            }
        }
        draft
    }
}

/// How much of a managed network a sandbox may use.
#[derive(Args, Clone, Debug)]
pub struct NetworkLimitFlags {
    /// Bytes that a sandbox with --net proxied may send and receive altogether [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub net_bytes: Option<ByteSize>,
    /// The same for each host [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = ByteSize::parse, allow_hyphen_values = true)]
    pub net_bytes_per_host: Option<ByteSize>,
    /// Its connections at once [default: 1024]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub net_connections: Option<Count>,
    /// Its connections to one host at once [default: 512]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub net_connections_per_host: Option<Count>,
    /// Its requests in a minute, each connection that passes unread counted as one [default: no limit]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub net_requests_per_minute: Option<Count>,
    /// The same for each host [default: no limit]
    #[arg(long, value_name = "N", value_parser = Count::parse, allow_hyphen_values = true)]
    pub net_requests_per_minute_per_host: Option<Count>,
}

impl NetworkLimitFlags {
    pub fn limits(&self) -> EgressLimits {
        EgressLimits {
            bytes: self.net_bytes,
            bytes_per_host: self.net_bytes_per_host,
            connections: self.net_connections,
            connections_per_host: self.net_connections_per_host,
            requests_per_minute: self.net_requests_per_minute,
            requests_per_minute_per_host: self.net_requests_per_minute_per_host,
        }
    }
}

impl SpecFlags {
    /// The spec that they ask for.
    pub fn draft(&self) -> Result<Draft, Problem> {
        let mut env = EnvDraft::default();
        for (name, value) in &self.env {
            env.insert(name.clone(), value.clone())?;
        }
        Ok(Draft {
            env,
            user: self.user,
            network: self.network,
            egress: EgressDraft { limits: self.network_limits.limits(), ..self.rules.draft() },
            secrets: self.secret_uses.iter().map(GivenUse::checked).collect::<Result<_, _>>()?,
            storage: self.storage,
            volumes: self.volumes.clone(),
            limits: DraftLimits {
                memory: self.memory,
                cpus: self.cpus,
                pids: self.pids,
                disk: self.disk,
                files: self.files,
                output: self.output,
                ..DraftLimits::default()
            },
            ..Draft::default()
        })
    }
}

pub(crate) fn choice<T>(
    text: &str,
    parse: impl Fn(&str) -> Option<T>,
    names: impl Iterator<Item = &'static str>,
) -> Result<T, String> {
    parse(text).ok_or_else(|| format!("choose one of: {}", names.collect::<Vec<_>>().join(", ")))
}

pub fn network_mode(text: &str) -> Result<NetworkMode, String> {
    choice(text, NetworkMode::parse, NetworkMode::ALL.iter().map(|mode| mode.as_str()))
}

pub fn storage(text: &str) -> Result<Storage, String> {
    choice(text, Storage::parse, Storage::ALL.iter().map(|place| place.as_str()))
}

pub fn user(text: &str) -> Result<User, String> {
    choice(text, User::parse, User::ALL.iter().map(|choice| choice.as_str()))
}

pub fn env_entry(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    if name.is_empty() {
        return Err(format!("{text:?} has no name before the ="));
    }
    Ok((name.to_owned(), value.to_owned()))
}
