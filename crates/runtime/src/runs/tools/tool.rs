//! What the catalogue says about a tool.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::LazyLock;
use std::time::Duration;

use saggar_domain::Schema;
use saggar_engine::{Class, Report};
use serde_json::Value;

use super::CATALOGUE;
use super::hands::Hands;
use crate::runs::effects::Task;

#[derive(Debug)]
pub struct Tool {
    pub name: &'static str,
    /// For the model.
    pub description: &'static str,
    /// The schema of its arguments: JSON Schema. The top describes an object and allows no unknown members.
    pub schema: &'static str,
    /// What a crash in the middle of a call means, unless the operator says otherwise.
    pub class: Class,
    /// The class of a call with these arguments, where a crash in the middle of it means more harm than of others. It
    /// counts whatever the operator says.
    pub class_of: Option<fn(&Value) -> Option<Class>>,
    /// Whether its calls may be made beside other calls of the same reply, unless the operator says otherwise. Not if
    /// later calls may rely on it.
    pub is_parallel: bool,
    /// How much harm a call may do, from 0 to 100, for rules that ask a person from some level on.
    pub risk: u8,
    /// The longest that a call may take, unless the operator says otherwise.
    pub timeout: Duration,
    pub needs: Needs,
    pub performer: Performer,
}

/// What must exist or may be configured for a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// The run's sandbox.
    Sandbox,
    /// A network outside the sandbox: it goes by the `egress` of the agent's spec.
    Network,
}

#[derive(Clone, Copy, Debug)]
pub enum Performer {
    /// The engine itself, from the journal alone.
    Engine,
    Executor {
        call: Perform,
        /// Asks whether a call was done. `None` if nobody can be asked: such a tool isn't `probeable`.
        probe: Option<Perform>,
    },
}

/// Performs a task of a tool; the text is its arguments.
pub type Perform = for<'a> fn(&'a Hands, &'a Task, &'a str) -> Performing<'a>;
/// Boxed, so that a small call needs no space for a large one.
pub type Performing<'a> = Pin<Box<dyn Future<Output = Report> + Send + 'a>>;

static SCHEMAS: LazyLock<BTreeMap<&'static str, Schema>> = LazyLock::new(|| {
    let schema = |tool: &Tool| (tool.name, Schema::parse(tool.schema).expect("a test parses every schema"));
    CATALOGUE.iter().map(schema).collect()
});

impl Tool {
    /// `None` if there is no such tool.
    pub fn find(name: &str) -> Option<&'static Self> {
        CATALOGUE.iter().find(|tool| tool.name == name)
    }

    /// The names of all tools, for a message.
    pub fn names() -> String {
        CATALOGUE.iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ")
    }

    /// Its parsed schema.
    pub fn arguments(&self) -> &'static Schema {
        &SCHEMAS[self.name]
    }

    /// A call's arguments, which fit the schema. An error is for the model.
    pub(in crate::runs) fn check(&self, arguments: &str) -> Result<Value, String> {
        let invalid = |problem: String| format!("the arguments of {} are invalid: {problem}", self.name);
        let value = serde_json::from_str(or_none(arguments)).map_err(|error| invalid(format!("not JSON ({error})")))?;
        self.arguments().check(&value).map_err(|mismatch| invalid(mismatch.to_string()))?;
        Ok(value)
    }
}

/// Some models say nothing where a call has no arguments.
pub(super) fn or_none(arguments: &str) -> &str {
    match arguments.trim() {
        "" | "null" => "{}",
        _ => arguments,
    }
}
