//! A peer that speaks TLS where HTTP is spoken, or HTTP where TLS is: told in words rather than by a broken handshake.

use std::io;
use std::net::IpAddr;

use saggar_api::{Code, PROBLEM_MEDIA_TYPE, Problem};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// What a TLS handshake begins with. No HTTP request does.
const HANDSHAKE: u8 = 0x16;

/// A fatal alert, `protocol_version`: TLS has no words for "HTTP is spoken here".
const ALERT: &[u8] = &[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46];

/// Whether a peer begins as TLS does. Nothing is taken from the stream.
pub(crate) async fn is_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE)
}

/// Tells a client of plain HTTP what to do, and closes.
pub(crate) async fn answer_plain_http(mut stream: TcpStream) {
    let problem = Problem::new(
        Code::InvalidRequest,
        "a plain HTTP request was sent to a port that speaks HTTPS",
        "use https:// in the URL",
    );
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n";
    let answer = format!("{head}content-type: {PROBLEM_MEDIA_TYPE}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    // What it sent is taken first, or closing would throw the answer away with it.
    let mut sent = [0; 8192];
    // Nothing to take is as good.
    let _ = stream.try_read(&mut sent);
    // A client that is gone doesn't need the answer.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await; // As above.
}

/// Ends the handshake of a TLS client in its own terms, and says in the log what is wrong.
pub(crate) fn refuse_tls(stream: TcpStream, peer: IpAddr) {
    tracing::info!(%peer, "a client spoke TLS, and this port speaks plain HTTP: use http://, or set tls = true");
    let mut sent = [0; 8192];
    // As above.
    let _ = stream.try_read(&mut sent);
    let _ = stream.try_write(ALERT); // As above.
}
