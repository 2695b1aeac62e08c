//! HTTP/1.1, as little as measuring needs: a blocking client with one kept-alive connection, and requests for stand-in servers.
//!
//! Written here because a client library's own time would be part of every figure. It understands bodies with a length or in
//! chunks. Every status is an answer; an error is a broken connection, and the next request then makes a new one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Time limit for one read or write; a request that takes longer is stuck.
const PATIENCE: Duration = Duration::from_secs(60);
/// Size of the read buffer.
const BUFFER_LEN: usize = 256 * 1024;
/// Maximum length of a header line.
const LINE_MAX: u64 = 16 * 1024;
/// Maximum size of a body in memory.
const BODY_MAX: u64 = 64 << 20;

#[derive(Debug)]
pub struct Client {
    address: SocketAddr,
    key: String,
    connection: Option<BufReader<TcpStream>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Answer {
    /// The body as JSON; null if it isn't JSON.
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// For messages: the status and the beginning of the body.
    pub fn text(&self) -> String {
        let body = String::from_utf8_lossy(&self.body);
        format!("{}: {}", self.status, body.chars().take(300).collect::<String>())
    }

    /// Returns an error with the answer in it, unless it has this status.
    pub fn expect(self, status: u16) -> anyhow::Result<Self> {
        anyhow::ensure!(self.status == status, "expected {status}, got {}", self.text());
        Ok(self)
    }
}

/// A request, except for uploads.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub method: &'a str,
    /// With its query.
    pub path: &'a str,
    pub json: Option<&'a str>,
    pub idempotency_key: Option<&'a str>,
}

impl<'a> Ask<'a> {
    /// Without a body.
    pub fn new(method: &'a str, path: &'a str) -> Self {
        Self { method, path, json: None, idempotency_key: None }
    }

    /// A POST with a body.
    pub fn post(path: &'a str, json: &'a str) -> Self {
        Self { method: "POST", path, json: Some(json), idempotency_key: None }
    }
}

impl Client {
    /// Doesn't connect yet.
    pub fn new(address: SocketAddr, key: &str) -> Self {
        Self { address, key: key.to_owned(), connection: None }
    }

    /// Sends a request and reads the whole answer.
    pub fn ask(&mut self, ask: Ask<'_>) -> io::Result<Answer> {
        let outcome = self.try_ask(ask);
        self.forget_if_broken(outcome)
    }

    /// Sends a file as the body.
    pub fn upload(&mut self, path: &str, file: &mut File, length: u64) -> io::Result<Answer> {
        let outcome = self.try_upload(path, file, length);
        self.forget_if_broken(outcome)
    }

    /// Writes the body of an answer to a file. Returns the status and the length.
    pub fn download(&mut self, path: &str, into: &mut File) -> io::Result<(u16, u64)> {
        let outcome = self.try_download(path, into);
        self.forget_if_broken(outcome)
    }

    /// Sends a request, and passes on each piece of the answer's body as it arrives. Returns the status.
    pub fn follow(&mut self, ask: Ask<'_>, mut take: impl FnMut(&[u8])) -> io::Result<u16> {
        let outcome = self.try_send(ask).and_then(|connection| {
            let head = Head::read(connection)?;
            read_body(connection, head.body, |piece| {
                take(piece);
                Ok(())
            })?;
            Ok(head.status)
        });
        self.forget_if_broken(outcome)
    }

    fn try_ask(&mut self, ask: Ask<'_>) -> io::Result<Answer> {
        read_answer(self.try_send(ask)?)
    }

    fn try_send(&mut self, ask: Ask<'_>) -> io::Result<&mut BufReader<TcpStream>> {
        let Ask { method, path, json, idempotency_key } = ask;
        let mut wire = self.head(method, path);
        if let Some(key) = idempotency_key {
            wire.push_str(&format!("idempotency-key: {key}\r\n"));
        }
        match json {
            Some(json) => {
                wire.push_str(&format!(
                    "content-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
                    json.len()
                ));
            }
            None => wire.push_str("\r\n"),
        }
        let connection = self.connection()?;
        // In one piece, so that the server needn't wait for the rest of it.
        connection.get_mut().write_all(wire.as_bytes())?;
        Ok(connection)
    }

    fn try_upload(&mut self, path: &str, file: &mut File, length: u64) -> io::Result<Answer> {
        let head = self.head("PUT", path);
        let wire = format!("{head}content-type: application/octet-stream\r\ncontent-length: {length}\r\n\r\n");
        let connection = self.connection()?;
        connection.get_mut().write_all(wire.as_bytes())?;
        // The kernel copies the file's pages to the socket; the bytes don't pass through this process.
        let sent = io::copy(&mut file.take(length), connection.get_mut())?;
        if sent != length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        read_answer(connection)
    }

    fn try_download(&mut self, path: &str, into: &mut File) -> io::Result<(u16, u64)> {
        let wire = self.head("GET", path) + "\r\n";
        let connection = self.connection()?;
        connection.get_mut().write_all(wire.as_bytes())?;
        let head = Head::read(connection)?;
        let mut length = 0;
        read_body(connection, head.body, |piece| {
            length += piece.len() as u64;
            into.write_all(piece)
        })?;
        Ok((head.status, length))
    }

    fn head(&self, method: &str, path: &str) -> String {
        let Self { address, key, .. } = self;
        format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {key}\r\n")
    }

    fn connection(&mut self) -> io::Result<&mut BufReader<TcpStream>> {
        if self.connection.is_none() {
            let stream = TcpStream::connect_timeout(&self.address, PATIENCE)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            self.connection = Some(BufReader::with_capacity(BUFFER_LEN, stream));
        }
        Ok(self.connection.as_mut().expect("it was made above if there was none"))
    }

    fn forget_if_broken<T>(&mut self, outcome: io::Result<T>) -> io::Result<T> {
        if outcome.is_err() {
            self.connection = None;
        }
        outcome
    }
}

/// How a body is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Body {
    Length(u64),
    Chunked,
}

/// Of all headers, those that matter here.
struct Headers {
    body: Body,
    idempotency_key: String,
}

impl Headers {
    /// Reads up to the empty line.
    fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        let mut headers = Self { body: Body::Length(0), idempotency_key: String::new() };
        loop {
            let line = read_line(reader)?;
            let Some((name, value)) = line.split_once(':') else { return Ok(headers) };
            if name.eq_ignore_ascii_case("content-length") {
                headers.body = Body::Length(value.trim().parse().map_err(|_| nonsense(&line))?);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                headers.body = Body::Chunked;
            } else if name.eq_ignore_ascii_case("idempotency-key") {
                headers.idempotency_key = value.trim().to_owned();
            }
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Head {
    status: u16,
    body: Body,
}

impl Head {
    fn read(reader: &mut impl BufRead) -> io::Result<Self> {
        loop {
            let first = read_line(reader)?;
            let status = first.split(' ').nth(1).and_then(|word| word.parse().ok()).ok_or_else(|| nonsense(&first))?;
            let body = Headers::read(reader)?.body;
            // Informational answers (1xx) are skipped.
            if status >= 200 {
                return Ok(Self { status, body });
            }
        }
    }
}

/// A request as a stand-in for a server reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    /// With its query.
    pub path: String,
    /// Empty where the client sent none.
    pub idempotency_key: String,
    pub body: Vec<u8>,
}

impl Request {
    /// Reads the next request to its end; `None` when the client sends no more.
    pub fn read(reader: &mut impl BufRead) -> io::Result<Option<Self>> {
        if reader.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let first = read_line(reader)?;
        let mut words = first.split(' ').map(str::to_owned);
        let (Some(method), Some(path)) = (words.next(), words.next()) else { return Err(nonsense(&first)) };
        let Headers { body, idempotency_key } = Headers::read(reader)?;
        Ok(Some(Self { method, path, idempotency_key, body: read_whole(reader, body)? }))
    }
}

fn read_answer(reader: &mut impl BufRead) -> io::Result<Answer> {
    let head = Head::read(reader)?;
    Ok(Answer { status: head.status, body: read_whole(reader, head.body)? })
}

fn read_whole(reader: &mut impl BufRead, body: Body) -> io::Result<Vec<u8>> {
    let mut whole = Vec::new();
    read_body(reader, body, |piece| {
        if (whole.len() + piece.len()) as u64 > BODY_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        whole.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(whole)
}

fn read_body(reader: &mut impl BufRead, body: Body, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
    match body {
        Body::Length(length) => read_exactly(reader, length, &mut take),
        Body::Chunked => loop {
            let line = read_line(reader)?;
            let size = line.split(';').next().unwrap_or_default().trim();
            let length = u64::from_str_radix(size, 16).map_err(|_| nonsense(&line))?;
            read_exactly(reader, length, &mut take)?;
            read_line(reader)?;
            if length == 0 {
                return Ok(());
            }
        },
    }
}

fn read_exactly(
    reader: &mut impl BufRead,
    mut left: u64,
    take: &mut impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    while left > 0 {
        let buffer = reader.fill_buf()?;
        if buffer.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let length = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        take(&buffer[..length])?;
        reader.consume(length);
        left -= length as u64;
    }
    Ok(())
}

fn read_line(reader: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    reader.take(LINE_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => {}
        _ => return Err(io::ErrorKind::UnexpectedEof.into()),
    }
    Ok(String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned())
}

fn nonsense(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {line:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_answer(wire: &str, status: u16, body: &str) {
        let mut reader = wire.as_bytes();
        let answer = read_answer(&mut reader).unwrap();
        assert_eq!(answer, Answer { status, body: body.as_bytes().to_vec() });
        assert_eq!(reader, b"next", "nothing of the next answer is taken");
    }

    #[test]
    fn a_body_ends_where_its_head_says() {
        check_answer("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellonext", 200, "hello");
        check_answer("HTTP/1.1 204 No Content\r\ndate: x\r\n\r\nnext", 204, "");
        check_answer("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 C\r\ncontent-length: 1\r\n\r\nxnext", 201, "x");
        let chunks =
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\na;x=y\r\n0123456789\r\n0\r\n\r\nnext";
        check_answer(chunks, 200, "abc0123456789");
    }

    #[test]
    fn a_request_is_read_to_its_end() {
        let mut wire =
            "POST /a?b HTTP/1.1\r\nIdempotency-Key: k\r\ncontent-length: 2\r\n\r\nhiGET /c HTTP/1.1\r\n\r\n".as_bytes();
        let request = |method: &str, path: &str, key: &str, body: &str| Request {
            method: method.to_owned(),
            path: path.to_owned(),
            idempotency_key: key.to_owned(),
            body: body.as_bytes().to_vec(),
        };
        assert_eq!(Request::read(&mut wire).unwrap(), Some(request("POST", "/a?b", "k", "hi")));
        assert_eq!(Request::read(&mut wire).unwrap(), Some(request("GET", "/c", "", "")));
        assert_eq!(Request::read(&mut wire).unwrap(), None);
    }

    #[test]
    fn a_connection_that_ends_early_is_an_error() {
        for wire in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nab",
            "what\r\n\r\n",
        ] {
            assert!(read_answer(&mut wire.as_bytes()).is_err(), "{wire:?}");
        }
    }
}
