//! The server's Unix socket: the kernel says which user of the host connected.
//!
//! It is one more way to the same API: keys, names of hosts and limits are those of TCP. A socket that an earlier server left behind is
//! replaced; one that somebody listens on, and anything that is no socket, is left alone.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use saggar_domain::HostUser;
use tokio::net::{UnixListener, UnixStream};

use super::caller::Caller;

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum LocalSocketError {
    #[error("another program listens on the socket {}", .0.display())]
    InUse(PathBuf),
    #[error("{} exists and is not a socket", .0.display())]
    NotASocket(PathBuf),
    #[error("can't listen on the socket {}: {source}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// A socket that is listened on. Its file is removed at the end.
#[derive(Debug)]
pub struct LocalSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Of the file, so that another server's is not removed.
    inode: u64,
}

impl LocalSocket {
    /// Listens on `path`, which gets `mode`. Whoever may write to it may connect.
    pub fn open(path: &Path, mode: u32) -> Result<Self, LocalSocketError> {
        let failed = |source| LocalSocketError::Listen { path: path.to_owned(), source };
        match std::fs::symlink_metadata(path) {
            Ok(found) if !found.file_type().is_socket() => return Err(LocalSocketError::NotASocket(path.to_owned())),
            Ok(_) => match std::os::unix::net::UnixStream::connect(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    std::fs::remove_file(path).map_err(failed)?;
                }
                Ok(_) | Err(_) => return Err(LocalSocketError::InUse(path.to_owned())),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
        }
        let listener = UnixListener::bind(path).map_err(failed)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
        let inode = std::fs::symlink_metadata(path).map_err(failed)?.ino();
        Ok(Self { listener, path: path.to_owned(), inode })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LocalSocket {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode) {
            // The next start replaces what is left.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// The next connection, and its user. Never returns without a socket. May be cancelled at any await.
pub(super) async fn accept(socket: Option<&LocalSocket>) -> io::Result<(UnixStream, Caller)> {
    let Some(socket) = socket else { return std::future::pending().await };
    let (stream, _) = socket.listener.accept().await?;
    let found = stream.peer_cred()?;
    let caller = Caller::Local(HostUser { uid: found.uid(), gid: found.gid() });
    Ok((stream, caller))
}
