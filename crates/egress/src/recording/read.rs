//! A recording, indexed for replay. Bodies of answers stay in the file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;

use super::find::Counts;
use super::line::{Answer, Connection, Content, End, LINE_MAX, Line, Outcome, Piece, Request, VERSION};

/// Exchanges of one recording. Their heads are held in memory.
const EXCHANGES_MAX: usize = 100_000;

/// A recording.
pub struct Library {
    file: File,
    pub(super) exchanges: Vec<Recorded>,
    pub(super) connections: Vec<Connection>,
    pub(super) counts: Mutex<Counts>,
    warning: Option<String>,
}

/// One exchange.
pub(super) struct Recorded {
    pub request: Request,
    pub answer: Option<Answer>,
    /// Where the pieces of the answer's body are.
    pub pieces: Vec<Place>,
    /// `None` if the recording ends before.
    pub end: Option<End>,
}

/// A line of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    offset: u64,
    length: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("it can't be read: {}", .0.kind())]
    Read(#[source] io::Error),
    #[error("it is not a recording of saggar")]
    Foreign,
    #[error("it has version {0} of the format, and this saggar reads version {VERSION}")]
    Version(u32),
    #[error("line {0} is damaged")]
    Damaged(u64),
    #[error("line {0} is longer than {LINE_MAX} bytes")]
    TooLong(u64),
    #[error("it has more than {EXCHANGES_MAX} exchanges")]
    TooMany,
}

impl Library {
    /// Reads the whole file once. A last line that is cut is left out, which [`Self::warning`] says.
    pub fn load(file: OwnedFd) -> Result<Self, LoadError> {
        let file = File::from(file);
        let mut index = Index::default();
        index.read(BufReader::with_capacity(64 * 1024, &file))?;
        let Index { exchanges, connections, warning, .. } = index;
        Ok(Self { file, exchanges, connections, counts: Mutex::default(), warning })
    }

    /// How many exchanges can be replayed.
    pub fn replayable(&self) -> u64 {
        self.exchanges.iter().filter(|exchange| exchange.is_replayable()).count() as u64
    }

    /// What is wrong with it, although it can be used.
    pub fn warning(&self) -> Option<&str> {
        self.warning.as_deref()
    }

    /// The bytes of a piece of an answer's body.
    pub(super) fn piece(&self, place: Place) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; place.length as usize];
        self.file.read_exact_at(&mut bytes, place.offset)?;
        match serde_json::from_slice(&bytes) {
            Ok(Line::Got(Piece { content, .. })) => content.into_bytes(),
            Ok(_) | Err(_) => None,
        }
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the recording was changed while it was replayed"))
    }
}

/// What a recording holds, while it is read.
#[derive(Default)]
struct Index {
    exchanges: Vec<Recorded>,
    connections: Vec<Connection>,
    /// Exchanges that haven't ended, by the numbers of the current session.
    open: HashMap<u64, usize>,
    warning: Option<String>,
}

impl Index {
    fn read(&mut self, mut reader: BufReader<&File>) -> Result<(), LoadError> {
        let (mut offset, mut number) = (0u64, 0u64);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let length =
                reader.by_ref().take(LINE_MAX as u64 + 1).read_until(b'\n', &mut bytes).map_err(LoadError::Read)?;
            if length == 0 {
                break;
            }
            number += 1;
            if length > LINE_MAX {
                return Err(LoadError::TooLong(number));
            }
            let is_first = number == 1;
            if bytes.last() != Some(&b'\n') && !is_first {
                self.warning = Some(format!(
                    "line {number} of the recording is cut: the recorder was ended in the middle of it; \
                     what comes before is replayed"
                ));
                break;
            }
            let line = match serde_json::from_slice::<Line>(&bytes) {
                Ok(Line::SaggarRecording(header)) if header.v != VERSION => return Err(LoadError::Version(header.v)),
                Ok(line) if is_first && !matches!(line, Line::SaggarRecording(_)) => return Err(LoadError::Foreign),
                Ok(line) => line,
                Err(_) if is_first => return Err(LoadError::Foreign),
                Err(_) => return Err(LoadError::Damaged(number)),
            };
            let place = Place { offset, length: length as u32 };
            self.take(line, place).ok_or(LoadError::Damaged(number))?;
            if self.exchanges.len() > EXCHANGES_MAX || self.connections.len() > EXCHANGES_MAX {
                return Err(LoadError::TooMany);
            }
            offset += length as u64;
        }
        if number == 0 { Err(LoadError::Foreign) } else { Ok(()) }
    }

    /// `None` if the line speaks of an exchange that isn't open.
    fn take(&mut self, line: Line, place: Place) -> Option<()> {
        let open = &mut self.open;
        match line {
            Line::SaggarRecording(_) => open.clear(),
            Line::Request(request) => {
                let is_new = open.insert(request.exchange, self.exchanges.len()).is_none();
                self.exchanges.push(Recorded { request, answer: None, pieces: Vec::new(), end: None });
                return is_new.then_some(());
            }
            // For people: its hash is what counts.
            Line::Sent(piece) => {
                open.get(&piece.exchange)?;
            }
            Line::Answer(answer) => {
                let exchange = self.exchanges.get_mut(*open.get(&answer.exchange)?)?;
                exchange.answer = Some(answer);
            }
            Line::Got(piece) => {
                let exchange = self.exchanges.get_mut(*open.get(&piece.exchange)?)?;
                exchange.pieces.push(place);
                return piece.content.is_sound().then_some(());
            }
            Line::End(end) => {
                let exchange = self.exchanges.get_mut(open.remove(&end.exchange)?)?;
                exchange.end = Some(end);
            }
            Line::Connection(connection) => self.connections.push(connection),
        }
        Some(())
    }
}

impl Recorded {
    pub fn is_replayable(&self) -> bool {
        self.answer.is_some() && self.end.as_ref().is_some_and(|end| end.outcome != Outcome::Failed)
    }
}

/// A piece that can't be decoded would be found only when it is played.
impl Content {
    pub(super) fn is_sound(&self) -> bool {
        match self {
            Self::Text(_) => true,
            Self::Base64(text) => {
                text.len() % 4 == 0
                    && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'='))
            }
        }
    }
}
