//! Special addresses in every notation: denied unless a rule names them.

use std::net::IpAddr;

use crate::talk::{passage, rules, to};

/// Class by class, from the edges of each range.
const SPECIAL: &[(&str, &[&str])] = &[
    ("unspecified", &["0.0.0.0", "0.255.255.255", "::"]),
    ("loopback", &["127.0.0.1", "127.255.255.255", "::1"]),
    ("private", &["10.0.0.0", "10.255.255.255", "172.16.0.1", "172.31.255.255", "192.168.0.1", "192.168.255.255"]),
    ("private", &["fc00::1", "fd12::1", "fdff:ffff::1", "fec0::1", "feff::1"]),
    ("shared", &["100.64.0.1", "100.127.255.255"]),
    ("link-local", &["169.254.0.1", "169.254.255.254", "fe80::1", "febf::1"]),
    (
        "metadata",
        &[
            "169.254.169.254",
            "169.254.169.253",
            "169.254.170.2",
            "169.254.170.23",
            "169.254.0.23",
            "169.254.42.42",
            "168.63.129.16",
            "192.0.0.192",
            "100.100.100.200",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:42::42",
        ],
    ),
    ("benchmark", &["198.18.0.1", "198.19.255.255", "2001:2::1"]),
    ("multicast", &["224.0.0.1", "239.255.255.250", "ff02::1", "ff0e::1"]),
    ("broadcast", &["255.255.255.255"]),
    ("reserved", &["192.0.0.1", "192.88.99.1", "240.0.0.1", "255.255.255.254", "2001:10::1", "2001:20::1"]),
    ("reserved", &["100::1", "5f00::1", "4000::1", "e000::1", "1::1"]),
    ("embedded", &["::ffff:127.0.0.1", "::ffff:93.184.215.14", "::127.0.0.1", "::ffff:0:127.0.0.1"]),
    ("embedded", &["64:ff9b::7f00:1", "64:ff9b::808:808", "64:ff9b:1::a00:1", "2002:7f00:1::", "2002:808:808::1"]),
    ("embedded", &["2001:0:1234::80ff:fffe", "2a00::5efe:10.0.0.1", "2a00::200:5efe:10.0.0.1"]),
];

const PUBLIC: &[&str] = &[
    "1.0.0.0",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "168.63.129.15",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.0.1.0",
    "192.0.2.1",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "198.51.100.1",
    "203.0.113.1",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2001:db8::1",
    "2606:4700::1111",
    "3fff::1",
];

fn literal(address: &str) -> String {
    let address: IpAddr = address.parse().unwrap();
    if address.is_ipv6() { format!("[{address}]:443") } else { format!("{address}:443") }
}

#[test]
fn no_wide_rule_opens_a_special_address() {
    let wide = rules(&["*:*", "*.example.com:*", "0.0.0.0/0:*", "[::]/0:*", "128.0.0.0/1:*", "[2000::]/3:*"], &[]);
    for (class, addresses) in SPECIAL {
        for address in *addresses {
            let refused = format!("egress/address-{class}");
            assert_eq!(passage(&wide, &literal(address)), refused, "{address} as a literal");
            let resolved = wide.address(&to("a.example.com"), address.parse().unwrap());
            assert_eq!(resolved.unwrap_err().rule, refused, "{address} behind a name");
        }
    }
    for address in PUBLIC {
        assert_eq!(passage(&wide, &literal(address)), "tunnel *:*", "{address}");
        assert_eq!(wide.address(&to("a.example.com"), address.parse().unwrap()), Ok(()), "{address}");
    }
}

#[test]
fn a_rule_that_names_a_special_address_opens_it_and_nothing_else() {
    for (rule, opens, leaves) in [
        ("10.1.2.3", &["10.1.2.3"][..], &["10.1.2.4", "127.0.0.1"][..]),
        ("10.0.0.0/8", &["10.0.0.1", "10.255.255.255"], &["192.168.0.1", "169.254.169.254"]),
        ("127.0.0.0/8", &["127.0.0.1"], &["::ffff:127.0.0.1", "64:ff9b::7f00:1", "::1"]),
        // Wider than the class, so it names none of its addresses.
        ("10.0.0.0/7", &[], &["10.0.0.1"]),
        ("8.0.0.0/5", &["8.8.8.8"], &["10.0.0.1"]),
        ("172.0.0.0/8", &["172.15.0.1"], &["172.16.0.1"]),
        // A metadata service hides in other classes: it is opened only by its own ranges.
        ("169.254.0.0/16", &["169.254.1.1"], &["169.254.169.254", "169.254.170.2", "169.254.42.42"]),
        ("100.64.0.0/10", &["100.64.0.1"], &["100.100.100.200"]),
        ("192.0.0.0/24", &["192.0.0.8"], &["192.0.0.192"]),
        ("[fd00::]/8", &["fd12::1"], &["fd00:ec2::254", "fd20:ce::254"]),
        ("[fc00::]/7", &["fd12::1", "fc00::1"], &["fd00:ec2::254"]),
        ("169.254.169.254", &["169.254.169.254"], &["169.254.169.253"]),
        ("[fd00:ec2::254]", &["fd00:ec2::254"], &["fd00:ec2::23"]),
        ("168.63.129.0/24", &["168.63.129.15"], &["168.63.129.16"]),
        // The inner address must be named too.
        ("[::ffff:0:0]/96", &["::ffff:8.8.8.8"], &["::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254"]),
        ("[64:ff9b::]/96", &["64:ff9b::808:808"], &["64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe"]),
        // Teredo inverts it.
        ("[2001::]/32", &["2001:0:1::f7f7:f7f7"], &["2001:0:1::80ff:fffe"]),
        ("[2002::]/16", &["2002:808:808::1"], &["2002:7f00:1::"]),
    ] {
        let rules = rules(&[rule, "*"], &[]);
        for address in opens {
            assert_eq!(rules.address(&to("name.example"), address.parse().unwrap()), Ok(()), "{rule} opens {address}");
            assert!(!passage(&rules, &literal(address)).starts_with("egress/"), "{rule} opens {address} as a literal");
        }
        for address in leaves {
            let refused = rules.address(&to("name.example"), address.parse().unwrap());
            assert!(refused.is_err(), "{rule} leaves {address} closed");
            assert!(
                passage(&rules, &literal(address)).starts_with("egress/address-"),
                "{rule} leaves {address} closed"
            );
        }
    }
}

#[test]
fn an_address_rule_opens_its_ports_only() {
    let rules = rules(&["db.example:5432", "10.0.0.5:5432", "*"], &[]);
    let address = "10.0.0.5".parse().unwrap();
    assert_eq!(rules.address(&to("db.example:5432"), address), Ok(()));
    assert_eq!(rules.address(&to("db.example:443"), address).unwrap_err().rule, "egress/address-private");
}

#[test]
fn a_rule_about_requests_to_an_address_opens_nothing_for_names() {
    let rules = rules(&["name.example", "GET 10.0.0.5"], &[]);
    let address = "10.0.0.5".parse().unwrap();
    assert_eq!(rules.address(&to("name.example"), address).unwrap_err().rule, "egress/address-private");
    assert_eq!(passage(&rules, "10.0.0.5"), "inspect");
}

#[test]
fn addresses_of_this_host_must_be_named_one_by_one() {
    let own: IpAddr = "203.0.113.7".parse().unwrap();
    let wide = rules(&["*", "203.0.113.0/24"], &[]).with_own_addresses([own]);
    assert_eq!(wide.address(&to("name.example"), own).unwrap_err().rule, "egress/address-own");
    assert_eq!(passage(&wide, "203.0.113.7"), "egress/address-own");
    assert_eq!(wide.address(&to("name.example"), "203.0.113.8".parse().unwrap()), Ok(()));
    let named = rules(&["203.0.113.7"], &[]).with_own_addresses([own]);
    assert_eq!(named.address(&to("name.example"), own), Ok(()));
    let mapped = rules(&["[::ffff:0:0]/96"], &[]).with_own_addresses([own]);
    assert_eq!(
        mapped.address(&to("name.example"), "::ffff:203.0.113.7".parse().unwrap()).unwrap_err().rule,
        "egress/address-own"
    );
}

#[test]
fn a_denied_address_is_denied_behind_every_name_and_notation() {
    let rules = rules(&["*", "[::ffff:0:0]/96", "10.0.0.0/8"], &["203.0.113.0/24", "10.0.0.1", "POST 198.51.100.1"]);
    for (destination, address, refused) in [
        ("203.0.113.9", "203.0.113.9", "egress/deny:203.0.113.0/24"),
        ("name.example", "203.0.113.9", "egress/deny:203.0.113.0/24"),
        ("name.example:22", "203.0.113.9", "egress/deny:203.0.113.0/24"),
        ("name.example", "::ffff:203.0.113.9", "egress/deny:203.0.113.0/24"),
        ("name.example", "10.0.0.1", "egress/deny:10.0.0.1"),
        // Requests to the name can't be told by this rule, so the address is denied.
        ("name.example", "198.51.100.1", "egress/deny:POST 198.51.100.1"),
    ] {
        let refusal = rules.address(&to(destination), address.parse().unwrap()).unwrap_err();
        assert_eq!(refusal.rule, refused, "{destination} at {address}");
    }
    assert_eq!(rules.address(&to("198.51.100.1"), "198.51.100.1".parse().unwrap()), Ok(()));
    assert_eq!(rules.address(&to("name.example"), "10.0.0.2".parse().unwrap()), Ok(()));
}

#[test]
fn the_remedy_names_the_address_and_warns_of_what_it_opens() {
    let rules = rules(&["*"], &[]);
    let refusal = rules.address(&to("name.example:8080"), "169.254.169.254".parse().unwrap()).unwrap_err();
    assert_eq!(
        refusal.message,
        "name.example leads to 169.254.169.254, which is an address of a cloud's metadata service"
    );
    assert_eq!(
        refusal.help,
        "such addresses must be named: allow it with `--allow 169.254.169.254:8080`, or add it to `egress.allow` in the spec; \
         it can hand out the credentials of this machine"
    );
}
