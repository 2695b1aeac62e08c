//! The table of settings: name, meaning, how it is read and how it is written.
//!
//! One row here is a key of the file, a variable of the environment (`SAGGAR_` and the name in capitals) and a flag.

use std::path::PathBuf;
use std::time::Duration;

use saggar_domain::{ByteSize, Timeout};
use saggar_runtime::runs::HttpAddress;

use super::{Auth, Config, E2bNetwork, LogFormat, LogLevel, Plaintext};

pub(super) struct Setting {
    /// Its name in the file.
    pub(super) name: &'static str,
    /// What it decides.
    pub(super) what: &'static str,
    pub(super) set: fn(&mut Config, &str) -> Result<(), String>,
    pub(super) show: fn(&Config) -> String,
}

/// Most of anything that is counted: what no machine has.
const COUNT_MAX: usize = 1_000_000;

pub(super) const SETTINGS: &[Setting] = &[
    Setting {
        name: "address",
        what: "where to listen",
        set: |config, text| {
            config.address = text.parse().map_err(|_| format!("{text:?} is not an IP address, such as 127.0.0.1"))?;
            Ok(())
        },
        show: |config| config.address.to_string(),
    },
    Setting {
        name: "port",
        what: "on which port; 0 for any that is free",
        set: |config, text| {
            config.port = text.parse().map_err(|_| format!("{text:?} is not a port: a number up to 65535"))?;
            Ok(())
        },
        show: |config| config.port.to_string(),
    },
    Setting {
        name: "data_dir",
        what: "where everything is kept",
        set: |config, text| set_path(text).map(|path| config.data_directory = path),
        show: |config| config.data_directory.display().to_string(),
    },
    Setting {
        name: "auth",
        what: "who may ask: keys, off (on a loopback address only)",
        set: |config, text| Auth::parse(text).map(|auth| config.auth = auth),
        show: |config| config.auth.as_str().to_owned(),
    },
    Setting {
        name: "tls",
        what: "whether TLS is spoken; a certificate is made where none is given",
        set: |config, text| set_bool(text).map(|tls| config.tls = tls),
        show: |config| config.tls.to_string(),
    },
    Setting {
        name: "tls_certificate",
        what: "the certificate and those that vouch for it, in PEM",
        set: |config, text| set_path(text).map(|path| config.tls_certificate = Some(path)),
        show: |config| show_path(config.tls_certificate.as_ref()),
    },
    Setting {
        name: "tls_key",
        what: "the certificate's key, in PEM, readable by its owner alone",
        set: |config, text| set_path(text).map(|path| config.tls_key = Some(path)),
        show: |config| show_path(config.tls_key.as_ref()),
    },
    Setting {
        name: "plaintext",
        what: "where keys may be sent in the clear: loopback, anywhere (behind something that speaks TLS)",
        set: |config, text| Plaintext::parse(text).map(|plaintext| config.plaintext = plaintext),
        show: |config| config.plaintext.as_str().to_owned(),
    },
    Setting {
        name: "domain",
        what: "ports of sandboxes are at {port}-{sandbox}.DOMAIN",
        set: |config, text| set_domain(text).map(|domain| config.domain = domain),
        show: |config| config.domain.clone(),
    },
    Setting {
        name: "origins",
        what: "pages that may open a WebSocket here, with commas between",
        set: |config, text| set_origins(text).map(|origins| config.origins = origins),
        show: |config| config.origins.join(","),
    },
    Setting {
        name: "capacity",
        what: "most sandboxes at once, those kept ready included",
        set: |config, text| set_count(text).map(|count| config.capacity = count),
        show: |config| config.capacity.to_string(),
    },
    Setting {
        name: "pool_min",
        what: "fewest sandboxes kept ready",
        set: |config, text| set_count(text).map(|count| config.pool_min = count),
        show: |config| config.pool_min.to_string(),
    },
    Setting {
        name: "pool_max",
        what: "most sandboxes kept ready; as many as were asked for lately, up to this",
        set: |config, text| set_count(text).map(|count| config.pool_max = count),
        show: |config| config.pool_max.to_string(),
    },
    Setting {
        name: "default_ttl",
        what: "how long a sandbox lives if nothing else is asked for",
        set: |config, text| set_span(text).map(|span| config.default_ttl = span),
        show: |config| show_span(config.default_ttl),
    },
    Setting {
        name: "ttl_max",
        what: "the longest that can be asked for",
        set: |config, text| set_span(text).map(|span| config.ttl_max = span),
        show: |config| show_span(config.ttl_max),
    },
    Setting {
        name: "paused_max",
        what: "how long a paused sandbox is kept",
        set: |config, text| set_span(text).map(|span| config.paused_max = span),
        show: |config| show_span(config.paused_max),
    },
    Setting {
        name: "retention",
        what: "how long what is known of an ended sandbox is kept",
        set: |config, text| set_span(text).map(|span| config.retention = span),
        show: |config| show_span(config.retention),
    },
    Setting {
        name: "runs_retention",
        what: "how long a run that is over is kept, with its journal",
        set: |config, text| set_span(text).map(|span| config.runs_retention = span),
        show: |config| show_span(config.runs_retention),
    },
    Setting {
        name: "allow_host_network",
        what: "whether a sandbox may share the host's network, unmanaged",
        set: |config, text| set_bool(text).map(|allow| config.allow_host_network = allow),
        show: |config| config.allow_host_network.to_string(),
    },
    Setting {
        name: "http_allowed",
        what: "where the tool `http` of runs may go: addresses that begin with http://, commas between, each with all below it",
        set: |config, text| set_addresses(text).map(|allowed| config.http_allowed = allowed),
        show: |config| config.http_allowed.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
    },
    Setting {
        name: "runs_max",
        what: "most runs that one worker drives at once",
        set: |config, text| set_count(text).map(|count| config.runs_max = count),
        show: |config| config.runs_max.to_string(),
    },
    Setting {
        name: "runs_per_agent",
        what: "most runs of one agent that are driven at once, by all workers together",
        set: |config, text| set_count(text).map(|count| config.runs_per_agent = count),
        show: |config| config.runs_per_agent.to_string(),
    },
    Setting {
        name: "runs_per_project",
        what: "most runs of one project that are driven at once, by all workers together",
        set: |config, text| set_count(text).map(|count| config.runs_per_project = count),
        show: |config| config.runs_per_project.to_string(),
    },
    Setting {
        name: "e2b_network",
        what: "how sandboxes made by E2B's clients reach the network: none, host (needs allow_host_network)",
        set: |config, text| E2bNetwork::parse(text).map(|network| config.e2b_network = network),
        show: |config| config.e2b_network.as_str().to_owned(),
    },
    Setting {
        name: "connections_max",
        what: "most connections at once",
        set: |config, text| set_count(text).map(|count| config.connections_max = count),
        show: |config| config.connections_max.to_string(),
    },
    Setting {
        name: "connections_per_address",
        what: "most connections at once from one address (one /64 of IPv6); three quarters of connections_max if not set",
        set: |config, text| set_count(text).map(|count| config.connections_per_address = count),
        show: |config| config.connections_per_address.to_string(),
    },
    Setting {
        name: "requests_per_key",
        what: "most requests and streams under way for one key, or for one sandbox's token; half of connections_max if not set",
        set: |config, text| set_count(text).map(|count| config.requests_per_key = count),
        show: |config| config.requests_per_key.to_string(),
    },
    Setting {
        name: "upload_max",
        what: "largest upload",
        set: |config, text| ByteSize::parse(text).map(|size| config.upload_max = size),
        show: |config| config.upload_max.to_string(),
    },
    Setting {
        name: "shutdown_grace",
        what: "how long requests may go on once the server is told to stop",
        set: |config, text| set_span(text).map(|span| config.shutdown_grace = span),
        show: |config| show_span(config.shutdown_grace),
    },
    Setting {
        name: "log",
        what: "what is logged: error, warn, info, debug",
        set: |config, text| LogLevel::parse(text).map(|log| config.log = log),
        show: |config| config.log.as_str().to_owned(),
    },
    Setting {
        name: "log_format",
        what: "how: text, json",
        set: |config, text| LogFormat::parse(text).map(|format| config.log_format = format),
        show: |config| config.log_format.as_str().to_owned(),
    },
];

/// The setting of this name.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    SETTINGS.iter().find(|setting| setting.name == name)
}

/// The setting that was probably meant.
pub(super) fn nearest(name: &str) -> &'static str {
    let likeness = |setting: &&Setting| (strsim::jaro_winkler(name, setting.name) * 1e6) as u64;
    SETTINGS.iter().max_by_key(likeness).map_or("port", |setting| setting.name)
}

fn set_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.is_absolute() { Ok(path) } else { Err(format!("{text:?} is not an absolute path")) }
}

fn show_path(path: Option<&PathBuf>) -> String {
    path.map(|path| path.display().to_string()).unwrap_or_default()
}

fn set_bool(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

fn set_count(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| *count <= COUNT_MAX);
    count.ok_or_else(|| format!("{text:?} is not a whole number up to {COUNT_MAX}"))
}

fn set_span(text: &str) -> Result<Duration, String> {
    Timeout::parse(text).map(Timeout::duration)
}

fn show_span(span: Duration) -> String {
    Timeout::millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX)).to_string()
}

fn set_domain(text: &str) -> Result<String, String> {
    let is_label = |label: &str| {
        !label.is_empty() && label.len() <= 63 && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    if text.len() > 200 || !text.split('.').all(is_label) {
        return Err(format!("{text:?} is not a domain, such as sandboxes.example.com"));
    }
    Ok(text.to_ascii_lowercase())
}

fn set_addresses(text: &str) -> Result<Vec<HttpAddress>, String> {
    let check = |text: &str| match HttpAddress::parse(text) {
        Ok(address) if !address.has_query() => Ok(address),
        Ok(_) => Err(format!("{text:?} has a query, and only paths can be allowed")),
        Err(error) => Err(format!("{text:?} is not an address, such as http://127.0.0.1:8080/tools: {error}")),
    };
    text.split(',').map(str::trim).filter(|address| !address.is_empty()).map(check).collect()
}

fn set_origins(text: &str) -> Result<Vec<String>, String> {
    let check = |origin: &str| {
        let rest = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        match rest {
            Some(rest) if !rest.is_empty() && !rest.contains(['/', '*', ' ']) => Ok(origin.to_ascii_lowercase()),
            Some(_) | None => Err(format!("{origin:?} is not an origin, such as https://example.com")),
        }
    };
    text.split(',').map(str::trim).filter(|origin| !origin.is_empty()).map(check).collect()
}
