//! Layers: which of our crates may depend on which, and which external crates they must not use.
//!
//! The table mirrors the one in ARCHITECTURE.md and may be ahead of it: a crate may have a row before it exists. All
//! kinds of dependency count, dev and build included: a test that depends upwards couples the layers as much as code
//! does.

use super::finding::{Finding, Rule};
use super::workspace::{Crate, Workspace};
use UnsafeCode::{Allowed, Forbidden};

/// A crate, and those of ours that it may depend on.
struct Layer {
    /// The folder's name; the package is `saggar-<name>`, except for the two in [`package_name`].
    name: &'static str,
    may_use: &'static [&'static str],
    unsafe_code: UnsafeCode,
}

const fn layer(name: &'static str, may_use: &'static [&'static str], unsafe_code: UnsafeCode) -> Layer {
    Layer { name, may_use, unsafe_code }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum UnsafeCode {
    Allowed,
    Forbidden,
}

/// From the bottom up: a row names only rows above it, so there can be no cycle.
const LAYERS: &[Layer] = &[
    layer("domain", &[], Forbidden),
    // For build scripts: builds the programs that other crates embed.
    layer("embed", &[], Forbidden),
    // Files that a person names, for the front and the server.
    layer("given", &[], Forbidden),
    // Continues as another program, as exec does in the kernel. That takes `unsafe`, and the binary's own crate has none.
    layer("payload", &[], Allowed),
    layer("jail", &[], Allowed),
    layer("guest", &[], Allowed),
    // The program that attacks a sandbox from inside, for the conformance cases.
    layer("attacker", &[], Allowed),
    layer("engine", &["domain"], Forbidden),
    layer("policy", &["domain"], Forbidden),
    layer("audit", &["domain"], Forbidden),
    layer("store", &["domain"], Forbidden),
    layer("api", &["domain"], Forbidden),
    layer("supervisor", &["domain", "guest", "jail"], Forbidden),
    // Takes its sessions from supervisors, and confines itself with the jail's means.
    layer("egress", &["domain", "jail", "supervisor"], Forbidden),
    // Calls models over the same checked connections. Its keys and its ledger are handed in.
    layer("gateway", &["domain", "egress", "supervisor"], Forbidden),
    layer("sandbox", &["domain", "embed", "guest", "jail", "supervisor"], Allowed),
    // Parses hostile archives, and writes what sandboxes start from. The reading side is in `sandbox`, for the front.
    layer("image", &["domain", "sandbox"], Forbidden),
    // Runs the steps of a recipe in sandboxes, and writes layers.
    layer("build", &["domain", "sandbox", "image"], Forbidden),
    layer("conformance", &["domain", "embed", "sandbox", "supervisor"], Forbidden),
    layer(
        "runtime",
        &[
            "domain",
            "engine",
            "policy",
            "audit",
            "store",
            "egress",
            "gateway",
            "guest",
            "supervisor",
            "sandbox",
            "image",
            "build",
        ],
        Forbidden,
    ),
    // What starts once per sandbox. It links nothing of the server, whatever that grows to.
    layer("front", &["domain", "given", "payload", "supervisor", "sandbox"], Forbidden),
    // Turns rows and what supervisors report into the API's types, once for both APIs.
    layer("http", &["domain", "api", "given", "store", "supervisor", "runtime"], Forbidden),
    // Without the store: sandboxes come to it as the kit shows them.
    layer("e2b", &["domain", "api", "supervisor", "runtime", "http"], Forbidden),
    // Opens, backs up and restores the store, and shows journals.
    layer(
        "server",
        &["domain", "api", "engine", "gateway", "store", "supervisor", "runtime", "http", "e2b"],
        Forbidden,
    ),
    layer("sim", &["domain", "engine", "store", "runtime"], Forbidden),
    layer(
        "cli",
        &[
            "domain",
            "api",
            "given",
            "payload",
            "supervisor",
            "egress",
            "sandbox",
            "image",
            "build",
            "front",
            "conformance",
            "server",
        ],
        Forbidden,
    ),
    // Measures the binary from outside, so it links nothing of ours.
    layer("measure", &[], Forbidden),
    // Packs the binary.
    layer("xtask", &["payload"], Forbidden),
];

/// An external crate, and those of ours that must not use it.
struct Ban {
    external: &'static str,
    banned_in: &'static [&'static str],
    reason: &'static str,
}

const BANS: &[Ban] = &[
    Ban {
        external: "tokio",
        banned_in: &["domain", "engine", "policy", "audit"],
        reason: "the pure crates do no IO; hand the value in as an argument and do the IO in runtime",
    },
    Ban {
        external: "tokio",
        banned_in: &["jail", "guest", "supervisor", "front"],
        reason: "it forks, or is one process per sandbox: no threads to fork under, no executor to carry; use poll and pidfds",
    },
];

/// Checks each crate's dependencies against the tables.
pub fn check(workspace: &Workspace) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in &workspace.crates {
        let Some(layer) = layer_of(&member.package) else {
            findings.push(Finding {
                path: member.manifest(),
                line: 1,
                rule: Rule::UnknownCrate,
                what: format!("crate \"{}\" has no row in the table of layers", member.package),
                help: "add it to the table in xtask/src/tidy/layers.rs and to ARCHITECTURE.md, with what it may use"
                    .into(),
            });
            continue;
        };
        for dependency in &member.dependencies {
            findings.extend(check_direction(workspace, member, layer, dependency));
            findings.extend(check_bans(workspace, member, layer, dependency));
        }
    }
    findings
}

/// Whether a package may contain `unsafe`. A package without a row may not.
pub fn unsafe_code(package: &str) -> UnsafeCode {
    layer_of(package).map_or(Forbidden, |layer| layer.unsafe_code)
}

fn check_direction(workspace: &Workspace, member: &Crate, layer: &Layer, dependency: &str) -> Option<Finding> {
    let is_ours = workspace.crates.iter().any(|other| other.package == dependency);
    if !is_ours || layer.may_use.iter().any(|name| package_name(name) == dependency) {
        return None;
    }
    let allowed = match layer.may_use {
        [] => "none of our crates".to_owned(),
        names => names.join(", "),
    };
    Some(Finding {
        path: member.manifest(),
        line: workspace.line_of_dependency(member, dependency),
        rule: Rule::Direction,
        what: format!("\"{}\" must not depend on \"{dependency}\": it may use {allowed}", member.package),
        help: "move what both need into the lower crate; if the layers themselves are wrong, change the table in \
               xtask/src/tidy/layers.rs and ARCHITECTURE.md together"
            .into(),
    })
}

fn check_bans(workspace: &Workspace, member: &Crate, layer: &Layer, dependency: &str) -> Option<Finding> {
    let ban = BANS.iter().find(|ban| ban.external == dependency && ban.banned_in.contains(&layer.name))?;
    Some(Finding {
        path: member.manifest(),
        line: workspace.line_of_dependency(member, dependency),
        rule: Rule::ForbiddenDependency,
        what: format!("\"{}\" must not depend on {dependency}", member.package),
        help: ban.reason.into(),
    })
}

fn layer_of(package: &str) -> Option<&'static Layer> {
    LAYERS.iter().find(|layer| package_name(layer.name) == package)
}

fn package_name(layer: &str) -> String {
    match layer {
        "cli" => "saggar".into(),
        "xtask" => "xtask".into(),
        name => format!("saggar-{name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_names_only_rows_before_it() {
        for (index, layer) in LAYERS.iter().enumerate() {
            for name in layer.may_use {
                assert!(LAYERS[..index].iter().any(|lower| lower.name == *name), "{} names {name}", layer.name);
            }
        }
    }

    #[test]
    fn each_ban_is_in_a_crate_of_the_table() {
        for name in BANS.iter().flat_map(|ban| ban.banned_in) {
            assert!(LAYERS.iter().any(|layer| layer.name == *name), "{name}");
        }
    }
}
