//! `saggar probe` itself: no case fails as root or as an ordinary user, and cases that don't apply are explained.

mod harness;

use std::os::unix::fs::{PermissionsExt, lchown};
use std::process::{Command, Output};

use harness::Place;
use harness::image::Image;
use serde_json::Value;

const ORDINARY: u32 = 12345;

fn lines(stdout: &[u8]) -> Vec<Value> {
    String::from_utf8_lossy(stdout).lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
}

/// Every case passes or is explained, and enough of them passed to be meaningful.
fn check_results(output: &Output, passed_min: usize) {
    let results = lines(&output.stdout);
    let of = |verdict: &str| results.iter().filter(|result| result["verdict"] == verdict).collect::<Vec<_>>();
    let failed: Vec<String> =
        of("fail").iter().map(|result| format!("{}: {}", result["id"], result["reasons"])).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    for result in of("not-applicable") {
        let reason = result["reasons"][0].as_str().unwrap_or_default();
        assert!(reason.contains("doctor says") && reason.contains("remedy"), "{result}");
    }
    for result in of("documented") {
        let observed = result["observed"].as_object().expect("what was seen");
        let is_gap =
            |seen: &Value| seen.as_str().is_some_and(|seen| seen.starts_with("allowed") || seen.starts_with("broken"));
        assert!(result["documented"].is_string() && observed.values().any(is_gap), "{result}");
    }
    assert!(!of("documented").is_empty(), "what is not stopped is told apart");
    let judged: usize = ["pass", "documented", "fail", "not-applicable"].iter().map(|kind| of(kind).len()).sum();
    assert_eq!(results.len(), judged);
    for result in of("pass") {
        assert!(result["tier"] == "namespace" && result["ms"].is_u64() && result["observed"].is_object(), "{result}");
    }
    assert!(
        of("pass").len() >= passed_min,
        "only {} passed\n{}",
        of("pass").len(),
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn no_case_fails_for_whoever_runs_this() {
    let place = Place::new();
    let report = place.path("report.md");
    let output = Command::new(env!("CARGO_BIN_EXE_saggar"))
        .args(["probe", "--json", "--data-dir"])
        .arg(place.path("data"))
        .arg("--report")
        .arg(&report)
        .output()
        .expect("the probe starts");
    check_results(&output, if is_root() { 110 } else { 95 });
    let page = std::fs::read_to_string(report).expect("the report is written");
    assert!(page.contains("| F02 | pass |") && page.contains("## The host") && page.contains("seccomp"));
}

#[test]
fn no_case_fails_for_an_ordinary_user() {
    if !is_root() {
        eprintln!("not run here: only root can become a fresh user, and the other test is an ordinary user's already");
        return;
    }
    check_results(&probe_of_a_user(&Place::new(), &[]), 95);
}

#[test]
fn no_case_fails_for_an_ordinary_user_on_an_image() {
    if !is_root() {
        eprintln!("not run here: only root can become a fresh user, and the other test is an ordinary user's already");
        return;
    }
    let place = Place::new();
    probed(Image::in_data(&place.path("data")).imported_by(ORDINARY)).named("demo");
    check_results(&probe_of_a_user(&place, &["--template", "demo"]), 95);
}

/// The suite as a user who owns nothing but a few directories.
fn probe_of_a_user(place: &Place, flags: &[&str]) -> Output {
    let program = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &program);
    for name in ["", "data", "home", "tmp"] {
        let directory = place.path(name);
        std::fs::create_dir_all(&directory).expect("ours");
        lchown(&directory, Some(ORDINARY), Some(ORDINARY)).expect("we are root");
    }
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let user = ORDINARY.to_string();
    Command::new("setpriv")
        .args(["--reuid", &user, "--regid", &user, "--clear-groups", "--"])
        .arg(&program)
        .args(["probe", "--json"])
        .args(flags)
        .env_clear()
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("HOME", place.path("home"))
        .env("TMPDIR", place.path("tmp"))
        .env("SAGGAR_DATA_DIR", place.path("data"))
        .output()
        .expect("util-linux is there")
}

/// An image with what the cases look for.
fn probed(image: Image) -> Image {
    image.system().layer(|top| {
        for name in ["grep", "ln", "true", "head", "seq", "tail", "wc"] {
            top.program(name);
        }
        for path in ["home", "mnt", "opt", "run/lock", "srv", "usr/bin", "usr/lib", "usr/local/bin", "var/tmp"] {
            top.directory(path, 0o755);
        }
        top.mode("var/tmp", 0o1777);
    })
}

#[test]
fn no_case_fails_on_an_image() {
    let place = Place::new();
    probed(Image::in_data(&place.path("data"))).named("demo");
    let probe = |template: &str, cases: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_saggar"));
        command.args(["probe", "--json", "--template", template, "--data-dir"]).arg(place.path("data")).args(cases);
        command.output().expect("the probe starts")
    };
    check_results(&probe("demo", &[]), if is_root() { 110 } else { 95 });
    // It is really the template that is probed.
    let missing = probe("missing", &["--case", "F10"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&missing.stdout).contains("refused unsupported_capability"), "{missing:?}");
    let members = lines(&probe("demo", &["--case", "F02b"]).stdout).remove(0)["observed"].clone();
    assert_eq!(members["root: /usr/bin"], "allowed", "{members}");
}

#[test]
fn what_is_documented_as_not_stopped_is_counted_apart_and_is_no_failure() {
    let place = Place::new();
    let output = Command::new(env!("CARGO_BIN_EXE_saggar"))
        .args(["probe", "--case", "R08", "--case", "F19", "--data-dir"])
        .arg(place.path("data"))
        .output()
        .expect("the probe starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("documented R08 ") && text.contains("THREAT_MODEL.md#what-it-does-not-stop"), "{text}");
    assert!(text.ends_with("\n1 passed, 1 documented as not stopped, 0 failed, 0 not applicable\n"), "{text}");
    assert_eq!(output.status.code(), Some(0), "{text}");
}

#[test]
fn an_unknown_case_and_an_unbuilt_tier_are_clear_errors() {
    let place = Place::new();
    for (arguments, said) in [
        (&["--case", "F99"][..], "there is no case \"F99\""),
        (&["--case", "F99"], "F02"),
        (&["--tier", "vm"], "tier vm can't be probed here"),
        (&["--case", "F19", "--report", "/nonexistent/report.md"], "can't be written"),
        (&["--via", "env true", "--as-root"], "no place for the attempt"),
        (&["--via", "env {}", "--case", "NS12b"], "run as root"),
    ] {
        if arguments.contains(&"env {}") && !is_root() {
            eprintln!("not run here: root alone is asked whether it means it");
            continue;
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_saggar"));
        command.arg("probe").args(arguments);
        if arguments[0] != "--via" {
            command.arg("--data-dir").arg(place.path("data"));
        }
        let output = command.output().expect("the probe starts");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{text}");
        assert!(text.contains(said) && text.contains("help: "), "{text}");
    }
}

/// Runs in its own mount namespace, isolated from this host's data directory.
#[test]
fn the_default_data_directory_is_no_hole() {
    if !is_root() {
        eprintln!("not run here: only root can put an empty directory in its place");
        return;
    }
    let script = "mount -t tmpfs none /var/lib && exec \"$0\" probe --json --case U02";
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_saggar")])
        .output()
        .expect("the probe starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

/// Attempts that bubblewrap blocks hold; those that it leaves to its caller (descriptors) are open; those that only
/// apply to Saggar are reported as such.
#[test]
fn another_runtime_can_be_probed() {
    let place = Place::new();
    if Command::new("bwrap").arg("--version").output().is_err() {
        eprintln!("not run here: bubblewrap is not installed (scripts/setup.sh compare installs it)");
        return;
    }
    let via = "bwrap --unshare-all --cap-drop ALL --die-with-parent --new-session --clearenv --ro-bind /usr /usr --symlink usr/lib64 /lib64 \
               --proc /proc --dev /dev --tmpfs /tmp --bind {workspace} /workspace --ro-bind {probe} /probe {}";
    std::fs::create_dir_all(place.path("tmp")).expect("ours");
    let output = Command::new(env!("CARGO_BIN_EXE_saggar"))
        .args(["probe", "--json", "--as-root", "--via", via, "--case", "NS12b", "--case", "M01", "--case", "R01"])
        .args(["--case", "D01", "--case", "F12", "--case", "U01"])
        .env("TMPDIR", place.path("tmp"))
        .output()
        .expect("the probe starts");
    let verdicts: std::collections::BTreeMap<String, String> = lines(&output.stdout)
        .iter()
        .map(|result| {
            (result["id"].as_str().unwrap_or_default().into(), result["verdict"].as_str().unwrap_or_default().into())
        })
        .collect();
    let expected = [
        ("D01", "fail"),
        ("F12", "not-applicable"),
        ("F12b", "not-applicable"),
        ("F12c", "not-applicable"),
        ("F12d", "not-applicable"),
        ("F12e", "not-applicable"),
        ("F12f", "not-applicable"),
        ("F12g", "not-applicable"),
        ("M01", "pass"),
        ("NS12b", "pass"),
        ("R01", "not-applicable"),
        ("R01b", "not-applicable"),
        ("U01", "pass"),
        ("U01b", "not-applicable"),
    ];
    let expected = expected.map(|(id, verdict)| (id.to_owned(), verdict.to_owned())).into();
    assert_eq!(verdicts, expected, "{}", String::from_utf8_lossy(&output.stdout));
    assert_eq!(output.status.code(), Some(1));
}
