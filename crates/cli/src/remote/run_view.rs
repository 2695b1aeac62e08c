//! A run as it goes on, for a person: what it does now, what it has used, and what it waits for.
//!
//! Everything comes from its journal, so a view that begins in the middle of a run is complete. Texts of the journal
//! are untrusted and are shown on one line, without control characters.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use rustix::termios::tcgetwinsize;
use saggar_api::{RunSaid, SaidKind};
use serde_json::Value;

use super::shown::line;

/// Minimum time between two redraws of the status line.
const INTERVAL: Duration = Duration::from_millis(100);
/// Characters of a running step that are shown.
const DOING_MAX: usize = 60;
/// Micros of one unit of money.
const MICROS: u64 = 1_000_000;

/// What a run has used and what it does, as far as its journal says.
#[derive(Debug, Default)]
pub(crate) struct RunSums {
    steps: u64,
    tokens: u64,
    micros: u64,
    /// What is in progress, by step.
    doing: BTreeMap<u64, Doing>,
    state: Option<&'static str>,
}

#[derive(Debug)]
struct Doing {
    what: String,
    /// Why it isn't done at this moment.
    waits: Option<String>,
    /// The end of what the model has said so far, and its attempt.
    said: (u32, String),
}

impl RunSums {
    /// Adds an entry of the journal.
    pub(crate) fn take(&mut self, entry: &Value) {
        let step = entry["step"].as_u64().unwrap_or_default();
        match entry["event"].as_str().unwrap_or_default() {
            "step_intended" => {
                let what = doing(&entry["effect"]);
                let waits = (entry["effect"]["do"] == "ask_human").then(|| "an answer".to_owned());
                self.doing.insert(step, Doing { what, waits, said: Default::default() });
            }
            "step_settled" => {
                let done = self.doing.remove(&step);
                // A snapshot costs no budget.
                self.steps += u64::from(done.is_none_or(|done| done.what != SNAPSHOT));
                self.pay(&entry["usage"]);
            }
            "step_abandoned" => drop(self.doing.remove(&step)),
            "step_failed" => {
                self.pay(&entry["usage"]);
                self.wait(step, "its next attempt");
            }
            "step_delayed" => self.wait(step, "a sandbox"),
            "step_unknown" => self.wait(step, "a decision"),
            "budget_reached" if entry["note"].is_null() => self.state = Some("waits for more budget"),
            "budget_raised" => self.state = None,
            "paused" => self.state = Some("paused"),
            "resumed" => self.state = None,
            "run_finished" => {
                self.doing.clear();
                self.state = Some("finished");
            }
            _ => {}
        }
    }

    /// Adds a piece of a reply that is being written.
    pub(crate) fn hear(&mut self, said: &RunSaid) {
        let Some(doing) = self.doing.get_mut(&said.step) else { return };
        let (attempt, text) = &mut doing.said;
        if *attempt != said.attempt {
            (*attempt, *text) = (said.attempt, String::new());
        }
        match said.kind {
            SaidKind::Text | SaidKind::Reasoning => text.push_str(&line(&said.text)),
            SaidKind::Call => *text = format!("it calls {} ", line(&said.text)),
        }
        let surplus = text.chars().count().saturating_sub(DOING_MAX);
        *text = text.chars().skip(surplus).collect();
    }

    fn pay(&mut self, usage: &Value) {
        self.tokens = self.tokens.saturating_add(usage["tokens"].as_u64().unwrap_or_default());
        self.micros = self.micros.saturating_add(usage["micros"].as_u64().unwrap_or_default());
    }

    fn wait(&mut self, step: u64, what: &str) {
        if let Some(doing) = self.doing.get_mut(&step) {
            doing.waits = Some(what.to_owned());
        }
    }

    /// What it has used: steps, tokens and money.
    pub(crate) fn used(&self) -> String {
        let mut text = format!("{} {}", self.steps, if self.steps == 1 { "step" } else { "steps" });
        if self.tokens > 0 {
            text += &format!(", {} tokens", self.tokens);
        }
        if self.micros > 0 {
            text += &format!(", cost {}.{:06}", self.micros / MICROS, self.micros % MICROS);
        }
        text
    }

    /// What it does now, or waits for.
    pub(crate) fn now(&self) -> String {
        if let Some(state) = self.state {
            return state.to_owned();
        }
        let now = self.doing.values().map(|doing| match &doing.waits {
            None if doing.said.1.is_empty() => doing.what.clone(),
            None => format!("…{}", doing.said.1),
            Some(waits) => format!("{} waits for {waits}", doing.what),
        });
        let text = now.collect::<Vec<_>>().join("; ");
        if text.is_empty() { "waits for a worker".to_owned() } else { text }
    }
}

/// What a run does while it takes one.
const SNAPSHOT: &str = "keeps its files";

fn doing(effect: &Value) -> String {
    if effect["do"] == "take_snapshot" {
        return SNAPSHOT.to_owned();
    }
    let call = &effect["call"];
    let text = match call["tool"].as_str() {
        None if effect["do"] == "summarize" => "the model sums up".to_owned(),
        None => "the model thinks".to_owned(),
        Some(tool) => format!("{tool} {}", call["arguments"]["text"].as_str().unwrap_or_default()),
    };
    let text = line(&text);
    let shown: String = text.chars().take(DOING_MAX).collect();
    if shown.len() < text.len() { format!("{shown}…") } else { shown }
}

/// The last line of the terminal, which says how the run stands. Without a terminal there is none.
#[derive(Debug)]
pub(crate) struct StatusLine {
    is_shown: bool,
    begun: Instant,
    drawn: Option<Instant>,
}

impl StatusLine {
    pub(crate) fn new(is_wanted: bool) -> Self {
        let is_shown = is_wanted && std::io::stdout().is_terminal();
        Self { is_shown, begun: Instant::now(), drawn: None }
    }

    pub(crate) fn is_shown(&self) -> bool {
        self.is_shown
    }

    /// Draws it again, unless that was done a moment ago.
    pub(crate) fn draw(&mut self, sums: &RunSums) {
        if !self.is_shown || self.drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL) {
            return;
        }
        self.drawn = Some(Instant::now());
        let width = tcgetwinsize(std::io::stdout()).map_or(80, |size| usize::from(size.ws_col));
        let text = status(sums, self.begun.elapsed(), width);
        let mut out = std::io::stdout().lock();
        // It is cosmetic, so a failure is ignored.
        let _ = write!(out, "\r\x1b[K{text}").and_then(|()| out.flush());
    }

    /// Removes it, so that a line can be printed in its place.
    pub(crate) fn clear(&mut self) {
        if self.drawn.take().is_some() {
            // It is cosmetic, so a failure is ignored.
            let _ = write!(std::io::stdout(), "\r\x1b[K");
        }
    }
}

fn status(sums: &RunSums, elapsed: Duration, width: usize) -> String {
    let seconds = elapsed.as_secs();
    let text = format!("{:>3}:{:02}  {}  {}", seconds / 60, seconds % 60, sums.used(), sums.now());
    text.chars().take(width.saturating_sub(1)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_run_does_uses_and_waits_for_follows_from_its_journal() {
        let call =
            |tool: &str| json!({ "do": "call_tool", "call": { "tool": tool, "arguments": { "text": "{}\u{1b}" } } });
        let ask = json!({ "do": "ask_human", "call": { "tool": "ask_human", "arguments": { "text": "{}" } } });
        let mut sums = RunSums::default();
        for (entry, now, used) in [
            (json!({ "event": "run_started" }), "waits for a worker", "0 steps"),
            (
                json!({ "event": "step_intended", "step": 1, "effect": { "do": "call_model" } }),
                "the model thinks",
                "0 steps",
            ),
            (
                json!({ "event": "step_settled", "step": 1, "usage": { "tokens": 120, "micros": 2_500_001 } }),
                "waits for a worker",
                "1 step, 120 tokens, cost 2.500001",
            ),
            (
                json!({ "event": "step_intended", "step": 2, "effect": call("shell") }),
                "shell {}\\u{1b}",
                "1 step, 120 tokens, cost 2.500001",
            ),
            (
                json!({ "event": "step_intended", "step": 3, "effect": ask }),
                "shell {}\\u{1b}; ask_human {} waits for an answer",
                "1 step, 120 tokens, cost 2.500001",
            ),
            (
                json!({ "event": "step_unknown", "step": 2 }),
                "shell {}\\u{1b} waits for a decision; ask_human {} waits for an answer",
                "1 step, 120 tokens, cost 2.500001",
            ),
            (json!({ "event": "paused" }), "paused", "1 step, 120 tokens, cost 2.500001"),
            (json!({ "event": "run_finished" }), "finished", "1 step, 120 tokens, cost 2.500001"),
        ] {
            sums.take(&entry);
            assert_eq!((sums.now().as_str(), sums.used().as_str()), (now, used), "{entry}");
        }
    }

    #[test]
    fn what_the_model_says_is_shown_while_it_says_it() {
        let mut sums = RunSums::default();
        let intended = |attempt: u32| json!({ "event": "step_intended", "step": 1, "attempt": attempt, "effect": { "do": "call_model" } });
        let said = |attempt, kind, text: &str| RunSaid { step: 1, attempt, kind, text: text.to_owned() };
        sums.hear(&said(1, SaidKind::Text, "too early"));
        sums.take(&intended(1));
        for (said, now) in [
            (said(1, SaidKind::Text, "I loo"), "…I loo".to_owned()),
            (said(1, SaidKind::Text, "k\u{1b}."), "…I look\\u{1b}.".to_owned()),
            (said(1, SaidKind::Call, "shell"), "…it calls shell ".to_owned()),
            (said(2, SaidKind::Reasoning, "again"), "…again".to_owned()),
            (said(2, SaidKind::Text, &"x".repeat(500)), format!("…{}", "x".repeat(DOING_MAX))),
        ] {
            sums.hear(&said);
            assert_eq!(sums.now(), now);
        }
        sums.take(&json!({ "event": "step_settled", "step": 1, "usage": {} }));
        assert_eq!(sums.now(), "waits for a worker");
    }

    #[test]
    fn the_status_line_fits() {
        let sums = RunSums { tokens: 7, ..RunSums::default() };
        assert_eq!(status(&sums, Duration::from_secs(61), 80), "  1:01  0 steps, 7 tokens  waits for a worker");
        for width in [0, 1, 12] {
            assert!(status(&sums, Duration::ZERO, width).chars().count() <= width);
        }
    }
}
