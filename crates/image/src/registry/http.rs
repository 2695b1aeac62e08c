//! One HTTP/1.1 request per connection, and an answer whose head is bounded. Only `GET`.

use std::io::{self, BufRead, BufReader, Read, Write};

use saggar_domain::{Code, Problem};
use zeroize::Zeroizing;

use super::dial::Connection;
use super::url::Url;
use crate::failure::refused;

const HEAD_BYTES_MAX: usize = 64 << 10;
const HEADERS_MAX: usize = 100;
/// Longest line of a chunk's size, with its extensions.
const CHUNK_LINE_MAX: u64 = 4096;
const BUFFER: usize = 64 << 10;

pub(super) struct Answer {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Body,
}

impl Answer {
    /// The first header of a name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    pub(super) fn headers<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.headers.iter().filter(move |(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }
}

/// Sends a request and reads the head of its answer.
pub(super) fn get(
    mut connection: Box<dyn Connection>,
    url: &Url,
    accept: &str,
    authorization: Option<&Zeroizing<String>>,
) -> Result<Answer, Problem> {
    let host = url.authority();
    let mut request = Zeroizing::new(format!(
        "GET {} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: saggar/{}\r\nAccept: {accept}\r\nConnection: close\r\n",
        url.target,
        env!("CARGO_PKG_VERSION"),
    ));
    if let Some(authorization) = authorization {
        request.push_str(&format!("Authorization: {}\r\n", authorization.as_str()));
    }
    request.push_str("\r\n");
    let sent = connection.write_all(request.as_bytes()).and_then(|()| connection.flush());
    sent.map_err(|error| failed(&host, error))?;
    answer(BufReader::with_capacity(BUFFER, connection), &host)
}

fn answer(mut input: BufReader<Box<dyn Connection>>, host: &str) -> Result<Answer, Problem> {
    let wrong = || refused(format!("{host} doesn't answer as a registry does"), "check the registry's name and port");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let before = head.len();
        let left = (HEAD_BYTES_MAX - before) as u64;
        input.by_ref().take(left).read_until(b'\n', &mut head).map_err(|error| failed(host, error))?;
        if head.len() == before {
            return Err(wrong());
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut parsed = httparse::Response::new(&mut headers);
    let status = match parsed.parse(&head) {
        Ok(httparse::Status::Complete(_)) => parsed.code.ok_or_else(wrong)?,
        _ => return Err(wrong()),
    };
    let mut list = Vec::with_capacity(parsed.headers.len());
    for header in parsed.headers.iter() {
        list.push((header.name.to_owned(), std::str::from_utf8(header.value).map_err(|_| wrong())?.to_owned()));
    }
    let mut answer = Answer { status, headers: list, body: Body { input, length: Length::UntilClosed } };
    let lengths: Vec<&str> = answer.headers("content-length").collect();
    let encodings: Vec<&str> = answer.headers("transfer-encoding").collect();
    let length = match (lengths.as_slice(), encodings.as_slice()) {
        ([], []) => Length::UntilClosed,
        ([length], []) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
            Length::Known(length.parse().map_err(|_| wrong())?)
        }
        ([], [encoding]) if encoding.eq_ignore_ascii_case("chunked") => Length::Chunked { left: 0, is_first: true },
        // Two lengths are two meanings of one answer.
        _ => return Err(wrong()),
    };
    // A content that is encoded has another digest than the one that was asked for.
    if answer.header("content-encoding").is_some_and(|encoding| encoding != "identity") {
        return Err(wrong());
    }
    answer.body.length = length;
    Ok(answer)
}

pub(super) struct Body {
    input: BufReader<Box<dyn Connection>>,
    length: Length,
}

#[derive(Clone, Copy)]
enum Length {
    Known(u64),
    Chunked { left: u64, is_first: bool },
    UntilClosed,
    Ended,
}

impl Read for Body {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            match self.length {
                Length::Ended | Length::Known(0) => return Ok(0),
                Length::UntilClosed => return told(self.input.read(buffer)),
                Length::Known(left) => {
                    let count = self.some(buffer, left)?;
                    self.length = Length::Known(left - count as u64);
                    return Ok(count);
                }
                Length::Chunked { left: 0, is_first } => {
                    if !is_first && !self.line()?.is_empty() {
                        return Err(malformed());
                    }
                    let line = self.line()?;
                    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
                    let is_hex = (1..=15).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
                    let text = std::str::from_utf8(digits).ok().filter(|_| is_hex).ok_or_else(malformed)?;
                    let left = u64::from_str_radix(text, 16).map_err(|_| malformed())?;
                    // Trailers, if any, are left unread: the connection is not used again.
                    self.length = if left == 0 { Length::Ended } else { Length::Chunked { left, is_first: false } };
                }
                Length::Chunked { left, is_first } => {
                    let count = self.some(buffer, left)?;
                    self.length = Length::Chunked { left: left - count as u64, is_first };
                    return Ok(count);
                }
            }
        }
    }
}

impl Body {
    /// At most `left` bytes, and at least one.
    fn some(&mut self, buffer: &mut [u8], left: u64) -> io::Result<usize> {
        let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        match told(self.input.read(&mut buffer[..most]))? {
            0 => Err(io::Error::other(refused(
                "the registry closed the connection in the middle of a blob",
                "try again",
            ))),
            count => Ok(count),
        }
    }

    /// A line without its end.
    fn line(&mut self) -> io::Result<Vec<u8>> {
        let mut line = Vec::new();
        told(self.input.by_ref().take(CHUNK_LINE_MAX).read_until(b'\n', &mut line).map(|_| 0))?;
        line.strip_suffix(b"\r\n").map(<[u8]>::to_vec).ok_or_else(malformed)
    }
}

fn malformed() -> io::Error {
    io::Error::other(refused("the registry's answer is malformed", "check the registry's name and port"))
}

/// An error of the connection, as a problem of the registry.
fn told(read: io::Result<usize>) -> io::Result<usize> {
    read.map_err(|error| {
        if error.get_ref().is_some_and(|inner| inner.is::<Problem>()) {
            error
        } else {
            io::Error::other(broken("the registry", &error))
        }
    })
}

/// The problem that an error carries, or what it says of the connection.
fn failed(host: &str, error: io::Error) -> Problem {
    error.downcast::<Problem>().unwrap_or_else(|error| broken(host, &error))
}

fn broken(host: &str, error: &io::Error) -> Problem {
    let why = match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it was silent for too long".to_owned(),
        io::ErrorKind::InvalidData => error.to_string(),
        kind => kind.to_string(),
    };
    Problem::new(
        Code::Stream,
        format!("the connection to {host} failed: {why}"),
        "try again; what was fetched is not kept",
    )
}
