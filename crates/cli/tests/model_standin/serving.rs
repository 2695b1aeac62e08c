//! A server whose models are a stand-in's, and agents that use them.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::{Standin, Turn};
use crate::http::{Server, new_directory};

pub const CANARY: &str = "canary-provider-key-5c81f0e7";

/// A server with these models, whose project has the providers' keys.
pub fn server(standin: &Standin, more: &str) -> Server {
    server_with(standin, more, &[])
}

pub fn server_with(standin: &Standin, more: &str, flags: &[&str]) -> Server {
    let root = new_directory();
    let file = models_file(&root, &standin.models_file(more));
    let file = file.to_str().expect("a name");
    let server = Server::start_in(root, &[&["--pool-max", "0", "--models-file", file], flags].concat());
    secrets(&server);
    server
}

/// Stores the providers' keys.
pub fn secrets(server: &Server) {
    for (name, slot) in [("openai", json!("bearer")), ("anthropic", json!({ "header": { "name": "x-api-key" } }))] {
        let binding = json!({ "rules": [format!("api.{name}.com")], "slot": slot });
        let secret = json!({ "value": CANARY, "binding": binding }).to_string();
        let path = format!("/api/v1/secrets/{name}");
        let answer = server.request("PUT", &path, &["Content-Type: application/json"], secret.as_bytes());
        assert_eq!(answer.status, 201, "{}", answer.text());
    }
}

pub fn models_file(root: &Path, text: &str) -> PathBuf {
    std::fs::create_dir_all(root).expect("ours");
    let file = root.join("models.toml");
    std::fs::write(&file, text).expect("ours");
    file
}

pub fn agent(route: &str, more: Value) -> Value {
    let mut agent = json!({
        "name": "tester",
        "system": "You are careful.",
        "task": "Find out.",
        "model": { "route": route, "reply_tokens_max": 1000, "temperature": 0.5 },
        "tools": { "shell": {} },
        "parallel": 4,
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        agent[name] = value.clone();
    }
    json!({ "agent": agent })
}

pub fn shell(line: &str) -> (String, String) {
    ("shell".to_owned(), json!({ "command": line }).to_string())
}

pub fn calling(calls: Vec<(String, String)>) -> Turn {
    Turn { calls, ..Turn::says("I look.") }
}

/// What the project has spent, as the gateway books it.
pub fn spending(server: &Server) -> Value {
    server.get("/v1/models").expect(200)["saggar"].clone()
}

/// The key of the providers is in no file of the server, and in no answer.
pub fn assert_key_is_nowhere(server: &Server) {
    let found = std::process::Command::new("grep").args(["-rla", CANARY]).arg(server.data()).output();
    let found = String::from_utf8(found.expect("grep is there").stdout).expect("paths of ours");
    assert_eq!(found, "", "the key is in a file");
}
