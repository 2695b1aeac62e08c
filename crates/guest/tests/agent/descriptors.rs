//! Descriptors that come with frames: they reach only the process they belong to.

use std::io::Read;
use std::os::fd::AsFd;

use saggar_guest::{ExecRequest, FileReply, FileRequest, JOINS_MAX, OpenTarget, ToGuest};

use crate::files::Files;
use crate::host::{Host, NOBODY, Scratch, command, opening, shell};

fn open_numbers(pid: &str) -> Vec<String> {
    let mut numbers: Vec<String> = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    numbers.sort();
    numbers
}

fn children(agent: u32) -> Vec<String> {
    let list = std::fs::read_to_string(format!("/proc/{agent}/task/{agent}/children")).unwrap();
    list.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn a_frame_with_too_few_or_too_many_ends_the_agent() {
    let null = std::fs::File::open("/dev/null").unwrap();
    let exec = |joins| ToGuest::Exec(ExecRequest { joins, ..command(&["true"]) });
    let cases = [
        (exec(0), 1),
        (exec(2), 1),
        (exec(1), 2),
        (exec(JOINS_MAX as u8), JOINS_MAX + 1),
        (ToGuest::Open(opening(OpenTarget::Files)), 2),
        (ToGuest::StdinEnd { exec: 9 }, 1),
    ];
    for (frame, count) in cases {
        let mut host = Host::start();
        host.send_with(&frame, &vec![null.as_fd(); count]);
        assert_eq!(host.wait_for_leave(), 11, "{frame:?} with {count}");
    }
    for frame in [exec(1), ToGuest::Open(opening(OpenTarget::Files))] {
        let mut host = Host::start();
        host.send(frame);
        assert_eq!(host.wait_for_leave(), 11);
    }
}

#[test]
fn descriptors_of_several_frames_go_to_their_own() {
    let scratch = Scratch::new();
    let mut host = Host::start();
    // Sent in one go, in pieces, with frames without descriptors between them.
    for exec in 1..=20u32 {
        let file = std::fs::File::create(scratch.path().join(exec.to_string())).unwrap();
        let mut bytes = Vec::new();
        let request = ExecRequest { exec, joins: 1, ..command(&["sleep", "1000"]) };
        ToGuest::Exec(request).encode(&mut bytes).unwrap();
        host.send(ToGuest::StdinEnd { exec: 1000 });
        let (first, rest) = bytes.split_at(exec as usize);
        host.send_raw_with(first, &[file.as_fd()]);
        host.send_raw(rest);
    }
    for _ in 1..=20u32 {
        assert!(matches!(host.next(), saggar_guest::FromGuest::Started { .. }));
    }
    for exec in 1..=20u32 {
        assert_eq!(std::fs::read(scratch.path().join(exec.to_string())).unwrap(), b"0");
    }
}

#[test]
fn nothing_leaks_into_programs_keepers_and_workers() {
    let mut host = Host::start_as_child();
    host.begin(ExecRequest { exec: 9, stdin: true, ..command(&["cat"]) });
    let mut files = Files::open(&mut host, opening(OpenTarget::Files));
    assert!(matches!(files.ask(FileRequest::Storage { path: b"/".to_vec() }), FileReply::Storage { .. }));
    let script = "n=0; while [ $n -lt 256 ]; do [ -e /proc/$$/fd/$n ] && echo $n; n=$((n+1)); done";
    let cgroup = tempfile();
    host.send_with(&ToGuest::Exec(ExecRequest { joins: 1, ..shell(script) }), &[cgroup.as_fd()]);
    assert!(matches!(host.next(), saggar_guest::FromGuest::Started { .. }));
    assert_eq!(host.finish().text(), "0\n1\n2\n");

    let agent = host.agent_pid();
    let mut seen: Vec<Vec<String>> = children(agent).iter().map(|pid| open_numbers(pid)).collect();
    seen.sort();
    let numbers = |numbers: &[&str]| numbers.iter().map(|number| (*number).to_owned()).collect::<Vec<String>>();
    assert_eq!(seen, [numbers(&["0"]), numbers(&["0", "1", "2", "3"])], "the worker and the keeper");
}

fn tempfile() -> std::fs::File {
    // SAFETY: the name is a C string.
    let file = unsafe { libc::memfd_create(c"list".as_ptr(), libc::MFD_CLOEXEC) };
    // SAFETY: a new descriptor that nothing else owns.
    unsafe { std::os::fd::FromRawFd::from_raw_fd(file) }
}

#[test]
fn a_worker_is_its_user_and_cannot_be_looked_into() {
    use std::os::unix::fs::MetadataExt;
    let mut host = Host::start_as_child();
    let request = saggar_guest::OpenRequest { uid: NOBODY, gid: 12_345, groups: vec![5], ..opening(OpenTarget::Files) };
    let mut files = Files::open(&mut host, request);
    assert!(matches!(files.ask(FileRequest::Storage { path: b"/".to_vec() }), FileReply::Storage { .. }));
    let worker = &children(host.agent_pid())[0];
    let status = std::fs::read_to_string(format!("/proc/{worker}/status")).unwrap();
    for line in [
        "Uid:\t65534\t65534\t65534\t65534",
        "Gid:\t12345\t12345\t12345\t12345",
        "Groups:\t5",
        "CapPrm:\t0000000000000000",
        "CapEff:\t0000000000000000",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
    ] {
        assert!(status.lines().any(|seen| seen.trim_end() == line), "{line} is not in {status}");
    }
    assert_eq!(std::fs::metadata(format!("/proc/{worker}/fd")).unwrap().uid(), 0);
}

#[test]
fn a_worker_that_is_killed_or_stopped_harms_nobody() {
    let mut host = Host::start_as_child();
    let streams: Vec<_> = (0..3).map(|_| host.open(opening(OpenTarget::Files))).collect();
    crate::host::wait_until("there are three workers", || children(host.agent_pid()).len() == 3);
    for (signal, worker) in [libc::SIGKILL, libc::SIGSTOP].into_iter().zip(children(host.agent_pid())) {
        // SAFETY: takes numbers only; the worker's parent has not reaped it unless it is killed here.
        assert_eq!(unsafe { libc::kill(worker.parse().unwrap(), signal) }, 0);
    }
    let outcome = host.run(command(&["true"]));
    assert_eq!(outcome.end, saggar_guest::End::Code(0));
    drop(streams);
    crate::host::wait_until("all but the stopped one are gone", || children(host.agent_pid()).len() == 1);
    let stopped = &children(host.agent_pid())[0];
    // SAFETY: as above.
    unsafe { libc::kill(stopped.parse().unwrap(), libc::SIGCONT) };
    crate::host::wait_until("the stopped one is gone, too", || children(host.agent_pid()).is_empty());
}

#[test]
fn there_is_a_number_of_workers() {
    let mut host = Host::start();
    let mut streams: Vec<_> = (0..128).map(|_| host.open(opening(OpenTarget::Files))).collect();
    let mut one_more = Files::over(host.open(opening(OpenTarget::Files)));
    let failed = FileReply::Failed { errno: libc::EAGAIN, stage: saggar_guest::FileStage::Worker };
    assert_eq!(one_more.next(), failed);
    let mut preface = [0; 5];
    host.open(opening(OpenTarget::Port(1))).read_exact(&mut preface).unwrap();
    assert_eq!(preface, [1, libc::EAGAIN as u8, 0, 0, 0]);
    streams.pop();
    crate::host::wait_until("there is room again", || {
        let mut files = Files::over(host.open(opening(OpenTarget::Files)));
        files.try_ask(&FileRequest::Storage { path: b"/".to_vec() }).is_some()
    });
}
