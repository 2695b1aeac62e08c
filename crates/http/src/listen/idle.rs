//! How much goes on on a connection, so that one on which nothing does can be given to somebody else.
//!
//! HTTP/1 counts the time to the next request itself. An HTTP/2 client that answers pings is there, and may have nothing to ask for ever.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http::{Request, Response};
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::service::Service;
use tokio::sync::watch;

/// Requests under way on one connection, until the last byte of their answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load(Arc<watch::Sender<usize>>);

impl Load {
    /// Returns when nothing has been going on for so long. May be cancelled at any await.
    pub(crate) async fn idle(&self, patience: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            // It can't fail: we hold a sender.
            let _ = changes.wait_for(|requests| *requests == 0).await;
            if tokio::time::timeout(patience, changes.changed()).await.is_err() {
                return;
            }
        }
    }

    fn add(&self) -> Held {
        self.0.send_modify(|requests| *requests += 1);
        Held(self.clone())
    }
}

/// One of them.
struct Held(Load);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.send_modify(|requests| *requests -= 1);
    }
}

/// A service whose requests are counted.
pub(crate) struct Counted<S> {
    pub(crate) service: S,
    pub(crate) load: Load,
}

impl<S> Service<Request<Incoming>> for Counted<S>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (held, answer) = (self.load.add(), self.service.call(request));
        Box::pin(async move { Ok(answer.await?.map(|body| Body::new(CountedBody { body, _held: held }))) })
    }
}

struct CountedBody {
    body: Body,
    _held: Held,
}

impl HttpBody for CountedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_idle_from_the_end_of_its_last_request() {
        const PATIENCE: Duration = Duration::from_secs(10);
        let load = Load::default();
        let begin = tokio::time::Instant::now();
        let work = async {
            for _ in 0..3 {
                let _held = load.add();
                tokio::time::sleep(PATIENCE * 2).await;
            }
            begin.elapsed()
        };
        let idle = async {
            load.idle(PATIENCE).await;
            begin.elapsed()
        };
        let (worked, idle) = tokio::join!(work, idle);
        assert_eq!(idle, worked + PATIENCE);
    }
}
