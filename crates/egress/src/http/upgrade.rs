//! WebSockets: after the handshake, bytes are copied and counted until either side ends. Values of secrets are removed from what the
//! server sends, whose frames must not be masked.

use std::sync::Arc;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;

use crate::http::body::Body;
use crate::http::headers;
use crate::record::Record;
use crate::secret::{Frames, Patterns};
use crate::tunnel;

/// What goes on after the HTTP connections on both sides have ended.
pub(crate) struct Upgrade {
    client: OnUpgrade,
    server: OnUpgrade,
    record: Arc<Record>,
    scrub: Option<Arc<Patterns>>,
}

impl Upgrade {
    /// Runs until the exchange ends. Cancelling cuts both sides.
    pub async fn run(self) {
        match tokio::try_join!(self.client, self.server) {
            Ok((client, server)) => {
                let frames = self.scrub.map(Frames::new);
                tunnel::copy(TokioIo::new(client), TokioIo::new(server), &self.record, frames).await;
            }
            Err(_) => self.record.fail("the upgrade was not completed"),
        }
    }
}

/// Takes the server's 101 and makes it ours.
pub(crate) fn accept(
    client: OnUpgrade,
    mut response: Response<Incoming>,
    record: Arc<Record>,
    scrub: Option<Arc<Patterns>>,
) -> (Response<Body>, Upgrade) {
    let server = hyper::upgrade::on(&mut response);
    let (mut parts, _) = response.into_parts();
    headers::strip_response(&mut parts.headers);
    ask(&mut parts.headers);
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *answer.headers_mut() = parts.headers;
    (answer, Upgrade { client, server, record, scrub })
}

/// Headers of one hop that ask for a WebSocket, or grant one.
pub(crate) fn ask(headers: &mut http::HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}
