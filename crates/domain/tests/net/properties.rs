//! Properties that hold for every input, not only for the tables.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use saggar_domain::net::{
    AddressClass, Destination, EgressDraft, Host, HostName, Passage, Rule, Rules, parse_authority, shown_path,
};

/// Names that rules and destinations share, so that they often match.
const NAMES: &[&str] = &["a.example", "b.example", "x.a.example", "example", "localhost", "pypi.org"];
const PATHS: &[&str] =
    &["/", "/v1", "/v1/", "/v1/x", "/V1/X.", "/v1/x/y", "/v1//x", "/v1/%2e%2e", "/a;b", "*", "/%41?q"];
const PATTERNS: &[&str] = &["", "", "", "/v1", "/v1/*", "/v1/**", "/**", "/A"];
const METHODS: &[&str] = &["GET", "POST", "get", "TRACE", "PUT"];

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).into()),
        any::<u128>().prop_map(|bits| Ipv6Addr::from(bits).into()),
        // IPv6 addresses with few bits and with an IPv4 address inside.
        any::<u32>().prop_map(|bits| Ipv6Addr::from(u128::from(bits)).into()),
        any::<u32>().prop_map(|bits| Ipv4Addr::from(bits).to_ipv6_mapped().into()),
        prop::sample::select(vec!["10.0.0.1", "127.0.0.1", "192.0.2.1", "::1", "fd00:ec2::254", "2001:db8::1"])
            .prop_map(|text| text.parse().unwrap()),
    ]
}

fn destination() -> impl Strategy<Value = Destination> {
    let host = prop_oneof![
        3 => prop::sample::select(NAMES).prop_map(|name| Host::parse(name.as_bytes()).unwrap()),
        1 => address().prop_map(Host::from),
    ];
    (host, prop::sample::select(&[80, 443, 22, 8080][..])).prop_map(|(host, port)| Destination { host, port })
}

fn host_pattern() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("*".to_owned()),
        prop::sample::select(NAMES).prop_map(str::to_owned),
        prop::sample::select(NAMES).prop_map(|name| format!("*.{name}")),
        (any::<u32>(), 0..=32u8).prop_map(|(bits, prefix)| {
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            format!("{}/{prefix}", Ipv4Addr::from(bits & mask))
        }),
        (any::<u128>(), 0..=128u8).prop_map(|(bits, prefix)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
            format!("[{}]/{prefix}", Ipv6Addr::from(bits & mask))
        }),
        prop::sample::select(vec![
            "10.0.0.1",
            "10.0.0.0/7",
            "127.0.0.0/8",
            "0.0.0.0/0",
            "[::]/0",
            "[::ffff:0:0]/96",
            "[fd00::]/8",
            "[fd00:ec2::254]",
        ])
        .prop_map(str::to_owned),
    ]
}

fn rule() -> impl Strategy<Value = Rule> {
    let methods = prop::sample::select(&["", "", "GET ", "POST ", "GET,POST ", "WEBSOCKET "][..]);
    let ports = prop::sample::select(&["", "", ":22", ":443", ":*", ":1-1023"][..]);
    prop_oneof![
        12 => (methods, host_pattern(), ports, prop::sample::select(PATTERNS)).prop_map(|(methods, host, ports, path)| {
            // A path of digits directly after an address would be a prefix length; none of these is.
            format!("{methods}{host}{ports}{path}").parse().unwrap()
        }),
        1 => prop::sample::select(vec!["@pypi", "@npm", "https://a.example", "http://a.example:8080/v1/**"])
            .prop_map(|text| text.parse().unwrap()),
    ]
}

fn draft() -> impl Strategy<Value = EgressDraft> {
    (prop::collection::vec(rule(), 0..5), prop::collection::vec(rule(), 0..3))
        .prop_map(|(allow, deny)| EgressDraft::of(allow, deny))
}

fn is_allowed(rules: &Rules, to: &Destination) -> bool {
    !matches!(rules.connection(to), Passage::Denied(_))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_parsed_host_is_the_same_after_display(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
        if let Ok(host) = Host::parse(&bytes) {
            prop_assert_eq!(Host::parse(host.to_string().as_bytes()), Ok(host));
        }
    }

    #[test]
    fn an_accepted_name_has_only_plain_characters(text in "[a-zA-Z0-9._:%@\\-]{0,20}(\\.[a-z0-9x]{1,5}){0,3}\\.?") {
        if let Ok(name) = HostName::parse(text.as_bytes()) {
            let name = name.as_str();
            prop_assert!(name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'-')), "{name}");
            prop_assert!(!name.starts_with('.') && !name.ends_with('.') && !name.contains(".."), "{name}");
            prop_assert!(name.parse::<IpAddr>().is_err(), "{name}");
            // No reader of numbers can find an address: the last label has a letter and is no hexadecimal number.
            let last = name.rsplit('.').next().unwrap();
            prop_assert!(u128::from_str_radix(last.trim_start_matches("0x"), 16).is_err() || !(last.starts_with("0x") || last.bytes().all(|b| b.is_ascii_digit())), "{name}");
        }
    }

    #[test]
    fn an_address_is_the_same_after_display(address in address(), port in 1..=u16::MAX) {
        let to = Destination { host: address.into(), port };
        prop_assert_eq!(Host::parse(address.to_string().as_bytes()), Ok(to.host.clone()));
        prop_assert_eq!(parse_authority(to.to_string().as_bytes(), None), Ok(to));
    }

    #[test]
    fn no_authority_makes_the_parser_fail(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
        if let Ok(to) = parse_authority(&bytes, Some(443)) {
            prop_assert_eq!(parse_authority(to.to_string().as_bytes(), None), Ok(to));
        }
    }

    #[test]
    fn a_rule_is_the_same_after_display(rule in rule()) {
        prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
    }

    #[test]
    fn any_text_that_is_a_rule_is_the_same_after_display(
        text in "([A-Z]{3,4} )?(https?://)?[a-z0-9.*:\\[\\]/%\\-]{1,30}"
    ) {
        if let Ok(rule) = text.parse::<Rule>() {
            prop_assert_eq!(rule.to_string().parse::<Rule>(), Ok(rule));
        }
    }

    #[test]
    fn no_text_makes_the_rule_parser_fail(text in "\\PC{0,40}") {
        // The error is bounded and can be printed.
        if let Err(error) = text.parse::<Rule>() {
            prop_assert!(!error.to_string().chars().any(char::is_control));
        }
    }

    #[test]
    fn an_empty_list_denies_every_destination(to in destination(), deny in prop::collection::vec(rule(), 0..3)) {
        let rules = Rules::new(EgressDraft::of(Vec::new(), deny)).unwrap();
        prop_assert!(!is_allowed(&rules, &to));
        for (method, path) in METHODS.iter().zip(PATHS) {
            prop_assert!(rules.request(&to, method, path).is_err());
        }
    }

    #[test]
    fn a_deny_rule_never_allows_more(
        before in draft(), added in rule(), to in destination(), address in address(),
        method in prop::sample::select(METHODS), path in prop::sample::select(PATHS),
    ) {
        let mut after = before.clone();
        after.deny.push(added);
        let (before, after) = (Rules::new(before).unwrap(), Rules::new(after).unwrap());
        prop_assert!(is_allowed(&before, &to) || !is_allowed(&after, &to));
        prop_assert!(before.request(&to, method, path).is_ok() || after.request(&to, method, path).is_err());
        prop_assert!(before.upgrade(&to, path).is_ok() || after.upgrade(&to, path).is_err());
        prop_assert!(before.address(&to, address).is_ok() || after.address(&to, address).is_err());
        if let Host::Name(name) = &to.host {
            prop_assert!(before.resolves(name) || !after.resolves(name));
        }
    }

    #[test]
    fn the_order_of_rules_changes_no_verdict(
        draft in draft(), to in destination(),
        method in prop::sample::select(METHODS), path in prop::sample::select(PATHS),
    ) {
        let mut turned = draft.clone();
        turned.allow.reverse();
        turned.deny.reverse();
        let (rules, turned) = (Rules::new(draft).unwrap(), Rules::new(turned).unwrap());
        prop_assert_eq!(is_allowed(&rules, &to), is_allowed(&turned, &to));
        prop_assert_eq!(rules.request(&to, method, path).is_ok(), turned.request(&to, method, path).is_ok());
    }

    #[test]
    fn a_request_needs_a_connection_that_is_allowed_and_resolvable(
        draft in draft(), to in destination(),
        method in prop::sample::select(METHODS), path in prop::sample::select(PATHS),
    ) {
        let rules = Rules::new(draft).unwrap();
        if rules.request(&to, method, path).is_ok() {
            prop_assert!(is_allowed(&rules, &to));
        }
        if is_allowed(&rules, &to) {
            match &to.host {
                Host::Name(name) => prop_assert!(rules.resolves(name)),
                host => prop_assert_eq!(rules.address(&to, host.address().unwrap()), Ok(())),
            }
        }
        // Without rules about requests, a connection and its requests have the same verdict.
        if let Passage::Tunnel { .. } | Passage::Raw { .. } = rules.connection(&to) {
            prop_assert!(rules.request(&to, "GET", "/a//b/%2e").is_ok());
        }
    }

    #[test]
    fn no_special_address_passes_unless_a_rule_names_it(
        draft in draft(), to in destination(), address in address(),
    ) {
        let ranges: Vec<(IpAddr, IpAddr)> = draft.allow.iter().filter_map(|rule| range(&rule.to_string())).collect();
        let rules = Rules::new(draft).unwrap();
        if let Some(class) = AddressClass::of(address)
            && rules.address(&to, address).is_ok()
        {
            let names = |(first, last): &(IpAddr, IpAddr)| {
                (first..=last).contains(&&address)
                    && [first, last].map(|edge| AddressClass::of(*edge)) == [Some(class); 2]
            };
            prop_assert!(ranges.iter().any(names), "{address} is {class}");
        }
    }

    #[test]
    fn an_accepted_path_means_the_same_after_decoding_it_once(path in "/([a-c./;%?\\\\]|%[0-9a-fA-F]{2}|é){0,12}") {
        let rules = Rules::new(EgressDraft::of(vec!["a.example/**".parse().unwrap()], Vec::new())).unwrap();
        let to = parse_authority(b"a.example:443", None).unwrap();
        if rules.request(&to, "GET", &path).is_ok() {
            let raw = path.split('?').next().unwrap();
            let decoded = decode(raw);
            prop_assert_eq!(decode(&decoded), decoded.clone(), "decoding again changes nothing");
            prop_assert_eq!(raw.split('/').count(), decoded.split('/').count(), "no separator appears");
            prop_assert!(!decoded.contains(['\\', ';', '?', '#', '%']), "{decoded}");
            prop_assert!(!decoded.chars().any(char::is_control), "{decoded}");
            prop_assert!(decoded.split('/').all(|part| part.is_empty() || !part.trim_matches('.').is_empty()), "{decoded}");
            prop_assert!(!decoded.contains("//"), "{decoded}");
        }
    }

    #[test]
    fn a_refusal_can_be_printed_and_is_bounded(
        draft in draft(), to in destination(), method in "\\PC{0,40}", path in "/\\PC{0,200}",
    ) {
        if let Err(refusal) = Rules::new(draft).unwrap().request(&to, &method, &path) {
            for text in [&refusal.rule, &refusal.message, &refusal.help] {
                prop_assert!(text.len() < 700 && text.chars().all(|c| (' '..='~').contains(&c)), "{text}");
            }
        }
    }

    #[test]
    fn a_remedy_for_a_missing_rule_is_a_rule_that_allows_it(
        draft in draft(), to in destination(),
        method in prop::sample::select(METHODS), path in "(/[a-c.%;'`]{0,3}){1,3}|/[0-9]{1,2}",
    ) {
        let rules = Rules::new(draft.clone()).unwrap();
        let Err(refusal) = rules.request(&to, method, &path) else { return Ok(()) };
        if refusal.rule != "egress/default" {
            return Ok(());
        }
        let advice = refusal.help.split("`--allow ").nth(1).unwrap().split('`').next().unwrap();
        let rule: Rule = advice.trim_matches('\'').parse().unwrap();
        let mut more = draft;
        more.allow.push(rule);
        let again = Rules::new(more).unwrap().request(&to, method, &path);
        // Where paths matter now, an ambiguous one is refused for what it is.
        prop_assert!(again.is_ok() || again.unwrap_err().rule != "egress/default", "{advice}");
    }

    #[test]
    fn a_recorded_path_has_no_query_and_is_bounded(path in "/\\PC{0,900}") {
        let shown = shown_path(&path);
        prop_assert!(shown.len() <= 530 && !shown.contains(['?', '#']), "{shown}");
        prop_assert!(shown.chars().all(|c| ('!'..='~').contains(&c) || c == '…'), "{shown}");
    }
}

/// The first and the last address of a rule about addresses.
fn range(rule: &str) -> Option<(IpAddr, IpAddr)> {
    let host = rule.rsplit(' ').next()?;
    let (address, rest) = match host.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => host.split_at(host.find([':', '/']).unwrap_or(host.len())),
    };
    let digits: String = rest.strip_prefix('/').unwrap_or("").chars().take_while(char::is_ascii_digit).collect();
    match address.parse().ok()? {
        IpAddr::V4(first) => {
            let hosts = u32::MAX.checked_shr(digits.parse().unwrap_or(32)).unwrap_or(0);
            Some((first.into(), Ipv4Addr::from(u32::from(first) | hosts).into()))
        }
        IpAddr::V6(first) => {
            let hosts = u128::MAX.checked_shr(digits.parse().unwrap_or(128)).unwrap_or(0);
            Some((first.into(), Ipv6Addr::from(u128::from(first) | hosts).into()))
        }
    }
}

/// An independent decoder; panics if the escapes are not valid.
fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        if *first == b'%' {
            let digits = std::str::from_utf8(&tail[..2]).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &tail[2..];
        } else {
            bytes.push(*first);
            rest = tail;
        }
    }
    String::from_utf8(bytes).unwrap()
}
