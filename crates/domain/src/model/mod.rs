//! Conversations with models, independent of any provider's wire: what is asked, what is answered, what it used, what it costs.
//!
//! Long text is generic: `Part<String>` carries it, and a journal may store `Part<Body>` with references to blobs instead.
//! [`Part::try_map`] converts between the two. Everything here is stored in journals, so fields are only ever added, with a default.
//!
//! Pure, like the rest of this crate: calling a model is the gateway's business.

mod access;
mod inside;
mod message;
mod money;
mod number;
mod part;
mod price;
mod reply;
mod request;
mod route;
mod stop;
mod tariff;
mod tool;
mod usage;
mod verbatim;

pub use access::ModelAccess;
pub use inside::{CallAmount, CallSum, SandboxCalls};
pub use message::{Message, Role};
pub use money::Micros;
pub use number::Millionths;
pub use part::{Image, ImageDetail, ImageSource, Part, ResultPart, ToolCall, ToolResult};
pub use price::{LongPrompt, Price, Prices};
pub use reply::ModelReply;
pub use request::{ModelRequest, OutputFormat, ReasoningEffort, Sampling};
pub use route::RouteName;
pub use stop::Stop;
pub use tariff::{AtMost, Rate, Tariff, text_tokens};
pub use tool::{JsonSchema, ToolChoice, ToolDefinition};
pub use usage::{TokenUsage, UsageSource};
pub use verbatim::{Origin, Verbatim, Wire};
