//! A program's stdin: what the host has sent and the program has not read.

use alloc::vec::Vec;

use super::sys::{Errno, Fd};
use super::terminal;

pub(super) struct Input {
    // `None` once it is closed, by us or by the program; later input is discarded.
    pub(super) fd: Option<Fd>,
    // INVARIANT: from `written` on never longer than STDIN_WINDOW.
    pub(super) queue: Vec<u8>,
    written: usize,
    pub(super) is_ended: bool,
    is_terminal: bool,
    is_line_open: bool,
}

impl Input {
    pub(super) fn new(fd: Fd, is_terminal: bool) -> Input {
        Input { fd: Some(fd), queue: Vec::new(), written: 0, is_ended: false, is_terminal, is_line_open: false }
    }

    pub(super) fn waiting(&self) -> usize {
        self.queue.len() - self.written
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.waiting() > 0 || self.is_ended
    }

    /// Writes as much as possible; returns how many bytes left the queue.
    pub(super) fn pump(&mut self) -> usize {
        let before = self.waiting();
        while self.waiting() > 0 {
            let Some(fd) = &self.fd else {
                self.written = self.queue.len();
                break;
            };
            match fd.write(&self.queue[self.written..]) {
                Ok(count) => self.written += count,
                Err(Errno(libc::EAGAIN)) => break,
                Err(_) => self.fd = None,
            }
        }
        let taken = before - self.waiting();
        if let Some(last) = self.written.checked_sub(1).and_then(|last| self.queue.get(last)) {
            self.is_line_open = *last != b'\n';
        }
        self.queue.drain(..self.written);
        self.written = 0;
        if self.is_ended && self.waiting() == 0 {
            self.end();
        }
        taken
    }

    /// Signals the end of input. A terminal cannot be closed in one direction, so the end-of-file character is typed
    /// there. In the middle of a line the first one only submits the line, so it is typed twice.
    fn end(&mut self) {
        if self.is_terminal
            && let Some(fd) = &self.fd
            && let Some(end) = terminal::end_of_input(fd)
        {
            let typed = [end, end];
            let count = if self.is_line_open { 2 } else { 1 };
            if fd.write(&typed[..count]) == Err(Errno(libc::EAGAIN)) {
                return;
            }
        }
        self.fd = None;
    }
}
