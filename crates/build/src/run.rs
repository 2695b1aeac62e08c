//! Runs the program of one step in a sandbox of its own.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use saggar_domain::{Code, Draft, ExecStatus, Problem};
use saggar_sandbox::{
    DataDirectory, HeldTemplate, Ids, Job, Listener, Report, Signals, Sink, Streams, reap, resolve_held,
};

use crate::event::{Event, Log, Stream};

/// Number of lines that a failure repeats.
const TAIL_LINES: usize = 20;
/// Longest line of a log; a longer one becomes several.
const LINE_LEN_MAX: usize = 4096;

pub(crate) struct Ran {
    pub(crate) report: Report,
    /// The last lines of both streams.
    pub(crate) tail: Vec<String>,
}

impl Ran {
    pub(crate) fn has_succeeded(&self) -> bool {
        self.report.status == ExecStatus::Exited && self.report.exit_code == Some(0) && self.report.error.is_none()
    }

    /// Why it didn't succeed, in a few words.
    pub(crate) fn reason(&self) -> String {
        let report = &self.report;
        let mut reason = match (report.status, report.exit_code, report.signal) {
            (ExecStatus::Exited, Some(code), _) => format!("it exited with status {code}"),
            (ExecStatus::Signaled, _, Some(signal)) => format!("signal {signal} ended it"),
            (ExecStatus::TimedOut, ..) => "it took too long".to_owned(),
            (ExecStatus::OutOfMemory, ..) => "its memory ran out".to_owned(),
            (ExecStatus::Cancelled, ..) => "it was cancelled".to_owned(),
            (ExecStatus::Refused | ExecStatus::SetupFailed, ..) => "its sandbox can't be made".to_owned(),
            (ExecStatus::Exited | ExecStatus::Signaled, ..) => "it ended".to_owned(),
        };
        if let Some(error) = &report.error {
            reason = format!("{reason}: {}", error.message);
        }
        for denial in report.denials.iter().filter(|_| report.status != ExecStatus::Refused) {
            reason = format!("{reason}; {}", denial.message);
        }
        reason
    }

    pub(crate) fn help(&self) -> String {
        match &self.report.error {
            Some(error) => error.help.clone(),
            None => "correct the step, then build again; the steps before it are cached".to_owned(),
        }
    }
}

/// `held` is what the sandbox starts from; its defaults are the step's user, environment and directory.
pub(crate) fn run(
    data: &DataDirectory,
    draft: Draft,
    held: HeldTemplate,
    program: &[String],
    number: usize,
    signals: &Signals,
    log: &Log,
) -> Result<Ran, Problem> {
    let (spec, template) = resolve_held(draft, held).map_err(|problem| match problem.code {
        Code::UnsupportedCapability => {
            Problem { help: "name a user with USER that the image has, or its number".into(), ..problem }
        }
        _ => problem,
    })?;
    let limit = spec.limits.output.value.bytes();
    let tail = Rc::new(RefCell::new(VecDeque::with_capacity(TAIL_LINES)));
    let (stdout, stderr) = [Stream::Stdout, Stream::Stderr].map(|stream| Lines::new(stream, number, log, &tail)).into();
    let sink = |lines: &Rc<RefCell<Lines>>| {
        let lines = Rc::clone(lines);
        Sink::tell(Listener(Box::new(move |bytes| lines.borrow_mut().take(bytes))), limit)
    };
    let streams = Streams { stdin: None, stdout: sink(&stdout), stderr: sink(&stderr), terminal: None };
    reap(data);
    let job = Job {
        spec,
        template,
        program: program.iter().map(|word| word.clone().into_bytes()).collect(),
        streams,
        terminal: None,
        terminal_name: None,
        wants_usage: false,
        keeps_changes: false,
        hands_over_root: true,
        tape: None,
        secrets: Vec::new(),
        asks: None,
        signals,
    };
    let report = saggar_sandbox::run(data, &Ids::generate()?, job, &mut |_| {});
    for lines in [stdout, stderr] {
        lines.borrow_mut().finish();
    }
    let tail = tail.borrow().iter().cloned().collect();
    Ok(Ran { report, tail })
}

/// Cuts a stream into lines. A carriage return ends one too: progress bars have no other end.
struct Lines {
    stream: Stream,
    number: usize,
    log: Log,
    rest: Vec<u8>,
    /// Whether a carriage return was the last end of a line: a line feed after it belongs to it.
    was_return: bool,
    tail: Rc<RefCell<VecDeque<String>>>,
}

impl Lines {
    fn new(stream: Stream, number: usize, log: &Log, tail: &Rc<RefCell<VecDeque<String>>>) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            stream,
            number,
            log: log.clone(),
            rest: Vec::new(),
            was_return: false,
            tail: Rc::clone(tail),
        }))
    }

    fn take(&mut self, bytes: &[u8]) {
        for byte in bytes {
            match byte {
                b'\n' if std::mem::take(&mut self.was_return) => {}
                b'\n' => self.end(true),
                b'\r' => {
                    self.was_return = !self.rest.is_empty();
                    self.end(false);
                }
                byte => {
                    self.was_return = false;
                    self.rest.push(*byte);
                    if self.rest.len() >= LINE_LEN_MAX {
                        self.end(true);
                    }
                }
            }
        }
    }

    fn finish(&mut self) {
        if !self.rest.is_empty() {
            self.end(true);
        }
    }

    /// A carriage return alone makes no empty line.
    fn end(&mut self, is_line: bool) {
        if self.rest.is_empty() && !is_line {
            return;
        }
        let text = String::from_utf8_lossy(&self.rest).into_owned();
        self.rest.clear();
        let mut tail = self.tail.borrow_mut();
        if tail.len() == TAIL_LINES {
            tail.pop_front();
        }
        tail.push_back(text.clone());
        self.log.write(Event::Output { number: self.number, stream: self.stream, text });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_becomes_lines() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let log = Log::new({
            let seen = Rc::clone(&seen);
            move |event| {
                if let Event::Output { text, .. } = event {
                    seen.borrow_mut().push(text);
                }
            }
        });
        let tail = Rc::default();
        let lines = Lines::new(Stream::Stdout, 1, &log, &tail);
        for piece in [&b"on"[..], b"e\ntwo\r", b"three\r\n\nfo\xffur", &[b'x'; LINE_LEN_MAX]] {
            lines.borrow_mut().take(piece);
        }
        lines.borrow_mut().finish();
        let long = format!("fo\u{fffd}ur{}", "x".repeat(LINE_LEN_MAX - 5));
        assert_eq!(*seen.borrow(), ["one", "two", "three", "", &long, "xxxxx"]);
        for number in 0..100 {
            lines.borrow_mut().take(format!("{number}\n").as_bytes());
        }
        assert_eq!((tail.borrow().len(), tail.borrow()[0].as_str()), (TAIL_LINES, "80"));
    }
}
