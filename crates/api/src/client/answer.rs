//! Responses: a value, nothing, a stream, or a problem.

use hyper::Response;
use hyper::StatusCode;
use hyper::body::Incoming;
use hyper::header::{CONTENT_TYPE, ETAG, HeaderMap, RETRY_AFTER};
use serde::de::DeserializeOwned;

use super::body::Download;
use super::error::Error;
use crate::problem::{PROBLEM_MEDIA_TYPE, Problem};

/// Maximum size of a value: the kept output of an exec, as JSON, fits.
const VALUE_BYTES_MAX: usize = 128 << 20;
/// Maximum size of a problem.
const PROBLEM_BYTES_MAX: usize = 256 << 10;

/// A successful response whose body has not been read.
pub(crate) struct Answer {
    headers: HeaderMap,
    body: Incoming,
}

impl Answer {
    /// Turns an error status into an [`Error`].
    pub(crate) async fn of(response: Response<Incoming>) -> Result<Self, Error> {
        let (parts, body) = response.into_parts();
        if parts.status.is_success() {
            return Ok(Self { headers: parts.headers, body });
        }
        Err(problem(parts.status, &parts.headers, body).await)
    }

    pub(crate) fn is(&self, media_type: &str) -> bool {
        is_media_type(&self.headers, media_type)
    }

    /// The tag of what is answered, without its quotes.
    pub(crate) fn tag(&self) -> Option<&str> {
        self.headers.get(ETAG)?.to_str().ok()?.strip_prefix('"')?.strip_suffix('"')
    }

    pub(crate) async fn value<T: DeserializeOwned>(self) -> Result<T, Error> {
        let body = self.into_download().collect(VALUE_BYTES_MAX).await?;
        serde_json::from_slice(&body).map_err(|error| Error::Answer(error.to_string()))
    }

    /// Reads to the end, so that the connection can be reused.
    pub(crate) async fn done(self) -> Result<(), Error> {
        self.into_download().collect(VALUE_BYTES_MAX).await.map(|_| ())
    }

    pub(crate) fn into_download(self) -> Download {
        Download::new(self.body)
    }
}

/// The problem that the server sent, or an error if another program answered.
pub(crate) async fn problem(status: StatusCode, headers: &HeaderMap, body: Incoming) -> Error {
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if !is_media_type(headers, PROBLEM_MEDIA_TYPE) {
        let body = Download::new(body).collect(PROBLEM_BYTES_MAX).await.unwrap_or_default();
        return match in_openais_form(&body) {
            Some(message) => Error::Model { status: status.as_u16(), message },
            None => Error::Answer(format!("status {status} without a problem")),
        };
    }
    let body = match Download::new(body).collect(PROBLEM_BYTES_MAX).await {
        Ok(body) => body,
        Err(error) => return error,
    };
    match serde_json::from_slice::<Problem>(&body) {
        Ok(mut problem) => {
            problem.retry_after_seconds = problem.retry_after_seconds.or(retry_after);
            problem.into()
        }
        Err(error) => Error::Answer(format!("status {status}: {error}")),
    }
}

/// The message of an error on the wire of models.
fn in_openais_form(body: &[u8]) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(body).ok()?;
    Some(json["error"]["message"].as_str()?.to_owned())
}

fn is_media_type(headers: &HeaderMap, expected: &str) -> bool {
    let given = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    given.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case(expected)
}
