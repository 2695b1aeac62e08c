//! One connection to a supervisor: a request, its answer, and for some a stream.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use saggar_domain::{Code, ExecId, OutputStream, Problem, Signal, SignalScope, TerminalSize};
use saggar_supervisor::control::{
    CONTROL, Decoder, ExecDescription, Frame, FrameError, Op, Reply, Request, encode_json, encode_stdin,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

/// How long a supervisor may take to answer what takes no time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// How long it may take to end a sandbox: it waits for the kernel, which may wait for a disk.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes read at once.
const READ_LEN: usize = 64 * 1024;

/// Why a supervisor did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// Nobody answers there any more.
    #[error("the supervisor is gone")]
    Gone(#[source] io::Error),
    /// It says no.
    #[error("refused")]
    Refused(#[source] Problem),
    /// It took too long.
    #[error("the supervisor did not answer in time")]
    Timeout,
    /// It said something that can't be understood.
    #[error("the supervisor broke the protocol: {0}")]
    Protocol(String),
}

impl From<FrameError> for ControlError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

/// What came over a connection.
#[derive(Debug)]
pub(crate) enum Message {
    Reply(Reply),
    /// What a program wrote.
    Output {
        stream: OutputStream,
        /// How many bytes of that stream came before.
        offset: u64,
        bytes: Vec<u8>,
    },
}

/// A connection on which one thing was asked.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects, and asks.
    pub(crate) async fn ask(socket: &Path, op: Op) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(socket).await.map_err(ControlError::Gone)?;
        let mut connection = Self::over(stream);
        connection.send(&Request { v: CONTROL, op }).await?;
        Ok(connection)
    }

    /// Talks over a stream that is there already.
    pub(crate) fn over(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(), buffer: vec![0; READ_LEN] }
    }

    /// Sends anything that is JSON.
    pub(crate) async fn send<T: serde::Serialize>(&mut self, value: &T) -> Result<(), ControlError> {
        let mut wire = Vec::new();
        encode_json(&mut wire, value)?;
        self.stream.write_all(&wire).await.map_err(ControlError::Gone)
    }

    /// The next message; `None` at the end. May be cancelled at its await.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, ControlError> {
        next(&mut self.stream, &mut self.decoder, &mut self.buffer).await
    }

    /// What has come already, without waiting.
    pub(crate) fn next_now(&mut self) -> Result<Option<Message>, ControlError> {
        if let Some(message) = read_frame(&mut self.decoder)? {
            return Ok(Some(message));
        }
        match self.stream.try_read(&mut self.buffer) {
            Ok(length @ 1..) => self.decoder.push(&self.buffer[..length]),
            // An end is for whoever waits.
            Ok(0) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(ControlError::Gone(error)),
        }
        read_frame(&mut self.decoder)
    }

    /// The one answer to a question.
    pub(crate) async fn answer(&mut self) -> Result<Reply, ControlError> {
        let wait = if cfg!(debug_assertions) { ANSWER_TIMEOUT * 4 } else { ANSWER_TIMEOUT };
        self.answer_within(wait).await
    }

    async fn answer_within(&mut self, patience: Duration) -> Result<Reply, ControlError> {
        let message = tokio::time::timeout(patience, self.next()).await.map_err(|_| ControlError::Timeout)??;
        match message {
            Some(Message::Reply(Reply::Error(problem))) => Err(ControlError::Refused(problem)),
            Some(Message::Reply(reply)) => Ok(reply),
            Some(Message::Output { .. }) => Err(ControlError::Protocol("output before an answer".to_owned())),
            None => Err(ControlError::Gone(io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// Asks one question.
    pub(crate) async fn question(socket: &Path, op: Op) -> Result<Reply, ControlError> {
        let patience = match &op {
            Op::Kill => KILL_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        Self::ask(socket, op).await?.answer_within(patience).await
    }

    /// The answer to [`Op::Open`], with the stream's descriptor.
    pub(crate) async fn opened(mut self) -> Result<UnixStream, ControlError> {
        let mut received = None;
        loop {
            let buffer = &mut self.buffer;
            let receive = self.stream.async_io(Interest::READABLE, || receive(&self.stream, buffer));
            let outcome = tokio::time::timeout(ANSWER_TIMEOUT, receive).await.map_err(|_| ControlError::Timeout)?;
            let (length, descriptor) = outcome.map_err(ControlError::Gone)?;
            received = received.or(descriptor);
            if length == 0 {
                return Err(ControlError::Gone(io::ErrorKind::UnexpectedEof.into()));
            }
            self.decoder.push(&self.buffer[..length]);
            match read_frame(&mut self.decoder)? {
                None => {}
                Some(Message::Reply(Reply::Opened)) => {
                    let missing = || ControlError::Protocol("no descriptor came with the stream".to_owned());
                    let stream = std::os::unix::net::UnixStream::from(received.ok_or_else(missing)?);
                    stream.set_nonblocking(true).map_err(ControlError::Gone)?;
                    return UnixStream::from_std(stream).map_err(ControlError::Gone);
                }
                Some(Message::Reply(Reply::Error(problem))) => return Err(ControlError::Refused(problem)),
                Some(_) => return Err(unexpected("opened")),
            }
        }
    }

    /// From here on the two directions are apart.
    pub(crate) fn split(self) -> (Incoming, Feeding) {
        let (read, write) = self.stream.into_split();
        (Incoming { read, decoder: self.decoder, buffer: self.buffer }, Feeding { write })
    }
}

/// The receiving half of a connection that follows an exec.
#[derive(Debug)]
pub(crate) struct Incoming {
    read: OwnedReadHalf,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Incoming {
    /// What comes next; `None` when the supervisor is gone. May be cancelled at its await.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, ControlError> {
        next(&mut self.read, &mut self.decoder, &mut self.buffer).await
    }
}

/// The sending half of a connection that follows an exec.
#[derive(Debug)]
pub struct Feeding {
    write: OwnedWriteHalf,
}

/// Bytes of stdin in one frame.
const STDIN_LEN: usize = 64 * 1024;

impl Feeding {
    /// Bytes for the program. Waits while it doesn't read.
    pub async fn stdin(&mut self, bytes: &[u8]) -> Result<(), ControlError> {
        for piece in bytes.chunks(STDIN_LEN) {
            let mut wire = Vec::with_capacity(piece.len() + 8);
            encode_stdin(&mut wire, piece)?;
            self.write.write_all(&wire).await.map_err(ControlError::Gone)?;
        }
        Ok(())
    }

    /// There are no more bytes.
    pub async fn end(&mut self) -> Result<(), ControlError> {
        self.say(Op::StdinEnd { exec_id: None }).await
    }

    /// Signals a program, without an answer.
    pub async fn signal(&mut self, exec_id: ExecId, signal: Signal, scope: SignalScope) -> Result<(), ControlError> {
        self.say(Op::Signal { exec_id, signal, scope, wait: false }).await
    }

    /// Gives a program's terminal a new size, without an answer.
    pub async fn resize(&mut self, exec_id: ExecId, size: TerminalSize) -> Result<(), ControlError> {
        self.say(Op::Resize { exec_id, size }).await
    }

    async fn say(&mut self, op: Op) -> Result<(), ControlError> {
        let mut wire = Vec::new();
        encode_json(&mut wire, &Request { v: CONTROL, op })?;
        self.write.write_all(&wire).await.map_err(ControlError::Gone)
    }
}

async fn next<R: AsyncReadExt + Unpin>(
    read: &mut R,
    decoder: &mut Decoder,
    buffer: &mut [u8],
) -> Result<Option<Message>, ControlError> {
    loop {
        if let Some(message) = read_frame(decoder)? {
            return Ok(Some(message));
        }
        match read.read(buffer).await {
            Ok(0) => return Ok(None),
            Ok(length) => decoder.push(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
            Err(error) => return Err(ControlError::Gone(error)),
        }
    }
}

fn read_frame(decoder: &mut Decoder) -> Result<Option<Message>, ControlError> {
    Ok(match decoder.next_frame()? {
        None => None,
        Some(Frame::Json(bytes)) => {
            let reply = serde_json::from_slice(&bytes).map_err(|error| ControlError::Protocol(error.to_string()))?;
            Some(Message::Reply(reply))
        }
        Some(Frame::Output { stream, offset, bytes }) => Some(Message::Output { stream, offset, bytes }),
        Some(Frame::Stdin(_)) => return Err(ControlError::Protocol("stdin from a supervisor".to_owned())),
    })
}

/// Reads once, with room for one descriptor.
fn receive(stream: &UnixStream, buffer: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [io::IoSliceMut::new(buffer)];
    let message = recvmsg(stream, &mut slices, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    if message.flags.contains(ReturnFlags::CTRUNC) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let descriptor = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok((message.bytes, descriptor))
}

/// An answer to another question.
pub(crate) fn unexpected(wanted: &str) -> ControlError {
    ControlError::Protocol(format!("another answer than `{wanted}`"))
}

/// The answer to the start of an exec.
pub(crate) fn started(reply: Reply) -> Result<ExecDescription, ControlError> {
    match reply {
        Reply::Started(state) => Ok(*state),
        Reply::Error(problem) => Err(ControlError::Refused(problem)),
        _ => Err(unexpected("started")),
    }
}

impl ControlError {
    /// Whether the sandbox is no more, as opposed to unwilling.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Refused(problem) => problem.code == Code::SandboxEnded,
            Self::Timeout | Self::Protocol(_) => false,
        }
    }
}
