//! How much a stranger's objects may make us do.
//!
//! A few kilobytes of objects can lead to one another so that reading them all takes days, though each is small. So everything that is
//! read of a store is counted, in bytes, and there is an end to it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::object::ObjectError;

/// Bytes that may be read and made, all together: hours of ordinary history, and minutes of our time.
const BYTES_MAX: u64 = 64 << 30;
/// What looking an object up in a pack counts as, in bytes.
pub(super) const LOOK: u64 = 4096;

#[derive(Debug)]
pub(super) struct Work {
    left: AtomicU64,
}

impl Default for Work {
    fn default() -> Self {
        Self::of(BYTES_MAX)
    }
}

impl Work {
    pub(super) fn of(bytes: u64) -> Self {
        Self { left: AtomicU64::new(bytes) }
    }

    pub(super) fn spend(&self, bytes: u64) -> Result<(), ObjectError> {
        let spent = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        spent.map(drop).map_err(|_| ObjectError::Work)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;

    use super::super::object::{ObjectError, ObjectId};
    use super::super::store::Objects;

    /// A pack whose last object is a difference from the one before, and so on down to a mebibyte of zeros: 16 KiB, of which 500 MiB are made.
    fn bomb(directory: &std::path::Path, id: ObjectId) {
        let mut pack = b"PACK\0\0\0\x02\0\0\0\0".to_vec();
        let deflated = |bytes: &[u8]| {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        let size = [0xb0, 0x80, 0x80, 0x04];
        pack.extend(size);
        pack.extend(deflated(&vec![0; 1 << 20]));
        // Its base and itself have 1 MiB, which are 16 times the first 64 KiB.
        let difference = [&[0x80, 0x80, 0x40, 0x80, 0x80, 0x40][..], &[0x80; 16]].concat();
        let (body, mut at) = (deflated(&difference), 12);
        for _ in 0..500 {
            let next = pack.len();
            let back = next - at;
            // Sizes below 16 take no second byte; this one takes one, and a distance up to two.
            pack.extend([0xe0 | (difference.len() & 15) as u8, (difference.len() >> 4) as u8]);
            match back {
                0..128 => pack.push(back as u8),
                _ => pack.extend([0x80 | ((back >> 7) - 1) as u8, (back & 127) as u8]),
            }
            pack.extend(&body);
            at = next;
        }
        let mut index = b"\xfftOc\0\0\0\x02".to_vec();
        index.extend((0..256).flat_map(|first| u32::from(first >= usize::from(id.0[0])).to_be_bytes()));
        index.extend(id.0);
        index.extend([0; 4]);
        index.extend((at as u32).to_be_bytes());
        std::fs::create_dir_all(directory.join("pack")).unwrap();
        std::fs::write(directory.join("pack/pack-1.pack"), pack).unwrap();
        std::fs::write(directory.join("pack/pack-1.idx"), index).unwrap();
    }

    #[test]
    fn differences_that_make_much_of_little_come_to_an_end() {
        let (directory, id) =
            (std::env::temp_dir().join(format!("saggar-work-{}", std::process::id())), ObjectId([7; 20]));
        bomb(&directory, id);
        let open = || Objects::of_directory(std::fs::File::open(&directory).unwrap().into(), None).unwrap();
        assert!(open().has(id).unwrap() && !open().has(ObjectId([8; 20])).unwrap());
        let cut = open().with_work(64 << 20).read(id).unwrap_err();
        assert!(matches!(cut, ObjectError::Work), "{cut}");
        // The pack is well-formed: only its id is not what it has.
        let whole = open().read(id).unwrap_err();
        assert!(matches!(whole, ObjectError::Damaged(_)), "{whole}");
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
