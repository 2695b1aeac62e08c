//! The content of a layer as a stream: read, checked and decompressed in one thread, hashed and used in another.

use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use saggar_domain::Problem;
use saggar_domain::template::LayerId;
use sha2::{Digest, Sha256};

use super::{Bytes, Decompressed};
use crate::failure::refused;
use crate::tar::Input;

const CHUNK: usize = 256 << 10;
/// Chunks between the threads.
const CHUNKS_MAX: usize = 4;

/// A layer's archive, uncompressed.
pub(crate) struct LayerStream {
    chunks: Receiver<io::Result<Vec<u8>>>,
    worker: Option<JoinHandle<()>>,
    chunk: Vec<u8>,
    at: usize,
    hash: Sha256,
    bytes: u64,
    bytes_max: u64,
    too_large: Option<Problem>,
}

impl LayerStream {
    /// More than `bytes_max` bytes are an error: the given problem.
    pub(crate) fn new(blob: Bytes, bytes_max: u64, too_large: Problem) -> Self {
        let (sender, chunks) = sync_channel(CHUNKS_MAX);
        let worker = std::thread::spawn(move || produce(blob, &sender));
        Self {
            chunks,
            worker: Some(worker),
            chunk: Vec::new(),
            at: 0,
            hash: Sha256::new(),
            bytes: 0,
            bytes_max,
            too_large: Some(too_large),
        }
    }

    /// The id and size of what was read, which must be everything.
    pub(crate) fn finish(self) -> (LayerId, u64) {
        (LayerId::from_bytes(self.hash.finalize().into()), self.bytes)
    }

    /// Gets the next chunk when the last one is used up; `false` at the end.
    fn refill(&mut self) -> io::Result<bool> {
        while self.at == self.chunk.len() {
            let Ok(next) = self.chunks.recv() else { return self.ended().map(|()| false) };
            self.chunk = next?;
            self.at = 0;
            self.bytes += self.chunk.len() as u64;
            if self.bytes > self.bytes_max {
                let problem = self.too_large.take();
                return Err(problem.map_or_else(|| io::ErrorKind::FileTooLarge.into(), io::Error::other));
            }
            self.hash.update(&self.chunk);
        }
        Ok(true)
    }

    /// Nothing more comes. If the thread panicked, that isn't the end of the layer.
    fn ended(&mut self) -> io::Result<()> {
        match self.worker.take().map(JoinHandle::join) {
            Some(Err(_)) => Err(io::Error::other(refused(
                "its data can't be read: the decompression failed",
                "compress the layer anew, and report this as a defect",
            ))),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

impl Read for LayerStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.refill()? {
            return Ok(0);
        }
        let count = buffer.len().min(self.chunk.len() - self.at);
        buffer[..count].copy_from_slice(&self.chunk[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

impl Input for LayerStream {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let mut skipped = 0;
        while skipped < count && self.refill()? {
            let step = usize::try_from(count - skipped).unwrap_or(usize::MAX).min(self.chunk.len() - self.at);
            self.at += step;
            skipped += step as u64;
        }
        Ok(skipped)
    }
}

/// Sends the content, or the error that ends it. Stops when nobody reads any more.
fn produce(blob: Bytes, chunks: &SyncSender<io::Result<Vec<u8>>>) {
    let sent = Decompressed::new(blob).and_then(|mut content| {
        loop {
            let mut chunk = Vec::with_capacity(CHUNK);
            let read = content.by_ref().take(CHUNK as u64).read_to_end(&mut chunk);
            if let Err(error) = read {
                // If the blob is not what was promised, that is why it can't be decompressed.
                return content.finish().and(Err(error));
            }
            if chunk.is_empty() {
                return content.finish();
            }
            if chunks.send(Ok(chunk)).is_err() {
                return Ok(());
            }
        }
    });
    if let Err(error) = sent {
        // Nobody reads any more: they know of another error.
        let _ = chunks.send(Err(error));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Panics;

    impl Read for Panics {
        fn read(&mut self, _buffer: &mut [u8]) -> io::Result<usize> {
            panic!("a reader may have a defect");
        }
    }

    #[test]
    fn a_panic_of_the_thread_is_no_end() {
        let read = |blob: Bytes| {
            let mut content = Vec::new();
            let mut stream = LayerStream::new(blob, 1 << 20, refused("too large", "none"));
            stream.read_to_end(&mut content).map(|_| content).map_err(|error| error.to_string())
        };
        assert_eq!(read(Box::new(&b"plain"[..])), Ok(b"plain".to_vec()));
        let failed = read(Box::new(b"plain".chain(Panics))).unwrap_err();
        assert!(failed.contains("the decompression failed"), "{failed}");
    }
}
