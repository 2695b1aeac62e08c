//! Parts of messages.

use serde::{Deserialize, Serialize};

use super::verbatim::Verbatim;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Part<T = String> {
    Text {
        text: T,
        /// What belongs to this very part, such as Gemini's `thoughtSignature`.
        #[serde(default = "absent", skip_serializing_if = "Option::is_none")]
        verbatim: Option<Verbatim<T>>,
    },
    Image(Image<T>),
    /// A call that the model requests.
    ToolCall(ToolCall<T>),
    ToolResult(ToolResult<T>),
    /// What the model thought, as far as the provider shows it.
    Reasoning {
        text: T,
        #[serde(default = "absent", skip_serializing_if = "Option::is_none")]
        verbatim: Option<Verbatim<T>>,
    },
    /// The reason that a model gave for not answering.
    Refusal {
        text: T,
    },
    /// A part of a kind that only the provider knows.
    Provider {
        verbatim: Verbatim<T>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall<T = String> {
    /// Names the call for its result; unique in its reply.
    pub id: String,
    pub name: String,
    /// JSON text as the model wrote it. It may be malformed.
    pub arguments: T,
    #[serde(default = "absent", skip_serializing_if = "Option::is_none")]
    pub verbatim: Option<Verbatim<T>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolResult<T = String> {
    /// The id of the call.
    pub call: String,
    pub content: Vec<ResultPart<T>>,
    #[serde(default)]
    pub is_error: bool,
}

/// What a tool may return.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ResultPart<T = String> {
    Text { text: T },
    Image(Image<T>),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Image<T = String> {
    pub source: ImageSource<T>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detail: Option<ImageDetail>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageSource<T = String> {
    Data {
        /// Such as `image/png`.
        media_type: String,
        /// In base64.
        data: T,
    },
    /// The provider fetches it.
    Url(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ImageDetail {
    Auto,
    Low,
    High,
}

/// Without a bound on `T`, which `#[serde(default)]` would ask for.
fn absent<T>() -> Option<T> {
    None
}

impl<T> Part<T> {
    pub fn text(text: impl Into<T>) -> Self {
        Self::Text { text: text.into(), verbatim: None }
    }

    /// The same part with other text. `f` gets every long text of the part once, in a fixed order.
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<Part<U>, E> {
        Ok(match self {
            Self::Text { text, verbatim } => Part::Text { text: f(text)?, verbatim: map_option(verbatim, f)? },
            Self::Image(image) => Part::Image(image.try_map(f)?),
            Self::ToolCall(call) => Part::ToolCall(call.try_map(f)?),
            Self::ToolResult(result) => Part::ToolResult(result.try_map(f)?),
            Self::Reasoning { text, verbatim } => {
                Part::Reasoning { text: f(text)?, verbatim: map_option(verbatim, f)? }
            }
            Self::Refusal { text } => Part::Refusal { text: f(text)? },
            Self::Provider { verbatim } => Part::Provider { verbatim: verbatim.try_map(f)? },
        })
    }
}

impl<T> ToolCall<T> {
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<ToolCall<U>, E> {
        let Self { id, name, arguments, verbatim } = self;
        Ok(ToolCall { id, name, arguments: f(arguments)?, verbatim: map_option(verbatim, f)? })
    }
}

impl<T> ToolResult<T> {
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<ToolResult<U>, E> {
        let content = self.content.into_iter().map(|part| {
            Ok(match part {
                ResultPart::Text { text } => ResultPart::Text { text: f(text)? },
                ResultPart::Image(image) => ResultPart::Image(image.try_map(f)?),
            })
        });
        Ok(ToolResult { content: content.collect::<Result<_, E>>()?, call: self.call, is_error: self.is_error })
    }
}

impl<T> Image<T> {
    pub fn try_map<U, E>(self, f: &mut impl FnMut(T) -> Result<U, E>) -> Result<Image<U>, E> {
        let source = match self.source {
            ImageSource::Data { media_type, data } => ImageSource::Data { media_type, data: f(data)? },
            ImageSource::Url(url) => ImageSource::Url(url),
        };
        Ok(Image { source, detail: self.detail })
    }
}

fn map_option<T, U, E>(
    verbatim: Option<Verbatim<T>>,
    f: &mut impl FnMut(T) -> Result<U, E>,
) -> Result<Option<Verbatim<U>>, E> {
    verbatim.map(|verbatim| verbatim.try_map(f)).transpose()
}
