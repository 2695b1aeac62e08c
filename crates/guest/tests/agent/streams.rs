//! Stdin, stdout, stderr, terminals.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;

use saggar_guest::{End, ExecRequest, FromGuest, STDIN_WINDOW, SignalScope, Stream, TerminalSize, ToGuest};

use crate::host::{DEADLINE, Host, NOBODY, agent, command, shell};

const SIZE: TerminalSize = TerminalSize { rows: 50, cols: 132 };

fn with_tty(request: ExecRequest) -> ExecRequest {
    ExecRequest { tty: Some(SIZE), ..request }
}

fn with_stdin(request: ExecRequest) -> ExecRequest {
    ExecRequest { stdin: true, ..request }
}

#[test]
fn stdout_and_stderr_are_apart() {
    let outcome = Host::start().run(shell("echo out; echo err >&2"));
    assert_eq!((&*outcome.stdout, &*outcome.stderr, outcome.end), (&b"out\n"[..], &b"err\n"[..], End::Code(0)));
}

#[test]
fn everything_written_before_the_end_arrives_before_it() {
    let mut host = Host::start();
    for _ in 0..20 {
        let outcome = host.run(shell("head -c 50000 /dev/zero; head -c 50000 /dev/zero >&2"));
        assert_eq!((outcome.stdout.len(), outcome.stderr.len(), outcome.end), (50_000, 50_000, End::Code(0)));
    }
}

#[test]
fn all_that_the_largest_pipe_holds_at_the_end_arrives() {
    const PIPE_MAX: i32 = 1024 * 1024;
    // The channel has room for everything, so that the agent never has to wait for the host.
    let (ours, theirs) = UnixStream::pair().unwrap();
    let room = 8 * PIPE_MAX;
    // SAFETY: the option is an int, as the length says.
    let result = unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_SNDBUFFORCE);
        libc::setsockopt(theirs.as_raw_fd(), level, option, (&raw const room).cast(), size_of::<i32>() as u32)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    let mut host = Host::start_on((ours, theirs), Command::new(agent()));
    let script = format!("read line; exec head -c {PIPE_MAX} /dev/zero");
    let pid = host.begin(with_stdin(shell(&script)));

    // The program writes everything and ends while the agent is stopped and sees none of it.
    let writable = |fd| File::options().write(true).open(format!("/proc/{pid}/fd/{fd}")).unwrap();
    // SAFETY: takes numbers only.
    assert_eq!(unsafe { libc::fcntl(writable(1).as_raw_fd(), libc::F_SETPIPE_SZ, PIPE_MAX) }, PIPE_MAX);
    let agent = host.agent_pid() as i32;
    // SAFETY: takes numbers only; the agent is our child and has not been waited for.
    assert_eq!(unsafe { libc::kill(agent, libc::SIGSTOP) }, 0);
    writable(0).write_all(b"\n").unwrap();
    check_ends(pid);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::kill(agent, libc::SIGCONT) }, 0);

    let outcome = host.finish();
    assert_eq!((outcome.stdout.len(), outcome.end), (PIPE_MAX as usize, End::Code(0)));
}

/// The process must end, although it may not have been reaped.
fn check_ends(pid: u32) {
    // SAFETY: takes numbers only, and returns a new descriptor that nothing else owns.
    let process = unsafe { OwnedFd::from_raw_fd(libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32) };
    let mut entry = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry, and the count says so.
    assert_eq!(unsafe { libc::poll(&raw mut entry, 1, DEADLINE.as_millis() as i32) }, 1);
}

#[test]
fn stdin_goes_in_within_its_window_and_comes_back() {
    let data: Vec<u8> = (0..1_000_000u32).map(|number| (number % 251) as u8).collect();
    let mut host = Host::start();
    host.begin(with_stdin(command(&["cat"])));
    let (mut sent, mut credit, mut echoed) = (0, STDIN_WINDOW, Vec::new());
    while echoed.len() < data.len() {
        let count = credit.min(data.len() - sent);
        if count > 0 {
            host.send(ToGuest::Stdin { exec: 1, bytes: data[sent..sent + count].to_vec() });
            (sent, credit) = (sent + count, credit - count);
        }
        match host.next() {
            FromGuest::StdinTaken { exec: 1, bytes } => credit += bytes as usize,
            FromGuest::Output { exec: 1, stream: Stream::Stdout, bytes } => echoed.extend(bytes),
            other => panic!("unexpected: {other:?}"),
        }
    }
    host.send(ToGuest::StdinEnd { exec: 1 });
    let outcome = host.finish();
    assert!(echoed == data, "the bytes are the same");
    assert_eq!((outcome.stdout.len(), outcome.end), (0, End::Code(0)));
}

#[test]
fn stdin_that_nobody_reads_is_thrown_away_and_its_credit_given_back() {
    let mut host = Host::start();
    host.begin(with_stdin(shell("exec 0<&-; echo closed; sleep 1000")));
    host.wait_for_output("closed");
    for _ in 0..3 {
        host.send(ToGuest::Stdin { exec: 1, bytes: vec![0; STDIN_WINDOW] });
        assert_eq!(host.next(), FromGuest::StdinTaken { exec: 1, bytes: STDIN_WINDOW as u32 });
    }
    host.send(ToGuest::Signal { exec: 1, signal: 9, scope: SignalScope::Group });
    assert_eq!(host.finish().end, End::Signal { signal: 9, core: false });
}

#[test]
fn without_stdin_a_program_reads_nothing() {
    let outcome = Host::start().run(shell("wc -c; readlink /proc/self/fd/0"));
    assert_eq!(outcome.text(), "0\n/dev/null\n");
}

#[test]
fn more_stdin_than_the_window_ends_the_agent() {
    let mut host = Host::start();
    host.begin(with_stdin(command(&["cat"])));
    host.send(ToGuest::Stdin { exec: 1, bytes: vec![0; STDIN_WINDOW + 1] });
    assert_eq!(host.wait_for_leave(), 11);
}

#[test]
fn stdin_after_its_end_ends_the_agent() {
    let mut host = Host::start();
    host.begin(with_stdin(command(&["sleep", "1000"])));
    host.send(ToGuest::StdinEnd { exec: 1 });
    host.send(ToGuest::Stdin { exec: 1, bytes: vec![0] });
    assert_eq!(host.wait_for_leave(), 11);
}

#[test]
fn stdin_for_a_program_without_ends_the_agent() {
    let mut host = Host::start();
    host.begin(command(&["sleep", "1000"]));
    host.send(ToGuest::Stdin { exec: 1, bytes: vec![0] });
    assert_eq!(host.wait_for_leave(), 11);
}

#[test]
fn an_output_nobody_reads_ends_the_program_with_sigpipe() {
    let mut host = Host::start();
    host.begin(command(&["yes"]));
    host.wait_for_output("y");
    host.send(ToGuest::CloseOutput { exec: 1, stream: Stream::Stdout });
    assert_eq!(host.finish().end, End::Signal { signal: 13, core: false });
}

#[test]
fn a_slow_host_slows_the_program_and_not_the_agents_memory() {
    const SENT: usize = 16 * 1024 * 1024;
    let mut host = Host::start_as_child();
    host.read_at_most(1024);
    host.begin(command(&["head", "-c", &SENT.to_string(), "/dev/zero"]));
    let outcome = host.finish();
    assert_eq!((outcome.stdout.len(), outcome.end), (SENT, End::Code(0)));
    let status = std::fs::read_to_string(format!("/proc/{}/status", host.agent_pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u32 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 6 * 1024, "the agent took {peak_kib} KiB");
}

#[test]
fn execs_run_side_by_side() {
    let mut host = Host::start();
    for exec in 1..=3 {
        host.begin(ExecRequest { exec, ..with_stdin(command(&["cat"])) });
    }
    for exec in [2, 3, 1] {
        let bytes = format!("to {exec}").into_bytes();
        host.send(ToGuest::Stdin { exec, bytes: bytes.clone() });
        assert_eq!(host.next(), FromGuest::StdinTaken { exec, bytes: bytes.len() as u32 });
        assert_eq!(host.next(), FromGuest::Output { exec, stream: Stream::Stdout, bytes });
        host.send(ToGuest::StdinEnd { exec });
        assert_eq!(host.next(), FromGuest::Exited { exec, end: End::Code(0) });
        assert_eq!(host.next(), FromGuest::TreeGone { exec });
    }
}

#[test]
fn a_program_can_open_its_own_stdio_again() {
    let script = "echo out >/proc/self/fd/1; echo err >/proc/self/fd/2; cat /proc/self/fd/0";
    let mut host = Host::start();
    host.begin(ExecRequest { uid: NOBODY, gid: NOBODY, ..with_stdin(shell(script)) });
    host.send(ToGuest::StdinEnd { exec: 1 });
    let outcome = host.finish();
    assert_eq!((&*outcome.stdout, &*outcome.stderr, outcome.end), (&b"out\n"[..], &b"err\n"[..], End::Code(0)));
}

#[test]
fn a_terminal_has_the_size_asked_for_and_controls_the_session() {
    let script = "test -t 0 && test -t 1 && test -t 2 && echo tty; stty size; stat -c %u $(tty); echo there >/dev/tty";
    for uid in [0, NOBODY] {
        let outcome = Host::start().run(with_tty(ExecRequest { uid, gid: uid, ..shell(script) }));
        assert_eq!(outcome.text(), format!("tty\r\n50 132\r\n{uid}\r\nthere\r\n"));
    }
}

#[test]
fn a_terminal_can_be_resized() {
    let mut host = Host::start();
    let script = "sleep 1000 & trap 'stty size; kill $!; exit 0' WINCH; echo ready; wait";
    host.begin(with_tty(shell(script)));
    host.wait_for_output("ready");
    host.send(ToGuest::Resize { exec: 1, rows: 10, cols: 20 });
    let outcome = host.finish();
    assert_eq!((outcome.text().as_str(), outcome.end), ("10 20\r\n", End::Code(0)));
}

#[test]
fn what_is_typed_reaches_the_program_and_can_end() {
    for (typed, line) in [("hello\n", "hello\r\n"), ("half a line", "half a line")] {
        let mut host = Host::start();
        host.begin(with_tty(with_stdin(shell("stty -echo; echo ready; cat; echo over"))));
        host.wait_for_output("ready");
        host.send(ToGuest::Stdin { exec: 1, bytes: typed.as_bytes().to_vec() });
        host.send(ToGuest::StdinEnd { exec: 1 });
        let outcome = host.finish();
        assert_eq!((outcome.text(), outcome.end), (format!("{line}over\r\n"), End::Code(0)));
    }
}

#[test]
fn a_typed_interrupt_is_a_signal() {
    let mut host = Host::start();
    host.begin(with_tty(with_stdin(shell("echo ready; exec sleep 1000"))));
    host.wait_for_output("ready");
    host.send(ToGuest::Stdin { exec: 1, bytes: vec![3] });
    assert_eq!(host.finish().end, End::Signal { signal: 2, core: false });
}

#[test]
fn a_terminal_nobody_reads_is_hung_up() {
    let mut host = Host::start();
    host.begin(with_tty(command(&["yes"])));
    host.wait_for_output("y");
    host.send(ToGuest::CloseOutput { exec: 1, stream: Stream::Stdout });
    assert_eq!(host.finish().end, End::Signal { signal: 1, core: false });
}
