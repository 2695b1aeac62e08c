//! Which program runs, in which environment, and which error is reported if it can't.

use saggar_guest::{End, ExecRequest, FailStage};

use crate::host::{Host, NOBODY, Scratch, command, shell};

fn with_path(path: &str, argv: &[&str]) -> ExecRequest {
    ExecRequest { env: vec![format!("PATH={path}").into_bytes()], ..command(argv) }
}

#[test]
fn a_program_that_is_not_there_or_not_one_is_reported_with_the_reason() {
    let scratch = Scratch::new();
    let plain = scratch.file("plain", b"#!/bin/sh\n", 0o644);
    let headless = scratch.file("headless", b"echo no shebang\n", 0o755);
    let orphan = scratch.file("orphan", b"#!/nonexistent/interpreter\n", 0o755);
    let cases = [
        ("/nonexistent/program", libc::ENOENT),
        (plain.as_str(), libc::EACCES),
        (scratch.text(), libc::EACCES),
        (headless.as_str(), libc::ENOEXEC),
        (orphan.as_str(), libc::ENOENT),
        ("no-such-program-anywhere", libc::ENOENT),
    ];
    let mut host = Host::start();
    for (program, errno) in cases {
        host.check_failed(command(&[program]), FailStage::Program, errno);
    }
    // The agent still works afterwards.
    assert_eq!(host.run(command(&["true"])).end, End::Code(0));
}

#[test]
fn a_name_is_searched_in_the_path_of_the_request() {
    let scratch = Scratch::new();
    scratch.file("first/tool", b"#!/bin/sh\necho first\n", 0o644);
    scratch.file("second/tool", b"#!/bin/sh\necho second\n", 0o755);
    let (first, second) = (format!("{}/first", scratch.text()), format!("{}/second", scratch.text()));
    let mut host = Host::start();

    let found = host.run(with_path(&format!("/nonexistent::{first}:{second}"), &["tool"]));
    assert_eq!((found.text().as_str(), found.end), ("second\n", End::Code(0)));

    host.check_failed(with_path(&first, &["tool"]), FailStage::Program, libc::EACCES);
    host.check_failed(with_path("/nonexistent", &["tool"]), FailStage::Program, libc::ENOENT);
    host.check_failed(with_path("", &["tool"]), FailStage::Program, libc::ENOENT);
    host.check_failed(ExecRequest { env: vec![], ..command(&["true"]) }, FailStage::Program, libc::ENOENT);
    // An empty entry does not mean the working directory.
    let here = ExecRequest { cwd: second.clone().into_bytes(), ..with_path(":", &["tool"]) };
    host.check_failed(here, FailStage::Program, libc::ENOENT);
}

#[test]
fn the_working_directory_is_entered_as_the_user() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let private = scratch.path().join("private");
    std::fs::create_dir(&private).unwrap();
    std::fs::set_permissions(&private, PermissionsExt::from_mode(0o700)).unwrap();
    let file = scratch.file("file", b"", 0o644);
    let at = |cwd: &str, uid| ExecRequest { cwd: cwd.as_bytes().to_vec(), uid, gid: uid, ..command(&["pwd"]) };

    let mut host = Host::start();
    assert_eq!(host.run(at(scratch.text(), NOBODY)).text(), format!("{}\n", scratch.text()));
    host.check_failed(at("/nonexistent", 0), FailStage::Cwd, libc::ENOENT);
    host.check_failed(at(&file, 0), FailStage::Cwd, libc::ENOTDIR);
    host.check_failed(at(private.to_str().unwrap(), NOBODY), FailStage::Cwd, libc::EACCES);
    // The directory cannot be one of the agent's own descriptors: they are closed before.
    host.check_failed(at("/proc/self/fd/5", 0), FailStage::Cwd, libc::ENOENT);
}

#[test]
fn the_environment_is_exactly_what_was_asked_for() {
    let env: Vec<Vec<u8>> = ["A=1", "EMPTY=", "B=x=y z", "A=twice"].map(|entry| entry.as_bytes().to_vec()).into();
    let outcome = Host::start().run(ExecRequest { env: env.clone(), ..command(&["/usr/bin/env", "-0"]) });
    let seen: Vec<Vec<u8>> = outcome.stdout.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect();
    assert_eq!(seen, [env, vec![vec![]]].concat());
}

#[test]
fn arguments_arrive_unchanged() {
    let arguments = ["", "a b", "$HOME", "\n", "--"];
    let script = "for a; do printf '[%s]' \"$a\"; done";
    let outcome = Host::start().run(command(&[&["sh", "-c", script, "sh"], &arguments[..]].concat()));
    assert_eq!(outcome.text(), "[][a b][$HOME][\n][--]");
}

#[test]
fn an_argument_list_of_a_megabyte_arrives() {
    let argument = "x".repeat(1000);
    let mut argv = vec!["sh", "-c", "echo $# ${#1024}", "sh"];
    argv.resize(4 + 1024, &argument);
    assert_eq!(Host::start().run(command(&argv)).text(), "1024 1000\n");
}

#[test]
fn a_program_has_only_its_three_descriptors() {
    let script = "n=0; while [ $n -lt 256 ]; do [ -e /proc/$$/fd/$n ] && echo $n; n=$((n+1)); done";
    let mut host = Host::start();
    // Another exec is running, so that there are descriptors that could leak.
    host.begin(ExecRequest { exec: 9, stdin: true, ..command(&["cat"]) });
    assert_eq!(host.run(shell(script)).text(), "0\n1\n2\n");
    assert_eq!(host.run(ExecRequest { stdin: true, ..shell(script) }).text(), "0\n1\n2\n");
    let tty = Some(saggar_guest::TerminalSize { rows: 24, cols: 80 });
    assert_eq!(host.run(ExecRequest { tty, ..shell(script) }).text(), "0\r\n1\r\n2\r\n");
}

#[test]
fn limits_are_soft_and_hard() {
    let script = "grep -E '^Max (processes|open)' /proc/self/limits | tr -s ' '; umask";
    let request = ExecRequest { nofile: Some(123), nproc: Some(4567), ..shell(script) };
    let expected = "Max processes 4567 4567 processes \nMax open files 123 123 files \n0022\n";
    assert_eq!(Host::start().run(request).text(), expected);
}

#[test]
fn a_limit_that_cannot_be_set_fails_the_exec() {
    // More descriptors than any kernel allows.
    let request = ExecRequest { nofile: Some(u64::MAX), ..command(&["true"]) };
    Host::start().check_failed(request, FailStage::Limits, libc::EPERM);
}

#[test]
fn a_program_leads_its_own_session_with_default_signals() {
    let mut host = Host::start();
    let pid = host.begin(command(&["cat", "/proc/self/stat"])).to_string();
    let stat = host.finish().text();
    let fields: Vec<&str> = stat.split(' ').collect();
    assert_eq!((fields[0], fields[4], fields[5]), (pid.as_str(), pid.as_str(), pid.as_str()), "{stat}");

    let signals = host.run(command(&["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"])).text();
    assert_eq!(signals, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}
