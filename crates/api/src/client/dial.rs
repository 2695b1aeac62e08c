//! How a connection is made: to an address of the network, or to a Unix socket of this host.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll};

use hyper::Uri;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Makes connections.
#[derive(Clone, Debug)]
pub(crate) enum Dialer {
    Tcp(HttpConnector),
    Unix(PathBuf),
}

/// A connection of either kind.
#[derive(Debug)]
pub(crate) enum Dialed {
    Tcp(TokioIo<TcpStream>),
    Unix(UnixStream),
}

/// The path of the socket in a URL such as `unix:/run/saggar.sock`; `None` if it is another URL.
pub(crate) fn socket_of(url: &str) -> Option<PathBuf> {
    let path = url.strip_prefix("unix:")?;
    let path = path.strip_prefix("//").unwrap_or(path);
    path.starts_with('/').then(|| PathBuf::from(path))
}

impl Service<Uri> for Dialer {
    type Response = TokioIo<Dialed>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        match self {
            Self::Tcp(connector) => connector.poll_ready(context).map_err(Into::into),
            Self::Unix(_) => Poll::Ready(Ok(())),
        }
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        match self {
            Self::Tcp(connector) => {
                let dialing = connector.call(uri);
                Box::pin(async move { Ok(TokioIo::new(Dialed::Tcp(TokioIo::new(dialing.await?.into_inner())))) })
            }
            Self::Unix(path) => {
                let path = path.clone();
                Box::pin(async move { Ok(TokioIo::new(Dialed::Unix(UnixStream::connect(path).await?))) })
            }
        }
    }
}

impl Connection for Dialed {
    fn connected(&self) -> Connected {
        match self {
            Self::Tcp(stream) => stream.connected(),
            Self::Unix(_) => Connected::new(),
        }
    }
}

impl AsyncRead for Dialed {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream.inner_mut()).poll_read(context, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Dialed {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream.inner_mut()).poll_write(context, bytes),
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream.inner_mut()).poll_flush(context),
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream.inner_mut()).poll_shutdown(context),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_by_its_absolute_path() {
        for (url, expected) in [
            ("unix:/run/saggar.sock", Some("/run/saggar.sock")),
            ("unix:///run/saggar.sock", Some("/run/saggar.sock")),
            ("unix:saggar.sock", None),
            ("unix://saggar.sock", None),
            ("http://127.0.0.1:7420", None),
        ] {
            assert_eq!(socket_of(url), expected.map(PathBuf::from), "{url}");
        }
    }
}
