//! Live text from workers in other processes to the server, whose clients follow runs.
//!
//! ```text
//!   worker: Live ─▶ a bounded queue ─▶ Relay ─▶ DATA/live/said.sock ─▶ Ear: the server's Live ─▶ followers
//! ```
//! Each piece is a datagram. The socket is in a directory that only the server's user can enter, so the kernel decides who may send. A
//! piece that finds a full queue, no server, or one that doesn't read is lost, and nobody waits for it: neither a model's reply nor a
//! step depends on it. Either side may restart at any time; the next piece goes to the server that is there then.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use saggar_domain::RunId;
use serde::{Deserialize, Serialize};
use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};

use super::{Live, Said, SaidWhat};

const VERSION: u32 = 1;
const DIRECTORY: &str = "live";
const SOCKET: &str = "said.sock";
/// Pieces that wait to be sent. What comes when they are this many is lost.
pub(super) const QUEUE_MAX: usize = 256;
/// How long one piece waits for a server that is slow to read.
const PATIENCE: Duration = Duration::from_millis(100);
/// Text of one datagram. A longer piece becomes several.
const TEXT_BYTES_MAX: usize = 8 << 10;
/// Maximum size of a datagram. Every byte of a text may be escaped in JSON as six.
const BYTES_MAX: usize = 64 << 10;
/// Before reading again after an error.
const PAUSE: Duration = Duration::from_secs(1);

/// A piece on its way.
#[derive(Serialize, Deserialize)]
struct Message {
    v: u32,
    run: RunId,
    #[serde(flatten)]
    said: Said,
}

/// The worker's side.
#[derive(Debug)]
pub struct Relay {
    data: PathBuf,
    pieces: mpsc::Receiver<(RunId, Said)>,
}

impl Relay {
    pub(super) fn new(data: &Path, pieces: mpsc::Receiver<(RunId, Said)>) -> Self {
        Self { data: data.to_owned(), pieces }
    }

    /// Sends pieces for as long as anybody may say something, and then waits forever. May be cancelled at any await.
    pub async fn run(mut self) {
        let mut connected = None;
        while let Some((run, said)) = self.pieces.recv().await {
            for said in said.in_parts(TEXT_BYTES_MAX) {
                let message = Message { v: VERSION, run: run.clone(), said };
                let message = serde_json::to_vec(&message).expect("our own types have only text keys");
                self.send(&mut connected, &message).await;
            }
        }
        std::future::pending().await
    }

    async fn send(&self, connected: &mut Option<UnixDatagram>, message: &[u8]) {
        // A server that has restarted has another socket.
        for _ in 0..2 {
            if connected.is_none() {
                *connected = Place::open(&self.data).and_then(|place| place.connect()).ok();
            }
            // Without a server nobody listens.
            let Some(socket) = connected else { return };
            match timeout(PATIENCE, socket.send(message)).await {
                Ok(Err(_)) => *connected = None,
                Ok(Ok(_)) | Err(_) => return,
            }
        }
    }
}

/// The server's side. Its socket is removed at the end.
#[derive(Debug)]
pub struct Ear {
    live: Live,
    socket: UnixDatagram,
    place: Place,
}

impl Ear {
    /// Replaces the socket of an earlier server: only one at a time has the data directory.
    pub(super) fn open(live: &Live, data: &Path) -> io::Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data.join(DIRECTORY))?;
        std::fs::set_permissions(data.join(DIRECTORY), std::fs::Permissions::from_mode(0o700))?;
        let place = Place::open(data)?;
        place.remove()?;
        let socket = UnixDatagram::bind(place.socket())?;
        Ok(Self { live: live.clone(), socket, place })
    }

    /// Passes on what workers send. What isn't a piece is dropped. May be cancelled at any await.
    pub async fn run(self) {
        let mut buffer = vec![0; BYTES_MAX];
        loop {
            match self.socket.recv(&mut buffer).await {
                Ok(length) => match serde_json::from_slice::<Message>(&buffer[..length]) {
                    Ok(Message { v: VERSION, run, said }) => self.live.say(&run, said),
                    Ok(_) | Err(_) => tracing::debug!(length, "a datagram to the live socket is no piece of a reply"),
                },
                Err(error) => {
                    tracing::warn!(error = %error, "hearing what models of workers say failed");
                    sleep(PAUSE).await;
                }
            }
        }
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        // The next server replaces what is left.
        let _ = self.place.remove();
    }
}

/// The directory of the socket, held open: the name of a socket must be short, and that of a data directory may be long.
#[derive(Debug)]
struct Place(OwnedFd);

impl Place {
    fn open(data: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(Self(rustix::fs::open(data.join(DIRECTORY), flags, Mode::empty())?))
    }

    fn socket(&self) -> String {
        format!("/proc/self/fd/{}/{SOCKET}", self.0.as_raw_fd())
    }

    fn connect(&self) -> io::Result<UnixDatagram> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(self.socket())?;
        Ok(socket)
    }

    fn remove(&self) -> io::Result<()> {
        match rustix::fs::unlinkat(&self.0, SOCKET, rustix::fs::AtFlags::empty()) {
            Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Said {
    /// The same in pieces of at most so many bytes.
    fn in_parts(self, bytes_max: usize) -> Vec<Self> {
        let Self { step, attempt, what } = self;
        let (kind, mut text): (fn(String) -> SaidWhat, _) = match what {
            SaidWhat::Text(text) => (SaidWhat::Text, text),
            SaidWhat::Reasoning(text) => (SaidWhat::Reasoning, text),
            // It has no parts, and no tool has such a name.
            SaidWhat::Call(name) if name.len() > bytes_max => return Vec::new(),
            SaidWhat::Call(name) => (SaidWhat::Call, name),
        };
        let mut parts = Vec::new();
        while text.len() > bytes_max {
            let end = (0..=bytes_max).rev().find(|end| text.is_char_boundary(*end)).expect("0 is one");
            let rest = text.split_off(end);
            parts.push(std::mem::replace(&mut text, rest));
        }
        parts.push(text);
        parts.into_iter().map(|part| Self { step, attempt, what: kind(part) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        /// Its name is longer than that of a socket may be.
        fn new(name: &str) -> Self {
            let path =
                std::env::temp_dir().join(format!("saggar-live-{}-{name}-{}", std::process::id(), "x".repeat(120)));
            std::fs::create_dir(&path).unwrap();
            Self(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            // Only a temporary directory is left over.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn run() -> RunId {
        RunId::from_random([1; 16])
    }

    fn text(text: &str) -> Said {
        Said { step: 1, attempt: 1, what: SaidWhat::Text(text.to_owned()) }
    }

    /// A server with one follower.
    fn serve(data: &Path) -> (Live, tokio::task::JoinHandle<()>, super::super::Listener) {
        let live = Live::default();
        let listener = live.listen(&run());
        let ear = live.hear_workers(data).unwrap();
        (live, tokio::spawn(ear.run()), listener)
    }

    #[tokio::test]
    async fn what_a_worker_says_is_heard_at_the_server_that_is_there_then() {
        let scratch = Scratch::new("restart");
        let (worker, relay) = Live::to_server(&scratch.0);
        tokio::spawn(relay.run());
        // No reader is there, and the sender doesn't wait.
        worker.say(&run(), text("lost"));
        for round in 0..3 {
            let (_live, serving, mut listener) = serve(&scratch.0);
            let mode = std::fs::metadata(scratch.0.join(DIRECTORY)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700, "no other user can send");
            let said = Said { what: SaidWhat::Call(format!("shell{round}")), ..text("") };
            worker.say(&run(), said.clone());
            // What was said without a server may be sent to this one.
            while listener.next().await != said {}
            // As if it was killed: its socket stays.
            let left = scratch.0.join(DIRECTORY).join("left");
            std::fs::rename(scratch.0.join(DIRECTORY).join(SOCKET), &left).unwrap();
            serving.abort();
            // It was aborted.
            let _ = serving.await;
            std::fs::rename(&left, scratch.0.join(DIRECTORY).join(SOCKET)).unwrap();
        }
        let (_live, serving, mut listener) = serve(&scratch.0);
        let (other, relay) = Live::to_server(&scratch.0);
        tokio::spawn(relay.run());
        other.say(&run(), text("a new worker"));
        assert_eq!(listener.next().await, text("a new worker"));
        serving.abort();
        // It was aborted.
        let _ = serving.await;
        assert!(!scratch.0.join(DIRECTORY).join(SOCKET).exists(), "nothing is left");
    }

    #[tokio::test]
    async fn a_long_piece_arrives_in_parts_and_what_is_no_piece_is_dropped() {
        let scratch = Scratch::new("parts");
        let (_live, _serving, mut listener) = serve(&scratch.0);
        let socket = Place::open(&scratch.0).unwrap().connect().unwrap();
        let newer = r#"{"v":2,"run":"x"}"#;
        for garbage in [&b""[..], b"\xff", b"{", newer.as_bytes(), &[b'['; BYTES_MAX], &vec![b'x'; 2 * BYTES_MAX]] {
            socket.send(garbage).await.unwrap();
        }
        let (worker, relay) = Live::to_server(&scratch.0);
        tokio::spawn(relay.run());
        let long = "\u{1}é".repeat(TEXT_BYTES_MAX);
        worker.say(&run(), text(&long));
        let mut heard = String::new();
        while heard.len() < long.len() {
            let SaidWhat::Text(part) = listener.next().await.what else { panic!("a text") };
            assert!(!part.is_empty() && part.len() <= TEXT_BYTES_MAX);
            heard += &part;
        }
        assert_eq!(heard, long);
    }

    #[tokio::test]
    async fn a_server_that_does_not_read_delays_nobody_and_costs_no_memory() {
        let scratch = Scratch::new("slow");
        let live = Live::default();
        let ear = live.hear_workers(&scratch.0).unwrap();
        let (worker, relay) = Live::to_server(&scratch.0);
        let relaying = tokio::spawn(relay.run());
        for _ in 0..10 * QUEUE_MAX {
            worker.say(&run(), text("a"));
        }
        // It reads on as before when it reads again.
        let mut listener = live.listen(&run());
        tokio::spawn(ear.run());
        assert_eq!(listener.next().await, text("a"));
        relaying.abort();
    }
}
