//! The attacker's output: one JSON object per line, in a small closed format.

use std::io::{self, Write};

use crate::sys::{ChildEnd, errno_name, in_child};

/// The outcome of one member of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AttemptOutcome {
    /// It failed with an error.
    Refused,
    Allowed,
    /// The target doesn't exist.
    Absent,
    /// A property was checked and holds.
    Held,
    /// A property was checked and doesn't hold.
    Broken,
    /// The process that tried it was killed.
    Killed,
}

impl AttemptOutcome {
    fn as_str(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::Allowed => "allowed",
            Self::Absent => "absent",
            Self::Held => "held",
            Self::Broken => "broken",
            Self::Killed => "killed",
        }
    }
}

pub struct Out(());

impl Out {
    pub fn new() -> Self {
        Self(())
    }

    pub fn say(&self, member: &str, outcome: AttemptOutcome, detail: &str) {
        let line = format!(
            "{{\"member\":\"{}\",\"outcome\":\"{}\",\"detail\":\"{}\"}}\n",
            escaped(member),
            outcome.as_str(),
            escaped(detail)
        );
        write_line(&line);
    }

    /// Reports the result of a try: the name of the error, or success.
    pub fn tried<T>(&self, member: &str, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(value) => {
                self.say(member, AttemptOutcome::Allowed, "");
                Some(value)
            }
            Err(error) => {
                let number = error.raw_os_error().unwrap_or(0);
                let outcome = match number {
                    libc::ENOENT | libc::ENXIO | libc::ENODEV | libc::ENOTDIR => AttemptOutcome::Absent,
                    _ => AttemptOutcome::Refused,
                };
                self.say(member, outcome, errno_name(number));
                None
            }
        }
    }

    /// Reports the result of a try on PID 1. In runtimes without a process of their own inside, PID 1 is this program,
    /// and there is no target.
    pub fn tried_on_first<T>(&self, member: &str, result: io::Result<T>) -> Option<T> {
        if std::process::id() == 1 {
            self.say(member, AttemptOutcome::Absent, "we are the first process");
            return None;
        }
        self.tried(member, result)
    }

    /// Reports whether a property holds.
    pub fn examined(&self, member: &str, is_kept: bool, detail: &str) {
        self.say(member, if is_kept { AttemptOutcome::Held } else { AttemptOutcome::Broken }, detail);
    }

    /// Reports that nothing was left out.
    pub fn done(&self) {
        write_line("{\"done\":true}\n");
    }
}

/// Tries in a child, and reports the child's result.
pub fn out_of_child(out: &Out, member: &str, attempt: impl FnOnce() -> io::Result<usize>) {
    let end = in_child(|| attempt().map_or_else(|error| error.raw_os_error().unwrap_or(255), |_| 0));
    match end {
        ChildEnd::Code(0) => out.say(member, AttemptOutcome::Allowed, ""),
        ChildEnd::Code(number) | ChildEnd::Unborn(number) => {
            out.tried::<()>(member, Err(io::Error::from_raw_os_error(number)));
        }
        ChildEnd::Signal { number, .. } => out.say(member, AttemptOutcome::Killed, &format!("signal {number}")),
    }
}

/// Reports that it is ready, and waits for the end of the input.
pub fn until_told(out: &Out) {
    out.examined("ready", true, "");
    // An input that fails has ended too.
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}

fn write_line(line: &str) {
    let mut stdout = io::stdout().lock();
    // Without a reader the result can't be delivered, and the missing last line shows that.
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' => safe.push_str("\\\""),
            '\\' => safe.push_str("\\\\"),
            c if (c as u32) < 0x20 => safe.push_str(&format!("\\u{:04x}", c as u32)),
            c => safe.push(c),
        }
    }
    safe
}
