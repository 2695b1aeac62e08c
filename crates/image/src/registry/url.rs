//! Addresses of a registry, of what it redirects to and of its token service.

use crate::source::host_and_port;

const LEN_MAX: usize = 8192;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Url {
    pub(super) is_tls: bool,
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query, beginning with a slash.
    pub(super) target: String,
}

impl Url {
    pub(super) fn new(is_tls: bool, host: &str, port: Option<u16>, target: String) -> Self {
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        Self { is_tls, host: host.to_owned(), port, target }
    }

    /// `None` for anything but `http` and `https` with a plain host. Text that could break a request is no address.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if text.len() > LEN_MAX || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return None;
        }
        let (is_tls, rest) = match text.split_once("://")? {
            ("https", rest) => (true, rest),
            ("http", rest) => (false, rest),
            _ => return None,
        };
        // What follows a `#` is not sent.
        let rest = rest.split('#').next()?;
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, target) = rest.split_at(end);
        let (host, port) = host_and_port(authority)?;
        let target = if target.starts_with('/') { target.to_owned() } else { format!("/{target}") };
        Some(Self::new(is_tls, &host, port, target))
    }

    /// Where a redirect leads: an address, or a path on the same host.
    pub(super) fn joined(&self, location: &str) -> Option<Self> {
        if location.starts_with('/') && !location.starts_with("//") {
            let is_plain = location.len() <= LEN_MAX && location.bytes().all(|byte| byte.is_ascii_graphic());
            let target = location.split('#').next()?.to_owned();
            return is_plain.then(|| Self { target, ..self.clone() });
        }
        Self::parse(location)
    }

    pub(super) fn is_same_server(&self, other: &Self) -> bool {
        (self.is_tls, &self.host, self.port) == (other.is_tls, &other.host, other.port)
    }

    /// For the `Host` header and for messages.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        let default = if self.is_tls { 443 } else { 80 };
        if self.port == default { host } else { format!("{host}:{}", self.port) }
    }
}

/// Everything but letters, digits and a few marks is escaped.
pub(super) fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_in_their_plain_form_alone() {
        let shown = |url: Url| (url.is_tls, url.authority(), url.target);
        for (text, expected) in [
            ("https://a.b/c?d=e", (true, "a.b", "/c?d=e")),
            ("https://a.b:8443", (true, "a.b:8443", "/")),
            ("http://[::1]:5000/x#y", (false, "[::1]:5000", "/x")),
            ("https://a.b?x", (true, "a.b", "/?x")),
        ] {
            let (is_tls, authority, target) = expected;
            assert_eq!(Url::parse(text).map(shown), Some((is_tls, authority.to_owned(), target.to_owned())), "{text}");
        }
        for wrong in [
            "",
            "a.b",
            "ftp://a.b/",
            "file:///etc/passwd",
            "https://u:p@a.b/",
            "https:///x",
            "http://a b/",
            "https://a.b/\r\nX: y",
            "https://a.b:99999/",
        ] {
            assert_eq!(Url::parse(wrong), None, "{wrong}");
        }
        let here = Url::parse("https://a.b:1/x").unwrap();
        assert_eq!(here.joined("/y").map(shown), Some((true, "a.b:1".into(), "/y".into())));
        assert_eq!(here.joined("//c.d/y"), None);
        assert_eq!(here.joined("http://c.d/y").map(shown), Some((false, "c.d".into(), "/y".into())));
        assert_eq!(escaped("repository:a/b:pull"), "repository%3Aa%2Fb%3Apull");
    }
}
