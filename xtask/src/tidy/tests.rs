//! Each rule reports violations, and only those.

use super::check;
use super::finding::{Finding, Rule, Severity};
use super::workspace::{Crate, TextFile, Workspace};

/// Three crates, the second of which may use `unsafe`, and one file.
fn workspace(path: &str, text: &str) -> Workspace {
    let member = |package: &str, folder: &str| Crate {
        package: package.into(),
        folder: folder.into(),
        roots: vec![format!("{folder}/src/lib.rs")],
        dependencies: Vec::new(),
    };
    Workspace {
        crates: vec![
            member("saggar-domain", "crates/domain"),
            member("saggar-jail", "crates/jail"),
            member("saggar-conformance", "crates/conformance"),
        ],
        files: vec![TextFile { path: path.into(), text: text.into() }],
        machine_paths: vec!["/home/someone/saggar".into()],
    }
}

fn check_file(path: &str, text: &str, expected: &[(usize, Rule)]) {
    let found: Vec<_> = check(&workspace(path, text)).iter().map(|finding| (finding.line, finding.rule)).collect();
    assert_eq!(found, expected, "{path}:\n{text}");
}

/// `dependencies` of `package`, among crates that all exist.
fn check_dependencies(package: &str, dependencies: &[&str], expected: &[(usize, Rule)]) {
    let known = ["saggar-domain", "saggar-jail", "saggar-guest", "saggar-supervisor", "saggar-sandbox", "saggar"];
    let mut workspace = Workspace::default();
    for name in known.iter().filter(|name| **name != package).chain([&package]) {
        workspace.crates.push(Crate {
            package: (*name).into(),
            folder: format!("crates/{name}"),
            roots: Vec::new(),
            dependencies: Vec::new(),
        });
    }
    let member = workspace.crates.last_mut().expect("the package was pushed last");
    member.dependencies = dependencies.iter().map(|name| (*name).to_owned()).collect();
    let lines: String = dependencies.iter().map(|name| format!("{name}.workspace = true\n")).collect();
    workspace.files.push(TextFile { path: member.manifest(), text: format!("[dependencies]\n{lines}") });

    let found: Vec<_> = check(&workspace).iter().map(|finding| (finding.line, finding.rule)).collect();
    assert_eq!(found, expected, "{package} with {dependencies:?}");
}

#[test]
fn dependencies_point_downwards() {
    check_dependencies("saggar-supervisor", &["saggar-domain", "saggar-guest", "saggar-jail", "rustix"], &[]);
    check_dependencies("saggar", &["saggar-domain", "saggar-sandbox", "saggar-supervisor"], &[]);
    check_dependencies("saggar-domain", &["serde", "saggar-jail"], &[(3, Rule::Direction)]);
    check_dependencies("saggar-jail", &["saggar-domain"], &[(2, Rule::Direction)]);
    check_dependencies("saggar-sandbox", &["saggar"], &[(2, Rule::Direction)]);
    check_dependencies("saggar", &["saggar-jail"], &[(2, Rule::Direction)]);
}

#[test]
fn every_crate_has_a_row() {
    check_dependencies("saggar-novelty", &["saggar-domain"], &[(1, Rule::UnknownCrate)]);
    check_dependencies("novelty", &[], &[(1, Rule::UnknownCrate)]);
}

#[test]
fn tokio_stays_out_of_the_small_and_the_pure() {
    for name in ["domain", "engine", "policy", "audit", "jail", "guest", "supervisor"] {
        check_dependencies(&format!("saggar-{name}"), &["tokio"], &[(2, Rule::ForbiddenDependency)]);
    }
    check_dependencies("saggar-server", &["tokio"], &[]);
}

#[test]
fn no_crate_shows_another_whole() {
    let check_use = |text: &str, expected: &[(usize, Rule)]| {
        let mut workspace = workspace("crates/conformance/src/x.rs", &format!("//! x\n{text}\n"));
        for (path, text) in [
            (
                "crates/domain/src/lib.rs",
                "//! x\n#![forbid(unsafe_code)]\npub mod limits;\npub mod mode;\nmod backup;\n",
            ),
            ("crates/domain/src/limits.rs", "//! x\npub mod memory;\n"),
            ("crates/domain/src/limits/memory.rs", "//! x\n"),
            ("crates/domain/src/mode/mod.rs", "//! x\n"),
            ("crates/domain/src/backup.rs", "//! x\n"),
        ] {
            workspace.files.push(TextFile { path: path.into(), text: text.into() });
        }
        let found: Vec<_> = check(&workspace).iter().map(|finding| (finding.line, finding.rule)).collect();
        assert_eq!(found, expected, "{text}");
    };
    for whole in [
        "pub use saggar_domain as domain;",
        "pub use saggar_domain;",
        "pub use ::saggar_domain::*;",
        "pub use saggar_domain::limits;",
        "pub use saggar_domain::mode as modes;",
        "pub use saggar_domain::limits::memory;",
        "pub use saggar_domain::limits::*;",
        "pub use saggar_domain::{Spec, limits};",
        "pub use saggar_domain::{Spec, limits::{self, Cpus}};",
        "pub use saggar_domain::{\n    Spec,\n    limits::{Cpus, *},\n};",
    ] {
        check_use(whole, &[(2, Rule::WholeReexport)]);
    }
    for fine in [
        "pub use saggar_domain::Spec;",
        "pub use saggar_domain::limits::{Cpus, Count as Number};",
        "pub use saggar_domain::limits::parse_limits;",
        // A function, of a private module of the same name.
        "pub use saggar_domain::backup;",
        "pub(crate) use saggar_domain as domain;",
        "use saggar_domain::limits;",
        "pub use crate::limits;",
        "pub use serde;",
        "// pub use saggar_domain as domain;",
        "#[cfg(test)]\nmod tests {\n    pub use saggar_domain::*;\n}",
    ] {
        check_use(fine, &[]);
    }
}

#[test]
fn unsafe_code_stays_in_its_crates() {
    let text = "//! x\nunsafe { f() }\n";
    check_file("crates/domain/src/x.rs", text, &[(2, Rule::Unsafe)]);
    check_file("crates/conformance/src/x.rs", text, &[(2, Rule::Unsafe)]);
    check_file("crates/nowhere/src/x.rs", text, &[(2, Rule::Unsafe)]);
    check_file("crates/jail/src/x.rs", text, &[]);
    check_file("crates/conformance/src/bin/attacker.rs", text, &[]);
    check_file("crates/domain/src/x.rs", "//! x\n// unsafe\nlet unsafe_code = \"unsafe\";\n", &[]);
}

#[test]
fn crate_roots_forbid_unsafe_code() {
    check_file("crates/domain/src/lib.rs", "//! x\n", &[(1, Rule::ForbidMissing)]);
    check_file("crates/domain/src/lib.rs", "//! x\n// #![forbid(unsafe_code)]\n", &[(1, Rule::ForbidMissing)]);
    check_file("crates/domain/src/lib.rs", "//! x\n#![forbid(unsafe_code)]\n", &[]);
    check_file("crates/domain/src/other.rs", "//! x\n", &[]);
    check_file("crates/jail/src/lib.rs", "//! x\n", &[]);
}

#[test]
fn index_files_hold_no_logic() {
    let logic = "//! x\npub(crate) fn f() {}\n";
    check_file("crates/jail/src/lib.rs", logic, &[(2, Rule::LogicInIndex)]);
    check_file("crates/jail/src/x/mod.rs", logic, &[(2, Rule::LogicInIndex)]);
    check_file("crates/jail/src/x.rs", logic, &[]);
    check_file("crates/jail/tests/x/mod.rs", logic, &[]);
    check_file("crates/jail/src/lib.rs", "//! fn x\nmod fn_x;\ntype F = fn(u8);\n", &[]);
    check_file("crates/jail/src/lib.rs", "//! x\n#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n", &[]);
    check_file("crates/jail/src/lib.rs", "//! x\n#[cfg(test)]\nmod tests;\nfn f() {}\n", &[(4, Rule::LogicInIndex)]);
}

#[test]
fn long_files_are_named() {
    let of_length = |count: usize| format!("//! x\n{}", "x\n".repeat(count - 1));
    check_file("crates/jail/src/x.rs", &of_length(500), &[]);
    check_file("crates/jail/src/x.rs", &of_length(501), &[(1, Rule::Long)]);
    check_file("crates/jail/src/x.rs", &of_length(800), &[(1, Rule::Long)]);
    check_file("crates/jail/src/x.rs", &of_length(801), &[(1, Rule::TooLong)]);
    check_file("crates/jail/src/tests.rs", &of_length(801), &[]);
    check_file("crates/jail/tests/x.rs", &of_length(801), &[]);
    check_file("crates/jail/src/syscall/table.rs", &of_length(801), &[]);
    let tests = format!("#[cfg(test)]\nmod tests {{\n{}}}\n", "x\n".repeat(801));
    check_file("crates/jail/src/x.rs", &format!("//! x\n{tests}"), &[]);
}

#[test]
fn only_a_merely_long_file_passes() {
    let finding =
        |rule| Finding { path: String::new(), line: 1, rule, what: String::new(), help: String::new() }.severity();
    assert_eq!(finding(Rule::Long), Severity::Warning);
    assert_eq!(finding(Rule::TooLong), Severity::Error);
}

#[test]
fn empty_names_are_refused() {
    for path in ["src/utils.rs", "src/net_helpers/x.rs", "web/session-manager.ts", "tests/common/mod.rs"] {
        check_file(&format!("crates/jail/{path}"), "//! x\n", &[(1, Rule::EmptyName)]);
    }
    check_file("crates/jail/src/commonality.rs", "//! x\n", &[]);
}

#[test]
fn sources_start_with_a_header() {
    check_file("crates/jail/src/x.rs", "use x;\n", &[(1, Rule::HeaderMissing)]);
    check_file("crates/jail/src/x.rs", "// x\n", &[(1, Rule::HeaderMissing)]);
    check_file("crates/jail/src/main.rs", "use x;\n", &[]);
    check_file("crates/jail/tests/x.rs", "use x;\n", &[]);
}

#[test]
fn discards_give_a_reason() {
    check_file("crates/jail/src/x.rs", "//! x\n\n    let _ = f();\n", &[(3, Rule::SilentDiscard)]);
    check_file("crates/jail/src/x.rs", "//! x\n\n    let _ = f(\"// why\");\n", &[(3, Rule::SilentDiscard)]);
    check_file("crates/jail/src/x.rs", "//! x\n// why\n\nlet _ = f();\n", &[(4, Rule::SilentDiscard)]);
    check_file("crates/jail/src/x.rs", "//! x\n\n    let _ = f(); // why\n", &[]);
    check_file("crates/jail/src/x.rs", "//! x\n\n    // why\n    let _ = f();\n", &[]);
    check_file("crates/jail/src/x.rs", "//! x\n\n    let _guard = f();\n", &[]);
}

#[test]
fn todos_name_an_issue() {
    check_file("crates/jail/src/x.rs", "//! x\n// TODO: y\n", &[(2, Rule::UntrackedTodo)]);
    check_file("crates/jail/src/x.rs", "//! x\n// TODO(#): y\n", &[(2, Rule::UntrackedTodo)]);
    check_file("crates/jail/src/x.rs", "//! x\n// TODO(me): y\n", &[(2, Rule::UntrackedTodo)]);
    check_file("crates/jail/src/x.rs", "//! x\n// TODO(#12): y\n", &[]);
    check_file("crates/jail/src/x.rs", "//! x\nlet x = \"TODO\";\n", &[]);
    check_file("docs/x.md", "x\nTODO y\n", &[(2, Rule::UntrackedTodo)]);
    check_file("docs/x.md", "x\nTODOS y\n", &[]);
}

#[test]
fn machine_paths_stay_on_the_machine() {
    check_file("docs/x.md", "see /home/someone/saggar/notes\n", &[(1, Rule::MachinePath)]);
    check_file("crates/jail/src/x.rs", "//! x\nlet x = \"/home/someone/saggar\";\n", &[(2, Rule::MachinePath)]);
    check_file("docs/x.md", "see /home/someone/saggar-2 and /home/someone\n", &[]);
}

#[test]
fn findings_say_where_what_and_what_to_do() {
    let findings = check(&workspace("crates/jail/src/lib.rs", "//! x\nfn f() {}\n"));
    assert_eq!(
        findings.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["crates/jail/src/lib.rs:2: error: a function in lib.rs, which holds only docs, `mod` and `pub use`\n  \
          help: move it to a file named for what it does"]
    );
}
