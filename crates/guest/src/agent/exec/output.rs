//! What a program writes, on its way to the host: as much as the host accepts, and what is left in the pipes at its end.

use saggar_guest::{End, FromGuest, Stream};

use super::super::Leave;
use super::super::channel::Channel;
use super::super::sys::{self, Errno, Fd};
use super::{Exec, Phase};

/// Bytes of each output that are read after the program's end. No pipe that an ordinary user can create holds more.
pub(super) const DRAIN_MAX: usize = 1024 * 1024;

/// Bytes of output read at once, and so the maximum in one `Output`.
pub(in crate::agent) const OUTPUT_CHUNK: usize = 32 * 1024;

/// How much output the host accepts.
pub(super) struct Window {
    pub(super) size: u32,
    // INVARIANT: at most `size`.
    pub(super) credit: u32,
}

/// The result of one read from an output.
enum Gave {
    Bytes(usize),
    Nothing,
    End,
}

impl Exec {
    /// The descriptor to watch for output of a running program, if the host accepts any, or of processes it left
    /// behind. A draining exec is read without watching.
    pub(in crate::agent) fn output_fd(&self, stream: Stream, channel: &Channel) -> Option<&Fd> {
        let is_wanted = match self.phase {
            Phase::Running => channel.has_room() && self.credit() > 0,
            Phase::Left => true,
            Phase::Starting { .. } | Phase::Draining { .. } | Phase::Failed => false,
        };
        self.output(stream).filter(|_| is_wanted)
    }

    fn output(&self, stream: Stream) -> Option<&Fd> {
        match stream {
            Stream::Stdout => self.stdout.as_ref(),
            Stream::Stderr => self.stderr.as_ref(),
        }
    }

    pub(super) fn credit(&self) -> usize {
        self.window.as_ref().map_or(usize::MAX, |window| window.credit as usize)
    }

    /// The host has taken this much output. Fails if that is more than it was sent.
    pub(in crate::agent) fn give_credit(&mut self, bytes: u32) -> Result<(), Leave> {
        let Some(window) = &mut self.window else { return Ok(()) };
        window.credit =
            window.credit.checked_add(bytes).filter(|credit| *credit <= window.size).ok_or(Leave::Protocol)?;
        Ok(())
    }

    /// Forwards what can be read from an output now, once, or discards it if it comes too late.
    pub(in crate::agent) fn pass_output(
        &mut self,
        stream: Stream,
        channel: &mut Channel,
        buffer: &mut [u8],
    ) -> Result<(), Leave> {
        let gave = match self.phase {
            // The other output may have used up the room in the meantime.
            Phase::Running if channel.has_room() && self.credit() > 0 => self.read_output(stream, channel, buffer)?,
            Phase::Left => self.output(stream).map_or(Gave::End, |output| read(output, buffer)),
            Phase::Running | Phase::Starting { .. } | Phase::Draining { .. } | Phase::Failed => Gave::Nothing,
        };
        if let Gave::End = gave {
            self.forget_output(stream);
        }
        Ok(())
    }

    /// Reads the outputs, one after the other; true once nothing is left to report.
    pub(super) fn drain_outputs(
        &mut self,
        end: End,
        mut stream: Option<Stream>,
        mut left: usize,
        channel: &mut Channel,
        buffer: &mut [u8],
    ) -> Result<bool, Leave> {
        while let Some(current) = stream {
            let gave = if self.credit() == 0 && !self.output(current).is_some_and(sys::is_readable) {
                // Without credit it cannot be read, but it can be seen whether there is something to read.
                Gave::Nothing
            } else if self.output(current).is_some() && (!channel.has_room() || self.credit() == 0) {
                self.phase = Phase::Draining { end, stream, left };
                return Ok(false);
            } else {
                let most = left.min(buffer.len());
                self.read_output(current, channel, &mut buffer[..most])?
            };
            match gave {
                Gave::Bytes(count) if count < left => left -= count,
                gave => {
                    if let Gave::End = gave {
                        self.forget_output(current);
                    }
                    left = DRAIN_MAX;
                    stream = match current {
                        Stream::Stdout => Some(Stream::Stderr),
                        Stream::Stderr => None,
                    };
                }
            }
        }
        Ok(true)
    }

    fn read_output(&mut self, stream: Stream, channel: &mut Channel, buffer: &mut [u8]) -> Result<Gave, Leave> {
        let most = buffer.len().min(self.credit());
        let Some(output) = self.output(stream) else { return Ok(Gave::End) };
        let gave = read(output, &mut buffer[..most]);
        if let Gave::Bytes(count) = gave {
            if let Some(window) = &mut self.window {
                // At most `most`, and so at most the credit.
                window.credit -= count as u32;
            }
            channel.send(&FromGuest::Output { exec: self.id, stream, bytes: buffer[..count].to_vec() })?;
        }
        Ok(gave)
    }

    fn forget_output(&mut self, stream: Stream) {
        match stream {
            Stream::Stdout => self.stdout = None,
            Stream::Stderr => self.stderr = None,
        }
    }

    /// The host no longer reads this output. A terminal is hung up, as when its window is closed.
    pub(in crate::agent) fn close_output(&mut self, stream: Stream) {
        self.forget_output(stream);
        if self.terminal.is_some() && stream == Stream::Stdout {
            self.terminal = None;
            if let Some(stdin) = &mut self.stdin {
                stdin.fd = None;
            }
        }
    }
}

fn read(output: &Fd, buffer: &mut [u8]) -> Gave {
    match output.read(buffer) {
        Ok(0) => Gave::End,
        Ok(count) => Gave::Bytes(count),
        Err(Errno(libc::EAGAIN)) => Gave::Nothing,
        // A terminal returns EIO once no process has it open.
        Err(_) => Gave::End,
    }
}
