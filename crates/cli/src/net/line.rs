//! One decision about the network as a line for people.

use saggar_domain::net::{NetDecision, Verdict};

use crate::remote::{line, size};

/// Which decisions to show, and how.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sight {
    /// Only what was denied.
    pub(crate) denied: bool,
    pub(crate) is_json: bool,
}

impl Sight {
    pub(crate) fn shows(self, verdict: Verdict) -> bool {
        !self.denied || verdict == Verdict::Denied
    }
}

/// A line without its end.
pub(crate) fn decision_line(time: &str, decision: &NetDecision) -> String {
    line(&format!("{time} {}", decision_text(decision)))
}

/// The sandbox has chosen most of what it says: make it harmless before it is printed.
pub(crate) fn decision_text(decision: &NetDecision) -> String {
    let request = match (&decision.method, &decision.path) {
        (Some(method), Some(path)) => format!(" {method} {path}"),
        (Some(method), None) => format!(" {method}"),
        (None, _) => format!(" {}", decision.protocol),
    };
    let about = match (&decision.reason, decision.verdict) {
        (Some(reason), _) => format!("{reason} ({})", decision.rule),
        (None, Verdict::Denied) => decision.rule.clone(),
        (None, Verdict::Allowed) => {
            let (up, down) = (size(decision.bytes_up), size(decision.bytes_down));
            format!("{up} up, {down} down, {} ms ({})", decision.duration_ms, decision.rule)
        }
    };
    let times = match decision.times {
        1 => String::new(),
        times => format!(" {times} times, too fast to be recorded one by one"),
    };
    let NetDecision { host, port, verdict, .. } = decision;
    format!("{:<7} {host}:{port}{request}{times}: {about}", verdict.as_str())
}
