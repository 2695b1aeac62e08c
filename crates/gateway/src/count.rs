//! Counts tokens without the provider's tokenizer: for reservations, and for bills whose usage never came.
//!
//! An estimate. Text of any language has about a token per three bytes or fewer; an image has a fixed number.

use serde_json::Value;

/// Bytes of text that are counted as one token.
const BYTES_PER_TOKEN: u64 = 3;
/// Tokens of an image or another file, whatever its size.
const TOKENS_PER_FILE: u64 = 1_600;
/// Tokens of each object, for what providers add around messages and parts.
const TOKENS_PER_OBJECT: u64 = 4;
/// Text in base64 that is at least this long is counted as a file.
const FILE_BYTES_MIN: usize = 512;

/// The tokens of a text.
pub fn text_tokens(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

/// The tokens of a request's prompt, from its body. Settings count like text, which makes the result a little too high.
pub fn prompt_tokens(body: &Value) -> u64 {
    match body {
        Value::Null | Value::Bool(_) | Value::Number(_) => 1,
        Value::String(text) if is_file(text) => TOKENS_PER_FILE,
        Value::String(text) => text_tokens(text.len() as u64),
        Value::Array(items) => items.iter().map(prompt_tokens).sum(),
        Value::Object(fields) => {
            let of_fields = fields.iter().map(|(name, value)| text_tokens(name.len() as u64) + prompt_tokens(value));
            TOKENS_PER_OBJECT + of_fields.sum::<u64>()
        }
    }
}

fn is_file(text: &str) -> bool {
    if text.len() < FILE_BYTES_MIN {
        return false;
    }
    let is_data_url = text.starts_with("data:") && text[..text.len().min(128)].contains(";base64,");
    is_data_url
        || text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'=' | b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn text_counts_by_its_length_and_an_image_does_not() {
        let asked = |content: Value| prompt_tokens(&json!({"messages": [{"role": "user", "content": content}]}));
        let words = "word ".repeat(3_000);
        assert!(asked(json!(words)) >= 3_000, "a token per word at least");
        let image = "iVBORw0KGgo".repeat(100_000);
        assert!(asked(json!(image)) < 3_000);
        assert!(asked(json!(format!("data:image/png;base64,{image}"))) < 3_000);
        assert!(asked(json!("漢".repeat(1_000))) >= 1_000);
    }
}
