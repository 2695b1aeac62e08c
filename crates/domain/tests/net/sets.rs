//! Named sets: data that must be right, because users trust a name.

use std::collections::BTreeSet;

use saggar_domain::net::Set;

use crate::talk::{passage, request, rules};

/// Below these names anybody can have a host of their own.
const SHARED: &[&str] = &[
    "amazonaws.com",
    "azureedge.net",
    "blob.core.windows.net",
    "cloudflarestorage.com",
    "cloudfront.net",
    "fastly.net",
    "github.io",
    "githubusercontent.com",
    "gitlab.io",
    "googleapis.com",
    "hf.co",
    "hf.space",
    "huggingface.co",
    "launchpadcontent.net",
    "pages.dev",
    "run.app",
    "workers.dev",
];

#[test]
fn every_set_is_described_sorted_and_without_duplicates() {
    let names: Vec<&str> = Set::all().iter().map(Set::name).collect();
    assert!(names.is_sorted(), "{names:?}");
    for name in [
        "pypi",
        "npm",
        "crates",
        "debian",
        "ubuntu",
        "github",
        "gitlab",
        "openai",
        "anthropic",
        "google-ai",
        "huggingface",
        "docker",
        "go",
        "rubygems",
        "maven",
        "alpine",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    for set in Set::all() {
        assert!((10..100).contains(&set.description().len()), "@{} is described: {:?}", set.name(), set.description());
        let rules: Vec<String> = set.rules().map(|rule| rule.to_string()).collect();
        assert!(!rules.is_empty(), "@{}", set.name());
        let distinct: BTreeSet<&String> = rules.iter().collect();
        assert_eq!(distinct.len(), rules.len(), "@{} says something twice", set.name());
        for line in set.text().lines().filter(|line| !line.starts_with('#')) {
            assert!(rules.iter().any(|rule| rule == line), "@{}: {line:?} is not canonical", set.name());
        }
    }
}

#[test]
fn the_directory_holds_the_listed_sets_and_no_other() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/sets");
    let files: BTreeSet<String> = std::fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace(".txt", ""))
        .collect();
    assert_eq!(files, Set::all().iter().map(|set| set.name().to_owned()).collect());
}

#[test]
fn no_set_is_broader_than_its_name() {
    for set in Set::all() {
        for rule in set.rules().map(|rule| rule.to_string()) {
            let host = rule.rsplit(' ').next().unwrap().split('/').next().unwrap();
            assert!(!host.contains(':') && !host.starts_with(|c: char| c.is_ascii_digit() || c == '['), "{rule}");
            if let Some(parent) = host.strip_prefix("*.") {
                assert!(
                    parent.split('.').count() >= 2 && !SHARED.contains(&parent),
                    "@{}: {rule} is too broad",
                    set.name()
                );
            }
            assert!(!host.starts_with("* ") && host != "*", "@{}: {rule} is too broad", set.name());
            assert!(!SHARED.contains(&host) || host == "huggingface.co" || host == "hf.co", "@{}: {rule}", set.name());
        }
    }
}

#[test]
fn sets_for_packages_can_be_read_and_not_written() {
    let writing = [
        ("@pypi", "pypi.org", "/legacy/"),
        ("@npm", "registry.npmjs.org", "/@scope%2fname"),
        ("@crates", "crates.io", "/api/v1/crates/new"),
        ("@debian", "deb.debian.org", "/x"),
        ("@docker", "registry-1.docker.io", "/v2/library/x/blobs/uploads/"),
        ("@rubygems", "rubygems.org", "/api/v1/gems"),
        ("@github-read", "github.com", "/o/r.git/git-receive-pack"),
        ("@github-read", "api.github.com", "/repos/o/r/issues"),
        ("@huggingface", "huggingface.co", "/api/models/o/r/commit/main"),
    ];
    for (set, host, path) in writing {
        let rules = rules(&[set], &[]);
        assert_eq!(passage(&rules, host), "inspect", "{set}");
        assert!(request(&rules, host, "GET", path).starts_with(set), "{set}");
        for method in ["POST", "PUT", "DELETE", "PATCH"] {
            assert!(request(&rules, host, method, path).starts_with("egress/"), "{method} {path} in {set}");
        }
    }
}

#[test]
fn what_the_clients_send_is_allowed() {
    for (set, host, method, path) in [
        ("@pypi", "files.pythonhosted.org", "GET", "/packages/a/b/c.whl"),
        ("@npm", "registry.npmjs.org", "GET", "/@babel%2fcore"),
        ("@npm", "registry.npmjs.org", "POST", "/-/npm/v1/security/advisories/bulk"),
        ("@npm", "registry.npmjs.org", "POST", "/-/npm/v1/security/audits/quick"),
        ("@crates", "index.crates.io", "GET", "/se/rd/serde"),
        ("@crates", "static.crates.io", "GET", "/crates/serde/1.0.0/download"),
        ("@debian", "deb.debian.org:80", "GET", "/debian/dists/stable/InRelease"),
        ("@debian", "deb.debian.org:80", "GET", "/debian/pool/main/g/g%2b%2b/g%2b%2b_1%3a2.deb"),
        ("@ubuntu", "de.archive.ubuntu.com:80", "GET", "/ubuntu/dists/noble/InRelease"),
        ("@docker", "auth.docker.io", "POST", "/token"),
        ("@github", "github.com", "POST", "/o/r.git/git-receive-pack"),
        ("@github-read", "github.com", "GET", "/o/r.git/info/refs?service=git-upload-pack"),
        ("@github-read", "github.com", "POST", "/o/r.git/git-upload-pack"),
        ("@github-read", "github.com", "POST", "/o/r/git-upload-pack"),
        ("@go", "proxy.golang.org", "GET", "/github.com/!burnt!sushi/toml/@v/v1.0.0.zip"),
        ("@go", "dl.google.com", "GET", "/go/go1.24.linux-amd64.tar.gz"),
        ("@huggingface", "huggingface.co", "POST", "/api/datasets/o/r/paths-info/main"),
        ("@anthropic", "api.anthropic.com", "POST", "/v1/messages"),
        ("@openai", "api.openai.com", "POST", "/v1/responses"),
        ("@google-ai", "generativelanguage.googleapis.com", "POST", "/v1beta/models/gemini:generateContent"),
    ] {
        let decided = request(&rules(&[set], &[]), host, method, path);
        assert!(decided.starts_with(&format!("{set}: ")), "{set} {method} {path}: {decided}");
    }
}

#[test]
fn a_set_that_is_denied_is_denied_altogether() {
    let rules = rules(&["*:*"], &["@npm"]);
    for host in ["registry.npmjs.org", "registry.npmjs.org:22", "nodejs.org:80"] {
        assert!(passage(&rules, host).starts_with("egress/deny:@npm: "), "{host}");
    }
    assert_eq!(passage(&rules, "registry.npmjs.org"), "egress/deny:@npm: registry.npmjs.org");
}

#[test]
fn an_unknown_set_is_an_error_that_lists_the_others() {
    let error = Set::find("@nothing").unwrap_err();
    assert_eq!(error.message, "there is no set \"@nothing\"");
    assert!(error.help.contains("@pypi"), "{}", error.help);
    assert_eq!(Set::find("pypi").unwrap().name(), "pypi");
}
