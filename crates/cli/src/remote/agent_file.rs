//! Agent files: TOML or JSON, with scripts in files of their own.

use std::path::Path;

use saggar_api::{Agent, AgentModel};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::failure::CommandFailure;

/// Maximum size of an agent file and of a script file, in bytes.
const AGENT_LEN_MAX: u64 = 16 << 20;

/// Reads an agent file. Scripts given as paths are read relative to it. The task may be missing.
pub(crate) fn read_agent(path: &Path) -> Result<Agent, CommandFailure> {
    let text =
        saggar_given::read_given_text(path, AGENT_LEN_MAX).map_err(|error| CommandFailure::given(path, &error))?;
    let format = Format::of(path);
    check_providers(path, &format.value(path, &text)?)?;
    let mut agent: Agent = format.parse(path, &text)?;
    let others = agent.agents.values_mut().map(|other| &mut other.model);
    for model in others.chain([&mut agent.model]) {
        read_script(path, model)?;
    }
    let others = agent.agents.values_mut().flat_map(|other| &mut other.tools);
    for (name, tool) in others.chain(&mut agent.tools) {
        read_schema(path, &format!("tools.{name}.schema"), tool.schema.as_mut())?;
    }
    let others = agent.agents.values_mut().map(|other| &mut other.output);
    for output in others.chain([&mut agent.output]).flatten() {
        read_schema(path, "output.schema", Some(&mut output.schema))?;
    }
    Ok(agent)
}

/// The line of the place that a problem's message begins with, such as `tools.lookup.url: …`: ` line 3`, or nothing if
/// the file doesn't say.
pub(crate) fn line_of(path: &Path, message: &str) -> String {
    let found = || {
        let text = saggar_given::read_given_text(path, AGENT_LEN_MAX).ok()?;
        let (place, _) = message.split_once(": ")?;
        let mut names = place.split('.');
        let document = toml::de::DeTable::parse(&text).ok()?;
        let mut table = document.get_ref();
        let mut at = None;
        // As deep as the file goes: a problem may be that something is missing.
        while let Some((key, value)) = names.next().and_then(|name| table.iter().find(|(key, _)| key.get_ref() == name))
        {
            at = Some(key.span().start);
            match value.get_ref() {
                toml::de::DeValue::Table(inner) => table = inner,
                _ => break,
            }
        }
        Some(format!(" line {}", text.get(..at?)?.matches('\n').count() + 1))
    };
    match Format::of(path) {
        Format::Toml => found().unwrap_or_default(),
        Format::Json => String::new(),
    }
}

/// A schema may be in a file of its own.
fn read_schema(beside: &Path, field: &str, schema: Option<&mut Value>) -> Result<(), CommandFailure> {
    let Some(schema) = schema else { return Ok(()) };
    let Some(file) = schema.as_str() else { return Ok(()) };
    let path = beside.parent().unwrap_or(Path::new(".")).join(file);
    if matches!(path.try_exists(), Ok(false)) {
        return Err(invalid(
            format!("{} names the schema {}, which does not exist", beside.display(), path.display()),
            format!("correct {field}; a relative path starts at the directory of the agent file"),
        ));
    }
    let text =
        saggar_given::read_given_text(&path, AGENT_LEN_MAX).map_err(|error| CommandFailure::given(&path, &error))?;
    *schema = Format::of(&path).value(&path, &text)?;
    Ok(())
}

/// An unsupported provider is reported first, because errors in its other fields would only confuse.
fn check_providers(path: &Path, agent: &Value) -> Result<(), CommandFailure> {
    let others = agent["agents"].as_object().into_iter().flatten().map(|(_, other)| other);
    for model in others.chain([agent]).map(|agent| &agent["model"]) {
        if let Some((message, help)) = model["provider"].as_str().and_then(AgentModel::wrong_provider) {
            return Err(invalid(format!("{}: {message}", path.display()), help));
        }
    }
    Ok(())
}

fn read_script(beside: &Path, model: &mut AgentModel) -> Result<(), CommandFailure> {
    let Some(script) = model.script.as_str() else { return Ok(()) };
    let path = beside.parent().unwrap_or(Path::new(".")).join(script);
    if matches!(path.try_exists(), Ok(false)) {
        return Err(invalid(
            format!("{} names the script {}, which does not exist", beside.display(), path.display()),
            "correct model.script; a relative path starts at the directory of the agent file",
        ));
    }
    let text =
        saggar_given::read_given_text(&path, AGENT_LEN_MAX).map_err(|error| CommandFailure::given(&path, &error))?;
    let script = Format::of(&path).value(&path, &text)?;
    if !script["turns"].is_array() {
        return Err(invalid(
            format!("{} is not a script: expected {{\"turns\": [...]}}", path.display()),
            "put the list of turns into an object; docs/agent.md shows one",
        ));
    }
    model.script = script;
    Ok(())
}

#[derive(Clone, Copy)]
enum Format {
    Toml,
    Json,
}

impl Format {
    fn of(path: &Path) -> Self {
        if path.extension().is_some_and(|extension| extension == "toml") { Self::Toml } else { Self::Json }
    }

    fn value(self, path: &Path, text: &str) -> Result<Value, CommandFailure> {
        self.read(text).map_err(|wrong| {
            invalid(
                format!("{}{}: it can't be read: {}", path.display(), wrong.at, wrong.what),
                "write it in TOML or JSON",
            )
        })
    }

    fn parse(self, path: &Path, text: &str) -> Result<Agent, CommandFailure> {
        self.read(text).map_err(|wrong| {
            let help = match wrong.what.starts_with("duplicate field `system`") {
                true => "`system` and `instructions` are two names of one field: leave one of them out",
                false => "see docs/agent.md for the fields of an agent",
            };
            invalid(format!("{}{} is not a valid agent: {}", path.display(), wrong.at, wrong.what), help)
        })
    }

    fn read<T: DeserializeOwned>(self, text: &str) -> Result<T, Wrong> {
        match self {
            Self::Toml => toml::from_str(text).map_err(|error| {
                let at = error.span().and_then(|span| text.get(..span.start)).map(|before| {
                    let line = before.matches('\n').count() + 1;
                    format!(" line {line}")
                });
                Wrong { at: at.unwrap_or_default(), what: error.message().trim().to_owned() }
            }),
            // Its message ends with the place.
            Self::Json => {
                serde_json::from_str(text).map_err(|error| Wrong { at: String::new(), what: error.to_string() })
            }
        }
    }
}

/// What is wrong with a file.
struct Wrong {
    /// ` line 3`, or nothing if it isn't known or already said.
    at: String,
    what: String,
}

fn invalid(message: String, help: impl Into<String>) -> CommandFailure {
    CommandFailure::ours("invalid_agent", message, help)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_that_is_missing_or_something_else_is_named_with_its_file() {
        let directory = std::env::temp_dir().join(format!("saggar-agent-file-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let agent = directory.join("a.toml");
        let toml = "name = \"a\"\ntask = \"t\"\n[model]\nprovider = \"scripted\"\nscript = \"turns.json\"\n";
        std::fs::write(&agent, toml).unwrap();
        let script = directory.join("turns.json");
        let missing = read_agent(&agent).unwrap_err().text();
        assert!(missing.contains("a.toml names the script") && missing.contains("turns.json, which"), "{missing}");
        assert!(missing.contains("the directory of the agent file"), "{missing}");
        for wrong in ["[]", r#"[{"text": "a"}]"#, "{}", r#"{"turns": {}}"#] {
            std::fs::write(&script, wrong).unwrap();
            let refused = read_agent(&agent).unwrap_err().text();
            assert!(refused.contains("turns.json is not a script: expected {\"turns\": [...]}"), "{refused}");
        }
        std::fs::write(&script, r#"{"turns": []}"#).unwrap();
        assert!(read_agent(&agent).is_ok());
        for (more, line, why) in [
            ("toolz = 1\n", " line 1 is", "unknown field `toolz`"),
            ("system = \"a\"\ninstructions = \"b\"\n", "", "two names of one field"),
        ] {
            std::fs::write(&agent, format!("{more}{toml}")).unwrap();
            let refused = read_agent(&agent).unwrap_err().text();
            assert!(refused.contains(&format!("a.toml{line}")) && refused.contains(why), "{refused}");
        }
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
