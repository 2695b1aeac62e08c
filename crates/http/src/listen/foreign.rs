//! Detects a peer that uses TLS on a plain HTTP port, or plain HTTP on a TLS port, and tells it so instead of
//! breaking the handshake.

use std::io;

use saggar_api::{Code, PROBLEM_MEDIA_TYPE, Problem};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::caller::Caller;

/// The first byte of a TLS handshake. No HTTP request begins with it.
const HANDSHAKE: u8 = 0x16;

/// A fatal alert, `protocol_version`: TLS has no better one for this case.
const ALERT: &[u8] = &[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x46];

/// Whether a peer begins like TLS. Consumes nothing from the stream.
pub(crate) async fn is_tls(stream: &TcpStream) -> io::Result<bool> {
    let mut first = [0];
    Ok(stream.peek(&mut first).await? == 1 && first[0] == HANDSHAKE)
}

/// Tells a plain HTTP client to use HTTPS, and closes.
pub(crate) async fn answer_plain_http(mut stream: TcpStream) {
    let problem =
        Problem::new(Code::InvalidRequest, "a plain HTTP request was sent to an HTTPS port", "use https:// in the URL");
    let body = serde_json::to_string(&problem).unwrap_or_default();
    let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\n";
    let answer = format!("{head}content-type: {PROBLEM_MEDIA_TYPE}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    // The request is read first, because closing with unread data would discard the response.
    let mut sent = [0; 8192];
    // There may be nothing to read.
    let _ = stream.try_read(&mut sent);
    // A client that is gone doesn't need the response.
    let _ = stream.write_all(answer.as_bytes()).await;
    let _ = stream.shutdown().await; // As above.
}

/// Ends the handshake of a TLS client with an alert, and logs the cause.
pub(crate) fn refuse_tls(stream: TcpStream, peer: Caller) {
    tracing::info!(%peer, "refused a TLS client: this port uses plain HTTP; use http://, or start the server with --tls");
    let mut sent = [0; 8192];
    // A leftover is removed at the next start.
    let _ = stream.try_read(&mut sent);
    let _ = stream.try_write(ALERT); // As above.
}
