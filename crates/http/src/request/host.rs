//! The header `Host`: the name in it, with its port taken off. Everything that goes by the name of the host reads it here.

/// The name, without the port. An address of IPv6 keeps its brackets, as it is written in a URL.
pub fn name(host: &str) -> &str {
    // The colons of an address in brackets are not before a port.
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && is_whole(name) => name,
        Some(_) | None => host,
    }
}

fn is_whole(name: &str) -> bool {
    if name.starts_with('[') { name.ends_with(']') } else { !name.contains(':') }
}

/// Whether it names this machine to itself. A client that sends no name is no browser, and goes as one that does.
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
