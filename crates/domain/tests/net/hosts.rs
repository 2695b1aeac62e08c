//! The host parser: one canonical form for each host, and nothing that two readers could understand differently.

use saggar_domain::net::{Host, HostError, HostName, Refusal, parse_authority};

fn long(label: usize, count: usize) -> String {
    vec!["a".repeat(label); count].join(".")
}

#[test]
fn a_host_has_one_canonical_form() {
    for (text, canonical) in [
        ("example.com", "example.com"),
        ("EXAMPLE.Com", "example.com"),
        ("example.com.", "example.com"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("a--b.example", "a--b.example"),
        ("1password.com", "1password.com"),
        ("127.0.0.1.example", "127.0.0.1.example"),
        ("0x7f.example", "0x7f.example"),
        ("a.0xg", "a.0xg"),
        ("localhost", "localhost"),
        ("192.0.2.1", "192.0.2.1"),
        ("0.0.0.0", "0.0.0.0"),
        ("::1", "::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("::FFFF:7f00:1", "::ffff:127.0.0.1"),
        (&long(63, 3), &long(63, 3)),
    ] {
        assert_eq!(Host::parse(text.as_bytes()).map(|host| host.to_string()), Ok(canonical.to_owned()), "{text}");
    }
}

#[test]
fn what_can_be_understood_in_two_ways_is_no_host() {
    use HostError::*;
    let too_long = format!("{}.{}", long(63, 3), "b".repeat(62));
    let long_label = format!("{}.example", "a".repeat(64));
    for (bytes, error) in [
        (&b""[..], Empty),
        (b".", EmptyLabel),
        (b"example.com..", EmptyLabel),
        (b"a..b", EmptyLabel),
        (b".example.com", EmptyLabel),
        (too_long.as_bytes(), TooLong),
        (long_label.as_bytes(), TooLong),
        // Some reader stops at these bytes, and another one goes on.
        (b"allowed.example\0.evil.example", Character(0)),
        (b"evil.example\0", Character(0)),
        (b"evil.example%00.allowed.example", Character(b'%')),
        (b" example.com", Character(b' ')),
        (b"example.com ", Character(b' ')),
        (b"example.com\t", Character(b'\t')),
        (b"example.com\r\nHost: evil", Character(b'\r')),
        (b"example.com\n", Character(b'\n')),
        (b"allowed.example@evil.example", Character(b'@')),
        (b"evil.example#@allowed.example", Character(b'#')),
        (b"evil.example?.allowed.example", Character(b'?')),
        (b"evil.example\\.allowed.example", Character(b'\\')),
        (b"evil.example/allowed.example", Character(b'/')),
        (b"a_b.example", Character(b'_')),
        (b"*.example.com", Character(b'*')),
        (b"[::1]", Character(b'[')),
        (b"fe80::1%eth0", Character(b'%')),
        (b"a,b", Character(b',')),
        (b"a;b", Character(b';')),
        (b"\x7f", Character(0x7f)),
        (b"-a.example", Hyphen),
        (b"a-.example", Hyphen),
        (b"xn--.example", Hyphen),
        // Lookalikes: Cyrillic, full-width, the ideographic full stop, invalid UTF-8.
        ("аllowed.example".as_bytes(), NotAscii),
        ("ｅxample.com".as_bytes(), NotAscii),
        ("example。com".as_bytes(), NotAscii),
        ("bücher.example".as_bytes(), NotAscii),
        (b"\xff.example", NotAscii),
        // Addresses in notations that resolvers or browsers accept.
        (b"0177.0.0.1", LooksLikeAnAddress),
        (b"127.0.0.01", LooksLikeAnAddress),
        (b"0x7f.0.0.1", LooksLikeAnAddress),
        (b"0x7f.1", LooksLikeAnAddress),
        (b"0x7f000001", LooksLikeAnAddress),
        (b"0X7F.0x1", LooksLikeAnAddress),
        (b"127.0.0.0x1", LooksLikeAnAddress),
        (b"example.0x", LooksLikeAnAddress),
        (b"2130706433", LooksLikeAnAddress),
        (b"127.1", LooksLikeAnAddress),
        (b"0", LooksLikeAnAddress),
        (b"1.2.3.4.5", LooksLikeAnAddress),
        (b"256.0.0.1", LooksLikeAnAddress),
        (b"127.0.0.1.", LooksLikeAnAddress),
        (b"example.123", LooksLikeAnAddress),
        (b"example.com:443", NotAnAddress),
        (b"::1:", NotAnAddress),
        (b":::", NotAnAddress),
        (b"12345::", NotAnAddress),
        (b"::ffff:127.0.0.01", NotAnAddress),
    ] {
        assert_eq!(Host::parse(bytes), Err(error), "{:?}", String::from_utf8_lossy(bytes));
    }
}

#[test]
fn a_name_is_never_an_address() {
    for text in ["127.0.0.1", "::1", "0", "192.0.2.1."] {
        assert!(HostName::parse(text.as_bytes()).is_err(), "{text}");
    }
    assert_eq!(HostName::parse(b"Example.COM.").unwrap().as_str(), "example.com");
}

#[test]
fn below_means_whole_labels() {
    let parent = HostName::parse(b"example.com").unwrap();
    for (name, is_below) in [
        ("a.example.com", true),
        ("a.b.example.com", true),
        ("example.com", false),
        ("evilexample.com", false),
        ("example.com.evil", false),
        ("com", false),
    ] {
        assert_eq!(HostName::parse(name.as_bytes()).unwrap().is_below(&parent), is_below, "{name}");
    }
}

#[test]
fn an_authority_is_a_host_and_a_port() {
    for (text, default, canonical) in [
        ("example.com:443", None, "example.com:443"),
        ("Example.com.:8080", None, "example.com:8080"),
        ("example.com", Some(80), "example.com:80"),
        ("192.0.2.1:65535", None, "192.0.2.1:65535"),
        ("[2001:DB8::1]:443", None, "[2001:db8::1]:443"),
        ("[::1]", Some(443), "[::1]:443"),
    ] {
        let parsed = parse_authority(text.as_bytes(), default);
        assert_eq!(parsed.map(|to| to.to_string()), Ok(canonical.to_owned()), "{text}");
    }
}

#[test]
fn an_authority_that_can_be_split_in_two_ways_is_refused() {
    use HostError::*;
    for (text, error) in [
        ("", Empty),
        (":443", Empty),
        ("example.com", NoPort),
        ("example.com:", Port),
        ("example.com:0", Port),
        ("example.com:65536", Port),
        ("example.com:+443", Port),
        ("example.com:0443", Port),
        ("example.com:443 ", Port),
        ("example.com:443/", Port),
        ("example.com:4a", Port),
        ("example.com:４４３", Port),
        ("example.com:443:443", Brackets),
        ("::1", Brackets),
        ("::1:443", Brackets),
        ("[::1", Brackets),
        ("[::1]443", Brackets),
        ("[::1]]:443", Brackets),
        ("[192.0.2.1]:443", Brackets),
        ("[example.com]:443", Brackets),
        ("[fe80::1%eth0]:443", Character(b'%')),
        ("user@example.com:443", Character(b'@')),
        ("user:password@example.com", Port),
        ("allowed.example@evil.example:443", Character(b'@')),
        ("evil.example#@allowed.example:443", Character(b'#')),
        ("evil.example\\@allowed.example:443", Character(b'\\')),
        ("http://example.com:443", Brackets),
        ("example.com/path:443", Character(b'/')),
    ] {
        assert_eq!(parse_authority(text.as_bytes(), None), Err(error), "{text}");
    }
}

#[test]
fn a_host_that_is_not_understood_is_a_refusal() {
    let refusal = Refusal::from(Host::parse("bücher.example".as_bytes()).unwrap_err());
    assert_eq!(refusal.rule, "egress/ambiguous-host");
    assert!(refusal.message.contains("punycode"), "{}", refusal.message);
}
