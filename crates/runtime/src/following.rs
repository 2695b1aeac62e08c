//! Follows an exec: its events in order, as they happen, each with its position in the output.
//!
//! This is the only loop over a supervisor's messages about an exec. Code that shows an exec to a client (server-sent
//! events, a WebSocket, E2B's streams) or waits for its end converts these events, and needs to know nothing of the
//! control protocol.
//!
//! INVARIANT: after [`ExecEvent::Exited`] or [`ExecEvent::Failed`] there is nothing more.

use saggar_domain::{Beginning, Offsets, OutputStream, SandboxId};
use saggar_supervisor::control::{ExecDescription, Reply};

use crate::fault::Fault;
use crate::supervisor::{ControlError, Feeding, Incoming, Message};

/// An event of an exec's stream.
#[derive(Debug)]
pub enum ExecEvent {
    /// It printed something.
    Output { stream: OutputStream, bytes: Vec<u8> },
    /// Output that is no longer kept was skipped.
    Gap { stream: OutputStream, bytes: u64 },
    /// Its program ended; the last event.
    Exited(Box<ExecDescription>),
    /// It can't be followed any more; the last event. [`Fault::Ended`] where the sandbox is gone.
    Failed(Fault),
}

/// The events of one exec.
#[derive(Debug)]
pub struct Following {
    sandbox: SandboxId,
    incoming: Incoming,
    place: Offsets,
    is_over: bool,
    /// Half of the connection, for one who doesn't feed the exec: dropped, the other half would end.
    _feeding: Option<Feeding>,
}

impl Following {
    pub(crate) fn new(sandbox: SandboxId, incoming: Incoming, place: Offsets) -> Self {
        Self { sandbox, incoming, place, is_over: false, _feeding: None }
    }

    /// How far both streams have been read, with the last event.
    pub fn place(&self) -> Offsets {
        self.place
    }

    /// What happens next; `None` after the last event. May be cancelled at its await, and loses nothing.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        if self.is_over {
            return None;
        }
        let event = self.receive().await;
        self.is_over = matches!(event, ExecEvent::Exited(_) | ExecEvent::Failed(_));
        Some(event)
    }

    async fn receive(&mut self) -> ExecEvent {
        loop {
            let failed = |error| ExecEvent::Failed(Fault::from_control(error, &self.sandbox));
            match self.incoming.next().await {
                Ok(Some(Message::Output { stream, offset, bytes })) => {
                    // The place is the supervisor's to say.
                    self.place = self.place.with(stream, offset.saturating_add(bytes.len() as u64));
                    return ExecEvent::Output { stream, bytes };
                }
                Ok(Some(Message::Reply(Reply::Gap { stream, bytes }))) => {
                    self.place = self.place.after(stream, bytes);
                    return ExecEvent::Gap { stream, bytes };
                }
                Ok(Some(Message::Reply(Reply::Exited(exec)))) => return ExecEvent::Exited(exec),
                Ok(Some(Message::Reply(Reply::Error(problem)))) => return failed(ControlError::Refused(problem)),
                // That it began was answered before, and what a newer supervisor says besides is for others.
                Ok(Some(Message::Reply(_))) => {}
                Ok(None) => return ExecEvent::Failed(Fault::Ended { id: self.sandbox.clone(), reason: None }),
                Err(error) => return failed(error),
            }
        }
    }
}

/// An exec, and a connection that follows it.
#[derive(Debug)]
pub struct Followed {
    /// The exec's state when the connection was made.
    pub exec: ExecDescription,
    /// What it writes, and its end.
    pub following: Following,
    /// Its input.
    pub feeding: Feeding,
}

impl Followed {
    /// Follows without feeding.
    pub fn into_following(self) -> Following {
        let Self { exec: _, following, feeding } = self;
        Following { _feeding: Some(feeding), ..following }
    }

    /// Both halves, for one who feeds while it follows. The following ends with the feeding.
    pub(crate) fn split(self) -> (Following, Feeding) {
        (self.following, self.feeding)
    }

    /// Follows to the end and keeps at most the last `most` bytes of each stream; the rest is counted as dropped. The
    /// program keeps running if this is cancelled.
    pub async fn finish(self, most: usize) -> Result<Finished, Fault> {
        let mut following = self.into_following();
        let mut tails = Tails::new(most);
        loop {
            match following.next().await {
                Some(ExecEvent::Output { stream, bytes }) => tails.push(stream, &bytes),
                // Skipped output shows in the totals.
                Some(ExecEvent::Gap { .. }) => {}
                Some(ExecEvent::Exited(exec)) => {
                    let (stdout, stderr) = tails.cut();
                    let mut exec = *exec;
                    exec.stdout_dropped = exec.stdout_bytes.saturating_sub(stdout.len() as u64);
                    exec.stderr_dropped = exec.stderr_bytes.saturating_sub(stderr.len() as u64);
                    return Ok(Finished { exec, stdout, stderr });
                }
                Some(ExecEvent::Failed(fault)) => return Err(fault),
                None => return Err(Fault::Ended { id: following.sandbox, reason: None }),
            }
        }
    }

    /// Reads what the exec had printed when the connection was made, and keeps as much of its end as fits. Doesn't wait for later output.
    pub(crate) async fn read_up_to_now(self, most: usize) -> Result<Finished, Fault> {
        let Self { exec, mut following, feeding: _feeding } = self;
        let mut tails = Tails::new(most);
        loop {
            let Offsets { stdout, stderr } = following.place();
            if stdout >= exec.stdout_bytes && stderr >= exec.stderr_bytes {
                break;
            }
            match following.next().await {
                Some(ExecEvent::Output { stream, bytes }) => tails.push(stream, &bytes),
                Some(ExecEvent::Gap { .. }) => {}
                Some(ExecEvent::Failed(fault @ Fault::Internal { .. })) => return Err(fault),
                // What was read until then is still true.
                Some(ExecEvent::Exited(_) | ExecEvent::Failed(_)) | None => break,
            }
        }
        let (stdout, stderr) = tails.cut();
        Ok(Finished { exec, stdout, stderr })
    }
}

/// A finished exec with its kept output.
#[derive(Clone, Debug)]
pub struct Finished {
    pub exec: ExecDescription,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Where one who begins there has the first byte of each stream.
pub(crate) fn first_place(from: Beginning, exec: &ExecDescription) -> Offsets {
    match from {
        Beginning::Start => Offsets { stdout: exec.stdout_dropped, stderr: exec.stderr_dropped },
        Beginning::Now => Offsets { stdout: exec.stdout_bytes, stderr: exec.stderr_bytes },
        Beginning::Offsets(offsets) => offsets,
    }
}

/// The last bytes of each stream.
#[derive(Debug)]
pub(crate) struct Tails {
    most: usize,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Tails {
    pub(crate) fn new(most: usize) -> Self {
        Self { most, stdout: Vec::new(), stderr: Vec::new() }
    }

    pub(crate) fn push(&mut self, stream: OutputStream, bytes: &[u8]) {
        let kept = match stream {
            OutputStream::Stdout => &mut self.stdout,
            OutputStream::Stderr => &mut self.stderr,
        };
        kept.extend_from_slice(bytes);
        // Trimmed only occasionally, so that a flood is copied once and not many times.
        if kept.len() > 2 * self.most {
            kept.drain(..kept.len() - self.most);
        }
    }

    pub(crate) fn cut(self) -> (Vec<u8>, Vec<u8>) {
        let cut = |mut kept: Vec<u8>| {
            kept.drain(..kept.len().saturating_sub(self.most));
            kept
        };
        (cut(self.stdout), cut(self.stderr))
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::{Code, ExecId, ExecStatus, Problem};
    use saggar_supervisor::control::{encode_json, encode_output};
    use serde_json::json;
    use tokio::io::AsyncWriteExt;
    use tokio::net::UnixStream;

    use super::*;
    use crate::supervisor::Connection;

    fn exec() -> ExecDescription {
        serde_json::from_value(json!({
            "exec_id": ExecId::from_random([1; 16]), "argv": ["true"], "pid": 7, "has_terminal": false, "started_ms": 0,
            "status": "exited", "exit_code": 0,
            "stdout_bytes": 8, "stderr_bytes": 3, "stdout_dropped": 5, "stderr_dropped": 0,
        }))
        .unwrap()
    }

    fn say(wire: &mut Vec<u8>, reply: &Reply) {
        encode_json(wire, reply).unwrap();
    }

    /// What one sees who follows a supervisor that says this and goes away.
    async fn followed(wire: &[u8], from: Offsets) -> Followed {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(wire).await.unwrap();
        theirs.shutdown().await.unwrap();
        let (incoming, feeding) = Connection::over(ours).split();
        let following = Following::new(SandboxId::from_random([2; 16]), incoming, from);
        Followed { exec: exec(), following, feeding }
    }

    #[tokio::test]
    async fn each_event_has_its_place_and_the_end_is_the_last() {
        let mut wire = Vec::new();
        say(&mut wire, &Reply::Started(Box::new(exec())));
        say(&mut wire, &Reply::Gap { stream: OutputStream::Stdout, bytes: 5 });
        encode_output(&mut wire, OutputStream::Stdout, 5, b"abc").unwrap();
        encode_output(&mut wire, OutputStream::Stderr, 0, b"err").unwrap();
        say(&mut wire, &Reply::Exited(Box::new(exec())));
        say(&mut wire, &Reply::Done);
        let mut following = followed(&wire, Offsets::default()).await.into_following();
        let mut seen = Vec::new();
        while let Some(event) = following.next().await {
            let told = match event {
                ExecEvent::Output { stream, bytes } => format!("{stream} {}", String::from_utf8(bytes).unwrap()),
                ExecEvent::Gap { stream, bytes } => format!("{stream} -{bytes}"),
                ExecEvent::Exited(exec) => format!("{:?}", exec.status),
                ExecEvent::Failed(fault) => panic!("{fault}"),
            };
            seen.push(format!("{told} @{}", following.place()));
        }
        assert_eq!(seen, ["stdout -5 @5-0", "stdout abc @8-0", "stderr err @8-3", "Some(Exited) @8-3"]);
        assert!(following.next().await.is_none());
    }

    #[tokio::test]
    async fn a_supervisor_that_goes_away_or_refuses_is_the_last_event() {
        let mut refused = Vec::new();
        say(&mut refused, &Reply::Error(Problem::new(Code::InvalidValue, "no", "yes")));
        for (wire, is_ended) in [(Vec::new(), true), (refused, false), (vec![0, 0, 0, 0, 99], false)] {
            let mut following = followed(&wire, Offsets::default()).await.into_following();
            match following.next().await {
                Some(ExecEvent::Failed(fault)) => assert_eq!(matches!(fault, Fault::Ended { .. }), is_ended, "{fault}"),
                other => panic!("{other:?}"),
            }
            assert!(following.next().await.is_none());
        }
    }

    #[tokio::test]
    async fn the_last_bytes_are_kept_and_the_rest_is_counted() {
        let mut wire = Vec::new();
        encode_output(&mut wire, OutputStream::Stdout, 5, b"abc").unwrap();
        encode_output(&mut wire, OutputStream::Stderr, 0, b"err").unwrap();
        say(&mut wire, &Reply::Exited(Box::new(exec())));
        let Finished { exec, stdout, stderr } = followed(&wire, Offsets::default()).await.finish(2).await.unwrap();
        assert_eq!((stdout.as_slice(), stderr.as_slice()), (&b"bc"[..], &b"rr"[..]));
        assert_eq!((exec.status, exec.stdout_dropped, exec.stderr_dropped), (Some(ExecStatus::Exited), 6, 1));
        assert!(followed(&[], Offsets::default()).await.finish(2).await.is_err());
    }

    #[tokio::test]
    async fn what_was_printed_up_to_now_is_read_and_nothing_later_is_waited_for() {
        // A gap counts as read, and of what comes the end is kept. The other side stays open, and says nothing more.
        for missed in [0, 2] {
            let mut wire = Vec::new();
            if missed > 0 {
                say(&mut wire, &Reply::Gap { stream: OutputStream::Stdout, bytes: missed });
            }
            encode_output(&mut wire, OutputStream::Stdout, 5 + missed, &b"abc"[missed as usize..]).unwrap();
            encode_output(&mut wire, OutputStream::Stderr, 0, b"err").unwrap();
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(&wire).await.unwrap();
            let (incoming, feeding) = Connection::over(ours).split();
            let place = first_place(Beginning::Start, &exec());
            let following = Following::new(SandboxId::from_random([2; 16]), incoming, place);
            let read = Followed { exec: exec(), following, feeding }.read_up_to_now(2).await.unwrap();
            assert_eq!((read.stdout, read.stderr), (b"abc"[1.max(missed as usize)..].to_vec(), b"rr".to_vec()));
        }
    }

    #[test]
    fn a_flood_keeps_its_end() {
        let mut tails = Tails::new(3);
        for byte in b'a'..=b'z' {
            tails.push(OutputStream::Stdout, &[byte]);
        }
        assert_eq!(tails.cut(), (b"xyz".to_vec(), Vec::new()));
    }

    #[test]
    fn a_beginning_is_a_place_in_what_there_is() {
        for (from, place) in [("start", "5-0"), ("now", "8-3"), ("6-1", "6-1")] {
            assert_eq!(first_place(Beginning::parse(from).unwrap(), &exec()).to_string(), place);
        }
    }
}
