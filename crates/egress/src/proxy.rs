//! The proxy port: for programs that follow proxy variables. The first byte tells SOCKS5 from HTTP.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::net::{Protocol, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::http::{Conn, Mode, Scheme, nowhere};
use crate::link::Link;
use crate::listen;
use crate::passage::{self, Client};
use crate::record::{Asked, Record};
use crate::session::Shared;
use crate::socks::{self, Reply, SocksError};

/// Until a client says the first byte. Programs connect ahead of their first request.
const FIRST_BYTE: Duration = Duration::from_secs(75);

pub(crate) async fn serve(session: Arc<Shared>, listener: TcpListener) {
    listen::serve(session, listener, |link, stream, _peer| async move {
        let mut first = [0];
        match timeout(FIRST_BYTE, stream.peek(&mut first)).await {
            Ok(Ok(1)) => {}
            // Nothing was asked.
            Ok(Ok(_) | Err(_)) | Err(_) => return,
        }
        match first[0] {
            socks::VERSION_5 | socks::VERSION_4 => by_socks(link, stream).await,
            _ => by_http(link, stream).await,
        }
    })
    .await;
}

async fn by_http(link: Arc<Link>, stream: TcpStream) {
    let conn = Conn::new(Arc::clone(&link), None, Scheme::Http, Mode::Proxy);
    if let Some((opening, client)) = conn.serve_proxy(stream).await {
        passage::proceed(link, client, opening).await;
    }
}

async fn by_socks(link: Arc<Link>, mut stream: TcpStream) {
    let to = match socks::accept(&mut stream, socks::DEADLINE).await {
        Ok(to) => to,
        // The client is gone: nothing was decided.
        Err(SocksError::Io(_)) => return,
        Err(error) => {
            let refusal = Refusal::new("egress/socks", error.to_string(), "use SOCKS5, with the name of the host");
            Record::new(&link, nowhere(), Asked::Connection(Protocol::Socks)).deny(&refusal);
            return;
        }
    };
    // Success is answered even if the destination is denied, so that the refusal can be shown in what follows.
    let opened = passage::open(&link, to).await;
    let reply = match &opened {
        Ok(_) => Reply::Succeeded,
        Err(page) if page.status.is_server_error() => Reply::for_connect_error(io::ErrorKind::HostUnreachable),
        Err(_) => Reply::NotAllowed,
    };
    let replied = socks::reply(&mut stream, reply).await;
    if let (Ok(opening), Ok(())) = (opened, replied) {
        passage::proceed(link, Client::new(stream), opening).await;
    }
}
