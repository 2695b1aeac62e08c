//! Re-exports: a crate shows no other crate of ours whole.
//!
//! With `pub use saggar_store as store` every crate above could reach the store without naming it in its manifest, and the table of
//! layers would say nothing. Single items may be re-exported by name: those are part of what the crate offers.

use super::finding::{Finding, Rule};
use super::source::Source;
use super::workspace::{Crate, TextFile, Workspace};

/// Every re-export in a file of another crate of ours, of one of its modules, or of everything in one.
pub fn check(workspace: &Workspace, file: &TextFile, source: &Source) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (line, tree) in public_uses(source) {
        for path in leaves(&tree) {
            if let Some(what) = shown_whole(workspace, &path) {
                findings.push(Finding {
                    path: file.path.clone(),
                    line,
                    rule: Rule::WholeReexport,
                    what,
                    help:
                        "have those who need it name the crate in their Cargo.toml, or re-export single items by name"
                            .into(),
                });
            }
        }
    }
    findings
}

/// The tree of each `pub use`, without blanks, and the line it begins on. What only this crate sees is no re-export.
fn public_uses(source: &Source) -> Vec<(usize, String)> {
    let mut uses = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (number, line) in source.numbered().filter(|(_, line)| !line.is_test) {
        let code = line.code.trim();
        let (begin, mut tree) = match (open.take(), code.strip_prefix("pub use ")) {
            (Some(begun), _) => begun,
            (None, Some(rest)) => {
                uses.extend(add(number, String::new(), rest, &mut open));
                continue;
            }
            (None, None) => continue,
        };
        tree.push(' ');
        uses.extend(add(begin, tree, code, &mut open));
    }
    uses
}

/// Adds a line to a tree: the tree, if the line ends it; else it stays open.
fn add(begin: usize, mut tree: String, code: &str, open: &mut Option<(usize, String)>) -> Option<(usize, String)> {
    match code.split_once(';') {
        Some((end, _)) => {
            tree.push_str(end);
            Some((begin, tree))
        }
        None => {
            tree.push_str(code);
            *open = Some((begin, tree));
            None
        }
    }
}

/// The paths that a tree names, each as its segments; a glob ends in `*`. Other names (`as`) are left out.
fn leaves(tree: &str) -> Vec<Vec<String>> {
    let tree = tree.trim();
    let Some((prefix, rest)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or(tree);
        let segments = path.split("::").map(str::trim).filter(|segment| !segment.is_empty());
        return vec![segments.map(str::to_owned).collect()];
    };
    let prefix: Vec<String> =
        prefix.split("::").map(str::trim).filter(|segment| !segment.is_empty()).map(str::to_owned).collect();
    let inner = rest.rsplit_once('}').map_or(rest, |(inner, _)| inner);
    let mut paths = Vec::new();
    for branch in branches(inner) {
        for leaf in leaves(branch) {
            let mut path = prefix.clone();
            path.extend(leaf.into_iter().filter(|segment| segment != "self"));
            paths.push(path);
        }
    }
    paths
}

/// What is between the commas that are in no braces.
fn branches(inner: &str) -> Vec<&str> {
    let (mut depth, mut begin, mut found) = (0_usize, 0, Vec::new());
    for (at, c) in inner.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                found.push(&inner[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    found.push(&inner[begin..]);
    found.retain(|branch| !branch.trim().is_empty());
    found
}

/// What a path re-exports whole; `None` for an item, and for what is not of another crate of ours.
fn shown_whole(workspace: &Workspace, path: &[String]) -> Option<String> {
    let (first, rest) = path.split_first()?;
    let member = workspace.crates.iter().find(|member| member.package.replace('-', "_") == *first)?;
    let text = path.join("::");
    match rest {
        [] => Some(format!("a re-export of the whole crate {first}")),
        [.., last] if last == "*" => Some(format!("a re-export of everything in {}", text.trim_end_matches("::*"))),
        modules if is_module(workspace, member, modules) => Some(format!("a re-export of the whole module {text}")),
        _ => None,
    }
}

/// Whether a path in a crate is that of a file, which the file above it makes public: a private module may have a function of its name.
fn is_module(workspace: &Workspace, member: &Crate, path: &[String]) -> bool {
    let Some((last, above)) = path.split_last() else { return false };
    let folder = format!("{}/src", member.folder);
    let below = |path: &[String]| [std::slice::from_ref(&folder), path].concat().join("/");
    let is_file =
        |file: &TextFile, path: &str| file.path == format!("{path}.rs") || file.path == format!("{path}/mod.rs");
    let declares = |file: &TextFile| file.text.lines().any(|line| line.trim() == format!("pub mod {last};"));
    let parent = |file: &&TextFile| match above {
        [] => member.roots.contains(&file.path),
        above => is_file(file, &below(above)),
    };
    workspace.files.iter().any(|file| is_file(file, &below(path)))
        && workspace.files.iter().filter(parent).any(declares)
}
