//! How programs, the agent and the sandbox end.

use std::io::Read;
use std::os::fd::AsRawFd;

use saggar_guest::{End, ExecRequest, FailStage, FromGuest, SignalScope, ToGuest};

use crate::host::{DEADLINE, Host, Scratch, command, shell};

#[test]
fn a_program_ends_with_its_code_or_its_signal() {
    let killed = |signal| End::Signal { signal, core: false };
    let cases = [
        ("exit 0", End::Code(0)),
        ("exit 1", End::Code(1)),
        ("exit 42", End::Code(42)),
        ("exit 255", End::Code(255)),
        ("kill -TERM $$", killed(15)),
        ("kill -KILL $$", killed(9)),
        // No core, because the limit is zero.
        ("kill -SEGV $$", killed(11)),
        ("kill -34 $$", killed(34)),
    ];
    let mut host = Host::start();
    for (script, end) in cases {
        assert_eq!(host.run(shell(script)).end, end, "{script}");
    }
}

#[test]
fn a_signal_reaches_the_whole_group() {
    let mut host = Host::start();
    // The background process reports when it is hit. The signal interrupts the shell's first wait, but not the second.
    let background = "trap 'echo hit; exit 3' TERM; echo ready; while :; do sleep 0.01; done";
    let script = format!("trap : TERM; sh -c \"{background}\" & wait $!; wait $!");
    host.begin(shell(&script));
    host.wait_for_output("ready");
    host.send(ToGuest::Signal { exec: 1, signal: 15, scope: SignalScope::Group });
    let outcome = host.finish();
    assert_eq!((outcome.text().as_str(), outcome.end), ("hit\n", End::Code(3)));
}

#[test]
fn a_stopped_program_can_be_killed() {
    let mut host = Host::start();
    host.begin(shell("echo ready; exec sleep 1000"));
    host.wait_for_output("ready");
    host.send(ToGuest::Signal { exec: 1, signal: libc::SIGSTOP as u8, scope: SignalScope::Group });
    host.send(ToGuest::Signal { exec: 1, signal: 9, scope: SignalScope::Group });
    assert_eq!(host.finish().end, End::Signal { signal: 9, core: false });
}

#[test]
fn frames_about_an_exec_that_is_gone_are_ignored() {
    let mut host = Host::start();
    host.run(command(&["true"]));
    host.send(ToGuest::Stdin { exec: 1, bytes: vec![0; 10] });
    host.send(ToGuest::StdinEnd { exec: 1 });
    host.send(ToGuest::Signal { exec: 1, signal: 9, scope: SignalScope::Group });
    host.send(ToGuest::Resize { exec: 1, rows: 1, cols: 1 });
    host.send(ToGuest::CloseOutput { exec: 1, stream: saggar_guest::Stream::Stdout });
    assert_eq!(host.run(ExecRequest { exec: 2, ..command(&["true"]) }).end, End::Code(0));
}

#[test]
fn what_is_left_in_the_background_does_not_hold_up_the_end() {
    // The background process keeps stdout open until its stdin ends, which is when the agent has exited.
    let script = "exec 3<&0; cat <&3 & echo left";
    let mut host = Host::start();
    let outcome = host.run(ExecRequest { stdin: true, one_shot: true, ..shell(script) });
    assert_eq!((outcome.text().as_str(), outcome.end), ("left\n", End::Code(0)));
    assert_eq!(host.wait_for_leave(), 0);
}

#[test]
fn what_floods_from_the_background_does_not_hold_up_the_end() {
    let mut host = Host::start();
    let outcome = host.run(ExecRequest { one_shot: true, ..shell("yes & exit 5") });
    assert_eq!(outcome.end, End::Code(5));
    assert_eq!(host.wait_for_leave(), 0);
}

#[test]
fn a_one_shot_that_fails_ends_the_agent() {
    let mut host = Host::start();
    let request = ExecRequest { one_shot: true, ..command(&["/nonexistent"]) };
    host.check_failed(request, FailStage::Program, libc::ENOENT);
    assert_eq!(host.wait_for_leave(), 0);
}

#[test]
fn the_agent_leaves_when_the_host_does() {
    assert_eq!(Host::start().hang_up(), 10);
}

#[test]
fn a_broken_frame_ends_the_agent() {
    let mut host = Host::start();
    host.send_raw(&[0, 0, 0, 0, 0xee]);
    assert_eq!(host.wait_for_leave(), 11);
}

#[test]
fn the_same_id_twice_ends_the_agent() {
    let mut host = Host::start();
    host.begin(ExecRequest { stdin: true, ..command(&["cat"]) });
    host.send(ToGuest::Exec(command(&["true"])));
    assert_eq!(host.wait_for_leave(), 11);
}

#[test]
fn there_is_a_number_of_execs() {
    let mut host = Host::start();
    for exec in 0..64 {
        host.begin(ExecRequest { exec, stdin: true, ..command(&["cat"]) });
    }
    let one_more = ExecRequest { exec: 64, ..command(&["true"]) };
    host.check_failed(one_more.clone(), FailStage::Capacity, libc::EAGAIN);
    host.send(ToGuest::StdinEnd { exec: 0 });
    assert_eq!(host.next(), FromGuest::Exited { exec: 0, end: End::Code(0) });
    assert_eq!(host.next(), FromGuest::TreeGone { exec: 0 });
    assert_eq!(host.run(one_more).end, End::Code(0));
}

#[test]
fn orphans_are_reaped() {
    // A process is in /proc until it is reaped, and only PID 1 can reap these. They are more than one round reaps.
    let script = "i=0; while [ $i -lt 300 ]; do pids=\"$pids $( (true & echo $!) )\"; i=$((i+1)); done; \
                  for pid in $pids; do while [ -e /proc/$pid ]; do :; done; done; echo reaped";
    let outcome = Host::start().run(shell(script));
    assert_eq!((outcome.text().as_str(), outcome.end), ("reaped\n", End::Code(0)));
}

#[test]
fn the_whole_tree_ends_with_the_agent() {
    for one_shot in [false, true] {
        let scratch = Scratch::new();
        let path = scratch.path().join("alive");
        let name = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: the path is a C string.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        let mut host = Host::start();
        // A daemon in its own session that ignores all signals it can, and holds the pipe open as long as it lives.
        let daemon = "trap '' HUP TERM; echo up; while :; do sleep 1000; done";
        let script = format!("setsid sh -c \"{daemon}\" >{} 2>&1 </dev/null & read line", path.display());
        host.begin(ExecRequest { one_shot, stdin: true, ..shell(&script) });
        let mut alive = std::fs::File::open(&path).unwrap();
        alive.read_exact(&mut [0; "up\n".len()]).unwrap();
        if one_shot {
            host.send(ToGuest::StdinEnd { exec: 1 });
            assert_eq!(host.wait_for_leave(), 0);
        } else {
            assert_eq!(host.hang_up(), 10);
        }
        let mut entry = libc::pollfd { fd: alive.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, and the count says so.
        let ready = unsafe { libc::poll(&raw mut entry, 1, DEADLINE.as_millis() as i32) };
        assert_eq!((ready, entry.revents), (1, libc::POLLHUP), "the daemon is gone");
    }
}

#[test]
fn a_sandbox_without_a_true_dev_null_gets_no_other_file() {
    let mut host = Host::start();
    let script = "mount -t tmpfs tmpfs /dev && $MAKE";
    for (exec, make) in
        [(1, "mkfifo /dev/null"), (3, "rm /dev/null; ln -s /etc/passwd /dev/null"), (5, "rm /dev/null; : >/dev/null")]
    {
        let script = if exec == 1 { script.replace("$MAKE", make) } else { make.to_owned() };
        // The shell gets a stdin, so that it starts even if the last one removed /dev/null.
        let request = ExecRequest { exec, keep_capabilities: true, stdin: true, ..shell(&script) };
        assert_eq!(host.run(request).end, End::Code(0), "{script}");
        let errno = if exec == 3 { libc::ELOOP } else { libc::ENXIO };
        host.check_failed(ExecRequest { exec: exec + 1, ..command(&["true"]) }, FailStage::Pipes, errno);
    }
}

#[test]
fn a_full_filesystem_is_told_at_the_end() {
    let mut host = Host::start();
    let mount = "mount -t tmpfs -o size=64k,nr_inodes=100 tmpfs /mnt";
    let run = |exec, script: &str, host: &mut Host| {
        let request = ExecRequest { keep_capabilities: true, storage_paths: vec![b"/mnt".to_vec()], ..shell(script) };
        host.run(ExecRequest { exec, ..request })
    };
    let outcome = run(1, mount, &mut host);
    assert_eq!((outcome.is_storage_full, outcome.end), (false, End::Code(0)), "{outcome:?}");
    let outcome = run(2, "head -c 100000 /dev/zero >/mnt/blocks", &mut host);
    assert_eq!((outcome.is_storage_full, outcome.end), (true, End::Code(1)));
    let outcome = run(3, "rm /mnt/blocks", &mut host);
    assert_eq!((outcome.is_storage_full, outcome.end), (false, End::Code(0)));
    let outcome = run(4, "i=0; while : >/mnt/$i; do i=$((i+1)); done", &mut host);
    assert!(outcome.is_storage_full);
}
