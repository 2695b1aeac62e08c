//! Netlink messages: written beforehand, sent by the helper, which allocates nothing.

use rustix::io::Errno;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};

/// The protocol of routes has the number 0.
pub(super) const ROUTING: Option<Protocol> = None;

pub(super) const REQUEST: u16 = libc::NLM_F_REQUEST as u16;
pub(super) const CREATE: u16 = REQUEST | libc::NLM_F_CREATE as u16;
pub(super) const APPEND: u16 = CREATE | libc::NLM_F_APPEND as u16;
const ACKNOWLEDGE: u16 = libc::NLM_F_ACK as u16;
const NESTED: u16 = libc::NLA_F_NESTED as u16;
const ALIGNMENT: usize = 4;
const HEADER_LEN: usize = size_of::<libc::nlmsghdr>();
const FLAGS_OFFSET: usize = 6;
const SEQUENCE_OFFSET: usize = 8;

/// Messages for one socket, numbered from 1.
#[derive(Debug, Default)]
pub(super) struct Messages {
    bytes: Vec<u8>,
    count: u32,
    /// Where the last message to be acknowledged starts, and its number.
    last: Option<(usize, u32)>,
}

impl Messages {
    pub(super) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Adds a message: its family's header, then attributes.
    pub(super) fn add(&mut self, kind: u16, flags: u16, header: &[u8], attributes: impl FnOnce(&mut Attributes<'_>)) {
        let start = self.bytes.len();
        self.count += 1;
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(&flags.to_ne_bytes());
        self.bytes.extend_from_slice(&self.count.to_ne_bytes());
        self.bytes.extend_from_slice(&0u32.to_ne_bytes());
        self.bytes.extend_from_slice(header);
        attributes(&mut Attributes(&mut self.bytes));
        let length = (self.bytes.len() - start) as u32;
        self.bytes[start..start + 4].copy_from_slice(&length.to_ne_bytes());
        if flags != REQUEST {
            self.last = Some((start, self.count));
        }
    }

    /// Asks for an answer to the last message that changes something: the kernel works in order, so once that one is
    /// acknowledged without an error before it, all took effect.
    pub(super) fn finish(mut self) -> Self {
        if let Some((start, _)) = self.last {
            let place = start + FLAGS_OFFSET;
            let flags = u16::from_ne_bytes([self.bytes[place], self.bytes[place + 1]]) | ACKNOWLEDGE;
            self.bytes[place..place + 2].copy_from_slice(&flags.to_ne_bytes());
        }
        self
    }

    /// Sends everything and waits for the answer. Allocates nothing.
    pub(super) fn exchange(&self, protocol: Option<Protocol>) -> Result<(), Errno> {
        let Some((_, last)) = self.last else { return Ok(()) };
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)?;
        send(&socket, &self.bytes, SendFlags::empty())?;
        loop {
            // An answer may carry a copy of its message: only the start is of interest.
            let mut answer = [0u8; 64];
            // The kernel has answered before `send` returned.
            let (_, length) = recv(&socket, &mut answer, RecvFlags::DONTWAIT | RecvFlags::TRUNC)?;
            if length < HEADER_LEN + 4 {
                return Err(Errno::BADMSG);
            }
            let word = |place: usize| [answer[place], answer[place + 1], answer[place + 2], answer[place + 3]];
            match i32::from_ne_bytes(word(HEADER_LEN)) {
                0 if u32::from_ne_bytes(word(SEQUENCE_OFFSET)) == last => return Ok(()),
                0 => {}
                error => return Err(Errno::from_raw_os_error(-error)),
            }
        }
    }
}

/// Writes attributes at the end of a message.
pub(super) struct Attributes<'a>(&'a mut Vec<u8>);

impl Attributes<'_> {
    pub(super) fn bytes(&mut self, kind: u16, value: &[u8]) -> &mut Self {
        self.nest(kind, |inner| inner.0.extend_from_slice(value))
    }

    /// Names end with a NUL.
    pub(super) fn text(&mut self, kind: u16, value: &str) -> &mut Self {
        self.nest(kind, |inner| {
            inner.0.extend_from_slice(value.as_bytes());
            inner.0.push(0);
        })
    }

    /// Netfilter's numbers are in network byte order.
    pub(super) fn number(&mut self, kind: u16, value: u32) -> &mut Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn nested(&mut self, kind: u16, inner: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        self.nest(kind | NESTED, inner)
    }

    fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Attributes<'_>)) -> &mut Self {
        let start = self.0.len();
        self.0.extend_from_slice(&0u16.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        inner(&mut Attributes(self.0));
        let length = (self.0.len() - start) as u16;
        self.0[start..start + 2].copy_from_slice(&length.to_ne_bytes());
        // Attributes are aligned within a message, and every message starts aligned.
        self.0.resize(self.0.len().next_multiple_of(ALIGNMENT), 0);
        self
    }
}
