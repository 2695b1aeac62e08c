//! Decisions in the events file of `saggar run --events`.

use std::path::Path;

use saggar_domain::net::NetDecision;
use saggar_domain::{Code, EVENT_SCHEMA, Problem};
use saggar_given::read_given_file;
use serde::Deserialize;

use super::{Sight, decision_line};

/// Maximum size of an events file, in bytes: some times the decisions that one run records at most.
const FILE_LEN_MAX: u64 = 256 << 20;

/// What is read of every event.
#[derive(Deserialize)]
struct Head {
    schema: String,
    time: String,
    #[serde(rename = "type")]
    kind: String,
}

/// The decisions as text: lines for people, or the events as they are.
pub(super) fn read(path: &Path, sight: Sight) -> Result<String, Problem> {
    let shown = path.display().to_string();
    let bytes = read_given_file(path, FILE_LEN_MAX)
        .map_err(|error| Problem::new(Code::Stream, format!("{shown:?} {error}"), error.help()))?;
    let wrong = |number: usize, why: String| {
        Problem::new(
            Code::InvalidValue,
            format!("{shown:?}, line {number}: {why}"),
            "name a file that `saggar run --events` wrote",
        )
    };
    let mut text = String::new();
    let lines = bytes.split(|byte| *byte == b'\n').zip(1..).filter(|(line, _)| !line.is_empty());
    for (line, number) in lines {
        let head: Head =
            serde_json::from_slice(line).map_err(|error| wrong(number, format!("it is not an event: {error}")))?;
        if head.schema != EVENT_SCHEMA {
            return Err(wrong(
                number,
                format!("its schema is {:?}, and this version reads {EVENT_SCHEMA}", head.schema),
            ));
        }
        if head.kind != "decision" {
            continue;
        }
        let decision: NetDecision =
            serde_json::from_slice(line).map_err(|error| wrong(number, format!("it is not a decision: {error}")))?;
        if !sight.shows(decision.verdict) {
            continue;
        }
        match sight.is_json {
            true => text.push_str(&String::from_utf8_lossy(line)),
            false => text.push_str(&decision_line(&head.time, &decision)),
        }
        text.push('\n');
    }
    Ok(text)
}
