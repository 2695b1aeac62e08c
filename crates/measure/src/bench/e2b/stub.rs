//! A stub server that answers E2B's client at once, with fixed responses.

use std::io::{BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result};

use crate::http::Request;

/// The response to a create.
const SANDBOX: &str = r#"{"sandboxID":"aaaaaaaaaaaaaaaaaaaaaaaaaa","templateID":"base","clientID":"x","envdVersion":"0.6.4","envdAccessToken":"t"}"#;
/// The events of a program that ends at once.
const EVENTS: [&str; 2] =
    [r#"{"event":{"start":{"pid":1}}}"#, r#"{"event":{"end":{"exitCode":0,"exited":true,"status":"exit status 0"}}}"#];

/// The server. It lives as long as this process.
#[derive(Debug)]
pub struct Stub {
    address: SocketAddr,
}

impl Stub {
    /// Starts one on a free port.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("listening")?;
        let address = listener.local_addr()?;
        let serve = move || {
            for stream in listener.incoming().map_while(Result::ok) {
                // A client that goes away is harmless.
                std::thread::spawn(move || drop(answer(stream)));
            }
        };
        std::thread::Builder::new().name("stub".into()).spawn(serve).context("starting a thread")?;
        Ok(Self { address })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream);
    while let Some(request) = Request::read(&mut reader)? {
        reader.get_mut().write_all(&said(&request.method, &request.path))?;
    }
    Ok(())
}

fn said(method: &str, path: &str) -> Vec<u8> {
    let whole = |status: &str, kind: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    match (method, path) {
        ("POST", "/v2/sandboxes") => whole("201 Created", "application/json", SANDBOX.as_bytes()),
        ("POST", "/process.Process/Start") => {
            let messages = EVENTS.map(|event| envelope(0, event)).concat();
            whole("200 OK", "application/connect+json", &[messages, envelope(2, "{}")].concat())
        }
        ("DELETE", _) => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
        _ => whole("404 Not Found", "application/json", br#"{"code":404,"message":"the stub knows three calls"}"#),
    }
}

fn envelope(flags: u8, message: &str) -> Vec<u8> {
    [&[flags], &(message.len() as u32).to_be_bytes()[..], message.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_calls_are_answered_and_others_are_not() {
        for (method, path, status) in [
            ("POST", "/v2/sandboxes", "201"),
            ("POST", "/process.Process/Start", "200"),
            ("DELETE", "/sandboxes/aaaa", "204"),
            ("GET", "/sandboxes/aaaa", "404"),
        ] {
            let answer = String::from_utf8_lossy(&said(method, path)).into_owned();
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{method} {path}: {answer}");
        }
        assert_eq!(envelope(2, "{}"), b"\x02\x00\x00\x00\x02{}");
    }
}
