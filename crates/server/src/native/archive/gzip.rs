//! Taking gzip off, with an eye on how much comes out of how little.

use bytes::Bytes;
use flate2::write::GzDecoder;

use super::ArchiveError;

/// What gzip begins with.
const MAGIC: &[u8] = &[0x1f, 0x8b];
/// How many bytes may come out for each that went in. Text gives about 10, source trees with much repetition 50.
const RATIO_MAX: u64 = 200;
/// Below this the ratio says nothing: a few zeros are no bomb.
const JUDGED_FROM: u64 = 4 << 20;
/// What goes in at once: with gzip's best ratio, about 4 MiB come out.
const STEP: usize = 4096;

/// Bytes as they are in the archive, whether or not they came through gzip.
pub(crate) enum Inflater {
    /// Nothing has come yet.
    New,
    /// As it is.
    Plain,
    Gzip {
        decoder: Box<GzDecoder<Vec<u8>>>,
        taken: u64,
        given: u64,
        waiting: Bytes,
    },
}

impl Inflater {
    /// More of the body. Everything of the last must have been taken with [`Inflater::next`].
    pub(crate) fn push(&mut self, piece: Bytes) -> Bytes {
        if matches!(self, Self::New) && !piece.is_empty() {
            // A body whose first byte comes alone is told by that byte: no archive begins with it.
            *self = if piece.starts_with(MAGIC) || piece[..] == MAGIC[..1] {
                Self::Gzip { decoder: Box::new(GzDecoder::new(Vec::new())), taken: 0, given: 0, waiting: Bytes::new() }
            } else {
                Self::Plain
            };
        }
        match self {
            Self::New | Self::Plain => piece,
            Self::Gzip { waiting, .. } => {
                *waiting = piece;
                Bytes::new()
            }
        }
    }

    /// What comes out of it next; `None` when more must go in.
    pub(crate) fn next(&mut self) -> Result<Option<Bytes>, ArchiveError> {
        let Self::Gzip { decoder, taken, given, waiting } = self else { return Ok(None) };
        while !waiting.is_empty() {
            let step = waiting.split_to(waiting.len().min(STEP));
            std::io::Write::write_all(decoder, &step).map_err(|_| DAMAGED)?;
            *taken += step.len() as u64;
            let out = std::mem::take(decoder.get_mut());
            *given += out.len() as u64;
            if *given > JUDGED_FROM && *given / (*taken).max(1) > RATIO_MAX {
                return Err(ArchiveError::TooLarge(format!("more than {RATIO_MAX} times the size of what was sent")));
            }
            if !out.is_empty() {
                return Ok(Some(out.into()));
            }
        }
        Ok(None)
    }

    /// That was all: what is left comes out.
    pub(crate) fn finish(self) -> Result<Bytes, ArchiveError> {
        match self {
            Self::New | Self::Plain => Ok(Bytes::new()),
            Self::Gzip { decoder, .. } => decoder.finish().map(Bytes::from).map_err(|_| DAMAGED),
        }
    }
}

const DAMAGED: ArchiveError = ArchiveError::Damaged("what should be gzip is not, or is cut off");

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn inflate(body: &[u8], piece: usize) -> Result<Vec<u8>, ArchiveError> {
        let (mut inflater, mut out) = (Inflater::New, Vec::new());
        for piece in body.chunks(piece) {
            out.extend_from_slice(&inflater.push(Bytes::copy_from_slice(piece)));
            while let Some(some) = inflater.next()? {
                out.extend_from_slice(&some);
            }
        }
        out.extend_from_slice(&inflater.finish()?);
        Ok(out)
    }

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[test]
    fn it_comes_out_as_it_went_in_however_it_is_cut() {
        let text: Vec<u8> = (0..5_000u32).flat_map(|n| n.to_le_bytes()).collect();
        for piece in [1, 7, 4096, 1 << 20] {
            assert_eq!(inflate(&gzip(&text), piece).unwrap(), text, "{piece}");
            assert_eq!(inflate(&text, piece).unwrap(), text, "{piece}");
        }
    }

    #[test]
    fn a_bomb_and_a_stump_are_refused() {
        let bomb = gzip(&vec![0; 6 << 20]);
        assert!(matches!(inflate(&bomb, 1 << 16), Err(ArchiveError::TooLarge(_))));
        let whole = gzip(b"hello");
        assert!(inflate(&whole[..whole.len() - 4], 100).is_err());
    }
}
