//! Holds one sandbox from outside: its control channel, its deadlines, its streams and its filter's notifications.
//!
//! One thread, one poll loop, no async runtime: the process between a sandbox and everything else should be small and
//! have few dependencies. Data from a sandbox is never trusted: frames are bounded and checked, and output is only
//! bytes.
#![forbid(unsafe_code)]

mod attend;
mod caller;
mod channel;
pub mod control;
mod deadline;
pub mod egress;
mod ending;
mod escape;
mod guest_wire;
mod hold;
mod program;
mod sink;
mod unreached;
mod watch;

pub use attend::{Asker, Attendance, Ending, ExecOutcome, Question, Streams};
pub use channel::Channel;
pub use ending::describe_ending;
pub use escape::EscapeFilter;
pub use hold::{Again, Changes, Held, Hold, Holding, Inside, Outcome};
pub use program::{Program, TRUST_BUNDLE, TRUST_OWN};
pub use sink::{Listener, Sink, Totals};
pub use unreached::Unreached;
pub use watch::{Answered, Observation, Refused};
