//! Blobs of an image: read once, compared with the size and digest that were promised, decompressed beside the writer.
//!
//! INVARIANT: the end of a checked blob is reported only if its size and digest are right. So whoever reads to the end
//! has seen nothing else than what was promised.

mod decompress;
mod stream;

use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use saggar_domain::template::ContentDigest;
use saggar_domain::{Code, Problem};
use sha2::{Digest, Sha256};

pub(crate) use decompress::Decompressed;
pub(crate) use stream::LayerStream;

use crate::failure::refused;

/// Any bytes of an image, readable in another thread.
pub(crate) type Bytes = Box<dyn Read + Send>;

/// The same bytes, with an error instead of the next ones once `stop` is set.
pub(crate) fn until(inner: Bytes, stop: &Arc<AtomicBool>) -> Bytes {
    struct Until(Bytes, Arc<AtomicBool>);
    impl Read for Until {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            if self.1.load(Ordering::Relaxed) {
                return Err(io::Error::other(Problem::new(Code::Stream, "the import was cancelled", "start it again")));
            }
            self.0.read(into)
        }
    }
    Box::new(Until(inner, Arc::clone(stop)))
}

/// What was promised about a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    pub(crate) digest: ContentDigest,
    pub(crate) size: u64,
}

/// Compares a blob with what was promised, at its end.
pub(crate) struct Checked {
    inner: Bytes,
    promise: Promise,
    read: u64,
    hash: Sha256,
}

impl Checked {
    pub(crate) fn new(inner: Bytes, promise: Promise) -> Self {
        Self { inner, promise, read: 0, hash: Sha256::new() }
    }

    /// The whole of a small blob.
    pub(crate) fn read_all(mut self, bytes_max: u64) -> Result<Vec<u8>, Problem> {
        if self.promise.size > bytes_max {
            let Promise { digest, size } = &self.promise;
            return Err(refused(
                format!("the document {digest} has {size} bytes; the maximum is {bytes_max}"),
                "the image is malformed or hostile: don't use it, or build it anew",
            ));
        }
        let mut bytes = Vec::with_capacity(usize::try_from(self.promise.size).unwrap_or(0));
        self.read_to_end(&mut bytes).map_err(problem_of)?;
        Ok(bytes)
    }

    fn wrong_size(&self, found: &str) -> io::Error {
        let Promise { digest, size } = &self.promise;
        io::Error::other(refused(
            format!("the blob {digest} has {found} than the {size} bytes that its image names"),
            "fetch or build the image anew; if it stays like this, don't trust where it came from",
        ))
    }
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read += count as u64;
        if self.read > self.promise.size {
            return Err(self.wrong_size("more"));
        }
        self.hash.update(&buffer[..count]);
        if count > 0 || buffer.is_empty() {
            return Ok(count);
        }
        if self.read < self.promise.size {
            return Err(self.wrong_size("fewer"));
        }
        let found = ContentDigest::from_bytes(self.hash.clone().finalize().into());
        if found != self.promise.digest {
            return Err(io::Error::other(refused(
                format!("the blob {} has another content: its digest is {found}", self.promise.digest),
                "fetch or build the image anew; if it stays like this, don't trust where it came from",
            )));
        }
        Ok(0)
    }
}

/// The problem that a reader found, which travels inside of an I/O error.
pub(crate) fn problem_of(error: io::Error) -> Problem {
    let kind = error.kind();
    match error.into_inner().map(|inner| inner.downcast::<Problem>()) {
        Some(Ok(problem)) => *problem,
        Some(Err(other)) => refused(format!("its data can't be read: {other}"), "fetch or build the image anew"),
        None => refused(format!("its data can't be read: {kind}"), "fetch or build the image anew, then try again"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(content: &'static [u8], digest: &[u8], size: u64) -> Result<Vec<u8>, String> {
        let promise = Promise { digest: ContentDigest::of(digest), size };
        Checked::new(Box::new(content), promise).read_all(100).map_err(|problem| problem.message)
    }

    #[test]
    fn a_blob_ends_only_if_it_is_what_was_promised() {
        assert_eq!(read(b"abc", b"abc", 3), Ok(b"abc".to_vec()));
        assert_eq!(read(b"", b"", 0), Ok(Vec::new()));
        for (content, digest, size, expected) in [
            (&b"abd"[..], &b"abc"[..], 3, "has another content"),
            (b"ab", b"abc", 3, "has fewer than the 3 bytes"),
            (b"abcd", b"abc", 3, "has more than the 3 bytes"),
            (b"abc", b"abc", 101, "the maximum is 100"),
        ] {
            let found = read(content, digest, size).unwrap_err();
            assert!(found.contains(expected), "{found}");
        }
    }
}
