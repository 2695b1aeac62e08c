//! Counts the requests of a connection, so that an idle one can be closed.
//!
//! HTTP/1 itself limits the time to the next request. An HTTP/2 client that answers pings is alive, and may stay idle
//! forever.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::service::Service;
use tokio::sync::watch;

use crate::keeping::keeping;

/// Concurrent requests of one connection, until the last byte of their responses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Load(Arc<watch::Sender<usize>>);

impl Load {
    /// Returns when it has been idle for this long. May be cancelled at any await.
    pub(crate) async fn idle(&self, patience: Duration) {
        let mut changes = self.0.subscribe();
        loop {
            // It can't fail, because we hold a sender.
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

/// A counted request.
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
        Box::pin(async move { Ok(answer.await?.map(|body| keeping(body, held))) })
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
