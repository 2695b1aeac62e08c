//! The address that the server listens on, its TLS and names, and its authentication.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::ConfigError;
use super::section::{Origins, Setting, Table, setting};
use super::value::{Value, choice};

/// The longest path of a socket, without the NUL.
const SOCKET_PATH_MAX: usize = 107;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenSettings {
    pub address: IpAddr,
    /// 0 means any free port.
    pub port: u16,
    /// A Unix socket beside it.
    pub socket: Option<PathBuf>,
    pub socket_mode: SocketMode,
    pub auth: Auth,
    pub tls: bool,
    /// In PEM; without one a self-signed one is created.
    pub tls_certificate: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub plaintext: Plaintext,
    pub domain: Domain,
    /// Additional origins that may open a WebSocket.
    pub origins: Vec<WebOrigin>,
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
    /// Which users of the host may connect to the Unix socket. Each needs a key, as everywhere.
    SocketMode {
        /// Its owner.
        Owner = "0600",
        /// Its owner and its group.
        Group = "0660",
        /// Everyone, as on a loopback address.
        Everyone = "0666",
    }
);

/// Domain of the sandboxes' ports, as `{port}-{sandbox}.DOMAIN`. In lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain(String);

/// The origin of a page, such as `https://example.com`. In lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebOrigin(String);

impl Default for ListenSettings {
    fn default() -> Self {
        Self {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 7420,
            socket: None,
            socket_mode: SocketMode::Everyone,
            auth: Auth::Keys,
            tls: false,
            tls_certificate: None,
            tls_key: None,
            plaintext: Plaintext::Loopback,
            domain: Domain("localhost".to_owned()),
            origins: Vec::new(),
        }
    }
}

impl Table for ListenSettings {
    const SETTINGS: &'static [Setting<Self>] = &[
        setting!(address, Process, "where to listen"),
        setting!(port, Process, "port to listen on; 0 for any free port"),
        setting!(socket, Process, "Unix socket to listen on too, for users of this host; none by default"),
        setting!(
            socket_mode,
            Process,
            "who may connect to it: 0600 (the server's user), 0660 (and the group), 0666 (everyone)"
        ),
        setting!(auth, Process, "authentication: keys, or off (on a loopback address only)"),
        setting!(tls, Process, "use TLS; without tls_certificate a self-signed certificate is created"),
        setting!(tls_certificate, Process, "certificate chain, in PEM"),
        setting!(tls_key, Process, "private key of the certificate, in PEM, readable by its owner only"),
        setting!(plaintext, Process, "where keys may be sent without TLS: loopback, or anywhere (behind a TLS proxy)"),
        setting!(domain, Process, "domain of the sandboxes' ports: {port}-{sandbox}.DOMAIN"),
        setting!(origins, Process, "additional origins that may open a WebSocket, comma-separated"),
    ];

    fn check(&self, _origins: &Origins) -> Result<(), ConfigError> {
        let address = self.address;
        let is_public = !address.is_loopback();
        if is_public && self.auth == Auth::Off {
            return Err(ConfigError::new(
                format!(
                    "auth is off and address {address} is not a loopback address: any client on the network could run programs"
                ),
                "leave out `--auth off`, or listen on 127.0.0.1",
            ));
        }
        if is_public && !self.tls && self.plaintext == Plaintext::Loopback {
            return Err(ConfigError::new(
                format!("address {address} is not a loopback address, so keys would be sent without encryption"),
                "add --tls (tls = true in a file), or `--plaintext anywhere` if a proxy in front of the server provides TLS",
            ));
        }
        if let Some(socket) = self.socket.as_ref().filter(|socket| socket.as_os_str().len() > SOCKET_PATH_MAX) {
            return Err(ConfigError::new(
                format!("socket {} has a path of more than {SOCKET_PATH_MAX} bytes", socket.display()),
                "choose a shorter path, such as /run/saggar.sock",
            ));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(ConfigError::new(
                "tls_certificate and tls_key must be set together, and one is missing",
                "give both --tls-certificate and --tls-key, or neither for a self-signed certificate",
            ));
        }
        if self.tls_key.is_some() && !self.tls {
            return Err(ConfigError::new("a certificate is set but tls is off", "add --tls (tls = true in a file)"));
        }
        self.tls_key.as_deref().map_or(Ok(()), check_key_file)
    }
}

impl SocketMode {
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Owner => 0o600,
            Self::Group => 0o660,
            Self::Everyone => 0o666,
        }
    }
}

impl ListenSettings {
    pub fn socket_address(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.port)
    }
}

impl Domain {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for Domain {
    fn read(text: &str) -> Result<Self, String> {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        };
        if text.len() > 200 || !text.split('.').all(is_label) {
            return Err(format!("{text:?} is not a domain, such as sandboxes.example.com"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

impl WebOrigin {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for WebOrigin {
    fn read(text: &str) -> Result<Self, String> {
        let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
        match rest {
            Some(rest) if !rest.is_empty() && !rest.contains(['/', '*', ' ']) => Ok(Self(text.to_ascii_lowercase())),
            Some(_) | None => Err(format!("{text:?} is not an origin, such as https://example.com")),
        }
    }

    fn show(&self) -> String {
        self.0.clone()
    }
}

/// A private key that other users can read is compromised.
fn check_key_file(path: &Path) -> Result<(), ConfigError> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ConfigError::new(format!("tls_key: {} does not exist", path.display()), "name the certificate's key in PEM")
        }
        kind => ConfigError::new(format!("tls_key can't be read: {kind}"), "name a file that the server may read"),
    })?;
    if metadata.mode() & 0o077 != 0 {
        return Err(ConfigError::new(
            format!("tls_key is readable by other users (mode {:04o})", metadata.mode() & 0o7777),
            "chmod 600 the key, and consider it compromised",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn check(change: impl FnOnce(&mut ListenSettings)) -> Option<String> {
        let mut settings = ListenSettings::default();
        change(&mut settings);
        settings.check(&Origins::new()).err().map(|error| error.what)
    }

    #[test]
    fn what_nobody_means_is_refused() {
        assert_eq!(check(|_| {}), None);
        let public = "0.0.0.0".parse().unwrap();
        assert!(check(|listen| listen.address = public).unwrap().contains("without encryption"));
        assert!(check(|listen| listen.address = "::".parse().unwrap()).unwrap().contains("without encryption"));
        let open = |listen: &mut ListenSettings| {
            listen.address = public;
            listen.tls = true;
            listen.auth = Auth::Off;
        };
        assert!(check(open).unwrap().contains("any client on the network could"));
        assert_eq!(check(|listen| listen.auth = Auth::Off), None);
        let proxied = |listen: &mut ListenSettings| {
            listen.address = public;
            listen.plaintext = Plaintext::Anywhere;
        };
        assert_eq!(check(proxied), None);
        assert!(check(|listen| listen.tls_certificate = Some("/c".into())).unwrap().contains("set together"));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("saggar-tls-key-{}", std::process::id()));
        std::fs::write(&path, "key").unwrap();
        let with_key = |listen: &mut ListenSettings| {
            listen.tls = true;
            listen.tls_certificate = Some("/c".into());
            listen.tls_key = Some(path.clone());
        };
        for (mode, is_fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check(with_key).is_none(), is_fine, "{mode:o}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(check(with_key).unwrap().contains("does not exist"));
    }
}
