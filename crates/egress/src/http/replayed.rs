//! A request that is answered from a recording. The rules have allowed it before.

use std::sync::Arc;

use http::request::Parts;
use http::{Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use saggar_domain::net::Destination;
use sha2::{Digest as _, Sha256};

use crate::http::body::Body;
use crate::http::conn::Conn;
use crate::passage;
use crate::record::Record;
use crate::recording::{Asking, ConnectionKind, Library, Played, header_map};
use crate::refuse::Page;

/// On failure gives the program's body back, if none of it was read.
pub(super) async fn answer(
    conn: &Conn,
    to: &Arc<Destination>,
    library: &Arc<Library>,
    parts: &Parts,
    body: Incoming,
    record: &Arc<Record>,
    is_websocket: bool,
) -> Result<Response<Body>, (Page, Option<Incoming>)> {
    if is_websocket {
        let refusal = library.no_connection(to, ConnectionKind::Websocket);
        record.deny(&refusal);
        return Err((Page::denied(refusal), Some(body)));
    }
    // Budgets apply as they do to a server.
    match passage::hold(&conn.link, to, record) {
        Ok(slot) => record.hold(slot),
        Err(page) => return Err((page, Some(body))),
    }
    let asking = Asking::new(conn.scheme.as_str(), to, parts, &conn.link.session().secrets());
    let mut hash = Sha256::new();
    let mut body = Body::up(body, Arc::clone(record));
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => hash.update(frame.data_ref().map_or(&[][..], |data| &data[..])),
            // The record has the reason. The connection is broken, so nobody reads a page.
            Err(_) => {
                let refusal = saggar_domain::net::Refusal::new(
                    "egress/malformed-request",
                    "the body of the request ended early",
                    "send all of it",
                );
                return Err((Page::ambiguous(refusal), None));
            }
        }
    }
    let found = library.find(&asking, &hash.finalize()).map_err(|refusal| {
        record.deny(&refusal);
        (Page::denied(refusal), None)
    })?;
    let mut response =
        Response::new(Body::Played(Played::new(Arc::clone(library), found.exchange), Arc::clone(record)));
    // A recording that was edited may hold anything.
    *response.status_mut() = StatusCode::from_u16(found.status)
        .ok()
        .filter(|status| !status.is_informational())
        .unwrap_or(StatusCode::BAD_GATEWAY);
    *response.headers_mut() = header_map(&found.headers);
    Ok(response)
}
