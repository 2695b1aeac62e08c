//! The server's settings: from a file, the environment and flags; later sources take precedence.
//!
//! Every value knows its source. A malformed value is rejected with its name and source, and so are unsafe
//! combinations: the server refuses to start instead of only warning. Nothing here touches a socket; `safety` checks
//! files that will be needed.

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

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    pub address: IpAddr,
    /// 0 means any free port.
    pub port: u16,
    pub data_directory: PathBuf,
    pub auth: Auth,
    /// Whether TLS is used.
    pub tls: bool,
    /// The certificate, in PEM; without one a self-signed one is created.
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    /// Where keys may be sent without TLS.
    pub plaintext: Plaintext,
    /// Domain of the sandboxes' ports, as `{port}-{sandbox}.DOMAIN`.
    pub domain: String,
    /// Additional origins that may open a WebSocket.
    pub origins: Vec<String>,
    /// Maximum number of sandboxes.
    pub capacity: usize,
    /// Minimum size of the pool.
    pub pool_min: usize,
    /// Maximum size of the pool.
    pub pool_max: usize,
    /// Lifetime of a sandbox if the request sets none.
    pub default_ttl: Duration,
    /// The longest lifetime that can be requested.
    pub ttl_max: Duration,
    /// How long a paused sandbox is kept.
    pub paused_max: Duration,
    /// How long the record of an ended sandbox is kept.
    pub retention: Duration,
    /// How long a finished run is kept.
    pub runs_retention: Duration,
    /// Whether a sandbox may share the host's network.
    pub allow_host_network: bool,
    /// URL prefixes that the tool `http` of runs may access.
    pub http_allowed: Vec<HttpAddress>,
    /// Maximum number of concurrent runs per worker.
    pub runs_max: usize,
    /// Maximum number of concurrent runs per agent, over all workers.
    pub runs_per_agent: usize,
    /// Maximum number of concurrent runs per project, over all workers.
    pub runs_per_project: usize,
    /// Network mode of sandboxes created by E2B's clients, which expect full internet access.
    pub e2b_network: E2bNetwork,
    /// Maximum number of connections.
    pub connections_max: usize,
    /// Maximum number of connections from one address, or one IPv6 network.
    pub connections_per_address: usize,
    /// Maximum number of concurrent requests and streams per key.
    pub requests_per_key: usize,
    pub upload_max: ByteSize,
    /// How long requests may continue after a stop was requested.
    pub shutdown_grace: Duration,
    pub log: LogLevel,
    pub log_format: LogFormat,
    /// Environment variables that look like settings but were set by Kubernetes for a Service.
    pub ignored_variables: Vec<String>,
    origins_of_values: BTreeMap<&'static str, Origin>,
}

impl Config {
    /// The default settings.
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

    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }

    /// Limits that were not set are fractions of `connections_max`, so that some capacity is left for others.
    fn derive(&mut self) {
        if self.origin("connections_per_address") == Origin::Default {
            self.connections_per_address = (self.connections_max * 3 / 4).max(1);
        }
        if self.origin("requests_per_key") == Origin::Default {
            self.requests_per_key = (self.connections_max / 2).max(1);
        }
    }

    /// The source of a value.
    fn origin(&self, name: &str) -> Origin {
        self.origins_of_values.get(name).cloned().unwrap_or(Origin::Default)
    }
}

/// The source of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Default,
    /// The file's name, as given.
    File(String),
    /// The name of an environment variable.
    Environment(String),
    /// A command-line flag.
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
    /// Which clients are allowed.
    Auth {
        /// Clients with a key.
        Keys = "keys",
        /// Any client that reaches the server, as the default project; on a loopback address only.
        Off = "off",
    }
);
choice!(
    /// Where keys may be sent without TLS.
    Plaintext {
        /// On loopback addresses, which no other host can observe.
        Loopback = "loopback",
        /// Everywhere: a proxy in front of the server provides TLS.
        Anywhere = "anywhere",
    }
);
choice!(
    /// Network mode of sandboxes created by E2B's clients.
    E2bNetwork {
        None = "none",
        /// The host's network, unmanaged.
        Host = "host",
    }
);

impl E2bNetwork {
    pub(crate) fn mode(self) -> NetworkMode {
        match self {
            Self::None => NetworkMode::None,
            Self::Host => NetworkMode::Host,
        }
    }
}

choice!(
    LogLevel {
        /// Failures.
        Error = "error",
        /// Problems that may lead to failures.
        Warn = "warn",
        /// Events for operators.
        Info = "info",
        /// Details for developers.
        Debug = "debug",
    }
);
choice!(
    LogFormat {
        Text = "text",
        Json = "json",
    }
);
