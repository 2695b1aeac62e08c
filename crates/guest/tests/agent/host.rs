//! The host's side, for tests: starts an agent and exchanges frames with it. Every wait has a deadline and fails the
//! test.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use saggar_guest::{
    Decoder, End, ExecRequest, FailStage, FromGuest, OpenRequest, OpenTarget, PROTOCOL, Stream, ToGuest,
};

/// Far more than anything here takes on a loaded machine.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// A user who owns nothing.
pub const NOBODY: u32 = 65_534;

/// The agent to test: the one built with the tests, or one built for release (profile `guest`, without the standard
/// library), by its path in this variable.
pub fn agent() -> String {
    std::env::var("SAGGAR_GUEST_UNDER_TEST").unwrap_or_else(|_| env!("CARGO_BIN_EXE_saggar-guest").to_owned())
}

/// An agent and the channel to it.
pub struct Host {
    stream: UnixStream,
    decoder: Decoder<FromGuest>,
    received: VecDeque<FromGuest>,
    /// Reports about execs outside their regular sequence: `Used` and `Deserted`.
    pub asides: VecDeque<FromGuest>,
    read_size: usize,
    is_one_shot: bool,
    agent: Child,
}

impl Host {
    /// An agent that is an ordinary child of the test, for tests that inspect its process.
    pub fn start_as_child() -> Host {
        Host::start_with(Command::new(agent()))
    }

    /// An agent that is PID 1 of a pid namespace with its own `/proc`, as in a sandbox, so that it leaves nothing
    /// behind whatever happens to the test. It is root, with all privileges of the test.
    pub fn start() -> Host {
        let mut command = Command::new("unshare");
        command.args(["--pid", "--fork", "--mount-proc", &agent()]);
        Host::start_with(command)
    }

    pub fn start_with(command: Command) -> Host {
        Host::start_on(UnixStream::pair().unwrap(), command)
    }

    /// An agent on this channel: our end and its end.
    pub fn start_on((ours, theirs): (UnixStream, UnixStream), mut command: Command) -> Host {
        // SAFETY: has no precondition and cannot fail.
        assert_eq!(unsafe { libc::geteuid() }, 0, "these tests change users and namespaces: run them as root");
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        ours.set_write_timeout(Some(DEADLINE)).unwrap();
        let theirs_raw = theirs.as_raw_fd();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: dup2 and fcntl are async-signal-safe and take numbers only.
        unsafe {
            command.pre_exec(move || {
                let result = if theirs_raw == 3 { libc::fcntl(3, libc::F_SETFD, 0) } else { libc::dup2(theirs_raw, 3) };
                if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
            });
        }
        let agent = command.spawn().expect("the agent starts");
        drop(theirs);
        let decoder = Decoder::new();
        let (received, asides) = (VecDeque::new(), VecDeque::new());
        let mut host =
            Host { stream: ours, decoder, received, asides, read_size: 64 * 1024, is_one_shot: false, agent };
        assert_eq!(host.next(), FromGuest::Hello { protocol: PROTOCOL });
        host
    }

    /// The process id of an agent that was started as a child.
    pub fn agent_pid(&self) -> u32 {
        self.agent.id()
    }

    /// Simulates a slow host.
    pub fn read_at_most(&mut self, bytes: usize) {
        self.read_size = bytes;
    }

    pub fn send(&mut self, frame: ToGuest) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        self.send_raw(&bytes);
    }

    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the agent takes frames in time");
    }

    /// Sends a frame with descriptors at its first byte.
    pub fn send_with(&mut self, frame: &ToGuest, descriptors: &[BorrowedFd<'_>]) {
        let mut bytes = Vec::new();
        frame.encode(&mut bytes).unwrap();
        self.send_raw_with(&bytes, descriptors);
    }

    pub fn send_raw_with(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let raw: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
        let length = size_of_val(&*raw) as u32;
        let mut control = vec![0u64; 128];
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: all zeroes are a valid, empty msghdr; then it points to one slice and to one buffer that has room for
        // one header and the numbers, which the macros compute.
        let sent = unsafe {
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_iov = &raw mut part;
            message.msg_iovlen = 1;
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            std::ptr::copy_nonoverlapping(raw.as_ptr(), libc::CMSG_DATA(header).cast::<i32>(), raw.len());
            libc::sendmsg(self.stream.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
        };
        assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
    }

    /// Opens a stream to a worker.
    pub fn open(&mut self, request: OpenRequest) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        ours.set_write_timeout(Some(DEADLINE)).unwrap();
        self.send_with(&ToGuest::Open(request), &[theirs.as_fd()]);
        ours
    }

    /// The next frame, or `None` if the agent has closed the channel.
    pub fn try_next(&mut self) -> Option<FromGuest> {
        while self.received.is_empty() {
            if !self.read() {
                return None;
            }
        }
        self.received.pop_front()
    }

    /// The next report outside the regular sequence of an exec.
    pub fn next_aside(&mut self) -> FromGuest {
        while self.asides.is_empty() {
            assert!(self.read(), "the agent is still there");
        }
        self.asides.pop_front().unwrap()
    }

    /// Reads once; false if the agent has closed the channel.
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; self.read_size];
        let count = match self.stream.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("the agent says nothing: {error}"),
        };
        if count == 0 {
            assert!(!self.decoder.is_mid_frame(), "the agent left in the middle of a frame");
            return false;
        }
        let mut input = &buffer[..count];
        while let Some(frame) = self.decoder.next_frame(&mut input).unwrap() {
            let is_aside = matches!(frame, FromGuest::Used { .. } | FromGuest::Deserted { .. });
            if is_aside { &mut self.asides } else { &mut self.received }.push_back(frame);
        }
        true
    }

    pub fn next(&mut self) -> FromGuest {
        self.try_next().expect("the agent is still there")
    }

    /// Starts an exec and returns its process id.
    pub fn begin(&mut self, request: ExecRequest) -> u32 {
        let expected = request.exec;
        self.is_one_shot = request.one_shot;
        self.send(ToGuest::Exec(request));
        match self.next() {
            FromGuest::Started { exec, pid } if exec == expected => pid,
            other => panic!("not started: {other:?}"),
        }
    }

    /// Collects everything about the one running exec, up to the end of its tree.
    pub fn finish(&mut self) -> ExecOutcome {
        let outcome = self.finish_program();
        if !self.is_one_shot {
            assert!(matches!(self.next(), FromGuest::TreeGone { .. }));
        }
        outcome
    }

    /// Collects everything about the one running exec, up to the end of its program.
    pub fn finish_program(&mut self) -> ExecOutcome {
        let mut outcome = ExecOutcome { stdout: vec![], stderr: vec![], is_storage_full: false, end: End::Code(0) };
        loop {
            match self.next() {
                FromGuest::Output { stream: Stream::Stdout, bytes, .. } => outcome.stdout.extend(bytes),
                FromGuest::Output { stream: Stream::Stderr, bytes, .. } => outcome.stderr.extend(bytes),
                FromGuest::StdinTaken { .. } => {}
                FromGuest::StorageFull { .. } => outcome.is_storage_full = true,
                FromGuest::Exited { end, .. } => return ExecOutcome { end, ..outcome },
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    pub fn run(&mut self, request: ExecRequest) -> ExecOutcome {
        self.begin(request);
        self.finish()
    }

    /// Reads output until it contains `marker`.
    pub fn wait_for_output(&mut self, marker: &str) {
        let mut seen = String::new();
        while !seen.contains(marker) {
            match self.next() {
                FromGuest::Output { bytes, .. } => seen.push_str(&String::from_utf8_lossy(&bytes)),
                FromGuest::StdinTaken { .. } => {}
                other => panic!("no {marker:?} before {other:?}"),
            }
        }
    }

    /// The exec must fail this way.
    pub fn check_failed(&mut self, request: ExecRequest, stage: FailStage, errno: i32) {
        let (exec, what) = (request.exec, format!("{request:?}"));
        self.send(ToGuest::Exec(request));
        assert_eq!(self.next(), FromGuest::Failed { exec, stage, errno }, "{what}");
    }

    /// Waits for the agent to exit by itself and returns its status.
    pub fn wait_for_leave(mut self) -> i32 {
        while self.try_next().is_some() {}
        self.agent.wait().unwrap().code().expect("the agent exits and is not killed")
    }

    /// Closes the channel and returns the agent's status.
    pub fn hang_up(self) -> i32 {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
        self.wait_for_leave()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The agent exits when the channel closes. If it doesn't, it or its parent process is killed.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        if let Ok(None) = self.agent.try_wait() {
            // SAFETY: takes numbers only.
            let agent = unsafe { libc::syscall(libc::SYS_pidfd_open, self.agent.id(), 0) } as i32;
            let mut entry = libc::pollfd { fd: agent, events: libc::POLLIN, revents: 0 };
            // SAFETY: one entry, and the count says so; the descriptor is ours and used no more.
            unsafe {
                libc::poll(&raw mut entry, 1, DEADLINE.as_millis() as i32);
                libc::close(agent);
            }
        }
        // It may be gone already; then there is nothing to kill.
        let _ = self.agent.kill();
        let _ = self.agent.wait(); // Our own child: reaping it can't fail usefully.
    }
}

/// Everything that was reported about an exec.
#[derive(Debug, PartialEq, Eq)]
pub struct ExecOutcome {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub is_storage_full: bool,
    pub end: End,
}

impl ExecOutcome {
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// A request for this command line, as root without capabilities, with default settings.
pub fn command(argv: &[&str]) -> ExecRequest {
    ExecRequest {
        exec: 1,
        argv: argv.iter().map(|argument| argument.as_bytes().to_vec()).collect(),
        env: vec![b"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin".to_vec()],
        cwd: b"/".to_vec(),
        uid: 0,
        gid: 0,
        groups: vec![],
        keep_capabilities: false,
        tty: None,
        stdin: false,
        nofile: None,
        nproc: None,
        storage_paths: vec![],
        one_shot: false,
        output_window: None,
        joins: 0,
    }
}

/// A request for a line of shell.
pub fn shell(script: &str) -> ExecRequest {
    command(&["sh", "-c", script])
}

/// A request for a worker, as root without capabilities.
pub fn opening(target: OpenTarget) -> OpenRequest {
    OpenRequest { stream: 1, uid: 0, gid: 0, groups: vec![], keep_capabilities: false, target }
}

/// Changes the owner of a file or directory.
pub fn give(path: impl AsRef<Path>, uid: u32, gid: u32) {
    std::os::unix::fs::fchown(std::fs::File::open(path).unwrap(), Some(uid), Some(gid)).unwrap();
}

/// Polls until the condition holds.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = std::time::Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "{what}");
        std::thread::yield_now();
    }
}

/// A private directory of the test, removed at its end.
pub struct Scratch(PathBuf);

impl Scratch {
    pub fn new() -> Scratch {
        Scratch::below(&std::env::temp_dir())
    }

    /// A directory in memory, for operations that would be slow on a disk.
    pub fn in_memory() -> Scratch {
        Scratch::below(Path::new("/dev/shm"))
    }

    fn below(directory: &Path) -> Scratch {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("saggar-guest-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(name);
        std::fs::create_dir(&path).unwrap();
        Scratch(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    pub fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }

    /// A file in it with these permissions. Another process writes it: if it were open for writing here, a process that
    /// another test starts at that moment would inherit it, and it could not be executed ("text file busy").
    pub fn file(&self, name: &str, content: &[u8], mode: u32) -> String {
        let path = format!("{}/{name}", self.text());
        let mut install = Command::new("install");
        install.args(["-D", "-m", &format!("{mode:o}"), "/dev/stdin", &path]).stdin(Stdio::piped());
        let mut install = install.spawn().unwrap();
        install.stdin.take().unwrap().write_all(content).unwrap();
        assert!(install.wait().unwrap().success());
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Leftovers in the temporary directory don't change the test's result.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
