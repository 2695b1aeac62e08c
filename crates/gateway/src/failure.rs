//! Why a call to a model failed, in one sense for all wires. Each wire gives it its own form (`wire/*/failure.rs`).
//!
//! A message never contains a key, and text of a provider only up to a bound.

use std::time::Duration;

use saggar_domain::model::TokenUsage;

/// Maximum length of a message, in characters: some quote the provider.
const MESSAGE_CHARS_MAX: usize = 600;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// The request is malformed, or can't be translated for the route's provider.
    InvalidRequest,
    /// The client's key.
    Unauthorized,
    Forbidden,
    /// No such route, or no such path.
    NotFound,
    TooLarge,
    /// A rate limit: ours, or every provider's.
    RateLimited,
    /// Nothing more may be spent.
    Budget,
    /// The provider is overloaded.
    Overloaded,
    /// The provider didn't answer in time.
    Timeout,
    /// The provider can't be reached, refuses our key, or answers what can't be understood.
    Upstream,
    /// The provider stopped in the middle of its answer.
    Torn,
    /// The call was cancelled.
    Cancelled,
    /// A fault of ours.
    Internal,
}

impl FailureKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::NotFound => "not_found",
            Self::TooLarge => "too_large",
            Self::RateLimited => "rate_limited",
            Self::Budget => "budget",
            Self::Overloaded => "overloaded",
            Self::Timeout => "timeout",
            Self::Upstream => "upstream",
            Self::Torn => "torn",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal",
        }
    }

    /// The status of an answer that has not begun.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Unauthorized => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::TooLarge => 413,
            Self::RateLimited | Self::Budget => 429,
            Self::Overloaded => 529,
            Self::Timeout => 504,
            Self::Upstream | Self::Torn => 502,
            Self::Cancelled => 499,
            Self::Internal => 500,
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_passing(self) -> bool {
        match self {
            Self::RateLimited | Self::Overloaded | Self::Timeout | Self::Upstream | Self::Torn | Self::Internal => true,
            Self::InvalidRequest
            | Self::Unauthorized
            | Self::Forbidden
            | Self::NotFound
            | Self::TooLarge
            | Self::Budget
            | Self::Cancelled => false,
        }
    }
}

#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub kind: FailureKind,
    pub message: String,
    /// The field of the request that it is about.
    pub field: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// What was billed all the same.
    pub usage: Option<Box<TokenUsage>>,
}

impl Failure {
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let message = message.chars().filter(|c| !c.is_control()).take(MESSAGE_CHARS_MAX).collect();
        Self { kind, message, field: None, retry_after: None, usage: None }
    }

    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(FailureKind::InvalidRequest, message)
    }

    #[must_use]
    pub fn about(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    #[must_use]
    pub fn after(mut self, wait: Option<Duration>) -> Self {
        self.retry_after = wait;
        self
    }

    #[must_use]
    pub fn billed(mut self, usage: TokenUsage) -> Self {
        self.usage = Some(Box::new(usage));
        self
    }
}
