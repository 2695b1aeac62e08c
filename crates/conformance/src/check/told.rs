//! What is reported: by `doctor`, in denials and events, and to a terminal.

use std::io::Read;
use std::process::{Command, Stdio};

use saggar_supervisor::EscapeFilter;

use super::Scene;
use crate::expect::Observation;

/// The running executable, to be started as a user would.
pub(super) fn own_program() -> Option<Command> {
    let mut command = Command::new(std::env::current_exe().ok()?);
    command.stdin(Stdio::null());
    Some(command)
}

pub(super) fn escapes_neutralised(scene: &Scene<'_>) -> Vec<Observation> {
    let Some(ran) = &scene.ran else { return Vec::new() };
    let raw = &ran.report.output.stderr;
    let contains = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let sequences: &[(&str, &[u8])] = &[
        ("clipboard", b"\x1b]52"),
        ("hyperlink", b"\x1b]8"),
        ("settings report", b"\x1bP"),
        ("title", b"\x1b]0"),
        ("title report", b"\x1b[21t"),
        ("position report", b"\x1b[6n"),
        ("device report", b"\x1b[c"),
        ("8-bit control", b"\xc2\x9b"),
        ("concealment", b"\x1b[8m"),
        ("concealment after a reset", b"\x1b[0;08m"),
        ("concealment after a style", b"\x1b[1:8m"),
        ("concealment after a colour", b"\x1b[38;5;1;8m"),
        ("concealment after a background", b"\x1b[48;2;1;2;3;8m"),
    ];
    // Output shown on a terminal, and output of a program with a pty of its own because saggar was started on a
    // terminal.
    let ways = [("shown", EscapeFilter::default()), ("on its terminal", EscapeFilter::for_screen())];
    let mut observations = Vec::new();
    for (way, mut filter) in ways {
        let mut shown = Vec::new();
        filter.pass(raw, |byte| shown.push(byte));
        observations.extend(sequences.iter().map(|(member, bytes)| {
            let is_gone = contains(raw, bytes) && !contains(&shown, bytes);
            Observation::examined(format!("{way} without: {member}"), is_gone, "")
        }));
        let stays = contains(&shown, b"\x1b[38;5;8mgrey");
        observations.push(Observation::examined(format!("{way}: a colour of that number stays"), stays, ""));
    }
    observations
}

/// A spec file may come from anywhere. An error quotes its invalid values, and these must not act on the reader's
/// terminal.
pub(super) fn spec_errors_harmless(scene: &Scene<'_>) -> Vec<Observation> {
    let files = [
        ("a path", "toml", r#"workspace = "\u001b]0;PWNED\u0007""#),
        ("a path of JSON", "json", r#"{"workspace": "\u001b]0;PWNED\u0007"}"#),
        ("a field", "json", r#"{"\u001b]0;PWNED\u0007": 1}"#),
        ("a field further in", "json", r#"{"limits": {"\u001b[2J": 1}}"#),
        ("a field of TOML", "toml", "\"\\u001b[2J\" = 1"),
        ("a mode", "json", r#"{"fs": "\u001b[2J"}"#),
        ("a bidirectional mark", "json", r#"{"workspace": "/no\u202egnp.exe"}"#),
        ("an 8-bit control", "json", r#"{"\u009b2J": 1}"#),
    ];
    let tried = files.iter().map(|(member, format, content)| {
        let spec = scene.directory.join(format!("spec.{format}"));
        let output = std::fs::write(&spec, content).ok().and_then(|()| own_program()).and_then(|mut command| {
            let data = scene.directory.join("data");
            command.args(["run", "--data-dir"]).arg(data).arg("--spec").arg(&spec).args(["--", "true"]).output().ok()
        });
        let said = output.map(|output| String::from_utf8_lossy(&output.stderr).into_owned()).unwrap_or_default();
        let acts = |c: char| matches!(c, '\x1b' | '\x07' | '\u{9b}' | '\u{202e}');
        Observation::examined(*member, !said.contains(acts) && said.contains("u{"), "")
    });
    tried.collect()
}

/// The attacker is static, so a warning about a library that can't be preloaded comes from another program.
pub(super) fn helpers_unaffected(scene: &Scene<'_>) -> Vec<Observation> {
    let Some(ran) = &scene.ran else { return Vec::new() };
    let said = String::from_utf8_lossy(&ran.report.output.stderr).into_owned();
    vec![Observation::examined(
        "no other program loaded anything",
        said.is_empty(),
        said.lines().next().unwrap_or_default(),
    )]
}

pub(super) fn denials_bounded(scene: &Scene<'_>) -> Vec<Observation> {
    let Some(ran) = &scene.ran else { return Vec::new() };
    let told = ran.denied_by().len();
    vec![
        Observation::examined("events are bounded", (2..=1001).contains(&told), told.to_string()),
        Observation::examined(
            "each kind is kept once",
            ran.report.denials.len() <= 2,
            ran.report.denials.len().to_string(),
        ),
    ]
}

pub(super) fn capabilities_told(scene: &Scene<'_>) -> Vec<Observation> {
    let told = &scene.bench.capabilities;
    let mut observations = vec![
        Observation::examined("schema", told["schema"] == "saggar.capabilities/v1", ""),
        Observation::examined("version", told["version"].as_str().is_some_and(|text| !text.is_empty()), ""),
        Observation::examined("kernel", told["host"].as_str().is_some_and(|text| text.starts_with("Linux ")), ""),
    ];
    for (group, names) in [
        ("tiers", &["namespace", "wasm", "oci", "vm"][..]),
        ("filesystem", &["read-only", "workspace-write", "scratch"]),
        ("network", &["none", "proxied", "host"]),
        ("limits", &["timeout", "memory", "cpus", "pids", "disk", "files", "output"]),
        ("mechanisms", &["landlock", "seccomp", "root inside", "ids", "cgroup memory", "cgroup pids", "cgroup cpu"]),
    ] {
        let rows: Vec<&serde_json::Value> = told[group].as_array().into_iter().flatten().collect();
        let has_all = names.iter().all(|name| rows.iter().any(|row| row["name"] == *name));
        observations.push(Observation::examined(format!("{group} are all there"), has_all, ""));
        let is_explained = rows.iter().all(|row| {
            row["reason"].as_str().is_some_and(|text| !text.is_empty())
                && (row["status"] == "supported" || row["remedy"].as_str().is_some_and(|text| !text.is_empty()))
        });
        observations.push(Observation::examined(format!("{group} have reasons and remedies"), is_explained, ""));
    }
    observations
}

/// Uses a separate data directory: `doctor` cleans up in it.
pub(super) fn doctor_agrees(scene: &Scene<'_>) -> Vec<Observation> {
    let output = own_program().and_then(|mut command| {
        command.args(["doctor", "--json", "--data-dir"]).arg(scene.directory.join("data")).output().ok()
    });
    let told = output.as_ref().and_then(|output| serde_json::from_slice::<serde_json::Value>(&output.stdout).ok());
    let code = output.and_then(|output| output.status.code());
    let is_ready = told.as_ref().and_then(|told| told["is_ready"].as_bool());
    vec![
        Observation::examined("doctor speaks JSON", told.is_some(), ""),
        Observation::examined(
            "its exit status agrees",
            code == Some(i32::from(is_ready != Some(true))),
            format!("{code:?}"),
        ),
        Observation::examined(
            "it repeats its earlier report",
            told.is_some_and(|told| {
                told["limits"].as_array().map(Vec::len) == scene.bench.capabilities["limits"].as_array().map(Vec::len)
            }),
            "",
        ),
    ]
}

/// Through the command line, as a user sees them: the result and the event stream.
pub(super) fn denials_explain(scene: &Scene<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    let data = scene.directory.join("data");
    let events = scene.directory.join("events");
    let run = |arguments: &[&str]| {
        let output = own_program()?
            .arg("run")
            .arg("--json")
            .arg("--data-dir")
            .arg(&data)
            .arg("--events")
            .arg(&events)
            .args(arguments)
            .output()
            .ok()?;
        serde_json::from_slice::<serde_json::Value>(&output.stdout).ok()
    };
    let data_text = data.display().to_string();
    for (member, arguments, code) in [
        ("unsupported tier", &["--tier", "vm", "--", "true"][..], "unsupported_capability"),
        ("rules without a network for them", &["--allow", "a.example", "--", "true"], "contradiction"),
        ("absent workspace", &["--workspace", "/nonexistent/saggar", "--", "true"], "invalid_workspace"),
        ("working directory", &["--cwd", "/nonexistent", "--", "true"], "invalid_cwd"),
        ("absent program", &["--", "/nonexistent"], "program_not_found"),
        ("contradiction", &["--fs", "scratch", "--protect", "x", "--", "true"], ""),
    ] {
        let result = run(arguments);
        let error = result.as_ref().map(|result| &result["error"]);
        let is_explained = error.is_some_and(|error| {
            (code.is_empty() || error["code"] == code)
                && error["message"].as_str().is_some_and(|text| !text.is_empty())
                && error["help"].as_str().is_some_and(|text| !text.is_empty())
        });
        let is_discreet = error.is_some_and(|error| !error.to_string().contains(&data_text));
        observations.push(Observation::examined(
            format!("{member}: code and remedy"),
            is_explained,
            error.map(|error| error["code"].to_string()).unwrap_or_default(),
        ));
        observations.push(Observation::examined(format!("{member}: no path of ours"), is_discreet, ""));
    }
    // Only the events of the last run matter.
    let _ = std::fs::remove_file(&events);
    let result = run(&["--", "/bin/sh", "-c", "unshare --user true"]);
    let denial = result.as_ref().map(|result| &result["denials"][0]);
    observations.push(Observation::examined(
        "a refused call: rule and message",
        denial.is_some_and(|denial| {
            denial["code"] == "syscall_refused"
                && denial["rule"] == "seccomp/namespaces"
                && denial["message"].is_string()
        }),
        "",
    ));
    let mut text = String::new();
    let read = std::fs::File::open(&events).and_then(|mut file| file.read_to_string(&mut text));
    let lines: Vec<serde_json::Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let kinds: Vec<&str> = lines.iter().filter_map(|line| line["type"].as_str()).collect();
    let hash = result.as_ref().map(|result| &result["policy_hash"]).filter(|hash| hash.is_string());
    observations.push(Observation::examined(
        "events in order",
        read.is_ok()
            && kinds.starts_with(&["setup", "network", "start"])
            && kinds.last() == Some(&"finish")
            && lines.iter().enumerate().all(|(index, line)| line["seq"] == index),
        kinds.join(" "),
    ));
    observations.push(Observation::examined(
        "every event carries the policy hash",
        hash.is_some_and(|hash| lines.iter().all(|line| line["policy_hash"] == *hash)),
        "",
    ));
    observations
}
