//! Which server and which key to use: flags, then the environment, then a file. The first source that has a value
//! wins, for each setting separately. Where none has any, it is the server that `saggar agent run` has started, if it runs.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use saggar_api::Secret;
use saggar_api::client::{Client, ClientOptions, Error};
use serde::Deserialize;

use super::arguments::ServerArguments;
use super::failure::CommandFailure;
use super::local_server;

/// Maximum size of the settings file, and of a certificate file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    url: Option<String>,
    api_key: Option<Secret>,
    ca: Option<PathBuf>,
}

/// The server and the key that a command uses, to explain why they don't fit.
#[derive(Debug)]
pub(crate) struct Access {
    pub(crate) url: String,
    pub(crate) key: Option<Secret>,
    /// Whether the URL was given, and isn't just the default.
    pub(crate) is_configured: bool,
}

/// The client of a command.
pub(crate) fn client(arguments: &ServerArguments) -> Result<(Client, Access), CommandFailure> {
    let (client, access) = configured(arguments)?;
    // Its runs and sandboxes are this user's, who has never heard of its address.
    if !access.is_configured
        && access.key.is_none()
        && let Some(own) = local_server::running()
    {
        return own;
    }
    Ok((client, access))
}

/// The same without a server of this user's own.
pub(super) fn configured(arguments: &ServerArguments) -> Result<(Client, Access), CommandFailure> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let file = match location() {
        Some(path) => read(&path)?,
        None => File::default(),
    };
    let url = arguments.url.clone().or_else(|| variable("SAGGAR_URL")).or(file.url);
    let key = arguments.api_key.clone().or_else(|| variable("SAGGAR_API_KEY")).map(Secret::new).or(file.api_key);
    let certificates = arguments.ca.clone().or_else(|| variable("SAGGAR_CA").map(PathBuf::from)).or(file.ca);
    let is_configured = url.is_some();
    let url = url.unwrap_or_else(|| ClientOptions::DEFAULT_URL.to_owned());
    let access = Access { url: url.clone(), key: key.clone(), is_configured };
    let mut options = ClientOptions::new(url);
    options.key = key;
    let Some(path) = certificates else { return Ok((Client::new(options)?, access)) };
    options.certificates = bytes(&path)?;
    let client = Client::new(options).map_err(|error| match error {
        Error::Certificates(what) => CommandFailure::ours(
            "certificates",
            format!("{path:?} can't be used: {what}"),
            "name a PEM file with the server's certificate, or with its issuer's",
        ),
        other => other.into(),
    })?;
    Ok((client, access))
}

/// Path of the settings file; `None` without a home directory.
fn location() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value: &OsString| !value.is_empty()).map(PathBuf::from);
    let base = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")))?;
    Some(base.join("saggar/config.toml"))
}

fn read(path: &Path) -> Result<File, CommandFailure> {
    let mode = match std::fs::metadata(path) {
        Ok(found) => found.mode(),
        Err(_) => return Ok(File::default()),
    };
    let text = bytes(path)?;
    let file: File = toml::from_slice(&text).map_err(|error| {
        CommandFailure::ours(
            "invalid_settings",
            format!("{path:?}: {}", error.message()),
            "it may contain url, api_key and ca, all strings",
        )
    })?;
    if file.api_key.is_some() && mode & 0o077 != 0 {
        return Err(CommandFailure::ours(
            "exposed_key",
            format!("{path:?} contains a key and is readable by other users"),
            format!("chmod 600 {}", path.display()),
        ));
    }
    Ok(file)
}

fn bytes(path: &Path) -> Result<Vec<u8>, CommandFailure> {
    saggar_given::read_given_file(path, FILE_BYTES_MAX).map_err(|error| CommandFailure::given(path, &error))
}
