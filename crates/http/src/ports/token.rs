//! The access token of a sandbox: in a header, in a cookie, or once in the query, from where it is moved into a
//! cookie.

use axum::body::Body;
use axum::response::Response;
use http::header::{CACHE_CONTROL, COOKIE, LOCATION, REFERRER_POLICY, SET_COOKIE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use saggar_api::route;

use super::{Destination, NamedBy};

/// The name of the cookie and of the query parameter.
pub(super) const COOKIE_NAME: &str = "saggar_token";

/// The header's name in E2B's clients.
pub(super) const TRAFFIC_TOKEN: &str = "e2b-traffic-access-token";

/// A token, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Shown {
    Header(String),
    Query(String),
    Cookie(String),
}

impl Shown {
    pub(super) fn token(&self) -> &str {
        match self {
            Self::Header(token) | Self::Query(token) | Self::Cookie(token) => token,
        }
    }
}

/// The token in the headers of a request.
pub(crate) fn shown_token(headers: &HeaderMap) -> Option<&str> {
    headers.get(route::header::ACCESS_TOKEN).or_else(|| headers.get(TRAFFIC_TOKEN))?.to_str().ok()
}

/// The token in a request.
pub(super) fn shown(headers: &HeaderMap, path: &PathAndQuery) -> Option<Shown> {
    let header = headers.get(route::header::ACCESS_TOKEN).or_else(|| headers.get(TRAFFIC_TOKEN));
    if let Some(token) = header.and_then(|value| value.to_str().ok()) {
        return Some(Shown::Header(token.to_owned()));
    }
    let parameter = path.query().into_iter().flat_map(|query| query.split('&')).find_map(value_of);
    if let Some(token) = parameter {
        return Some(Shown::Query(token.to_owned()));
    }
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let cookie = cookies.flat_map(|value| value.split(';')).map(str::trim).find_map(value_of);
    cookie.map(|token| Shown::Cookie(token.to_owned()))
}

fn value_of(pair: &str) -> Option<&str> {
    pair.strip_prefix(COOKIE_NAME)?.strip_prefix('=')
}

/// The path without the token.
pub(super) fn without(path: &PathAndQuery) -> PathAndQuery {
    let Some(query) = path.query().filter(|query| query.split('&').any(|pair| value_of(pair).is_some())) else {
        return path.clone();
    };
    let kept: Vec<&str> = query.split('&').filter(|pair| value_of(pair).is_none()).collect();
    let text = if kept.is_empty() { path.path().to_owned() } else { format!("{}?{}", path.path(), kept.join("&")) };
    PathAndQuery::try_from(text).unwrap_or_else(|_| PathAndQuery::from_static("/"))
}

/// Whether a token in the query becomes a cookie: only when a user follows a link.
pub(super) fn becomes_cookie(shown: Option<&Shown>, method: &Method, is_upgrade: bool) -> bool {
    matches!(shown, Some(Shown::Query(_))) && *method == Method::GET && !is_upgrade
}

/// Redirects a browser to the same URL without the token, which it keeps as a cookie.
pub(super) fn to_cookie(token: &str, destination: &Destination, is_tls: bool) -> Response {
    let prefix = match &destination.named_by {
        NamedBy::Path(prefix) => prefix.as_str(),
        NamedBy::Headers | NamedBy::Host => "",
    };
    let secure = if is_tls { "; Secure" } else { "" };
    let cookie = format!("{COOKIE_NAME}={token}; Path={prefix}/; HttpOnly; SameSite=Lax{secure}");
    let location = format!("{prefix}{}", without(&destination.path));
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SEE_OTHER;
    let headers = response.headers_mut();
    for (name, value) in [(SET_COOKIE, cookie), (LOCATION, location)] {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(name, value);
        }
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_token_is_taken_out_of_the_query_and_nothing_else_is() {
        for (path, expected) in [
            ("/a?saggar_token=t", "/a"),
            ("/a?x=1&saggar_token=t&y=2", "/a?x=1&y=2"),
            ("/a?x=1", "/a?x=1"),
            ("/a?not_saggar_token=1", "/a?not_saggar_token=1"),
            ("/", "/"),
        ] {
            assert_eq!(without(&PathAndQuery::from_static(path)).as_str(), expected);
        }
    }
}
