//! The user that a program runs as: exactly the requested one, or the program doesn't run.

use std::os::unix::fs::MetadataExt;
use std::process::Command;

use saggar_guest::{ExecRequest, FailStage};

use crate::host::{Host, NOBODY, Scratch, agent, command, shell};

const WHO: &str = "id -u; id -g; id -G; grep -E '^(Cap|NoNewPrivs)' /proc/self/status";

const NO_CAPABILITIES: &str = "CapInh:\t0000000000000000\nCapPrm:\t0000000000000000\nCapEff:\t0000000000000000\n\
                               CapBnd:\t0000000000000000\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";

const CAP_SETPCAP: u64 = 1 << 8;

#[test]
fn a_user_has_the_ids_asked_for_and_no_capability_in_any_set() {
    let mut host = Host::start();
    let outcome = host.run(ExecRequest { uid: NOBODY, gid: 12_345, groups: vec![7, 5], ..shell(WHO) });
    assert_eq!(outcome.text(), format!("65534\n12345\n12345 5 7\n{NO_CAPABILITIES}"));

    let outcome = host.run(ExecRequest { uid: NOBODY, gid: NOBODY, ..shell(WHO) });
    assert_eq!(outcome.text(), format!("65534\n65534\n65534\n{NO_CAPABILITIES}"));
}

#[test]
fn root_without_capabilities_has_none_in_any_set() {
    assert_eq!(Host::start().run(shell(WHO)).text(), format!("0\n0\n0\n{NO_CAPABILITIES}"));
}

#[test]
fn root_that_keeps_capabilities_has_the_agents_but_setpcap() {
    let ours = std::fs::read_to_string("/proc/self/status").unwrap();
    let ours = ours.lines().find_map(|line| line.strip_prefix("CapBnd:\t")).unwrap();
    let expected = u64::from_str_radix(ours, 16).unwrap() & !CAP_SETPCAP;
    let outcome = Host::start().run(ExecRequest { keep_capabilities: true, ..shell(WHO) });
    let expected = format!(
        "0\n0\n0\nCapInh:\t0000000000000000\nCapPrm:\t{expected:016x}\nCapEff:\t{expected:016x}\n\
         CapBnd:\t{expected:016x}\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n"
    );
    assert_eq!(outcome.text(), expected);
}

/// An agent that already is the only user of its sandbox and can't become another.
pub fn start_single(scratch: &Scratch, bounding: &str) -> Host {
    // That user may not be able to read the directory in which the tests are built.
    let copy = scratch.file("agent", &std::fs::read(agent()).unwrap(), 0o755);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", bounding, "--no-new-privs", &copy]);
    Host::start_with(command)
}

#[test]
fn a_single_user_runs_as_itself_and_as_nobody_else() {
    let scratch = Scratch::new();
    let mut host = start_single(&scratch, "--bounding-set=-all");
    let own = || ExecRequest { uid: NOBODY, gid: NOBODY, ..shell(WHO) };
    assert_eq!(host.run(own()).text(), format!("65534\n65534\n65534\n{NO_CAPABILITIES}"));
    let tty = Some(saggar_guest::TerminalSize { rows: 1, cols: 2 });
    assert_eq!(host.run(ExecRequest { tty, ..own() }).text().lines().next(), Some("65534"));

    host.check_failed(ExecRequest { uid: 0, ..own() }, FailStage::Pipes, libc::EPERM);
    host.check_failed(ExecRequest { gid: 0, ..own() }, FailStage::Pipes, libc::EPERM);
    host.check_failed(ExecRequest { groups: vec![5], ..own() }, FailStage::Identity, libc::EPERM);
}

#[test]
fn capabilities_that_cannot_be_dropped_fail_the_exec() {
    let scratch = Scratch::new();
    let mut host = start_single(&scratch, "--bounding-set=+all");
    host.check_failed(ExecRequest { uid: NOBODY, gid: NOBODY, ..command(&["true"]) }, FailStage::Identity, libc::EPERM);
}

#[test]
fn the_agent_cannot_be_looked_into() {
    // In /proc a process belongs to root, and not to its user, unless it is dumpable.
    let scratch = Scratch::new();
    let single = start_single(&scratch, "--bounding-set=-all");
    assert_eq!(std::fs::metadata(format!("/proc/{}/fd", single.agent_pid())).unwrap().uid(), 0);
}
