//! Parses forms with files as a stream: `multipart/form-data`, by RFC 7578 and browser practice.
//!
//! `multer` finds the parts. What it leaves open is bounded here: how much may come before a part begins, and how much is held at once.
//! Names are read here too, because clients escape backslashes in them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures_util::stream;
use http::header::CONTENT_DISPOSITION;
use multer::{Field, Multipart};
use saggar_http::extract::Pieces;

use super::failure::CallFailure;

/// Most bytes before the content of a part begins: its boundary and its headers, and whatever is before the first.
const HEADERS_MAX: usize = 16 * 1024;
/// Maximum length of a boundary, by RFC 2046.
const BOUNDARY_MAX: usize = 70;
/// Most that is given to the parser at once.
const SLICE_MAX: usize = 64 * 1024;
/// The same before the content of a part: the parser may ask twice before it looks, and must not ask past the end of headers that fit.
const HEADERS_SLICE_MAX: usize = HEADERS_MAX / 8;

#[derive(Debug)]
pub(super) struct Form<'a> {
    parts: Multipart<'a>,
    headers_left: HeadersLeft,
}

/// One part of a form: a file, or another field.
#[derive(Debug)]
pub(super) struct Part<'a> {
    pub(super) name: String,
    pub(super) file_name: Option<String>,
    field: Field<'a>,
    headers_left: HeadersLeft,
}

/// How much may still come before the content of a part begins.
#[derive(Clone, Debug)]
struct HeadersLeft(Arc<AtomicUsize>);

impl<'a> Form<'a> {
    /// A form of this content type.
    pub(super) fn of(content_type: &str, pieces: &'a mut Pieces) -> Result<Self, CallFailure> {
        let boundary = multer::parse_boundary(content_type).map_err(|_| unreadable("no boundary is given"))?;
        if boundary.is_empty() || boundary.len() > BOUNDARY_MAX {
            return Err(unreadable("the boundary is too long or too short"));
        }
        let headers_left = HeadersLeft(Arc::new(AtomicUsize::new(HEADERS_MAX)));
        let feed = Feed { pieces, rest: Bytes::new(), headers_left: headers_left.clone() };
        Ok(Self { parts: Multipart::new(stream::try_unfold(feed, Feed::next), boundary), headers_left })
    }

    /// The next part; `None` at the end of the form. The one before must have been read to its end.
    pub(super) async fn next(&mut self) -> Result<Option<Part<'a>>, CallFailure> {
        self.headers_left.0.store(HEADERS_MAX, Ordering::Relaxed);
        let Some(field) = self.parts.next_field().await.map_err(explained)? else { return Ok(None) };
        let disposition = field.headers().get_all(CONTENT_DISPOSITION).iter().next_back();
        let disposition = disposition.ok_or_else(|| unreadable("a part has no Content-Disposition"))?;
        let disposition = std::str::from_utf8(disposition.as_bytes())
            .map_err(|_| unreadable("the headers of a part are not UTF-8"))?;
        let name = parameter(disposition, "name").ok_or_else(|| unreadable("a part has no name"))?;
        Ok(Some(Part {
            name: unescaped(&name),
            file_name: parameter(disposition, "filename").map(|name| unescaped(&name)),
            headers_left: self.headers_left.clone(),
            field,
        }))
    }
}

impl Part<'_> {
    /// More of its content; `None` when it is whole.
    pub(super) async fn data(&mut self) -> Result<Option<Bytes>, CallFailure> {
        self.headers_left.0.store(usize::MAX, Ordering::Relaxed);
        self.field.chunk().await.map_err(explained)
    }
}

/// The body, as the parser gets it: it takes whatever is ready, so it is given one slice at a time.
struct Feed<'a> {
    pieces: &'a mut Pieces,
    rest: Bytes,
    headers_left: HeadersLeft,
}

impl Feed<'_> {
    async fn next(mut self) -> Result<Option<(Bytes, Self)>, FeedError> {
        // Not ready for a moment, so that the parser looks at what it has.
        tokio::task::yield_now().await;
        while self.rest.is_empty() {
            match self.pieces.next().await {
                Ok(Some(piece)) => self.rest = piece,
                Ok(None) => return Ok(None),
                Err(refusal) => return Err(FeedError(refusal.into())),
            }
        }
        let left = self.headers_left.0.load(Ordering::Relaxed);
        let most = if left == usize::MAX { SLICE_MAX } else { left.min(HEADERS_SLICE_MAX) };
        let slice = self.rest.split_to(self.rest.len().min(most));
        if slice.is_empty() {
            return Err(FeedError(unreadable(
                "the headers of a part are too long, or it doesn't begin with its boundary",
            )));
        }
        if left != usize::MAX {
            self.headers_left.0.store(left - slice.len(), Ordering::Relaxed);
        }
        Ok(Some((slice, self)))
    }
}

/// Why the body could not be read on, on its way through the parser.
#[derive(Debug, thiserror::Error)]
#[error("the body can't be read on")]
struct FeedError(CallFailure);

fn explained(error: multer::Error) -> CallFailure {
    match error {
        multer::Error::StreamReadFailed(cause) => match cause.downcast::<FeedError>() {
            Ok(cause) => cause.0,
            Err(_) => unreadable("it breaks off"),
        },
        multer::Error::IncompleteStream
        | multer::Error::IncompleteHeaders
        | multer::Error::IncompleteFieldData { .. } => {
            unreadable("it breaks off, or a boundary is followed by something else")
        }
        other => unreadable(&other.to_string()),
    }
}

fn unreadable(why: &str) -> CallFailure {
    CallFailure::invalid(format!("the form can't be read: {why}"))
}

/// Decodes what browsers escape in a name, and nothing else: other percent signs stay.
fn unescaped(text: &str) -> String {
    text.replace("%22", "\"").replace("%0D", "\r").replace("%0A", "\n")
}

/// A parameter of a header: `; name=value` or `; name="value"`, in which a backslash escapes the next character.
fn parameter(header: &str, wanted: &str) -> Option<String> {
    let mut rest = header.split_once(';')?.1;
    loop {
        let (name, after) = rest.split_once('=')?;
        let (value, after) = value(after)?;
        if name.trim().trim_start_matches(';').trim().eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        rest = after;
    }
}

fn value(text: &str) -> Option<(String, &str)> {
    let text = text.trim_start();
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return Some((text[..end].trim_end().to_owned(), &text[end..]));
    };
    let (mut value, mut is_escaped) = (String::new(), false);
    for (at, character) in quoted.char_indices() {
        match character {
            _ if is_escaped => {
                value.push(character);
                is_escaped = false;
            }
            '\\' => is_escaped = true,
            '"' => return Some((value, &quoted[at + 1..])),
            _ => value.push(character),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use http::HeaderMap;

    use super::*;

    const KIND: &str = "multipart/form-data; boundary=XX";

    type Parts = Vec<(Option<String>, Vec<u8>)>;

    async fn read(body: &[u8], piece: usize) -> Result<Parts, CallFailure> {
        let pieces: Vec<_> =
            body.chunks(piece).map(|piece| Ok::<_, Infallible>(Bytes::copy_from_slice(piece))).collect();
        let mut pieces = Pieces::of(&HeaderMap::new(), Body::from_stream(stream::iter(pieces)));
        let mut form = Form::of(KIND, &mut pieces)?;
        let mut parts = Vec::new();
        while let Some(mut part) = form.next().await? {
            let mut content = Vec::new();
            while let Some(data) = part.data().await? {
                content.extend_from_slice(&data);
            }
            parts.push((part.file_name, content));
        }
        Ok(parts)
    }

    #[tokio::test]
    async fn parts_come_out_however_they_are_cut() {
        let body = b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a b/\xc3\xa9.txt\"\r\nContent-Type: text/plain\r\n\r\n\
            one\r\n--X\r\n--XY\r\r\n--XX\r\ncontent-disposition: form-data; filename=x;name=file\r\n\r\n\r\n--XX--\r\nepilogue";
        for piece in [1, 2, 7, 1000] {
            let parts = read(body, piece).await.unwrap();
            assert_eq!(parts[0], (Some("a b/é.txt".to_owned()), b"one\r\n--X\r\n--XY\r".to_vec()), "{piece}");
            assert_eq!(parts[1], (Some("x".to_owned()), Vec::new()), "{piece}");
        }
    }

    #[tokio::test]
    async fn what_is_no_form_is_refused() {
        for wrong in [
            &b""[..],
            b"--XX\r\n",
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc",
            b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc\r\n--XX",
            b"--XX\r\nContent-Type: x\r\n\r\nabc\r\n--XX--",
            b"--XXjunk\r\n\r\n\r\n--XX--",
            b"nothing like it",
        ] {
            assert!(read(wrong, 5).await.is_err(), "{:?}", String::from_utf8_lossy(wrong));
        }
        for kind in ["multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=\"unended"]
        {
            assert!(Form::of(kind, &mut Pieces::of(&HeaderMap::new(), Body::empty())).is_err(), "{kind}");
        }
    }

    /// Content is bounded by who reads it, and not here.
    #[tokio::test]
    async fn what_comes_before_a_part_is_bounded_and_its_content_is_not() {
        let begin = &b"--XX\r\nContent-Disposition: form-data; name=\"file\"\r\n"[..];
        let long = vec![b'x'; 4 * SLICE_MAX];
        let end = &b"\r\n--XX--"[..];
        let of_content = [begin, b"\r\n", &long, end].concat();
        let of_headers = [begin, b"A: ", &long, b"\r\n\r\n", end].concat();
        let before = [&long, begin, b"\r\n", end].concat();
        for piece in [1000, usize::MAX] {
            assert_eq!(read(&of_content, piece).await.unwrap()[0].1.len(), long.len());
            for too_much in [&of_headers, &before] {
                let failure = format!("{:?}", read(too_much, piece).await.unwrap_err());
                assert!(failure.contains("too long"), "{failure}");
            }
        }
    }

    #[test]
    fn names_are_unescaped_as_browsers_escape_them() {
        let name = |text: &str| parameter(text, "filename").map(|name| unescaped(&name));
        assert_eq!(name("form-data; name=\"a\"; filename=\"q%22q%.txt\"").unwrap(), "q\"q%.txt");
        assert_eq!(name("form-data; filename=\"a\\\"b;c\"; x=y").unwrap(), "a\"b;c");
        assert_eq!(name("form-data; filename=\"a\\\\\"; x=y").unwrap(), "a\\");
        assert_eq!(name("form-data; name=\"filename=x\""), None);
    }
}
