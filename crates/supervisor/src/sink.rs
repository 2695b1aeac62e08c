//! Sinks: destinations of a program's output, each with a bound.
//!
//! `Keep` captures up to a limit and counts the rest; it never blocks the program. `Forward` passes bytes on live and
//! holds at most a small backlog: if the reader is slow the program waits, as with any pipe, and deadlines are still
//! enforced. `Tell` hands bytes to our own process, up to a limit.
//!
//! Two filtered sinks may lead to the same terminal, which accepts only part of a write if it has little room. Text
//! after the first half of a colour sequence would be read as its second half, so while one sink is cut inside a
//! sequence, the other must not write.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;

use saggar_guest::FRAME_MAX;
use saggar_jail::Rule;

use crate::channel::READ_LEN;
use crate::escape::{EscapeFilter, Seam};

/// Bytes held for a slow reader before the guest is no longer read.
const BACKLOG_MAX: usize = 256 * 1024;
/// Maximum bytes ever held. Larger by what one read of the channel can bring after the backlog was checked: the bytes
/// of one read, and the rest of a frame that was begun before. The filter can expand each byte to three.
const BACKLOG_LEN_MAX: usize = BACKLOG_MAX + EXPANSION * (READ_LEN + FRAME_MAX);
/// A byte that the filter replaces becomes this many.
const EXPANSION: usize = "\u{fffd}".len();
/// A pipe that polls writable accepts this much without blocking.
const WRITE_LEN: usize = 4096;

#[derive(Debug)]
pub struct Sink {
    target: Target,
    limit: Option<u64>,
    totals: Totals,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes captured or passed on.
    pub accepted: u64,
    /// Bytes past the limit.
    pub dropped: u64,
}

#[derive(Debug)]
enum Target {
    Keep(Vec<u8>),
    Forward { fd: OwnedFd, backlog: VecDeque<u8>, filter: Option<EscapeFilter>, seam: Seam, state: Reader },
    Tell(Listener),
}

/// Gets output as it comes, and must not wait.
pub struct Listener(pub Box<Hear>);

type Hear = dyn FnMut(&[u8]);

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Listener")
    }
}

/// State of the reader of a forwarded stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reader {
    Open,
    /// Gone; the guest has yet to be told.
    Lost,
    /// Gone; the guest has been told.
    Told,
}

impl Sink {
    /// Captures up to `limit` bytes.
    pub fn keep(limit: u64) -> Self {
        Self { target: Target::Keep(Vec::new()), limit: Some(limit), totals: Totals::default() }
    }

    /// Passes bytes on to `fd`, up to the limit and through the filter, if given.
    pub fn forward(fd: OwnedFd, limit: Option<u64>, filter: Option<EscapeFilter>) -> Self {
        Self {
            target: Target::Forward {
                fd,
                backlog: VecDeque::new(),
                filter,
                seam: Seam::default(),
                state: Reader::Open,
            },
            limit,
            totals: Totals::default(),
        }
    }

    /// Passes up to `limit` bytes on to our own process.
    pub fn tell(listener: Listener, limit: u64) -> Self {
        Self { target: Target::Tell(listener), limit: Some(limit), totals: Totals::default() }
    }

    pub fn totals(&self) -> Totals {
        self.totals
    }

    pub fn into_kept(self) -> Vec<u8> {
        match self.target {
            Target::Keep(bytes) => bytes,
            Target::Forward { .. } | Target::Tell(_) => Vec::new(),
        }
    }

    /// Takes output of the program, to be written later. While the attendant respects [`Sink::is_backed_up`] there is
    /// always room; once it is ending the program it no longer does, and output that the reader hasn't taken by then is
    /// lost.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        if self.backlog_len() + EXPANSION * bytes.len() > BACKLOG_LEN_MAX {
            return;
        }
        let room = self.limit.filter(|_| Rule::Output.is_on()).map_or(u64::MAX, |limit| limit - self.totals.accepted);
        let accepted = bytes.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        self.totals.accepted += accepted as u64;
        self.totals.dropped += (bytes.len() - accepted) as u64;
        let bytes = &bytes[..accepted];
        match &mut self.target {
            Target::Keep(kept) => kept.extend_from_slice(bytes),
            Target::Tell(listener) => (listener.0)(bytes),
            Target::Forward { state: Reader::Open, backlog, filter: Some(filter), .. } => {
                filter.pass(bytes, |byte| backlog.push_back(byte))
            }
            Target::Forward { state: Reader::Open, backlog, filter: None, .. } => backlog.extend(bytes),
            Target::Forward { .. } => {}
        }
    }

    /// Whether the guest should wait before sending more.
    pub(crate) fn is_backed_up(&self) -> bool {
        self.backlog_len() >= BACKLOG_MAX
    }

    fn backlog_len(&self) -> usize {
        match &self.target {
            Target::Keep(_) | Target::Tell(_) => 0,
            Target::Forward { backlog, .. } => backlog.len(),
        }
    }

    /// Whether the text written so far ends inside a sequence.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(&self.target, Target::Forward { seam, .. } if *seam != Seam::Whole)
    }

    /// The descriptor to wait for, while there is something to write.
    pub(crate) fn waiting_on(&self) -> Option<BorrowedFd<'_>> {
        match &self.target {
            Target::Forward { fd, backlog, .. } if !backlog.is_empty() => Some(fd.as_fd()),
            Target::Keep(_) | Target::Forward { .. } | Target::Tell(_) => None,
        }
    }

    /// Writes while the descriptor accepts data. It belongs to the operator and may be shared, so it is never made
    /// non-blocking: it is polled, and written only as much as it promises to accept.
    pub(crate) fn write_some(&mut self) {
        let Target::Forward { fd, backlog, filter, seam, state } = &mut self.target else { return };
        let is_filtered = filter.is_some() && Rule::EscapeFilter.is_on();
        while !backlog.is_empty() && is_writable(fd.as_fd()) {
            let (front, _) = backlog.as_slices();
            match rustix::io::write(&*fd, &front[..front.len().min(WRITE_LEN)]) {
                Ok(written) => {
                    let bytes = backlog.drain(..written);
                    if is_filtered {
                        *seam = bytes.fold(*seam, Seam::after);
                    }
                }
                Err(Errno::INTR | Errno::AGAIN) => return,
                Err(_) => {
                    backlog.clear();
                    (*seam, *state) = (Seam::Whole, Reader::Lost);
                }
            }
        }
    }

    /// Whether the reader was lost since the last call.
    pub(crate) fn take_lost(&mut self) -> bool {
        match &mut self.target {
            Target::Forward { state: state @ Reader::Lost, .. } => {
                *state = Reader::Told;
                true
            }
            Target::Keep(_) | Target::Forward { .. } | Target::Tell(_) => false,
        }
    }
}

fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let mut poll = [rustix::event::PollFd::from_borrowed_fd(fd, rustix::event::PollFlags::OUT)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    // A descriptor in error polls ready too, and the write then fails.
    rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_past_the_limit_is_counted_and_dropped() {
        let mut sink = Sink::keep(5);
        for piece in [&b"abc"[..], b"def", b"ghi"] {
            sink.take(piece);
        }
        assert_eq!(sink.totals(), Totals { accepted: 5, dropped: 4 });
        assert!(!sink.is_backed_up());
        assert_eq!(sink.into_kept(), b"abcde");
    }

    #[test]
    fn a_slow_reader_backs_up_and_a_lost_one_is_told_once() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::forward(writer, None, None);
        while !sink.is_backed_up() {
            sink.take(&vec![b'x'; FRAME_MAX]);
        }
        assert!(sink.waiting_on().is_some());
        drop(reader);
        sink.write_some();
        assert!(sink.waiting_on().is_none());
        assert_eq!([sink.take_lost(), sink.take_lost()], [true, false]);
    }

    #[test]
    fn what_one_read_brings_after_the_backlog_was_full_is_not_lost() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::forward(writer, None, None);
        let mut sent = 0;
        while !sink.is_backed_up() {
            sink.take(&[b'x'; 1000]);
            sent += 1000;
        }
        sink.take(&vec![b'x'; FRAME_MAX]);
        sink.take(&vec![b'x'; READ_LEN]);
        sent += FRAME_MAX + READ_LEN;
        let (mut received, mut bytes) = (0, vec![0; 1 << 20]);
        while sink.waiting_on().is_some() {
            sink.write_some();
            received += rustix::io::read(&reader, &mut bytes[..]).unwrap();
        }
        drop(sink);
        while let Ok(length @ 1..) = rustix::io::read(&reader, &mut bytes[..]) {
            received += length;
        }
        assert_eq!(received, sent);
    }

    #[test]
    fn a_sink_knows_that_it_was_cut_inside_of_a_sequence() {
        // A pipe takes whole pages, so the colour begins on the last bytes of one.
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let room = 16 * WRITE_LEN;
        let mut sink = Sink::forward(writer, None, Some(EscapeFilter::default()));
        sink.take(&vec![b'x'; room - 3]);
        sink.take(b"\x1b[31mred");
        sink.write_some();
        assert!(sink.is_cut());
        let mut bytes = vec![0; room];
        rustix::io::read(&reader, &mut bytes[..]).unwrap();
        sink.write_some();
        assert!(!sink.is_cut() && sink.waiting_on().is_none());
    }

    #[test]
    fn a_lost_reader_leaves_no_sequence_to_wait_for() {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut sink = Sink::forward(writer, None, Some(EscapeFilter::default()));
        sink.take(&vec![b'x'; 16 * WRITE_LEN - 3]);
        sink.take(b"\x1b[31mred");
        sink.write_some();
        assert!(sink.is_cut());
        drop(reader);
        sink.write_some();
        assert!(!sink.is_cut() && sink.take_lost());
    }
}
