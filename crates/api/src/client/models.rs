//! Models, on the wire that OpenAI's clients speak.

use saggar_domain::model::RouteName;
use serde_json::json;

use super::error::Error;
use super::send::Client;
use crate::model::{ModelList, ModelTrial};
use crate::route;

/// The longest reply to a trial: a model that thinks needs some room before it says anything.
const TRIAL_TOKENS: u64 = 256;

impl Client {
    /// The models that this project may call, and what it has spent.
    pub async fn models(&self) -> Result<ModelList, Error> {
        self.get(route::MODELS).value().await
    }

    /// Sends one small request to a model, which is billed.
    pub async fn try_model(&self, model: &RouteName) -> Result<ModelTrial, Error> {
        let messages = json!([{"role": "user", "content": "Answer with the word: ready"}]);
        let request = json!({"model": model, "max_completion_tokens": TRIAL_TOKENS, "messages": messages});
        self.post(route::CHAT_COMPLETIONS).json(&request).value().await
    }
}
