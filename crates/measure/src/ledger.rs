//! The outside ledger: an HTTP service that does one trivial thing for each request, and records every request with
//! its time.
//!
//! It is the tool that runs call while they are measured or killed, and the evidence of what they did: it knows
//! nothing of journals. As a separate process ([`serve_alone`]) it records nothing, so that it costs every contender
//! the same.

use std::io::{self, BufRead as _, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::http::Request;
use crate::patience::pause;

/// The subcommand that runs the service as a process.
pub const CHORE: &str = "__ledger";
/// Path of successful requests.
const DO: &str = "/do";
/// Path on which every request fails without telling whether it was done.
const FAIL: &str = "/fail";

/// The service in this process, with its records.
#[derive(Clone, Debug)]
pub struct Ledger {
    address: String,
    book: Arc<Book>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The idempotency key; empty if there was none.
    pub key: String,
    pub body: String,
    /// When it arrived.
    pub at: Instant,
    /// When its connection was made: a killed process makes no new one.
    pub connected_at: Instant,
}

#[derive(Debug, Default)]
struct Book {
    arrivals: Mutex<Vec<Arrival>>,
    /// Maximum response time in ms; the body determines the actual one.
    slowness_ms: u64,
    forgets: bool,
}

impl Ledger {
    /// Starts it on a free port. Responses take up to `slowness`, so that kills can hit the middle of a call.
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
                // It ends with its connection; an error means that the client has closed it.
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

    pub fn address(&self) -> &str {
        &self.address
    }

    /// URL of successful requests.
    pub fn url(&self) -> String {
        format!("{}{DO}", self.address)
    }

    /// URL on which every request fails.
    pub fn failing_url(&self) -> String {
        format!("{}{FAIL}", self.address)
    }

    /// Every request so far, in order.
    pub fn arrivals(&self) -> Vec<Arrival> {
        self.book.lock().clone()
    }

    /// Requests whose body begins like this, in order.
    pub fn arrivals_of(&self, body: &str) -> Vec<Arrival> {
        self.book.lock().iter().filter(|arrival| arrival.body.starts_with(body)).cloned().collect()
    }

    /// Searches the requests without copying them.
    pub fn find<T>(&self, look: impl FnMut(&Arrival) -> Option<T>) -> Option<T> {
        self.book.lock().iter().find_map(look)
    }

    pub fn forget(&self) {
        self.book.lock().clear();
    }
}

impl Book {
    fn lock(&self) -> MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The result for a key.
pub fn result(key: &str) -> String {
    format!("done {key}")
}

/// The service as a separate process, which ends with its parent.
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

    pub fn address(&self) -> &str {
        &self.address
    }

    /// URL of successful requests.
    pub fn url(&self) -> String {
        format!("{}{DO}", self.address)
    }
}

impl Drop for Alone {
    fn drop(&mut self) {
        // It holds no state, and may have ended.
        let _ = self.child.kill().and_then(|()| self.child.wait());
    }
}

/// Prints its address, and serves until stdin is closed.
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
    // A client that was killed may end its connection anywhere.
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

/// The same for the same body, and spread over bodies.
pub fn slowness(body: &str, most: u64) -> u64 {
    let mixed = body.bytes().fold(0u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    if most == 0 { 0 } else { mixed % (most + 1) }
}
