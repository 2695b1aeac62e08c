//! H07: every row of the table of flags in docs/run.md has a test, by name, and so has every attempt on the server that the threat model names. A flag
//! without one, or a test that is gone, fails.

mod harness;

use std::collections::BTreeSet;
use std::path::Path;

use harness::{Place, finish};

/// Flags (with a value if it is one of a few), and the tests of this directory or cases that prove the table's claim.
const SHOWN_BY: &[(&str, &[&str])] = &[
    ("--workspace", &["a_writable_workspace_takes_every_change", "a_workspace_has_to_be_a_directory_of_its_own"]),
    ("--fs read-only", &["a_read_only_workspace_refuses_every_change", "F10"]),
    ("--fs workspace-write", &["a_writable_workspace_takes_every_change"]),
    (
        "--fs scratch",
        &[
            "a_scratch_workspace_takes_every_change_and_keeps_the_host_as_it_was",
            "every_kind_of_change_is_listed_and_nothing_else",
        ],
    ),
    (
        "--protect",
        &["present_paths_stay_as_they_are", "absent_paths_stay_absent", "more_paths_can_be_protected", "F11"],
    ),
    ("--mount", &["mounts_are_read_only_unless_asked_otherwise"]),
    ("--env", &["the_environment_is_built_and_nothing_of_ours_is_in_it", "E01"]),
    ("--cwd", &["the_working_directory_is_what_was_asked_and_grants_nothing", "F19"]),
    ("--user user", &["programs_have_no_capabilities_and_can_gain_none", "NS03"]),
    ("--user root", &["root_of_a_sandbox_has_the_seven_named_capabilities"]),
    (
        "--stdin",
        &["stdin_is_ours_unless_it_is_said_to_be_none_or_a_file", "every_byte_of_stdin_arrives_and_comes_back"],
    ),
    ("--tty", &["with_a_terminal_of_its_own_a_program_has_one_of_our_size_and_kind"]),
    ("--net none", &["without_a_network_there_is_a_loopback_and_no_other_way", "N01"]),
    (
        "--net proxied",
        &["an_allowed_host_answers_and_another_is_refused_with_rule_and_remedy", "without_rules_everything_is_refused"],
    ),
    ("--allow", &["methods_and_paths_are_decided_per_request_inside_tls"]),
    ("--deny", &["results_and_events_say_what_was_decided"]),
    ("--net-bytes", &["flags_limit_bytes_and_requests", "N22"]),
    ("--net-bytes-per-host", &["flags_limit_bytes_and_requests", "N22b"]),
    ("--net-connections", &["flags_limit_connections", "N20"]),
    ("--net-connections-per-host", &["flags_limit_connections", "N20b"]),
    ("--net-requests-per-minute", &["flags_limit_bytes_and_requests", "N21"]),
    ("--net-requests-per-minute-per-host", &["flags_limit_bytes_and_requests", "N21b"]),
    ("--ask", &["a_question_names_program_and_host_and_each_answer_does_what_it_says"]),
    ("--record", &["what_was_recorded_is_answered_again_without_a_network"]),
    ("--replay", &["what_was_not_recorded_is_refused_with_what_is_nearest"]),
    ("--secret", &["the_usual_clients_use_a_secret_that_they_never_see"]),
    ("--secrets", &["secrets_that_cannot_be_used_safely_are_refused"]),
    (
        "--net host",
        &["the_hosts_network_is_the_hosts_and_the_result_says_so", "an_unmanaged_network_is_said_to_be_one"],
    ),
    ("--timeout", &["a_timeout_ends_whatever_a_program_does", "R12"]),
    ("--memory", &["heavy_memory_is_bounded_however_it_is_taken", "R03"]),
    ("--cpus", &["heavy_a_share_of_a_cpu_is_no_more_than_that", "R04"]),
    ("--pids", &["heavy_processes_are_bounded", "R01"]),
    ("--disk", &["heavy_storage_of_the_sandbox_is_bounded_in_bytes_and_in_files", "R05", "R06"]),
    (
        "--storage",
        &["files_on_disk_are_no_memory_and_end_at_the_limit", "what_can_not_be_given_is_refused_with_the_reason"],
    ),
    (
        "--volume",
        &[
            "files_stay_and_belong_to_the_users_inside",
            "read_only_is_read_only_for_root_too_and_set_id_bits_have_no_power",
            "an_exclusive_volume_has_one_user_and_a_shared_one_several",
        ],
    ),
    (
        "--template",
        &[
            "an_image_is_the_root_and_all_of_it_can_be_changed_without_changing_the_layers",
            "the_defaults_of_the_image_apply_and_flags_win",
        ],
    ),
    ("--files", &["open_files_are_bounded_and_the_bound_can_not_be_raised", "R09"]),
    ("--output", &["output_past_the_limit_is_counted_and_dropped_and_the_program_goes_on", "R10"]),
    ("--strict", &["with_every_limit_enforced_strict_starts_and_nothing_is_listed", "H03"]),
    (
        "--spec",
        &[
            "a_spec_file_is_read_to_the_letter_or_not_at_all",
            "the_policy_hash_follows_the_boundary_and_not_the_way_it_was_given",
        ],
    ),
    ("--json", &["every_way_to_end_has_the_same_shape"]),
    ("--events", &["events_on_stdout_come_before_the_result", "H06"]),
];
/// Flags that have no row in the table because the page explains them elsewhere.
const ELSEWHERE: &[&str] = &["--tier", "--data-dir", "--help"];

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("crates/cli is two below the top")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Words that begin with two dashes.
fn flags(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |character: char| character == '-' || character.is_ascii_lowercase();
    text.split(move |character| !is_part(character)).filter(|word| word.starts_with("--") && word.len() > 2)
}

/// The flags of the table, from the left cell of each row.
fn promised(page: &str) -> BTreeSet<String> {
    let (_, table) = page.split_once("| flag | |\n").expect("the page has a table of flags");
    let rows = table.lines().take_while(|line| line.starts_with('|'));
    // A bar within a cell is escaped with a backslash.
    let cells = rows.filter_map(|line| line.strip_prefix("| ")?.split(" | ").next());
    cells.flat_map(|cell| flags(cell).map(str::to_owned).collect::<Vec<_>>()).collect()
}

#[test]
fn every_flag_of_the_table_has_a_test_and_every_test_named_is_there() {
    let page = read(&repository().join("docs/run.md"));
    let shown: BTreeSet<String> =
        SHOWN_BY.iter().map(|(flag, _)| flag.split(' ').next().expect("a flag").to_owned()).collect();
    assert_eq!(promised(&page), shown, "the table of flags, and what is shown here");

    let sources = sources(&repository().join("crates/cli/tests"));
    let cases: BTreeSet<String> =
        saggar_conformance::cases().expect("the cases are read").into_iter().map(|case| case.id).collect();
    for (flag, names) in SHOWN_BY {
        for name in *names {
            let is_test = || has_test(&sources, name);
            assert!(cases.contains(*name) || is_test(), "{flag}: there is no test or case {name:?}");
        }
    }
}

/// All test sources in a directory, except this one.
fn sources(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries
        .map(|entry| entry.expect("ours").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("readme.rs"))
        .map(|path| read(&path))
        .collect()
}

/// Whether there is such a function with a test attribute on the line before it.
fn has_test(sources: &[String], name: &str) -> bool {
    let is_head = |line: &str| {
        let line = line.strip_prefix("async ").unwrap_or(line);
        line.strip_prefix("fn ").and_then(|line| line.strip_prefix(name)).is_some_and(|line| line.starts_with("()"))
    };
    let is_mark = |line: &str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    sources
        .iter()
        .any(|source| source.lines().zip(source.lines().skip(1)).any(|(mark, head)| is_mark(mark) && is_head(head)))
}

#[test]
fn every_test_that_the_threat_model_names_is_there() {
    let page = read(&repository().join("THREAT_MODEL.md"));
    let (_, table) = page.split_once("| attempts | tests |\n").expect("the page has a table of tests");
    let rows = table.lines().take_while(|line| line.starts_with('|')).filter(|line| !line.starts_with("|---"));
    let directories =
        ["crates/cli/tests", "crates/store/tests/store", "crates/runtime/tests/runs", "crates/image/tests/images"];
    let sources: Vec<String> = directories.iter().flat_map(|place| sources(&repository().join(place))).collect();
    for row in rows {
        let cell = row.rsplit(" | ").next().expect("a cell");
        let names: Vec<&str> = cell.split('`').skip(1).step_by(2).collect();
        assert!(!names.is_empty(), "no test is named: {row}");
        for name in names {
            assert!(has_test(&sources, name), "there is no test {name:?}");
        }
    }
}

#[test]
fn the_unit_in_the_manual_is_the_one_that_ships_and_needs_no_file_that_may_be_absent() {
    let unit = read(&repository().join("packaging/saggar.service"));
    assert!(read(&repository().join("docs/server.md")).contains(&format!("```ini\n{unit}```\n")));
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).expect("it starts something");
    let mut words = command.split(' ');
    assert_eq!(words.next(), Some("/usr/local/bin/saggar"));
    // The command and its flags must exist.
    let done = finish(Place::new().command(words.chain(["--help"])).spawn().expect("the binary was built"));
    assert_eq!(done.code, 0, "{done:?}");
    let files = unit.lines().filter(|line| line.contains("/etc/") && !line.starts_with('#'));
    for line in files {
        assert!(line.contains("=-/"), "the service doesn't start without it: {line}");
    }
}

#[test]
fn every_flag_there_is_stands_in_the_table() {
    let help = finish(Place::new().command(["run", "--help"]).spawn().expect("the binary was built")).stdout;
    let own_lines = help.lines().map(str::trim_start).filter(|line| line.starts_with('-'));
    let known: BTreeSet<String> = own_lines
        .filter_map(|line| flags(line).next())
        .filter(|flag| !ELSEWHERE.contains(flag))
        .map(str::to_owned)
        .collect();
    assert_eq!(promised(&read(&repository().join("docs/run.md"))), known);
}
