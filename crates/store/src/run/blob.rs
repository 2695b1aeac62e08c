//! Blobs: what is too long for a journal, named by its hash. The same bytes are there once.

use rusqlite::Connection;
use sha2::{Digest, Sha256};

use crate::column;
use crate::error::Error;
use crate::store::Store;
use crate::writer::Durability;

/// The longest blob.
pub const BLOB_BYTES_MAX: usize = 64 << 20;

const INSERT: &str = "INSERT INTO blob (hash, bytes) VALUES (?1, ?2) ON CONFLICT (hash) DO NOTHING";
const EXISTS: &str = "SELECT 1 AS is_there FROM blob WHERE hash = ?1";
const GET: &str = "SELECT bytes FROM blob WHERE hash = ?1";

/// The SHA-256 of a blob's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if digits.len() != 64 || !digits.iter().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f')) {
            return None;
        }
        let mut hash = [0; 32];
        for (byte, pair) in hash.iter_mut().zip(text.as_bytes().chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
        }
        Some(Self(hash))
    }

    /// As 64 hexadecimal digits.
    pub fn to_hex(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The blobs of a store that is looked through.
#[derive(Debug)]
pub struct Blobs<'a>(pub(crate) &'a Connection);

impl Blobs<'_> {
    /// Whether there is one of this hash.
    pub fn has(&self, hash: BlobHash) -> bool {
        column::one(self.0, EXISTS, [hash.0], |_| Ok(())).is_ok_and(|found| found.is_some())
    }

    /// Its bytes.
    pub fn get(&self, hash: BlobHash) -> Option<Vec<u8>> {
        column::one(self.0, GET, [hash.0], |row| column::plain(row, "bytes")).ok().flatten()
    }
}

impl Store {
    /// Keeps bytes under their hash. Survives a power cut: an entry that names them comes after.
    pub async fn put_blob(&self, bytes: Vec<u8>) -> Result<BlobHash, Error> {
        let hash = BlobHash::of(&bytes);
        let work = move |connection: &Connection| column::execute(connection, INSERT, (hash.0, &bytes)).map(|_| ());
        self.write(Durability::Power, work).await?;
        Ok(hash)
    }

    /// The bytes of a hash; `None` when they aren't there. Bytes that no longer have their hash are damaged.
    pub async fn blob(&self, hash: BlobHash) -> Result<Option<Vec<u8>>, Error> {
        let work = move |connection: &Connection| {
            let found = column::one(connection, GET, [hash.0], |row| column::plain::<Vec<u8>>(row, "bytes"))?;
            match found {
                Some(bytes) if BlobHash::of(&bytes) != hash => {
                    Err(Error::corrupt("a blob doesn't have its hash any more".to_owned()))
                }
                other => Ok(other),
            }
        };
        self.read(work).await
    }
}
