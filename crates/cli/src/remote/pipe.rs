//! A bounded pipe between the async side and a thread that reads or writes archives.
//!
//! A thread of its own packs or unpacks archives with blocking code. Pieces go over a bounded channel, so memory
//! stays constant and the slower side sets the pace. If one side goes away, the other gets an error or an end of
//! file; it never hangs.

use std::io::{self, Read, Write};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::mpsc;

/// Maximum number of pieces in the channel.
const PIECES_MAX: usize = 8;
/// Size at which a piece is sent, in bytes.
const PIECE_BYTES: usize = 128 << 10;

type Piece = io::Result<Vec<u8>>;

/// From a thread to the async side.
pub(crate) fn outward() -> (Packer, Packed) {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    (Packer { sender, buffer: Vec::new() }, Packed { receiver, piece: Vec::new(), at: 0 })
}

/// From the async side to a thread.
pub(crate) fn inward() -> (mpsc::Sender<Piece>, Unpacked) {
    let (sender, receiver) = mpsc::channel(PIECES_MAX);
    (sender, Unpacked { receiver, piece: Vec::new(), at: 0 })
}

/// The thread's writing end.
pub(crate) struct Packer {
    sender: mpsc::Sender<Piece>,
    buffer: Vec<u8>,
}

impl Packer {
    /// Tells the reader that the archive is incomplete, so that it doesn't mistake it for a whole one.
    pub(crate) fn fail(self, error: io::Error) {
        // If the reader is gone, it doesn't need the error.
        let _ = self.sender.blocking_send(Err(error));
    }

    fn send(&mut self) -> io::Result<()> {
        let piece = std::mem::take(&mut self.buffer);
        if piece.is_empty() {
            return Ok(());
        }
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

impl Write for Packer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE_BYTES {
            self.send()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

/// The async side's reading end.
pub(crate) struct Packed {
    receiver: mpsc::Receiver<Piece>,
    piece: Vec<u8>,
    at: usize,
}

impl AsyncRead for Packed {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, space: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.at == self.piece.len() {
            match ready!(self.receiver.poll_recv(context)) {
                None => return Poll::Ready(Ok(())),
                Some(Err(error)) => return Poll::Ready(Err(error)),
                Some(Ok(piece)) => (self.piece, self.at) = (piece, 0),
            }
        }
        let count = space.remaining().min(self.piece.len() - self.at);
        space.put_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Poll::Ready(Ok(()))
    }
}

/// The thread's reading end.
pub(crate) struct Unpacked {
    receiver: mpsc::Receiver<Piece>,
    piece: Vec<u8>,
    at: usize,
}

impl Read for Unpacked {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            match self.receiver.blocking_recv() {
                None => return Ok(0),
                Some(piece) => (self.piece, self.at) = (piece?, 0),
            }
        }
        let count = space.len().min(self.piece.len() - self.at);
        space[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
