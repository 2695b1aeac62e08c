//! The form of an agent's answer, if its author wants one: what the model is told about it, and whether an answer has it.
//!
//! A provider's own way to force a form isn't used: with tools it means something else at each of them. So the model is told,
//! and each answer is checked when it arrives. What is wrong is recorded with the reply, so that a replay needs no schema.

use saggar_domain::Schema;
use serde_json::Value;

/// Maximum length of a complaint, in bytes.
const COMPLAINT_MAX: usize = 1000;

/// What the model is told at the beginning.
pub(super) fn told(schema: &Schema, has_finish: bool) -> String {
    let how = match has_finish {
        true => {
            "Call finish with it as \"output\", or reply with it and nothing else: no other text, and no code fence."
        }
        false => "Your last reply is that object and nothing else: no other text, and no code fence.",
    };
    format!("Your answer is a JSON object of this JSON Schema. {how}\n{}", schema.as_value())
}

/// What is wrong with the last reply of a model as its answer.
pub(super) fn wrong_reply(schema: &Schema, text: &str) -> Option<String> {
    match serde_json::from_str::<Value>(text.trim()) {
        Ok(value) => wrong_value(schema, &value),
        Err(error) => Some(bounded(format!("it is not a JSON object ({error})"))),
    }
}

/// What is wrong with the arguments of a call that ends the run.
pub(super) fn wrong_finish(schema: &Schema, arguments: &Value) -> Option<String> {
    match arguments.get("output").filter(|output| !output.is_null()) {
        Some(output) => wrong_value(schema, output).map(|wrong| bounded(format!("the output is wrong: {wrong}"))),
        None => Some("give \"output\": a JSON object as you were told, instead of \"answer\"".to_owned()),
    }
}

fn wrong_value(schema: &Schema, value: &Value) -> Option<String> {
    schema.check(value).err().map(|mismatch| bounded(mismatch.to_string()))
}

fn bounded(mut complaint: String) -> String {
    if complaint.len() > COMPLAINT_MAX {
        complaint.truncate((0..=COMPLAINT_MAX).rev().find(|at| complaint.is_char_boundary(*at)).unwrap_or(0));
        complaint.push('…');
    }
    complaint
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema() -> Schema {
        let schema = r#"{"type": "object", "properties": {"tests": {"type": "integer"}}, "required": ["tests"]}"#;
        Schema::parse(schema).unwrap()
    }

    #[test]
    fn an_answer_is_the_object_and_nothing_else() {
        let schema = schema();
        for (text, complaint) in [
            (r#"{"tests": 3}"#, None),
            ("\n {\"tests\": 3}\n", None),
            ("{}", Some("tests")),
            (r#"{"tests": "three"}"#, Some("integer")),
            ("```json\n{\"tests\": 3}\n```", Some("not a JSON object")),
            ("", Some("not a JSON object")),
            ("[1]", Some("object")),
        ] {
            let wrong = wrong_reply(&schema, text);
            let is_as_expected = match (&wrong, complaint) {
                (Some(wrong), Some(part)) => wrong.contains(part),
                (None, None) => true,
                _ => false,
            };
            assert!(is_as_expected, "{text}: {wrong:?}");
        }
    }

    #[test]
    fn finish_needs_the_output() {
        let schema = schema();
        let wrong = |arguments: &str| wrong_finish(&schema, &serde_json::from_str(arguments).unwrap());
        assert_eq!(wrong(r#"{"output": {"tests": 3}}"#), None);
        assert!(wrong(r#"{"output": {}}"#).unwrap().contains("tests"));
        assert!(wrong(r#"{"answer": "three"}"#).unwrap().contains("instead of"));
        assert!(wrong(r#"{"output": null}"#).unwrap().contains("instead of"));
    }

    #[test]
    fn a_complaint_is_bounded() {
        let long = format!("{{\"tests\": \"{}\"}}", "ä".repeat(10_000));
        assert!(wrong_reply(&schema(), &long).unwrap().len() <= COMPLAINT_MAX + '…'.len_utf8());
    }
}
