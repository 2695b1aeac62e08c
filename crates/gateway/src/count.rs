//! Counts tokens without the provider's tokenizer: for reservations, and for bills whose usage never came.
//!
//! An estimate. Text of any language has about a token per three bytes or fewer; an image has a fixed number.

use saggar_domain::model::text_tokens;
use serde_json::Value;

/// Tokens of an image or another file, whatever its size.
const TOKENS_PER_FILE: u64 = 1_600;
/// Tokens of each object, for what providers add around messages and parts.
const TOKENS_PER_OBJECT: u64 = 4;

/// The tokens of a request's prompt, from its body. Settings count like text, which makes the result a little too high.
pub fn prompt_tokens(body: &Value) -> u64 {
    Place::Request.tokens(body)
}

/// Where in a request a value stands. Only there a text may be a file: how a text looks says nothing, because anything can be written
/// in the letters of base64.
#[derive(Clone, Copy)]
enum Place {
    Request,
    Message,
    Part,
    /// An image or another file: its data, or its address.
    File,
    Other,
}

impl Place {
    fn tokens(self, value: &Value) -> u64 {
        match value {
            Value::Null | Value::Bool(_) | Value::Number(_) => 1,
            Value::String(text) => match self {
                Self::File => TOKENS_PER_FILE,
                Self::Request | Self::Message | Self::Part | Self::Other => text_tokens(text.len() as u64),
            },
            Value::Array(items) => items.iter().map(|item| self.tokens(item)).sum(),
            Value::Object(fields) => {
                let of_fields = fields
                    .iter()
                    .map(|(name, value)| text_tokens(name.len() as u64) + self.field(name, value).tokens(value));
                TOKENS_PER_OBJECT + of_fields.sum::<u64>()
            }
        }
    }

    /// The place of a field, in the wires of clients and in our own form.
    fn field(self, name: &str, value: &Value) -> Self {
        match (self, name) {
            (Self::Request, "messages" | "input") => Self::Message,
            (Self::Message, "content" | "parts" | "output") | (Self::Part, "content") => Self::Part,
            (Self::Part, "image_url" | "video_url" | "audio_url" | "input_audio" | "file" | "file_data") => Self::File,
            // A document may be plain text.
            (Self::Part, "source") if value.is_object() && value["type"] != "text" => Self::File,
            (Self::File, "url" | "data" | "file_data") => Self::File,
            (Self::Request | Self::Message | Self::Part | Self::File | Self::Other, _) => Self::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_counts_by_its_length_however_it_looks() {
        let asked = |content: Value| prompt_tokens(&json!({"messages": [{"role": "user", "content": content}]}));
        let long = "a".repeat(9_000);
        for text in [
            "word ".repeat(1_800),
            "漢".repeat(3_000),
            long.clone(),
            format!("data:text/plain;base64,{long}"),
            // A character that begins before byte 128 and ends after it.
            format!("data:{}漢{long}", "a".repeat(122)),
        ] {
            let part = json!([{"type": "text", "text": text}]);
            let input = json!([{"type": "tool_use", "input": {"file_data": text, "source": {"data": text}}}]);
            let document = json!([{"type": "document", "source": {"type": "text", "data": text}}]);
            for content in [json!(text), part, input, document, json!([{"source": text}])] {
                assert!(asked(content.clone()) >= 3_000, "{content:.100}");
            }
            assert!(prompt_tokens(&json!({"input": text})) >= 3_000);
            assert!(prompt_tokens(&json!({"tools": [{"source": {"data": text}}]})) >= 3_000);
        }
    }

    #[test]
    fn an_image_counts_the_same_whatever_its_size() {
        let data = "iVBORw0KGgo".repeat(100_000);
        let url = format!("data:image/png;base64,{data}");
        let source = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}});
        for part in [
            json!({"type": "image_url", "image_url": {"url": url}}),
            json!({"type": "input_image", "image_url": url}),
            json!({"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}),
            json!({"type": "file", "file": {"file_data": data, "filename": "a.pdf"}}),
            json!({"type": "input_file", "file_data": url}),
            json!({"type": "tool_result", "content": [source]}),
            source,
            // The provider fetches it.
            json!({"type": "image", "source": {"type": "url", "url": "https://x"}}),
            // Our own form.
            json!({"type": "image", "source": {"data": {"media_type": "image/png", "data": data}}}),
        ] {
            for body in [
                json!({"messages": [{"content": [part]}]}),
                json!({"input": [{"type": "function_call_output", "output": [part]}]}),
                json!({"messages": [{"parts": [part]}]}),
            ] {
                let tokens = prompt_tokens(&body);
                assert!((1_600..1_700).contains(&tokens), "{tokens}: {body:.100}");
            }
        }
    }
}
