//! All descendants of a program, however detached: they are signalled, and their end is reported.

use saggar_guest::{End, ExecRequest, FailStage, FromGuest, SignalScope, ToGuest};

use crate::host::{Host, NOBODY, Scratch, command, shell};

const KILLED: End = End::Signal { signal: 9, core: false };

fn kill(exec: u32) -> ToGuest {
    ToGuest::Signal { exec, signal: 9, scope: SignalScope::Tree }
}

/// A fifo that the watched process holds open for writing.
struct Leash {
    scratch: Scratch,
}

impl Leash {
    fn new() -> Leash {
        let leash = Leash { scratch: Scratch::new() };
        let name = std::ffi::CString::new(leash.path()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        std::fs::set_permissions(leash.path(), std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
        leash
    }

    fn path(&self) -> String {
        format!("{}/leash", self.scratch.text())
    }

    /// Waits until no process holds it. The writer must have written before.
    fn check_let_go(self, mut reader: std::fs::File) {
        use std::io::Read;
        let mut rest = Vec::new();
        // The reader ends when the last writer is gone.
        reader.read_to_end(&mut rest).unwrap();
    }

    fn reader(&self) -> std::fs::File {
        std::fs::File::open(self.path()).unwrap()
    }
}

/// Two forks and a new session: it ignores all signals it can, holds the leash, and its parent is gone.
fn daemon(leash: &Leash) -> String {
    let body = format!("trap \"\" HUP TERM INT; exec 9>{}; echo up >&9; while :; do sleep 1000; done", leash.path());
    format!("(setsid sh -c '{body}' </dev/null >/dev/null 2>&1 &)")
}

fn wait_up(reader: &mut std::fs::File) {
    use std::io::Read;
    reader.read_exact(&mut [0; 3]).unwrap();
}

#[test]
fn a_signal_to_the_tree_reaches_a_daemon_of_whatever_user() {
    for uid in [0, NOBODY] {
        let leash = Leash::new();
        let mut host = Host::start();
        let script = format!("{}; sleep 1000", daemon(&leash));
        host.begin(ExecRequest { uid, gid: uid, ..shell(&script) });
        let mut reader = leash.reader();
        wait_up(&mut reader);
        host.send(kill(1));
        assert_eq!(host.finish().end, KILLED);
        leash.check_let_go(reader);
    }
}

#[test]
fn a_signal_to_the_tree_reaches_what_the_program_has_left() {
    let leash = Leash::new();
    let mut host = Host::start();
    host.begin(shell(&daemon(&leash)));
    let mut reader = leash.reader();
    wait_up(&mut reader);
    assert_eq!(host.finish_program().end, End::Code(0));
    // It has not ended, and others run beside it.
    assert_eq!(host.run(ExecRequest { exec: 2, ..command(&["true"]) }).end, End::Code(0));
    // The group of a program that has ended has no process to signal.
    host.send(ToGuest::Signal { exec: 1, signal: 9, scope: SignalScope::Group });
    assert_eq!(host.run(ExecRequest { exec: 3, ..command(&["true"]) }).end, End::Code(0));
    host.send(kill(1));
    assert_eq!(host.next(), FromGuest::TreeGone { exec: 1 });
    leash.check_let_go(reader);
}

#[test]
fn that_nothing_is_left_is_told_while_output_waits() {
    let mut host = Host::start();
    host.begin(ExecRequest { output_window: Some(100), ..shell("(setsid sleep 1000 &); exec yes") });
    let mut taken = 0;
    while taken < 100 {
        let FromGuest::Output { bytes, .. } = host.next() else { panic!("more than its output was told") };
        taken += bytes.len();
    }
    host.send(kill(1));
    // Its end is reported after its output, which is never read.
    assert_eq!(host.next_aside(), FromGuest::Deserted { exec: 1 });
    assert!(host.asides.is_empty());
    host.send(ToGuest::OutputTaken { exec: 1, bytes: 100 });
    assert!(matches!(host.next(), FromGuest::Output { .. }));
}

#[test]
fn what_a_program_and_its_children_used_is_told_before_its_end() {
    let mut host = Host::start();
    // A child that uses memory and is waited for, and one that uses CPU time and is left to the tree's keeper.
    let busy = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; : >";
    let scratch = Scratch::new();
    let done = format!("{}/done", scratch.text());
    let script = format!(
        "(sh -c '{busy} {done}' &); head -c 50000000 /dev/zero | tail -n 1 | wc -c; while ! [ -e {done} ]; do sleep 0.01; done"
    );
    host.begin(shell(&script));
    assert_eq!(host.finish().text(), "50000000\n");
    let FromGuest::Used { exec: 1, cpu_usec, memory_peak } = host.next_aside() else { panic!("not what it used") };
    assert!(cpu_usec > 1000 && memory_peak > 40_000_000, "{cpu_usec} us, {memory_peak} bytes");
    assert_eq!(host.next_aside(), FromGuest::Deserted { exec: 1 });
}

#[test]
fn other_signals_are_sent_once_to_each() {
    let leash = Leash::new();
    let body =
        format!("trap \"echo hit >&9\" USR1; exec 9>{}; echo up >&9; while :; do sleep 0.01; done", leash.path());
    // A shell can't catch a signal that was ignored when it started.
    let script = format!("(setsid sh -c '{body}' &); trap '' USR1; echo ready; exec sleep 1000");
    let mut host = Host::start();
    host.begin(shell(&script));
    host.wait_for_output("ready");
    let mut reader = leash.reader();
    wait_up(&mut reader);
    host.send(ToGuest::Signal { exec: 1, signal: libc::SIGUSR1 as u8, scope: SignalScope::Tree });
    let mut line = [0; 4];
    std::io::Read::read_exact(&mut reader, &mut line).unwrap();
    assert_eq!(&line, b"hit\n");
    host.send(kill(1));
    assert_eq!(host.finish().end, KILLED);
}

#[test]
fn what_forks_without_pause_is_caught() {
    let mut host = Host::start();
    let bomb = "f() { (f & f &) & }; i=0; while [ $i -lt 20 ]; do (sh -c 'while :; do (setsid true &) & wait; done' &); \
                i=$((i+1)); done; echo up; sleep 1000";
    host.begin(ExecRequest { uid: NOBODY, gid: NOBODY, nproc: Some(300), ..shell(bomb) });
    host.wait_for_output("up");
    host.send(kill(1));
    loop {
        match host.next() {
            FromGuest::TreeGone { exec: 1 } => break,
            FromGuest::Output { .. } | FromGuest::Exited { .. } => {}
            other => panic!("unexpected: {other:?}"),
        }
    }
}

#[test]
fn the_end_of_a_tree_is_told_when_its_last_process_ends() {
    let mut host = Host::start();
    let scratch = Scratch::new();
    let path = format!("{}/go", scratch.text());
    let name = std::ffi::CString::new(path.as_str()).unwrap();
    // SAFETY: the path is a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    host.begin(shell(&format!("(setsid sh -c 'read x <{path}' &); echo over")));
    assert_eq!(host.finish_program().text(), "over\n");
    // Nothing is reported before: this exec's frames are the next.
    host.send(ToGuest::Exec(ExecRequest { exec: 2, ..command(&["true"]) }));
    assert!(matches!(host.next(), FromGuest::Started { exec: 2, .. }));
    assert_eq!(host.next(), FromGuest::Exited { exec: 2, end: End::Code(0) });
    assert_eq!(host.next(), FromGuest::TreeGone { exec: 2 });
    std::fs::write(&path, b"\n").unwrap();
    assert_eq!(host.next(), FromGuest::TreeGone { exec: 1 });
}

#[test]
fn who_kills_the_keeper_is_killed_with_all_its_kin() {
    let leash = Leash::new();
    let mut host = Host::start();
    // The program's parent is the keeper; a program that is root may signal it.
    let script = format!("{}; read x; kill -9 $PPID; sleep 1000", daemon(&leash));
    // An unrelated exec.
    host.begin(ExecRequest { exec: 2, stdin: true, ..command(&["cat"]) });
    host.begin(ExecRequest { keep_capabilities: true, stdin: true, ..shell(&script) });
    let mut reader = leash.reader();
    wait_up(&mut reader);
    host.send(ToGuest::Stdin { exec: 1, bytes: b"\n".to_vec() });
    assert_eq!(host.finish().end, KILLED);
    leash.check_let_go(reader);
    host.send(ToGuest::StdinEnd { exec: 2 });
    assert_eq!(host.finish().end, End::Code(0));
}

#[test]
fn a_failed_exec_has_no_tree() {
    let mut host = Host::start();
    for _ in 0..20 {
        host.check_failed(command(&["/nonexistent"]), FailStage::Program, libc::ENOENT);
    }
    assert_eq!(host.run(command(&["true"])).end, End::Code(0));
}

#[test]
fn a_program_enters_the_cgroups_it_is_given_before_anything_else() {
    use std::os::fd::AsFd;
    // A file stands in for the list of processes: what matters is what is written, and by which process.
    let scratch = Scratch::new();
    let files: Vec<std::fs::File> =
        (0..3).map(|number| std::fs::File::create(scratch.path().join(number.to_string())).unwrap()).collect();
    let mut host = Host::start();
    let request = ExecRequest { joins: 3, ..command(&["true"]) };
    let descriptors: Vec<_> = files.iter().map(AsFd::as_fd).collect();
    host.send_with(&ToGuest::Exec(request.clone()), &descriptors);
    assert!(matches!(host.next(), FromGuest::Started { .. }));
    host.finish();
    for number in 0..3 {
        assert_eq!(std::fs::read(scratch.path().join(number.to_string())).unwrap(), b"0");
    }
    // An exec whose cgroup can't be entered fails.
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    host.send_with(&ToGuest::Exec(ExecRequest { joins: 1, ..request }), &[full.as_fd()]);
    let failed = FromGuest::Failed { exec: 1, stage: FailStage::Cgroup, errno: libc::ENOSPC };
    assert_eq!(host.next(), failed);
}
