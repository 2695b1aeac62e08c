//! The file in which `saggar run` finds secrets, in TOML: a table for each, with its value and the fields of its binding.
//!
//! ```toml
//! [openai]
//! value = "sk-…"
//! rules = ["api.openai.com"]
//! slot = "bearer"
//! ```
//! A key of the kernel's keyring has the content of one such table. docs/secrets.md describes both for users.
//!
//! No message here repeats a line of the file: it may have a value.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::rand::{GetRandomFlags, getrandom};
use saggar_domain::secret::{Binding, Grant, SecretName, SecretValue};
use saggar_domain::{Code, Problem};
use zeroize::{Zeroize as _, Zeroizing};

/// Maximum length of a file, in bytes.
pub const FILE_LEN_MAX: usize = 1 << 20;

/// A secret as the file has it.
#[derive(Clone)]
pub struct Entry {
    pub binding: Binding,
    pub value: SecretValue,
}

/// The secrets of a file.
pub fn parse(text: &str) -> Result<BTreeMap<SecretName, Entry>, Problem> {
    let document: toml::Table = text.parse().map_err(|error: toml::de::Error| {
        let place = error.span().map_or(1, |span| text.get(..span.start).unwrap_or(text).lines().count().max(1));
        // The parser's own message shows the line.
        wrong(format!("the secrets file is not TOML: line {place} can't be understood"))
    })?;
    document.into_iter().map(|(name, table)| entry(&name, table)).collect()
}

fn entry(name: &str, table: toml::Value) -> Result<(SecretName, Entry), Problem> {
    let secret = SecretName::parse(name).ok_or_else(|| {
        // It may be a misplaced value, so no part of it is shown.
        wrong("the secrets file has a table whose name is not the name of a secret".to_owned())
    })?;
    let toml::Value::Table(mut fields) = table else {
        return Err(wrong(format!(
            "{secret} in the secrets file is not a table: write [{secret}] on a line of its own"
        )));
    };
    let value = match fields.remove("value") {
        Some(toml::Value::String(mut text)) => {
            let parsed = SecretValue::parse(&text);
            text.zeroize();
            parsed.map_err(|error| wrong(format!("the secret {secret} in the secrets file can't be used: {error}")))?
        }
        Some(_) => return Err(wrong(format!("the value of the secret {secret} is not text: write it in quotes"))),
        None => return Err(wrong(format!("the secret {secret} in the secrets file has no value"))),
    };
    // Without the value, so that no message can have it. A value in place of a slot must not be shown either.
    let texts = texts_of(fields.iter().filter(|(field, _)| *field != "rules").map(|(_, value)| value));
    let binding: Result<Binding, _> = toml::Value::Table(fields).try_into();
    let binding = binding.map_err(|error| {
        let why = match texts.iter().any(|text| error.message().contains(text)) {
            true => "its slot or its placeholder can't be understood",
            false => error.message(),
        };
        wrong(format!("the secret {secret} in the secrets file is bound wrongly: {why}"))
    })?;
    Ok((secret, Entry { binding, value }))
}

/// The secrets that a session needs, from all files together. A placeholder that is not known yet is made.
pub(crate) fn grants(
    names: &[SecretName],
    placeholders: &[String],
    files: Vec<OwnedFd>,
) -> Result<Vec<Grant>, Problem> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let mut known: BTreeMap<SecretName, Entry> = BTreeMap::new();
    for file in files {
        for (name, entry) in parse(&read(&file)?)? {
            if known.insert(name.clone(), entry).is_some() && names.contains(&name) {
                return Err(Problem::new(
                    Code::AmbiguousMerge,
                    format!("the secret {name} is both in the secrets file and in the keyring"),
                    "remove one of them, or name the file with `--secrets`",
                ));
            }
        }
    }
    let mut grants = Vec::new();
    for (index, name) in names.iter().enumerate() {
        let Entry { binding, value } = known.get(name).cloned().ok_or_else(|| missing(name, &known))?;
        let earlier = grants.iter().find(|grant: &&Grant| grant.name == *name).map(|grant| &grant.placeholder);
        let placeholder = match placeholders.get(index).or(earlier) {
            Some(placeholder) => placeholder.clone(),
            None => binding.placeholder(random()?),
        };
        grants.push(Grant { name: name.clone(), placeholder, binding, value });
    }
    Ok(grants)
}

/// The process may read a descriptor, and do nothing else with it.
fn read(file: &OwnedFd) -> Result<Zeroizing<String>, Problem> {
    let unreadable = |why: &dyn std::fmt::Display| wrong(format!("the secrets file can't be read: {why}"));
    let mut bytes = Zeroizing::new(vec![0; FILE_LEN_MAX + 1]);
    let mut length = 0;
    loop {
        match rustix::io::read(file, &mut bytes[length..]) {
            Ok(0) => break,
            Ok(count) => length += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(unreadable(&errno)),
        }
    }
    if length > FILE_LEN_MAX {
        return Err(unreadable(&format!("it is longer than {FILE_LEN_MAX} bytes")));
    }
    let text = str::from_utf8(&bytes[..length]).map_err(|_| unreadable(&"it is not text in UTF-8"))?;
    Ok(Zeroizing::new(text.to_owned()))
}

fn missing(name: &SecretName, known: &BTreeMap<SecretName, Entry>) -> Problem {
    let names: Vec<&str> = known.keys().map(SecretName::as_str).collect();
    let help = match names.is_empty() {
        true => format!("add a table [{name}] to the secrets file; docs/secrets.md describes it"),
        false => format!("use one of these: {}; or add a table [{name}] to the secrets file", names.join(", ")),
    };
    Problem::new(Code::InvalidValue, format!("there is no secret {name}"), help)
}

fn random() -> Result<[u8; 16], Problem> {
    let mut bytes = [0; 16];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(16) => Ok(bytes),
        _ => Err(Problem::new(Code::SetupFailed, "the kernel gave no randomness", "try again")),
    }
}

/// All texts in these values.
fn texts_of<'a>(values: impl Iterator<Item = &'a toml::Value>) -> Zeroizing<Vec<String>> {
    let mut texts = Zeroizing::new(Vec::new());
    for value in values {
        match value {
            toml::Value::String(text) => texts.push(text.clone()),
            toml::Value::Array(values) => texts.extend_from_slice(&texts_of(values.iter())),
            toml::Value::Table(fields) => texts.extend_from_slice(&texts_of(fields.values())),
            _ => {}
        }
    }
    texts
}

fn wrong(message: String) -> Problem {
    Problem::new(Code::InvalidValue, message, "docs/secrets.md describes the secrets file")
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const GOOD: &str = r#"
        [openai]
        value = "sk-canary-1"
        rules = ["api.openai.com"]
        slot = "bearer"
        placeholder_prefix = "sk-"

        [github]
        value = "canary-2"
        rules = ["github.com", "GET api.github.com"]
        slot = { basic = { user = "x-access-token" } }

        [aws]
        value = "canary/3+4"
        rules = ["*.s3.eu-central-1.amazonaws.com"]
        slot.sigv4 = { access_key_id = "AKIDEXAMPLE", region = "eu-central-1", service = "s3" }
    "#;

    fn file(text: &str) -> OwnedFd {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(text.as_bytes()).unwrap();
        reader.into()
    }

    fn names(names: &[&str]) -> Vec<SecretName> {
        names.iter().map(|name| SecretName::parse(name).unwrap()).collect()
    }

    #[test]
    fn a_file_has_a_table_for_each_secret() {
        let secrets = parse(GOOD).unwrap();
        let found: Vec<_> = secrets.iter().map(|(name, entry)| (name.as_str(), entry.value.expose())).collect();
        assert_eq!(found, [("aws", "canary/3+4"), ("github", "canary-2"), ("openai", "sk-canary-1")]);
    }

    #[test]
    fn what_is_wrong_is_said_without_a_value() {
        for (text, expected) in [
            ("[a]\nvalue = canary-1\n", "line 2 can't be understood"),
            ("[a]\nvalue = \"canary-1\nrules = []", "line 2 can't be understood"),
            ("a = \"canary-1\"", "is not a table"),
            ("\"canary-1 and more\" = {}", "a table whose name is not"),
            ("[a]\nvalue = 7777777777", "is not text"),
            ("[a]\nrules = [\"a.example\"]", "has no value"),
            ("[a]\nvalue = \"short\"", "shorter than 8 bytes"),
            ("[a]\nvalue = \"canary-1\\u0000\"", "control character"),
            ("[a]\nvalue = \"canary-1\"\nrules = [\"*\"]\nslot = \"bearer\"", "every host would get it"),
            ("[a]\nvalue = \"canary-1\"\nrules = [\"a.example\"]\nslot = \"canary-1\"", "bound wrongly"),
            ("[a]\nvalue = \"canary-1\"\nrules = [\"a.example\"]\nslot = \"bearer\"\nvaleu = \"canary-2\"", "valeu"),
            ("[a]\nvalue = \"canary-1\"\nslot = \"bearer\"", "missing field `rules`"),
        ] {
            let problem = parse(text).err().unwrap();
            assert!(problem.message.contains(expected), "{text}: {}", problem.message);
            assert!(!format!("{problem:?}").contains("canary"), "{problem:?}");
        }
    }

    #[test]
    fn a_session_gets_what_it_names_and_nothing_else() {
        let granted = grants(&names(&["openai", "aws"]), &[], vec![file(GOOD)]).unwrap();
        let found: Vec<_> = granted.iter().map(|grant| (grant.name.as_str(), grant.value.expose())).collect();
        assert_eq!(found, [("openai", "sk-canary-1"), ("aws", "canary/3+4")]);
        assert!(granted[0].placeholder.starts_with("sk-saggar-") && granted[1].placeholder.starts_with("saggar-"));
        let again = grants(&names(&["openai"]), &["as-before".to_owned()], vec![file(GOOD)]).unwrap();
        assert_eq!(again[0].placeholder, "as-before");
        let twice = grants(&names(&["openai", "openai"]), &[], vec![file(GOOD)]).unwrap();
        assert_eq!(twice[0].placeholder, twice[1].placeholder);
    }

    #[test]
    fn a_secret_that_is_nowhere_or_in_two_places_is_refused() {
        let problem = grants(&names(&["gitlab"]), &[], vec![file(GOOD)]).unwrap_err();
        assert_eq!(problem.message, "there is no secret gitlab");
        assert!(problem.help.contains("aws, github, openai"), "{}", problem.help);
        let keyring = "[openai]\nvalue = \"sk-canary-9\"\nrules = [\"a.example\"]\nslot = \"bearer\"\n";
        let problem = grants(&names(&["openai"]), &[], vec![file(GOOD), file(keyring)]).unwrap_err();
        assert_eq!(problem.code, Code::AmbiguousMerge);
        assert!(
            grants(&names(&["github"]), &[], vec![file(GOOD), file(keyring)]).is_ok(),
            "the other is not asked for"
        );
    }

    #[test]
    fn a_file_without_an_end_is_not_read_to_it() {
        let long = std::fs::File::open("/dev/zero").unwrap();
        let problem = grants(&names(&["a"]), &[], vec![long.into()]).unwrap_err();
        assert!(problem.message.contains("longer than"), "{}", problem.message);
    }
}
