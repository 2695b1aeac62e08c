//! Holds one sandbox from outside: its control channel, its deadlines, its streams and its filter's questions.
//!
//! One thread, one poll loop, no async runtime: what stands between a sandbox and everything else should be small and
//! depend on little. What comes out of a sandbox is never trusted: frames are bounded and checked, output is bytes.
#![forbid(unsafe_code)]

mod attend;
mod channel;
pub mod control;
mod deadline;
mod ending;
mod escape;
mod hold;
mod program;
mod sink;
mod unreached;
mod watch;

pub use attend::{Attendance, Ending, Outcome, Streams};
pub use channel::Channel;
pub use ending::describe_ending;
pub use escape::EscapeFilter;
pub use hold::{Held, Hold, Holding};
pub use program::Program;
pub use sink::{Sink, Totals};
pub use unreached::Unreached;
pub use watch::{Answered, Observation, Refused};
