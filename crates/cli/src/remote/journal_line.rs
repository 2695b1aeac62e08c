//! Entries of a run's journal, and outcomes of runs, as text for people.

use serde_json::Value;

use super::shown::line;

/// Maximum length of an entry's summary on one line, in characters.
const SUMMARY_MAX: usize = 100;

pub(crate) struct EntryLine {
    pub(crate) text: String,
    /// Whether it ends with `…`, because the summary is longer.
    pub(crate) is_cut: bool,
}

/// One entry on one line: the event, its step, and the beginning of its text.
pub(crate) fn entry_line(entry: &Value) -> EntryLine {
    let text = |name: &str| entry[name].as_str().unwrap_or_default().to_owned();
    let event = text("event");
    let what = match entry["step"].as_u64() {
        Some(step) => format!("step {step}  {}", event.strip_prefix("step_").unwrap_or(&event)),
        None => event.clone(),
    };
    let said = match event.as_str() {
        "step_intended" => {
            let effect = &entry["effect"];
            let call = &effect["call"];
            match call["tool"].as_str() {
                Some(tool) => format!("{tool} {}", body(&call["arguments"])),
                None => effect["do"].as_str().unwrap_or_default().to_owned(),
            }
        }
        "step_settled" if entry["result"] == "kept" => {
            entry["snapshot"].as_str().unwrap_or("there is no sandbox").to_owned()
        }
        "step_settled" => settled(&entry["result"]),
        "rolled_back" => format!("to step {}", entry["to"]),
        "signal_received" => format!("{} {}", text("name"), body(&entry["body"])),
        "step_unknown" | "step_delayed" => text("reason"),
        "budget_reached" => text("budget"),
        "corrected" => body(&entry["note"]),
        "step_failed" => message(&entry["failure"]),
        "run_finished" => outcome(&entry["outcome"]),
        _ => String::new(),
    };
    let said = line(&said);
    let is_cut = said.chars().count() > SUMMARY_MAX;
    let said: String = said.chars().take(SUMMARY_MAX).chain(is_cut.then_some('…')).collect();
    // Numbered in the form that `fork --at` and `follow --after` accept.
    let text = format!("{:>7}  {what}  {said}", format!("e{}", entry["seq"])).trim_end().to_owned();
    EntryLine { text, is_cut }
}

/// How a run ended, with the reason if it did not complete.
pub(crate) fn outcome(outcome: &Value) -> String {
    let name = outcome["outcome"].as_str().unwrap_or_default();
    let reason = match name {
        "failed" => message(&outcome["failure"]),
        "budget_exceeded" => outcome["budget"].as_str().unwrap_or_default().to_owned(),
        "loop" if outcome["calls"].is_u64() => format!(
            "the same {} calls {} times in turn, the last one of {}",
            outcome["calls"], outcome["times"], outcome["tool"]
        ),
        "loop" => format!("the same call of {} {} times in a row", outcome["tool"], outcome["times"]),
        "abandoned" => format!("at step {}", outcome["step"]),
        _ => String::new(),
    };
    if reason.is_empty() { name.to_owned() } else { format!("{name}: {reason}") }
}

fn settled(result: &Value) -> String {
    let ended = &result["ended"]["outcome"];
    let (returned, gave_up) = (&result["returned"], &result["gave_up"]);
    match ended["outcome"].as_str() {
        Some(outcome) => format!("{outcome} {}", body(&ended["answer"])),
        None if !gave_up.is_null() => format!("gave up: {}", message(gave_up)),
        None if returned.is_null() => body(&result["replied"]["text"]),
        None if returned["is_error"] == true => format!("error: {}", body(&returned["content"])),
        None => body(&returned["content"]),
    }
}

fn message(failure: &Value) -> String {
    failure["message"].as_str().unwrap_or_default().to_owned()
}

fn body(body: &Value) -> String {
    match (body["text"].as_str(), body["blob"]["length"].as_u64()) {
        (Some(text), _) => text.to_owned(),
        (None, Some(length)) => format!("({length} bytes)"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_end_has_its_reason() {
        for (ended, expected) in [
            (json!({ "outcome": "completed", "answer": { "text": "Done." } }), "completed"),
            (json!({ "outcome": "cancelled" }), "cancelled"),
            (
                json!({ "outcome": "failed", "failure": { "code": "script_ended", "message": "the script has only 1 turn" } }),
                "failed: the script has only 1 turn",
            ),
            (json!({ "outcome": "budget_exceeded", "budget": "steps" }), "budget_exceeded: steps"),
            (
                json!({ "outcome": "loop", "tool": "shell", "times": 8 }),
                "loop: the same call of \"shell\" 8 times in a row",
            ),
            (
                json!({ "outcome": "loop", "tool": "files", "times": 9, "calls": 2 }),
                "loop: the same 2 calls 9 times in turn, the last one of \"files\"",
            ),
            (json!({ "outcome": "abandoned", "step": 3 }), "abandoned: at step 3"),
        ] {
            assert_eq!(outcome(&ended), expected);
            let entry = entry_line(&json!({ "seq": 9, "event": "run_finished", "outcome": ended }));
            assert_eq!(entry.text, format!("     e9  run_finished  {expected}"));
        }
    }

    #[test]
    fn a_line_that_is_cut_shows_it() {
        let entry = |length: usize| {
            let returned = json!({ "returned": { "content": { "text": "x".repeat(length) } } });
            entry_line(&json!({ "seq": 1, "event": "step_settled", "step": 2, "result": returned }))
        };
        let (whole, cut) = (entry(SUMMARY_MAX), entry(SUMMARY_MAX + 1));
        assert!(!whole.is_cut && whole.text.ends_with('x'), "{}", whole.text);
        assert!(cut.is_cut && cut.text.ends_with("x…"), "{}", cut.text);
    }

    #[test]
    fn failed_attempts_and_calls_say_why() {
        let failure = json!({ "code": "timeout", "message": "no answer in 2s", "is_passing": true });
        let failed = entry_line(&json!({ "seq": 1, "event": "step_failed", "step": 2, "failure": failure }));
        assert!(failed.text.ends_with("step 2  failed  no answer in 2s"), "{}", failed.text);
        let result = json!({ "gave_up": failure });
        let settled = entry_line(&json!({ "seq": 1, "event": "step_settled", "step": 2, "result": result }));
        assert!(settled.text.ends_with("step 2  settled  gave up: no answer in 2s"), "{}", settled.text);
    }
}
