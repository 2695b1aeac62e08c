//! A file as an answer, or the part of it that is asked for, as a stream: constant memory, whatever the size.

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use http::header::{
    ACCEPT_RANGES, CONTENT_DISPOSITION, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LAST_MODIFIED, RANGE,
    X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use saggar_api::Code;
use saggar_runtime::{Fault, FilePath, Files, Reading};

use crate::refusal::Refusal;

/// Why a file isn't read.
pub enum Unread {
    /// It can't be.
    Fault(Fault),
    /// Not as it was asked for.
    Refused(Refusal),
}

impl From<Fault> for Unread {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

impl From<Refusal> for Unread {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// The answer that is a file, or the part of it that is asked for.
pub async fn download(
    mut files: Files,
    path: &FilePath,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, Unread> {
    let size = files.stat(path, true).await?.size;
    let part = part(headers, size)?;
    let (offset, length) = part.unwrap_or((0, size));
    let reading = files.read(path, offset, Some(length)).await?;
    // What is said of the length is of the file that was opened, which may be another than the one that was looked at.
    let length = length.min(reading.entry().size.saturating_sub(offset));
    let modified = reading.entry().modified_ns / 1_000_000_000;
    let body = if *method == Method::HEAD { Body::empty() } else { stream_of(reading) };
    let mut response = body.into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    // Whatever is in it, no browser is to run it as a page of ours.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CONTENT_DISPOSITION, HeaderValue::from_static("attachment"));
    if let Ok(value) = HeaderValue::from_str(&http_date(modified)) {
        headers.insert(LAST_MODIFIED, value);
    }
    if part.is_some() {
        let range = format!("bytes {offset}-{}/{size}", (offset + length).saturating_sub(1));
        headers.insert(CONTENT_RANGE, HeaderValue::from_str(&range).map_err(|_| Refusal::internal())?);
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    Ok(response)
}

/// A file as it is read. If it breaks off, so does the answer: a client sees that less came than was said.
fn stream_of(reading: Reading) -> Body {
    Body::from_stream(stream::try_unfold(reading, |mut reading| async move {
        let piece = flushed(reading.next().await).await?;
        Ok::<_, Fault>(piece.map(|piece| (Bytes::from(piece), reading)))
    }))
}

/// Before an answer is broken off, what was written of it is sent: without a pause here its head would be lost too.
pub async fn flushed<T>(outcome: Result<T, Fault>) -> Result<T, Fault> {
    if outcome.is_err() {
        tokio::task::yield_now().await;
    }
    outcome
}

/// The one part that is asked for: where it begins and how long it is. Several at once are answered with the whole, as is allowed.
fn part(headers: &HeaderMap, size: u64) -> Result<Option<(u64, u64)>, Refusal> {
    let Some(text) = headers.get(RANGE).and_then(|range| range.to_str().ok()?.strip_prefix("bytes=")) else {
        return Ok(None);
    };
    let number = |text: &str| -> Option<u64> {
        (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(u64::MAX))
    };
    let Some((first, last)) = text.trim().split_once('-').filter(|_| !text.contains(',')) else { return Ok(None) };
    let (first, last) = match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => (first, last),
        (Some(first), None) if last.is_empty() => (first, u64::MAX),
        // The last so many.
        (None, Some(count)) if first.is_empty() && count > 0 => (size.saturating_sub(count), u64::MAX),
        _ => return Ok(None),
    };
    if first >= size {
        return Err(Refusal::new(
            Code::RangeNotSatisfiable,
            format!("the file has {size} bytes"),
            "ask for a part that is in it",
        ));
    }
    Ok(Some((first, last.saturating_add(1).min(size) - first)))
}

/// A moment as HTTP has it.
fn http_date(seconds: i64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = u64::try_from(seconds).unwrap_or(0);
    let text = saggar_api::Timestamp::from_millis(seconds.saturating_mul(1000)).to_string();
    let month: usize = text[5..7].parse().unwrap_or(1);
    let (day, month) = (DAYS[(seconds / 86_400 % 7) as usize], MONTHS[month.clamp(1, 12) - 1]);
    format!("{day}, {} {month} {} {} GMT", &text[8..10], &text[..4], &text[11..19])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_as_the_standard_says() {
        for (text, size, expected) in [
            ("bytes=0-0", 10, Some((0, 1))),
            ("bytes=2-5", 10, Some((2, 4))),
            ("bytes=5-", 10, Some((5, 5))),
            ("bytes=-3", 10, Some((7, 3))),
            ("bytes=-30", 10, Some((0, 10))),
            ("bytes=0-999999999999999999999999", 10, Some((0, 10))),
            ("bytes=5-2", 10, None),
            ("bytes=0-1,3-4", 10, None),
            ("bytes=a-b", 10, None),
            ("bytes=-0", 10, None),
            ("lines=1-2", 10, None),
        ] {
            let headers = HeaderMap::from_iter([(RANGE, HeaderValue::from_static(text))]);
            assert_eq!(part(&headers, size).unwrap(), expected, "{text}");
        }
        let beyond = HeaderMap::from_iter([(RANGE, HeaderValue::from_static("bytes=10-"))]);
        assert_eq!(part(&beyond, 10).unwrap_err().0.code, Code::RangeNotSatisfiable);
    }

    #[test]
    fn dates_are_as_http_has_them() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(-1), "Thu, 01 Jan 1970 00:00:00 GMT");
    }
}
