//! What an agent's answer and its conversation are held to.

use saggar_domain::Schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::object::only_from_an_object;

/// The form of an agent's answer: a JSON object.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AgentOutput {
    /// The JSON Schema of the answer, which describes an object.
    #[schema(value_type = Object)]
    pub schema: Value,
}

/// When an agent's conversation is summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct AgentContext {
    /// A longer request isn't made before the model has summed up its older turns. Counted as for budgets.
    pub tokens_max: u64,
    /// The newest turns are kept as they are, as many as have so many tokens together; the last one always. By default a quarter
    /// of `tokens_max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_tokens: Option<u64>,
}

/// When an agent's budget is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WhenOutOfBudget {
    /// The run ends.
    End,
    /// The model is called once more, without tools, to sum up; what that may come to is set aside before. Then the run ends.
    Finish,
    /// The run waits until a person raises its budget.
    Ask,
}

impl AgentOutput {
    /// The schema, which describes an object. The error and the remedy otherwise.
    pub fn schema(&self) -> Result<Schema, (String, String)> {
        let help = "correct the schema; docs/agent.md has the keywords";
        let schema =
            Schema::new(self.schema.clone()).map_err(|error| (format!("output.schema: {error}"), help.to_owned()))?;
        match self.schema.get("type").and_then(Value::as_str) {
            Some("object") => Ok(schema),
            _ => {
                let help = "set its \"type\" to \"object\", and put the answer into a property";
                Err(("output.schema: it doesn't describe an object".to_owned(), help.to_owned()))
            }
        }
    }

    pub(crate) fn wrong(&self) -> Option<(String, String)> {
        self.schema().err()
    }
}

impl AgentContext {
    /// Less leaves no room for a task and a summary.
    const TOKENS_LEAST: u64 = 1000;

    /// The tokens of the newest turns that are kept as they are.
    pub fn keep_tokens(&self) -> u64 {
        self.keep_tokens.unwrap_or(self.tokens_max / 4)
    }

    pub(crate) fn wrong(&self) -> Option<(String, String)> {
        let least = Self::TOKENS_LEAST;
        if self.tokens_max < least {
            let message = format!("context.tokens_max: {} tokens leave no room for a conversation", self.tokens_max);
            return Some((message, format!("use at least {least}")));
        }
        if self.keep_tokens() > self.tokens_max / 2 {
            let message =
                format!("context.keep_tokens: {} is more than half of context.tokens_max", self.keep_tokens());
            return Some((message, "keep less, so that there is something to sum up".to_owned()));
        }
        None
    }
}

only_from_an_object!(AgentOutput, AgentContext);
