//! The DNS of a sandbox. It answers every question itself, with addresses of the session's pool, and never asks upstream.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use saggar_egress::{dns::{self, Desk, Session}, names::Names};
//! # async fn example(udp: tokio::net::UdpSocket, tcp: tokio::net::TcpListener, session: Arc<impl Session>) {
//! let desk = Arc::new(Desk::new(Arc::new(Names::default()), session));
//! let ended = tokio::join!(dns::serve_udp(udp, Arc::clone(&desk)), dns::serve_tcp(tcp, desk));
//! # }
//! ```
//!
//! A denied name gets an address too: what a program dials then shows it the refusal, while an NXDOMAIN would hide it.
//! Since no question leaves this process, no data can be carried out in names. Only a later connection to an allowed
//! name makes the dialer ask upstream.
//!
//! | question | answer |
//! |---|---|
//! | A, AAAA of a host name | its fake address |
//! | A, AAAA of `localhost` and below | 127.0.0.1, ::1 |
//! | A, AAAA of a name that no host can have | NXDOMAIN |
//! | any other type | no error, no records |
//! | ANY, AXFR and their like; a class other than IN | REFUSED |
//! | an opcode other than QUERY | NOTIMP |
//! | EDNS of a version other than 0 | BADVERS |
//! | malformed | FORMERR, or nothing if it has no header or is an answer itself |
//! | more than the rate allows | REFUSED |
//! | the pool is full | SERVFAIL |
//!
//! The parser is our own: one question without compression is some hundred lines over a bounded slice, where a library for
//! all of DNS brings thirty crates and the parsers of record types that are never looked at.

mod answer;
mod desk;
mod question;
mod suspicion;
mod tcp;
mod udp;

pub use self::answer::{ANSWER_MAX, Outcome, Record};
pub use self::desk::{Desk, Session};
pub use self::question::{Asked, Opt, Question, QuestionError};
pub use self::suspicion::Suspects;
pub use self::tcp::serve as serve_tcp;
pub use self::udp::serve as serve_udp;
