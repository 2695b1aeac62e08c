//! Combinations that nobody careful means, refused before the server opens a socket.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use super::{Auth, Config, ConfigError, E2bNetwork, Origin, Plaintext};

impl Config {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let is_public = !self.address.is_loopback();
        if is_public && self.auth == Auth::Off {
            return Err(ConfigError::new(
                format!(
                    "auth is off and address {} is not a loopback address: anybody could run programs here",
                    self.address
                ),
                "set auth = \"keys\", or listen on 127.0.0.1",
            ));
        }
        if is_public && !self.tls && self.plaintext == Plaintext::Loopback {
            return Err(ConfigError::new(
                format!(
                    "address {} is not a loopback address, and keys would be sent there in the clear",
                    self.address
                ),
                "set tls = true, or plaintext = \"anywhere\" if something in front of the server speaks TLS",
            ));
        }
        if self.tls_certificate.is_some() != self.tls_key.is_some() {
            return Err(ConfigError::new(
                "tls_certificate and tls_key go together, and one is missing",
                "give both, or neither for a certificate that is made here",
            ));
        }
        if self.tls_key.is_some() && !self.tls {
            return Err(ConfigError::new("a certificate is given and tls is off", "set tls = true"));
        }
        if let Some(key) = &self.tls_key {
            check_key_file(key)?;
        }
        if self.e2b_network == E2bNetwork::Host && !self.allow_host_network {
            return Err(ConfigError::new(
                "e2b_network is host and allow_host_network is not set: no sandbox could be made",
                "set allow_host_network = true if sandboxes may share the host's network, or e2b_network = \"none\"",
            ));
        }
        self.check_numbers()
    }

    fn check_numbers(&self) -> Result<(), ConfigError> {
        let complaints = [
            (self.pool_min > self.pool_max, "pool_min is above pool_max", "lower pool_min or raise pool_max"),
            (
                // Nobody asked for the default, so that gives way.
                self.pool_max > self.capacity && self.origin("pool_max") != Origin::Default,
                "pool_max is above capacity",
                "lower pool_max or raise capacity",
            ),
            (self.default_ttl > self.ttl_max, "default_ttl is above ttl_max", "lower default_ttl or raise ttl_max"),
            (self.default_ttl.is_zero(), "default_ttl is zero", "give sandboxes time to live, such as 5m"),
            (self.connections_max == 0, "connections_max is zero", "allow at least one connection"),
            (self.connections_per_address == 0, "connections_per_address is zero", "allow at least one connection"),
            (self.requests_per_key == 0, "requests_per_key is zero", "allow at least one request"),
            (self.upload_max.bytes() == 0, "upload_max is zero", "allow at least some bytes"),
        ];
        match complaints.iter().find(|(is_wrong, _, _)| *is_wrong) {
            Some((_, what, help)) => Err(ConfigError::new(*what, *help)),
            None => Ok(()),
        }
    }
}

/// A key that others can read is not one.
fn check_key_file(path: &Path) -> Result<(), ConfigError> {
    let metadata = std::fs::metadata(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => {
            ConfigError::new(format!("tls_key: {} does not exist", path.display()), "name the certificate's key in PEM")
        }
        kind => ConfigError::new(format!("tls_key can't be read: {kind}"), "name a file that the server may read"),
    })?;
    if metadata.mode() & 0o077 != 0 {
        return Err(ConfigError::new(
            format!("tls_key can be read by others (mode {:04o})", metadata.mode() & 0o7777),
            "chmod 600 the key, and think about who has read it",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn check(change: impl FnOnce(&mut Config)) -> Option<String> {
        let mut config = Config::default_in("/data".into());
        change(&mut config);
        config.check().err().map(|error| error.what)
    }

    #[test]
    fn what_nobody_means_is_refused() {
        assert_eq!(check(|_| {}), None);
        let public = "0.0.0.0".parse().unwrap();
        assert!(check(|config| config.address = public).unwrap().contains("in the clear"));
        assert!(check(|config| config.address = "::".parse().unwrap()).unwrap().contains("in the clear"));
        let open = |config: &mut Config| {
            config.address = public;
            config.tls = true;
            config.auth = Auth::Off;
        };
        assert!(check(open).unwrap().contains("anybody could"));
        assert_eq!(check(|config| config.auth = Auth::Off), None);
        let proxied = |config: &mut Config| {
            config.address = public;
            config.plaintext = Plaintext::Anywhere;
        };
        assert_eq!(check(proxied), None);
        assert!(check(|config| config.tls_certificate = Some("/c".into())).unwrap().contains("go together"));
        assert!(check(|config| config.e2b_network = E2bNetwork::Host).unwrap().contains("allow_host_network"));
        assert!(check(|config| config.pool_min = 9).unwrap().contains("pool_min"));
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let path = std::env::temp_dir().join(format!("saggar-tls-key-{}", std::process::id()));
        std::fs::write(&path, "key").unwrap();
        let with_key = |config: &mut Config| {
            config.tls = true;
            config.tls_certificate = Some("/c".into());
            config.tls_key = Some(path.clone());
        };
        for (mode, is_fine) in [(0o600, true), (0o400, true), (0o640, false), (0o604, false)] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(check(with_key).is_none(), is_fine, "{mode:o}");
        }
        std::fs::remove_file(&path).unwrap();
        assert!(check(with_key).unwrap().contains("does not exist"));
    }
}
