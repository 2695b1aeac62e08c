//! The cache of builds: what a step made from given layers.
//!
//! ```text
//! builds/HEX   → the layer that this step made; its time says when it was last used
//! ```
//!
//! A record is only a hint. One that is damaged, or whose layer is gone, is no record. Records keep their layers from being removed until they
//! were not used for [`UNUSED_MAX`].

use std::fs::File;
use std::io::Read;
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, fstat, futimens, openat, unlinkat};
use rustix::io::Errno;
use saggar_domain::Problem;
use saggar_domain::canonical_json;
use saggar_domain::template::{ContentDigest, LayerEntry, LayerId};
use serde::{Deserialize, Serialize};

use super::commit::replace;
use super::{Store, listed};
use crate::failure::storage;
use saggar_sandbox::fail_point::pass;

const SCHEMA: &str = "saggar.build-cache/v1";
/// Maximum size of a record.
const RECORD_BYTES_MAX: u64 = 4096;
/// How long a step stays in the cache without being used.
pub(super) const UNUSED_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Which records a collection removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheRest {
    /// Those that were used lately stay.
    Used,
    Nothing,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    schema: String,
    key: ContentDigest,
    /// `None`: the step changed nothing.
    layer: Option<LayerId>,
    /// Of the rest.
    digest: ContentDigest,
}

impl Record {
    fn new(key: &ContentDigest, layer: Option<&LayerId>) -> Self {
        let digest = ContentDigest::of(canonical_json(&(SCHEMA, key, layer)).as_bytes());
        Self { schema: SCHEMA.to_owned(), key: key.clone(), layer: layer.cloned(), digest }
    }

    /// `None` if it is damaged, of another version or of another key.
    fn parse(document: &[u8], key: &ContentDigest) -> Option<Self> {
        let record: Self = serde_json::from_slice(document).ok()?;
        let expected = Self::new(key, record.layer.as_ref());
        (record.schema == SCHEMA && record.key == *key && record.digest == expected.digest).then_some(record)
    }
}

impl Store {
    /// What a step made, if the cache has it: a layer, or nothing.
    pub fn cached(&self, key: &ContentDigest) -> Option<Option<LayerEntry>> {
        let (file, record) = self.record(key)?;
        let layer = match &record.layer {
            None => None,
            Some(id) => Some(self.usable(id)?),
        };
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        // If the time can't be set, the record is removed earlier.
        let _ = futimens(&file, &Timestamps { last_access: now, last_modification: now });
        Some(layer)
    }

    /// Remembers what a step made.
    pub fn remember(&self, key: &ContentDigest, layer: Option<&LayerId>) -> Result<(), Problem> {
        let document = serde_json::to_vec(&Record::new(key, layer)).expect("our own types have only text keys");
        replace(&self.builds, key.hex(), &document).map_err(|error| storage("a step can't be remembered", error))?;
        pass("build/remembered");
        Ok(())
    }

    fn record(&self, key: &ContentDigest) -> Option<(File, Record)> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = File::from(openat(&self.builds, key.hex(), flags, Mode::empty()).ok()?);
        let mut document = Vec::new();
        (&file).take(RECORD_BYTES_MAX).read_to_end(&mut document).ok()?;
        let record = Record::parse(&document, key)?;
        Some((file, record))
    }

    /// The layers of records that stay, and how many were removed. Nobody may build meanwhile.
    pub(super) fn tidy_cache(&self, rest: CacheRest) -> Result<(Vec<LayerId>, u64), Problem> {
        let fail = |errno: Errno| storage("what is left over can't be removed", errno);
        let (mut kept, mut removed) = (Vec::new(), 0);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        for name in listed(&self.builds)? {
            let record = ContentDigest::parse_hex(&name).and_then(|key| self.record(&key));
            let age = |file: &File| {
                let used = fstat(file).map_or(0, |stat| u64::try_from(stat.st_mtime).unwrap_or(0));
                now.saturating_sub(Duration::from_secs(used))
            };
            match record {
                Some((file, record)) if rest == CacheRest::Used && age(&file) <= UNUSED_MAX => {
                    kept.extend(record.layer)
                }
                _ => {
                    unlinkat(&self.builds, name.as_str(), AtFlags::empty()).map_err(fail)?;
                    removed += 1;
                }
            }
        }
        Ok((kept, removed))
    }
}
