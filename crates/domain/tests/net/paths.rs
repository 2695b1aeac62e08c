//! Paths: which requests a path rule matches, and which paths are refused because servers don't agree on them.

use crate::talk::{request, rules, to};

const PATTERN: &str = "api.example/v1/*/files/**";

#[test]
fn a_path_pattern_matches_segment_by_segment() {
    for (pattern, matching, other) in [
        (
            "/v1/chat",
            &["/v1/chat", "/v1/chat?x=/v1/..", "/v1/%63hat"][..],
            &["/v1/chat/", "/v1", "/V1/chat", "/v1/chats"][..],
        ),
        ("/v1/*", &["/v1/a", "/v1/", "/v1/a.b"], &["/v1", "/v1/a/b", "/v1/a/"]),
        ("/v1/*/x", &["/v1/a/x"], &["/v1/x", "/v1/a/b/x", "/v1/a/y"]),
        ("/v1/a*c*e", &["/v1/ace", "/v1/abcde", "/v1/acce", "/v1/acecee"], &["/v1/ac", "/v1/aec", "/v1/acex"]),
        ("/v1/*.tgz", &["/v1/a.tgz", "/v1/.tgz", "/v1/a.tgz.tgz"], &["/v1/a.tgzx", "/v1/tgz"]),
        ("/v1/**", &["/v1/", "/v1/a", "/v1/a/b/c", "/v1/a/"], &["/v1", "/v2/a", "/"]),
        ("/**", &["/", "/a", "/a/b"], &[]),
        ("/*/*/git-upload-pack", &["/o/r.git/git-upload-pack"], &["/o/r.git/git-receive-pack", "/o/git-upload-pack"]),
        ("/a%20b", &["/a%20b", "/%61%20b"], &["/a+b", "/a%2bb"]),
        ("/caf%C3%A9", &["/caf%c3%a9"], &["/cafe", "/caf%65%cc%81"]),
    ] {
        let rules = rules(&[&format!("api.example{pattern}")], &[]);
        for path in matching {
            assert_eq!(rules.request(&to("api.example"), "GET", path).map(|_| ()), Ok(()), "{pattern} matches {path}");
        }
        for path in other {
            assert_eq!(request(&rules, "api.example", "GET", path), "egress/default", "{pattern} doesn't match {path}");
        }
    }
}

/// What some server would understand differently than a rule does.
const AMBIGUOUS: &[&str] = &[
    "/public/../admin",
    "/public/..",
    "/public/.",
    "/public/./x",
    "/public/...",
    "/public/%2e%2e/admin",
    "/public/%2E%2e/admin",
    "/public/.%2e/admin",
    "/public/a%2eb",
    "/public/..%2fadmin",
    "/public%2fx",
    "/public/%5c..%5cadmin",
    "/public\\..\\admin",
    "/public//admin",
    "//public/x",
    "/public/x//",
    "/public/..;/admin",
    "/public;x=1/a",
    "/public/%3b/a",
    "/public/a%3fb",
    "/public/a%23b",
    "/public/%252e%252e/admin",
    "/public/%25",
    "/public/%u002e",
    "/public/%",
    "/public/%4",
    "/public/%c0%ae%c0%ae/admin",
    "/public/%ff",
    "/public/%00",
    "/public/%0d%0a",
    "/public/%7f",
    "/public/%c2%85",
    "/public/é",
    "/public/%ef%bc%8e%ef%bc%8e/admin",
    "/public/%ef%bc%8fadmin",
    "/public/%e2%80%a5/admin",
];

/// What is not the path of a request at all.
const MALFORMED: &[&str] = &[
    "",
    "public",
    "*",
    "http://api.example/public",
    "/public x",
    "/public\0",
    "/public\r\nX: y",
    "/public\t",
    "/public#x",
];

#[test]
fn an_ambiguous_path_is_refused_where_a_path_rule_could_be_affected() {
    let long = format!("/public/{}", "a".repeat(8192));
    for rules in [
        rules(&["api.example/public/**"], &[]),
        rules(&["api.example"], &["api.example/admin/**"]),
        rules(&["GET api.example/public/**", "POST api.example"], &[]),
        rules(&["*"], &["GET *.example/admin", "GET api.example/admin"]),
    ] {
        for path in AMBIGUOUS.iter().chain(MALFORMED).copied().chain([long.as_str()]) {
            assert_eq!(request(&rules, "api.example", "GET", path), "egress/ambiguous-path", "{path:?} of {rules:?}");
        }
    }
}

#[test]
fn a_destination_without_path_rules_takes_any_path_that_can_be_sent() {
    let rules = rules(
        &["api.example", "GET other.example", "POST other.example/v1/**", "*.wide.example"],
        &["api.example:8080/admin", "DELETE api.example/x", "other.example.com/x"],
    );
    for (host, method) in [("api.example", "GET"), ("other.example", "GET"), ("a.wide.example", "GET")] {
        for path in AMBIGUOUS {
            assert!(!request(&rules, host, method, path).starts_with("egress/"), "{method} {path:?} on {host}");
        }
        for path in MALFORMED {
            assert_eq!(request(&rules, host, method, path), "egress/ambiguous-path", "{path:?}");
        }
    }
    assert_eq!(request(&rules, "other.example", "POST", "/v1/@scope%2fname"), "egress/ambiguous-path");
    assert_eq!(request(&rules, "api.example", "OPTIONS", "*"), "api.example", "about the server as a whole");
}

#[test]
fn the_server_wide_options_matches_no_path() {
    let with_paths = rules(&["api.example/v1/**"], &[]);
    assert_eq!(request(&with_paths, "api.example", "OPTIONS", "*"), "egress/default");
    let denied = rules(&["api.example"], &["api.example/v1/**"]);
    assert_eq!(request(&denied, "api.example", "OPTIONS", "*"), "api.example");
}

#[test]
fn a_deny_rule_also_matches_what_some_server_takes_for_the_same_path() {
    let rules = rules(&["api.example"], &["api.example/admin", "api.example/keys/**", "api.example/a*z/list"]);
    for path in ["/admin", "/ADMIN", "/aDmin/", "/admin.", "/admin%20", "/admin.%20.", "/%61dmin", "/admin?x"] {
        assert_eq!(request(&rules, "api.example", "GET", path), "egress/deny:api.example/admin", "{path}");
    }
    for path in ["/keys", "/keys/", "/KEYS/1", "/keys./1/2", "/keys/1?x"] {
        assert_eq!(request(&rules, "api.example", "GET", path), "egress/deny:api.example/keys/**", "{path}");
    }
    assert_eq!(request(&rules, "api.example", "GET", "/AbZ/List/"), "egress/deny:api.example/a*z/list");
    for path in ["/", "/administrator", "/admin/x", "/key", "/x/admin", "/az/lists"] {
        assert_eq!(request(&rules, "api.example", "GET", path), "api.example", "{path}");
    }
}

#[test]
fn an_allow_rule_matches_only_what_is_written() {
    let rules = rules(&[PATTERN], &[]);
    assert_eq!(request(&rules, "api.example", "GET", "/v1/a/files/b"), PATTERN);
    for path in ["/V1/a/files/b", "/v1/a/Files/b", "/v1/a./files", "/v1/a/files"] {
        assert_eq!(request(&rules, "api.example", "GET", path), "egress/default", "{path}");
    }
}

/// What servers that normalise Unicode read as `/admin`: full-width, long s and Kelvin, ligatures, mathematical and circled
/// letters, superscripts and invisible characters.
#[test]
fn a_path_that_looks_like_another_is_denied_with_it_and_allowed_by_no_path() {
    let denying = rules(&["api.example"], &["api.example/admin", "api.example/Kiss/**", "api.example/file2"]);
    for (path, rule) in [
        ("/%EF%BD%81dmin", "api.example/admin"),
        ("/%F0%9D%90%9Admin", "api.example/admin"),
        ("/%E2%93%90%E2%93%93min/", "api.example/admin"),
        ("/ad%E2%80%8Bmin", "api.example/admin"),
        ("/ad%C2%ADmin", "api.example/admin"),
        ("/%E2%84%AAi%C5%BFs/x", "api.example/Kiss/**"),
        ("/%EF%AC%81le%C2%B2", "api.example/file2"),
    ] {
        assert_eq!(request(&denying, "api.example", "GET", path), format!("egress/deny:{rule}"), "{path}");
        let allowing = rules(&["api.example/**"], &[]);
        assert_eq!(request(&allowing, "api.example", "GET", path), "egress/ambiguous-path", "{path}");
    }
    assert_eq!(
        request(&denying, "api.example", "GET", "/adm%C4%B1n"),
        "egress/deny:api.example/admin",
        "the same capital"
    );
    for path in ["/%E3%82%AB", "/b%C3%BCcher", "/%D0%B0dmin", "/%EF%BD%81dmins"] {
        assert_eq!(request(&denying, "api.example", "GET", path), "api.example", "{path}");
    }
    let allowing = rules(&["api.example/**"], &[]);
    for path in ["/%E3%82%AB", "/b%C3%BCcher", "/bu%CC%88cher", "/%D0%B0dmin"] {
        assert_eq!(request(&allowing, "api.example", "GET", path), "api.example/**", "{path}");
    }
}
