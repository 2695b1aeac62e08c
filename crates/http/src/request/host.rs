//! The `Host` header: the name without its port. All code that depends on the host name uses this.

/// The name without the port. An IPv6 address keeps its brackets, as in a URL.
pub fn name(host: &str) -> &str {
    // The colons of an address in brackets don't precede a port.
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && is_whole(name) => name,
        Some(_) | None => host,
    }
}

fn is_whole(name: &str) -> bool {
    if name.starts_with('[') { name.ends_with(']') } else { !name.contains(':') }
}

/// Whether it names the local machine. A client that sends no name isn't a browser, and counts as local.
pub fn is_loopback(host: &str) -> bool {
    let name = name(host);
    ["", "127.0.0.1", "[::1]"].contains(&name) || name.eq_ignore_ascii_case("localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_with_and_without_a_port() {
        for (host, expected) in [
            ("localhost", "localhost"),
            ("localhost:7420", "localhost"),
            ("127.0.0.1:", "127.0.0.1"),
            ("[::1]", "[::1]"),
            ("[::1]:7420", "[::1]"),
            ("[::1", "[::1"),
            ("8080-sbx.example.com:443", "8080-sbx.example.com"),
            ("a:b", "a:b"),
            ("::1", "::1"),
            ("[::1].example.com:1", "[::1].example.com:1"),
            ("", ""),
        ] {
            assert_eq!(name(host), expected, "{host}");
        }
    }

    #[test]
    fn only_this_machine_is_this_machine() {
        for host in ["", "localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:7420", "[::1]", "[::1]:7420"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "example.com",
            "localhost.example.com",
            "127.0.0.1.example.com",
            "[::2]",
            "[::1].example.com",
            "::1",
            "[::1",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
