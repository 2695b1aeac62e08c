//! One connection to a supervisor: a request, its response, and for some a stream.

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

/// Time limit of a response to a quick request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);
/// Time limit of ending a sandbox: the supervisor waits for the kernel, which may wait for a disk.
const KILL_TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes read at once.
const READ_LEN: usize = 64 * 1024;

/// Why a request to a supervisor failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The supervisor no longer exists.
    #[error("the supervisor is gone")]
    Gone(#[source] io::Error),
    /// It refused the request.
    #[error("refused")]
    Refused(#[source] Problem),
    #[error("the supervisor did not respond in time")]
    Timeout,
    /// Its response is invalid.
    #[error("the supervisor broke the protocol: {0}")]
    Protocol(String),
}

impl From<FrameError> for ControlError {
    fn from(error: FrameError) -> Self {
        Self::Protocol(error.to_string())
    }
}

#[derive(Debug)]
pub(crate) enum Message {
    Reply(Reply),
    /// Output of a program.
    Output {
        stream: OutputStream,
        /// Offset of these bytes in the stream.
        offset: u64,
        bytes: Vec<u8>,
    },
}

/// A connection for one request.
#[derive(Debug)]
pub(crate) struct Connection {
    stream: UnixStream,
    decoder: Decoder,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects, and sends the request.
    pub(crate) async fn ask(socket: &Path, op: Op) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(socket).await.map_err(ControlError::Gone)?;
        let mut connection = Self::over(stream);
        connection.send(&Request { v: CONTROL, op }).await?;
        Ok(connection)
    }

    /// Uses an existing stream.
    pub(crate) fn over(stream: UnixStream) -> Self {
        Self { stream, decoder: Decoder::new(), buffer: vec![0; READ_LEN] }
    }

    /// Sends a value as JSON.
    pub(crate) async fn send<T: serde::Serialize>(&mut self, value: &T) -> Result<(), ControlError> {
        let mut wire = Vec::new();
        encode_json(&mut wire, value)?;
        self.stream.write_all(&wire).await.map_err(ControlError::Gone)
    }

    /// The next message; `None` at the end. May be cancelled at its await.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, ControlError> {
        next(&mut self.stream, &mut self.decoder, &mut self.buffer).await
    }

    /// A message that has already arrived, without waiting.
    pub(crate) fn next_now(&mut self) -> Result<Option<Message>, ControlError> {
        if let Some(message) = read_frame(&mut self.decoder)? {
            return Ok(Some(message));
        }
        match self.stream.try_read(&mut self.buffer) {
            Ok(length @ 1..) => self.decoder.push(&self.buffer[..length]),
            // The end is for a caller that waits.
            Ok(0) => return Ok(None),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(ControlError::Gone(error)),
        }
        read_frame(&mut self.decoder)
    }

    /// The single response to a request.
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

    /// Sends one request and returns its response.
    pub(crate) async fn question(socket: &Path, op: Op) -> Result<Reply, ControlError> {
        let patience = match &op {
            Op::Kill | Op::BeginAgain { .. } => KILL_TIMEOUT,
            _ => ANSWER_TIMEOUT,
        };
        Self::ask(socket, op).await?.answer_within(patience).await
    }

    /// The response to [`Op::Open`], with the stream's descriptor.
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

    /// Splits the connection into its two directions.
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
    /// The next message; `None` if the supervisor is gone. May be cancelled at its await.
    pub(crate) async fn next(&mut self) -> Result<Option<Message>, ControlError> {
        next(&mut self.read, &mut self.decoder, &mut self.buffer).await
    }
}

/// The sending half of a connection that follows an exec.
#[derive(Debug)]
pub struct Feeding {
    write: OwnedWriteHalf,
}

/// Maximum bytes of stdin in one frame.
const STDIN_LEN: usize = 64 * 1024;

impl Feeding {
    /// Sends bytes to the program. Waits while it doesn't read.
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

/// A response of the wrong kind.
pub(crate) fn unexpected(wanted: &str) -> ControlError {
    ControlError::Protocol(format!("unexpected response instead of `{wanted}`"))
}

/// The response to the start of an exec.
pub(crate) fn started(reply: Reply) -> Result<ExecDescription, ControlError> {
    match reply {
        Reply::Started(state) => Ok(*state),
        Reply::Error(problem) => Err(ControlError::Refused(problem)),
        _ => Err(unexpected("started")),
    }
}

impl ControlError {
    /// Whether the sandbox no longer exists, as opposed to refusing.
    pub(crate) fn is_gone(&self) -> bool {
        match self {
            Self::Gone(_) => true,
            Self::Refused(problem) => problem.code == Code::SandboxEnded,
            Self::Timeout | Self::Protocol(_) => false,
        }
    }
}
