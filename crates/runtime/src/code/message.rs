//! What a kernel tells, as the server believes it: after checking its form and its size.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::value::RawValue;

/// Maximum number of formats of one result.
const FORMATS_MAX: usize = 64;
/// Maximum length of the name of a format.
const FORMAT_LEN_MAX: usize = 256;

/// A value that code shows, in every format that it has.
#[derive(Clone, Debug)]
pub struct CodeResult {
    /// Whether it is the value of the last expression; otherwise the code displayed it.
    pub is_main: bool,
    /// By media type; text is a JSON string, and so is base64 of what isn't text. The values are JSON of the sandbox:
    /// well-formed, bounded, and not read.
    pub formats: BTreeMap<String, Box<RawValue>>,
}

/// An error that code raised.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct CodeError {
    pub name: String,
    pub value: String,
    pub traceback: String,
}

#[derive(Debug)]
pub(super) enum Told {
    Ready,
    /// The interpreter is there and can't do this.
    Unable(String),
    Begin,
    Result(CodeResult),
    Error(CodeError),
    End(End),
}

#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct End {
    /// How many executions the context has had.
    pub(super) count: u64,
    /// The exit code of a shell's last command.
    #[serde(default)]
    pub(super) status: Option<u8>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    name: String,
}

#[derive(Deserialize)]
struct Unable {
    why: String,
}

#[derive(Deserialize)]
struct Shown {
    main: bool,
    formats: BTreeMap<String, Box<RawValue>>,
}

/// `None` if no kernel of ours says that.
pub(super) fn read(message: &[u8]) -> Option<Told> {
    // Clients get the values of formats as they are, in streams of lines.
    if message.iter().any(|byte| matches!(byte, b'\n' | b'\r')) {
        return None;
    }
    let kind: Kind = serde_json::from_slice(message).ok()?;
    Some(match kind.name.as_str() {
        "ready" => Told::Ready,
        "unable" => Told::Unable(part::<Unable>(message)?.why),
        "begin" => Told::Begin,
        "result" => {
            let Shown { main, formats } = part(message)?;
            if formats.len() > FORMATS_MAX || formats.keys().any(|name| name.len() > FORMAT_LEN_MAX) {
                return None;
            }
            Told::Result(CodeResult { is_main: main, formats })
        }
        "error" => Told::Error(part(message)?),
        "end" => Told::End(part(message)?),
        _ => return None,
    })
}

fn part<'a, T: Deserialize<'a>>(message: &'a [u8]) -> Option<T> {
    serde_json::from_slice(message).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_kernel_says_is_read() {
        let told = read(br#"{"type":"result","main":true,"formats":{"text/plain":"1","e2b/data":{"a":[1]}}}"#);
        let Some(Told::Result(result)) = told else { panic!("{told:?}") };
        assert!(result.is_main);
        assert_eq!(result.formats["e2b/data"].get(), r#"{"a":[1]}"#);
        assert!(matches!(
            read(br#"{"type":"end","count":3,"status":1}"#),
            Some(Told::End(End { count: 3, status: Some(1) }))
        ));
        let many: String = (0..=FORMATS_MAX).map(|i| format!(r#""{i}":1,"#)).collect();
        let many = format!(r#"{{"type":"result","main":true,"formats":{{{}}}}}"#, many.trim_end_matches(','));
        let deep = format!(r#"{{"type":"end","count":1,"x":{}}}"#, "[".repeat(100_000));
        for wrong in [
            "",
            "[]",
            "{}",
            r#"{"type":"news"}"#,
            r#"{"type":"end","count":-1}"#,
            r#"{"type":"result","main":1,"formats":{}}"#,
            r#"{"type":"error","name":"x"}"#,
            "{\"type\":\"result\",\"main\":true,\"formats\":{\"a\":[1,\n2]}}",
            "{\"type\":\"result\",\"main\":true,\"formats\":{\"a\":[1,\r2]}}",
            &many,
            &deep,
        ] {
            assert!(read(wrong.as_bytes()).is_none(), "{}", &wrong[..wrong.len().min(60)]);
        }
    }
}
