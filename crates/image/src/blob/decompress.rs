//! Decompression by what the data is, not by what its label says: gzip, zstd or none.

use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};

use flate2::bufread::MultiGzDecoder;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::Bytes;
use crate::failure::refused;

const GZIP: &[u8] = &[0x1f, 0x8b];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
/// Frames that carry no data, with which an archive may begin.
const ZSTD_SKIPPED: &[u8] = &[0x2a, 0x4d, 0x18];
/// A frame without data.
const ZSTD_EMPTY: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd, 0x20, 0, 1, 0, 0];
const BUFFER: usize = 64 << 10;

type Input = BufReader<Chain<Cursor<Vec<u8>>, Bytes>>;

/// The content of a blob.
pub(crate) enum Decompressed {
    Plain(Input),
    Gzip(Box<MultiGzDecoder<Input>>),
    Zstd(Box<Frames>),
}

impl Decompressed {
    pub(crate) fn new(mut blob: Bytes) -> io::Result<Self> {
        let mut start = Vec::with_capacity(4);
        blob.by_ref().take(4).read_to_end(&mut start)?;
        let is_zstd = start == ZSTD || (start.len() == 4 && start[0] & 0xf0 == 0x50 && start[1..] == *ZSTD_SKIPPED);
        let is_gzip = start.starts_with(GZIP);
        let input = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(blob));
        Ok(match (is_gzip, is_zstd) {
            (true, _) => Self::Gzip(Box::new(MultiGzDecoder::new(input))),
            (_, true) => Self::Zstd(Box::new(Frames::new(input)?)),
            _ => Self::Plain(input),
        })
    }

    /// Reads what is left of the blob, so that its end is checked.
    pub(crate) fn finish(self) -> io::Result<()> {
        let mut rest = match self {
            Self::Plain(input) => input,
            Self::Gzip(decoder) => decoder.into_inner(),
            Self::Zstd(frames) => frames.input,
        };
        io::copy(&mut rest, &mut io::sink()).map(drop)
    }
}

impl Read for Decompressed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(buffer),
            Self::Gzip(decoder) => decoder.read(buffer),
            Self::Zstd(frames) => frames.read(buffer),
        }
    }
}

/// The frames of a zstd stream, one after the other. Its own checksums are not compared: the digest covers the content.
pub(crate) struct Frames {
    input: Input,
    decoder: FrameDecoder,
    /// Whether the decoder is within a frame.
    is_open: bool,
}

impl Read for Frames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_open && !self.begin()? {
                return Ok(0);
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            if self.decoder.is_finished() {
                self.is_open = false;
            } else {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.input, one).map_err(io::Error::other)?;
            }
        }
    }
}

impl Frames {
    fn new(input: Input) -> io::Result<Self> {
        let mut decoder = FrameDecoder::new();
        // The decoder bounds a frame's window, which it keeps in memory, but not that of its first frame. So the first
        // one is ours.
        decoder.init(ZSTD_EMPTY).map_err(io::Error::other)?;
        Ok(Self { input, decoder, is_open: false })
    }

    /// Begins the next frame that carries data; `false` at the end of the stream.
    fn begin(&mut self) -> io::Result<bool> {
        loop {
            if self.input.fill_buf()?.is_empty() {
                return Ok(false);
            }
            match self.decoder.init(&mut self.input) {
                Ok(()) => {
                    self.is_open = true;
                    return Ok(true);
                }
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame { length, .. })) => {
                    io::copy(&mut self.input.by_ref().take(u64::from(length)), &mut io::sink())?;
                }
                Err(FrameDecoderError::WindowSizeTooBig { requested }) => {
                    return Err(io::Error::other(refused(
                        format!("its zstd data needs a window of {requested} bytes; the maximum is 100 MiB"),
                        "compress the layer anew with a smaller window, without --long or --ultra",
                    )));
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
    }
}
