//! Accepts connections and keeps their tasks. Beyond the session's limit a connection is closed at once.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use saggar_domain::net::{Destination, Host, Protocol, Refusal};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::link::Link;
use crate::record::{Asked, Record};
use crate::session::Shared;

/// After an error that the next call would meet as well, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Runs until it is cancelled; all connections end with it.
pub(crate) async fn serve<F, C>(session: Arc<Shared>, listener: TcpListener, connection: F)
where
    F: Fn(Arc<Link>, TcpStream, SocketAddr) -> C,
    C: Future<Output = ()> + Send + 'static,
{
    let mut tasks = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_ended) = tasks.join_next() => continue,
        };
        let Ok((stream, peer)) = accepted else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let link = Link::new(Arc::clone(&session), &stream, peer);
        let place = match session.budgets.enter() {
            Ok(place) => place,
            Err(refusal) => {
                refuse(&link, &refusal);
                continue;
            }
        };
        // Requests and answers are small and come in turns. A failure only costs time.
        let _ = stream.set_nodelay(true);
        let task = connection(link, stream, peer);
        tasks.spawn(async move {
            task.await;
            drop(place);
        });
    }
}

/// Where it wanted to go isn't asked: a flood of connections must stay cheap.
fn refuse(link: &Arc<Link>, refusal: &Refusal) {
    let to = Destination { host: Host::V4(Ipv4Addr::UNSPECIFIED), port: 0 };
    Record::new(link, Arc::new(to), Asked::Connection(Protocol::Tcp)).deny(refusal);
}
