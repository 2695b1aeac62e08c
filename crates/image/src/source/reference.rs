//! References to images in a registry: `REGISTRY/REPOSITORY:TAG` or `REGISTRY/REPOSITORY@sha256:…`.

use std::fmt;

use saggar_domain::TemplateName;
use saggar_domain::template::ContentDigest;

/// Where names without a registry lead, as Docker has it.
const DEFAULT_REGISTRY: &str = "docker.io";
/// The host that serves it.
const DEFAULT_HOST: &str = "registry-1.docker.io";
const LEN_MAX: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegistryReference {
    host: String,
    port: Option<u16>,
    repository: String,
    version: Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Tag(String),
    Digest(ContentDigest),
}

impl RegistryReference {
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| {
            format!("{text:?} is not an image of a registry: {why}; write it as docker://REGISTRY/REPOSITORY:TAG")
        };
        if text.len() > LEN_MAX {
            return Err(wrong("it is too long"));
        }
        // The first part is a registry if it can be no part of a repository's name.
        let (registry, rest) = match text.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':', '[']) || first == "localhost" => (first, rest),
            _ => (DEFAULT_REGISTRY, text),
        };
        let (path, version) = match rest.split_once('@') {
            Some((path, digest)) => {
                let digest = ContentDigest::parse(digest).ok_or_else(|| wrong("its digest is not sha256:…"))?;
                // A tag beside a digest says nothing more.
                let path = path.rsplit_once(':').map_or(path, |(path, _)| path);
                (path, Version::Digest(digest))
            }
            None => match rest.rsplit_once(':') {
                Some((path, tag)) => (path, Version::Tag(tag.to_owned())),
                None => (rest, Version::Tag("latest".to_owned())),
            },
        };
        if let Version::Tag(tag) = &version
            && !is_tag(tag)
        {
            return Err(wrong("its tag is not valid"));
        }
        let is_part = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
                && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-'))
        };
        if !path.split('/').all(is_part) {
            return Err(wrong("its repository is not a path of lower-case names"));
        }
        let (host, port) = host_and_port(registry).ok_or_else(|| wrong("its registry is not a host"))?;
        if registry == DEFAULT_REGISTRY {
            let repository = if path.contains('/') { path.to_owned() } else { format!("library/{path}") };
            return Ok(Self { host: DEFAULT_HOST.to_owned(), port: None, repository, version });
        }
        Ok(Self { host, port, repository: path.to_owned(), version })
    }

    /// An IPv6 address has no brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    pub fn port(&self) -> Option<u16> {
        self.port
    }

    pub(crate) fn repository(&self) -> &str {
        &self.repository
    }

    pub(crate) fn version(&self) -> &Version {
        &self.version
    }

    pub(crate) fn default_name(&self) -> Option<TemplateName> {
        let name = self.repository.rsplit('/').next()?;
        match &self.version {
            Version::Tag(tag) => TemplateName::parse(&format!("{name}:{tag}")),
            Version::Digest(_) => TemplateName::parse(name),
        }
    }
}

/// As it is parsed, with its registry.
impl fmt::Display for RegistryReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]", self.host)?,
            false => f.write_str(&self.host)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        let mark = match &self.version {
            Version::Tag(_) => ':',
            Version::Digest(_) => '@',
        };
        write!(f, "/{}{mark}{}", self.repository, self.version)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => f.write_str(tag),
            Self::Digest(digest) => f.write_str(digest.as_str()),
        }
    }
}

/// A host name, an IPv4 address, or an IPv6 address in brackets, with or without a port.
pub(crate) fn host_and_port(authority: &str) -> Option<(String, Option<u16>)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (address, tail) = rest.split_once(']')?;
            address.parse::<std::net::Ipv6Addr>().ok()?;
            (address, if tail.is_empty() { None } else { Some(tail.strip_prefix(':')?) })
        }
        None => match authority.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let is_name = |host: &str| {
        host.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
        })
    };
    if host.len() > 253 || !(authority.starts_with('[') || is_name(host)) {
        return None;
    }
    let port = match port {
        Some(port) if port.bytes().all(|b| b.is_ascii_digit()) => Some(port.parse().ok().filter(|port| *port != 0)?),
        Some(_) => return None,
        None => None,
    };
    Some((host.to_ascii_lowercase(), port))
}

fn is_tag(tag: &str) -> bool {
    (1..=128).contains(&tag.len())
        && tag.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
        && !tag.starts_with(['.', '-'])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_name_a_registry_a_repository_and_a_version() {
        let digest = ContentDigest::of(b"");
        for (text, host, port, repository, version) in [
            ("alpine", DEFAULT_HOST, None, "library/alpine", "latest"),
            ("docker.io/alpine:3.20", DEFAULT_HOST, None, "library/alpine", "3.20"),
            ("grafana/grafana:1", DEFAULT_HOST, None, "grafana/grafana", "1"),
            ("localhost/a", "localhost", None, "a", "latest"),
            ("127.0.0.1:5000/a/b:x", "127.0.0.1", Some(5000), "a/b", "x"),
            ("[::1]:5000/a", "::1", Some(5000), "a", "latest"),
            ("GHCR.io/a/b", "ghcr.io", None, "a/b", "latest"),
            (&format!("ghcr.io/a/b@{digest}"), "ghcr.io", None, "a/b", digest.as_str()),
            (&format!("ghcr.io/a/b:1@{digest}"), "ghcr.io", None, "a/b", digest.as_str()),
        ] {
            let found = RegistryReference::parse(text).unwrap();
            let parts = (found.host(), found.port(), found.repository(), found.version().to_string());
            assert_eq!(parts, (host, port, repository, version.to_owned()), "{text}");
            assert_eq!(RegistryReference::parse(&found.to_string()), Ok(found), "{text}");
        }
        for wrong in [
            "",
            "a:",
            "a:b:c",
            "A",
            "a//b",
            "../a",
            "ghcr.io/",
            "ghcr.io/../x",
            "ghcr.io/a?b",
            "ghcr.io/a b",
            "user@ghcr.io/a",
            "ghcr.io:0/a",
            "ghcr.io:x/a",
            "[::1/a",
            "a@sha512:00",
            "-a.b/c",
            "a.b/c\r\nd",
        ] {
            assert!(RegistryReference::parse(wrong).is_err(), "{wrong}");
        }
    }
}
