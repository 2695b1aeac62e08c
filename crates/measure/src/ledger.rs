//! The outside ledger: an HTTP service that does one trivial thing for each request, and remembers who asked for what and when.
//!
//! It is the tool that runs call while they are measured or killed, and the judge of what they did: it knows nothing of journals. As a
//! process of its own ([`serve_alone`]) it remembers nothing, so that it costs every contender the same.

use std::io::{self, BufRead as _, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::http::Request;
use crate::patience::pause;

/// The chore that is the service alone.
pub const CHORE: &str = "__ledger";
/// What it does for whoever asks.
const DO: &str = "/do";
/// Where everything fails, and nobody is told whether it was done.
const FAIL: &str = "/fail";

/// The service, in this process, with its memory.
#[derive(Clone, Debug)]
pub struct Ledger {
    address: String,
    book: Arc<Book>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The idempotency key, or nothing.
    pub key: String,
    /// What was asked for.
    pub body: String,
    /// When it came.
    pub at: Instant,
    /// When its connection was made: whoever was killed makes none.
    pub connected_at: Instant,
}

#[derive(Debug, Default)]
struct Book {
    arrivals: Mutex<Vec<Arrival>>,
    /// The longest that an answer takes, in ms; how long, the body decides.
    slowness_ms: u64,
    forgets: bool,
}

impl Ledger {
    /// Starts it on a free port. Answers take up to `slowness`, so that there is a middle to be killed in.
    pub fn start(slowness: Duration) -> Result<Self> {
        let slowness_ms = u64::try_from(slowness.as_millis()).unwrap_or(u64::MAX);
        Self::serve(Book { slowness_ms, ..Book::default() })
    }

    fn serve(book: Book) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening for the ledger")?;
        let address = format!("http://{}", listener.local_addr()?);
        let book = Arc::new(book);
        let shared = Arc::clone(&book);
        let accept = move || {
            for stream in listener.incoming().flatten() {
                let shared = Arc::clone(&shared);
                // It ends with its connection; one that can't be answered has closed it.
                let answering =
                    std::thread::Builder::new().name("ledger".into()).spawn(move || answer_all(stream, &shared));
                if let Err(error) = answering {
                    eprintln!("measure: the ledger can't answer: {error}");
                }
            }
        };
        std::thread::Builder::new().name("ledger".into()).spawn(accept).context("starting a thread")?;
        Ok(Self { address, book })
    }

    /// What may be called.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it does what it is asked.
    pub fn url(&self) -> String {
        format!("{}{DO}", self.address)
    }

    /// Where every request fails.
    pub fn failing_url(&self) -> String {
        format!("{}{FAIL}", self.address)
    }

    /// Every request so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.book.lock().clone()
    }

    /// Those whose body begins like this, in order.
    pub fn arrivals_of(&self, body: &str) -> Vec<Arrival> {
        self.book.lock().iter().filter(|arrival| arrival.body.starts_with(body)).cloned().collect()
    }

    /// Looks through every request without copying them.
    pub fn find<T>(&self, look: impl FnMut(&Arrival) -> Option<T>) -> Option<T> {
        self.book.lock().iter().find_map(look)
    }

    /// Forgets what was asked so far.
    pub fn forget(&self) {
        self.book.lock().clear();
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the service gives for a key.
pub fn result(key: &str) -> String {
    format!("done {key}")
}

/// The service as a process of its own, which ends with whoever started it.
#[derive(Debug)]
pub struct Alone {
    child: Child,
    address: String,
}

impl Alone {
    pub fn start() -> Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut child = Command::new(program).arg(CHORE).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = child.stdout.take().context("the ledger has no output")?;
        let mut address = String::new();
        BufReader::new(stdout).read_line(&mut address).context("reading the ledger's address")?;
        let address = address.trim().to_owned();
        ensure!(address.starts_with("http://"), "the ledger did not start");
        Ok(Self { child, address })
    }

    /// What may be called.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Where it does what it is asked.
    pub fn url(&self) -> String {
        format!("{}{DO}", self.address)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // It holds nothing of worth, and may have ended.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// What the process does: says where it is, and serves until its input ends.
pub fn serve_alone() -> Result<()> {
    let ledger = Ledger::serve(Book { forgets: true, ..Book::default() })?;
    println!("{}", ledger.address);
    io::stdout().flush()?;
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn answer_all(stream: TcpStream, book: &Book) {
    let connected_at = Instant::now();
    let Ok(mut writer) = stream.set_nodelay(true).and_then(|()| stream.try_clone()) else { return };
    let mut reader = BufReader::new(stream);
    // A client that was killed leaves a connection that ends anywhere.
    while let Ok(Some(request)) = Request::read(&mut reader) {
        let Request { path, idempotency_key: key, body, .. } = request;
        let body = String::from_utf8_lossy(&body).into_owned();
        let answer = if path == FAIL { String::new() } else { result(&key) };
        let wait = Duration::from_millis(slowness(&body, book.slowness_ms));
        if !book.forgets {
            book.lock().push(Arrival { key, body, at: Instant::now(), connected_at });
        }
        if !wait.is_zero() {
            pause(wait);
        }
        let status = if path == FAIL { "500 Internal Server Error" } else { "200 OK" };
        let head = format!(
            "HTTP/1.1 {status}\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{answer}",
            answer.len()
        );
        if writer.write_all(head.as_bytes()).is_err() {
            return;
        }
    }
}

/// The same for the same body, and mixed over bodies.
fn slowness(body: &str, most: u64) -> u64 {
    let mixed = body.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    if most == 0 { 0 } else { mixed % (most + 1) }
}
