//! Agent files: TOML or JSON, with scripts in files of their own.

use std::path::Path;

use serde_json::Value;

use super::failure::CommandFailure;

/// Maximum size of an agent file and of a script file, in bytes.
const AGENT_LEN_MAX: u64 = 16 << 20;

/// Reads an agent file. Scripts given as paths are read relative to it.
pub(crate) fn read_agent(path: &Path) -> Result<saggar_api::Agent, CommandFailure> {
    let mut agent = read_value(path)?;
    let others = agent["agents"].as_object().into_iter().flatten().map(|(_, other)| other);
    for model in others.chain([&agent]).map(|agent| &agent["model"]) {
        let wrong = model["provider"].as_str().and_then(saggar_api::AgentModel::wrong_provider);
        if let Some((message, help)) = wrong {
            return Err(invalid(format!("{}: {message}", path.display()), help));
        }
    }
    read_script(path, &mut agent)?;
    for (_, other) in agent.get_mut("agents").and_then(Value::as_object_mut).into_iter().flatten() {
        read_script(path, other)?;
    }
    serde_json::from_value(agent).map_err(|error| {
        invalid(
            format!("{} is not a valid agent: {error}", path.display()),
            "see docs/agent.md for the fields of an agent",
        )
    })
}

fn read_script(beside: &Path, agent: &mut Value) -> Result<(), CommandFailure> {
    let Some(script) = agent["model"]["script"].as_str() else { return Ok(()) };
    let path = beside.parent().unwrap_or(Path::new(".")).join(script);
    if matches!(path.try_exists(), Ok(false)) {
        return Err(invalid(
            format!("{} names the script {}, which does not exist", beside.display(), path.display()),
            "correct model.script; a relative path starts at the directory of the agent file",
        ));
    }
    let script = read_value(&path)?;
    if !script["turns"].is_array() {
        return Err(invalid(
            format!("{} is not a script: expected {{\"turns\": [...]}}", path.display()),
            "put the list of turns into an object; docs/agent.md shows one",
        ));
    }
    agent["model"]["script"] = script;
    Ok(())
}

fn read_value(path: &Path) -> Result<Value, CommandFailure> {
    let text =
        saggar_given::read_given_text(path, AGENT_LEN_MAX).map_err(|error| CommandFailure::given(path, &error))?;
    let wrong = |what: String| invalid(format!("{} can't be read: {what}", path.display()), "write it in TOML or JSON");
    if path.extension().is_some_and(|extension| extension == "toml") {
        return toml::from_str(&text).map_err(|error| wrong(error.to_string()));
    }
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
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
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
