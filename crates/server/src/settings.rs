//! What an operator decides about the server: from a file, the environment and flags, later ones before earlier ones.
//!
//! Every value knows where it came from. What can't be read is refused with its name and its place, and so is what no careful operator
//! would mean: the server doesn't start with it and then warn. Nothing here touches a socket; `safety` looks at files it will need.

mod load;
mod safety;
mod setting;
mod shared;
mod show;

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use saggar_domain::{ByteSize, NetworkMode};
use saggar_runtime::runs::HttpAddress;

pub use load::{ConfigError, Given, names};
pub(crate) use shared::SharedSettings;
pub use show::Shown;

/// What an operator decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where to listen.
    pub address: IpAddr,
    /// On which port; 0 for any that is free.
    pub port: u16,
    /// Where everything is kept.
    pub data_directory: PathBuf,
    /// Who may ask.
    pub auth: Auth,
    /// Whether TLS is spoken.
    pub tls: bool,
    /// The certificate, in PEM; one is made where there is none.
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Where keys may be sent in the clear.
    pub plaintext: Plaintext,
    /// Below which name ports of sandboxes are found, as `{port}-{sandbox}.DOMAIN`.
    pub domain: String,
    /// Pages that may open a WebSocket here, beside our own.
    pub origins: Vec<String>,
    /// Most sandboxes at once.
    pub capacity: usize,
    /// Fewest sandboxes kept ready.
    pub pool_min: usize,
    /// Most sandboxes kept ready.
    pub pool_max: usize,
    /// How long a sandbox lives if nothing else is asked for.
    pub default_ttl: Duration,
    /// The longest that can be asked for.
    pub ttl_max: Duration,
    /// How long a paused sandbox is kept.
    pub paused_max: Duration,
    /// How long what is known of an ended sandbox is kept.
    pub retention: Duration,
    /// How long a run that is over is kept.
    pub runs_retention: Duration,
    /// Whether a sandbox may share the host's network.
    pub allow_host_network: bool,
    /// Where the tool `http` of runs may go.
    pub http_allowed: Vec<HttpAddress>,
    /// Most runs that one worker drives at once.
    pub runs_max: usize,
    /// Most of one agent's that are driven at once, by all workers together.
    pub runs_per_agent: usize,
    /// Most of one project's.
    pub runs_per_project: usize,
    /// How sandboxes of E2B's clients, which expect the whole internet, reach the network.
    pub e2b_network: E2bNetwork,
    /// Most connections at once.
    pub connections_max: usize,
    /// Most connections at once from one address, or one network of IPv6.
    pub connections_per_address: usize,
    /// Most requests and streams that one key has under way.
    pub requests_per_key: usize,
    pub upload_max: ByteSize,
    /// How long requests may go on once the server is told to stop.
    pub shutdown_grace: Duration,
    /// What is logged.
    pub log: LogLevel,
    pub log_format: LogFormat,
    /// Variables of the environment that look like settings and were set by Kubernetes for a Service.
    pub ignored_variables: Vec<String>,
    origins_of_values: BTreeMap<&'static str, Origin>,
}

impl Config {
    /// What is decided where nobody did.
    pub fn default_in(data_directory: PathBuf) -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 7420,
            data_directory,
            auth: Auth::Keys,
            tls: false,
            tls_certificate: None,
            tls_key: None,
            plaintext: Plaintext::Loopback,
            domain: "localhost".to_owned(),
            origins: Vec::new(),
            capacity: 1000,
            pool_min: 0,
            pool_max: 8,
            default_ttl: Duration::from_secs(5 * 60),
            ttl_max: Duration::from_secs(24 * 3600),
            paused_max: Duration::from_secs(7 * 24 * 3600),
            retention: Duration::from_secs(7 * 24 * 3600),
            runs_retention: Duration::from_secs(30 * 24 * 3600),
            allow_host_network: false,
            http_allowed: Vec::new(),
            runs_max: 256,
            runs_per_agent: 128,
            runs_per_project: 256,
            e2b_network: E2bNetwork::None,
            connections_max: 1024,
            connections_per_address: 768,
            requests_per_key: 512,
            upload_max: ByteSize::mebibytes(4096),
            shutdown_grace: Duration::from_secs(10),
            log: LogLevel::Info,
            log_format: LogFormat::Text,
            ignored_variables: Vec::new(),
            origins_of_values: BTreeMap::new(),
        }
    }

    /// Where to listen.
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Bounds that nobody set are shares of `connections_max`: what is left is for others.
    fn derive(&mut self) {
        if self.origin("connections_per_address") == Origin::Default {
            self.connections_per_address = (self.connections_max * 3 / 4).max(1);
        }
        if self.origin("requests_per_key") == Origin::Default {
            self.requests_per_key = (self.connections_max / 2).max(1);
        }
    }

    /// Where a value came from.
    fn origin(&self, name: &str) -> Origin {
        self.origins_of_values.get(name).cloned().unwrap_or(Origin::Default)
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nobody said anything.
    Default,
    /// A file, as it was named.
    File(String),
    /// A variable of the environment.
    Environment(String),
    /// The command line.
    Flag(String),
    /// The server of the data directory, for a worker.
    Server,
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(name) => write!(f, "file {name}"),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag(name) => write!(f, "flag {name}"),
            Self::Server => f.write_str("the server"),
        }
    }
}

/// A choice among a few words.
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant,)+
        }

        impl $name {
            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(format!("{text:?} is not one of: {}", [$($text),+].join(", "))),
                }
            }

            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

choice!(
    /// Who may ask.
    Auth {
        /// Who has a key.
        Keys = "keys",
        /// Whoever reaches the server, as the default project; on a loopback address only.
        Off = "off",
    }
);
choice!(
    /// Where keys may be sent in the clear.
    Plaintext {
        /// Where nobody else can listen.
        Loopback = "loopback",
        /// Everywhere: something in front of the server speaks TLS.
        Anywhere = "anywhere",
    }
);
choice!(
    /// How sandboxes of E2B's clients reach the network.
    E2bNetwork {
        /// Not at all.
        None = "none",
        /// As the host does, unmanaged.
        Host = "host",
    }
);

impl E2bNetwork {
    /// The mode of those sandboxes.
    pub(crate) fn mode(self) -> NetworkMode {
        match self {
            Self::None => NetworkMode::None,
            Self::Host => NetworkMode::Host,
        }
    }
}

choice!(
    /// What is logged.
    LogLevel {
        /// What is broken.
        Error = "error",
        /// What will be.
        Warn = "warn",
        /// What an operator would want to know.
        Info = "info",
        /// What a developer would.
        Debug = "debug",
    }
);
choice!(
    /// How it is logged.
    LogFormat {
        Text = "text",
        Json = "json",
    }
);
