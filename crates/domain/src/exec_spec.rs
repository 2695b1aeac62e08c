//! What an exec is to be: the program, and how it is started.
//!
//! [`ExecSpec`] is the one type for it, from the API to the supervisor. As JSON it is part of the control protocol: quantities are plain
//! numbers there, unknown fields are ignored, and no field may change or go. The HTTP API writes the same for people
//! (`saggar_api::StartExec`), the agent inside is told in frames (`saggar_guest::ExecRequest`); each is converted in one place.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::mode::User;
use crate::quantity::{ByteSize, Count, Cpus, Timeout};

/// A process tree to be started in a sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecSpec {
    /// The program and its arguments; at least the program.
    pub argv: Vec<String>,
    /// Environment, over the sandbox's own.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Working directory, as the kernel takes it: absolute. Without it, the sandbox's.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Without it, the sandbox's user.
    #[serde(default)]
    pub user: Option<User>,
    /// Whether its stdin stays open for what is sent later; otherwise it is empty.
    #[serde(default)]
    pub stdin: bool,
    /// A terminal of its own, of this size; both streams are then one, stdout.
    #[serde(default)]
    pub tty: Option<TerminalSize>,
    /// When its whole tree is ended; without it, it may take as long as the sandbox lives.
    #[serde(default, rename = "timeout_ms", with = "plain")]
    pub timeout: Option<Timeout>,
    /// What this tree alone may use, within the sandbox's limits.
    #[serde(default)]
    pub limits: Option<ExecLimits>,
    /// Output kept at most, both streams together; without it, the supervisor's default.
    #[serde(default, with = "plain")]
    pub output_bytes: Option<ByteSize>,
    /// A name that its starter gives it, to find it by.
    #[serde(default)]
    pub tag: Option<String>,
}

/// What one exec may use, within the sandbox's limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecLimits {
    #[serde(default, with = "plain")]
    pub memory: Option<ByteSize>,
    /// Processes and threads at once.
    #[serde(default, with = "plain")]
    pub pids: Option<Count>,
    /// CPU time per wall-clock time.
    #[serde(default, rename = "cpu_millis", with = "plain")]
    pub cpus: Option<Cpus>,
}

/// A terminal's size in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub rows: u16,
    pub cols: u16,
}

/// Most words of a command line.
const WORDS_MAX: usize = 4096;

/// The program and its arguments, or one line for a shell, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CommandLine {
    /// The program, then its arguments; no shell.
    Words(Vec<String>),
    /// For `/bin/sh -c`.
    Shell(String),
}

impl CommandLine {
    /// The program that is started, and its arguments.
    pub fn into_words(self) -> Vec<String> {
        match self {
            Self::Words(words) => words,
            Self::Shell(line) => vec!["/bin/sh".to_owned(), "-c".to_owned(), line],
        }
    }
}

impl Serialize for CommandLine {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Words(words) => words.serialize(serializer),
            Self::Shell(line) => line.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for CommandLine {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> de::Visitor<'de> for Either {
            type Value = CommandLine;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of words or one line for a shell")
            }

            fn visit_str<E: de::Error>(self, line: &str) -> Result<CommandLine, E> {
                check_word(line)?;
                Ok(CommandLine::Shell(line.to_owned()))
            }

            fn visit_seq<A: de::SeqAccess<'de>>(self, mut list: A) -> Result<CommandLine, A::Error> {
                let mut words: Vec<String> = Vec::new();
                while let Some(word) = list.next_element::<String>()? {
                    if words.is_empty() {
                        check_word(&word)?;
                    }
                    if word.contains('\0') {
                        return Err(de::Error::custom("a word of the command has a NUL byte"));
                    }
                    if words.len() >= WORDS_MAX {
                        return Err(de::Error::custom(format!("the command has more than {WORDS_MAX} words")));
                    }
                    words.push(word);
                }
                if words.is_empty() {
                    return Err(de::Error::custom("the command is empty: name a program"));
                }
                Ok(CommandLine::Words(words))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

fn check_word<E: de::Error>(word: &str) -> Result<(), E> {
    if word.is_empty() {
        return Err(E::custom("the command is empty: name a program"));
    }
    if word.contains('\0') {
        return Err(E::custom("the command has a NUL byte"));
    }
    Ok(())
}

/// Quantities as plain numbers instead of text: bytes, milliseconds, thousandths of a CPU.
mod plain {
    use serde::de::DeserializeOwned;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::quantity::{ByteSize, Count, Cpus, Timeout};

    pub(super) trait Plain: Copy {
        type Number: Serialize + DeserializeOwned;
        fn number(self) -> Self::Number;
        fn from_number(number: Self::Number) -> Self;
    }

    macro_rules! plain {
        ($($name:ident: $number:ty, $to:ident, $from:ident;)+) => {$(
            impl Plain for $name {
                type Number = $number;

                fn number(self) -> $number {
                    self.$to()
                }

                fn from_number(number: $number) -> Self {
                    Self::$from(number)
                }
            }
        )+};
    }

    plain! {
        ByteSize: u64, bytes, from_bytes;
        Count: u64, get, new;
        Cpus: u32, as_millis, millis;
        Timeout: u64, as_millis, millis;
    }

    pub(super) fn serialize<T: Plain, S: Serializer>(value: &Option<T>, serializer: S) -> Result<S::Ok, S::Error> {
        value.map(Plain::number).serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: Plain, D: Deserializer<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
        Ok(Option::<T::Number>::deserialize(deserializer)?.map(T::from_number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_of_an_exec_are_plain_numbers() {
        let json = serde_json::json!({
            "argv": ["true"], "env": {}, "cwd": null, "user": null, "stdin": false, "tty": null, "timeout_ms": 1500,
            "limits": {"memory": 4096, "pids": 8, "cpu_millis": 250}, "output_bytes": 65536, "tag": null,
        });
        let spec = ExecSpec {
            argv: vec!["true".to_owned()],
            timeout: Some(Timeout::millis(1500)),
            limits: Some(ExecLimits {
                memory: Some(ByteSize::from_bytes(4096)),
                pids: Some(Count::new(8)),
                cpus: Some(Cpus::millis(250)),
            }),
            output_bytes: Some(ByteSize::from_bytes(65536)),
            ..ExecSpec::default()
        };
        assert_eq!(serde_json::to_value(&spec).unwrap(), json);
        assert_eq!(serde_json::from_value::<ExecSpec>(json).unwrap(), spec);
        let least: ExecSpec = serde_json::from_str(r#"{"argv": ["true"], "from_the_future": 1}"#).unwrap();
        assert_eq!(least, ExecSpec { argv: vec!["true".to_owned()], ..ExecSpec::default() });
    }
}
