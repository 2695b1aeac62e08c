//! Removes headers of a single connection, and headers that are meant for us.

use http::header::{
    AUTHORIZATION, CONNECTION, COOKIE, HOST, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, SET_COOKIE, TE,
    TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};
use saggar_api::route;

use super::token::{COOKIE_NAME, TRAFFIC_TOKEN};
use super::{Destination, NamedBy};
use crate::access::is_ours;

/// The protocol that a request asks to upgrade to, if any.
pub(super) fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = asks.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    if asks { headers.get(UPGRADE).cloned() } else { None }
}

/// Removes the headers of a single connection.
pub(super) fn strip_connection(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| HeaderName::try_from(name.trim()).ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in [CONNECTION, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE] {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// Removes our credentials. Similar headers that are meant for the program inside stay.
pub(super) fn strip_credentials(headers: &mut HeaderMap) {
    let is_our_key = |value: &HeaderValue| {
        let text = value.to_str().unwrap_or_default();
        is_ours(text.split_once(' ').map_or(text, |(_, key)| key).trim())
    };
    for name in [AUTHORIZATION, HeaderName::from_static(route::header::API_KEY)] {
        if headers.get_all(&name).iter().any(is_our_key) {
            headers.remove(name);
        }
    }
    for name in [route::header::ACCESS_TOKEN, TRAFFIC_TOKEN, route::header::SANDBOX, route::header::PORT] {
        headers.remove(name);
    }
    let cookies: Vec<String> = headers
        .get_all(COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .map(str::trim)
        .filter(|cookie| cookie.split('=').next() != Some(COOKIE_NAME) && !cookie.is_empty())
        .map(str::to_owned)
        .collect();
    headers.remove(COOKIE);
    if !cookies.is_empty()
        && let Ok(value) = HeaderValue::from_str(&cookies.join("; "))
    {
        headers.insert(COOKIE, value);
    }
}

/// Sets the headers that name the target inside and the original host. `mask` is the host that the sandbox asks for.
pub(super) fn address(
    headers: &mut HeaderMap,
    destination: &Destination,
    host: Option<&str>,
    mask: Option<&str>,
    is_tls: bool,
) {
    let mut set = |name: &'static str, value: &str| {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    set("x-forwarded-proto", if is_tls { "https" } else { "http" });
    if let Some(host) = host {
        set("x-forwarded-host", host);
    }
    let inside = format!("localhost:{}", destination.port);
    let host = match &destination.named_by {
        NamedBy::Host => host.unwrap_or(&inside),
        NamedBy::Path(prefix) => {
            set("x-forwarded-prefix", prefix);
            &inside
        }
        NamedBy::Headers => &inside,
    };
    if let Ok(value) = HeaderValue::from_str(mask.unwrap_or(host)) {
        headers.insert(HOST, value);
    }
}

/// Response headers that affect the whole origin, or are remembered for it. A program that is reached at our own
/// origin may not send them. Headers that affect one page or one resource pass: `Content-Security-Policy`, `Refresh`,
/// `Access-Control-*`, `WWW-Authenticate`.
const OF_THE_ORIGIN: &[&str] = &[
    // Logs users out, and deletes data of other pages.
    "clear-site-data",
    // How the origin is reached from now on, and with which certificates.
    "strict-transport-security",
    "alt-svc",
    "public-key-pins",
    "public-key-pins-report-only",
    "expect-ct",
    // Where a browser reports events of any request to the origin.
    "nel",
    "report-to",
    // What a browser sends with every request to the origin.
    "accept-ch",
    "accept-ch-lifetime",
    "critical-ch",
    "use-as-dictionary",
    // How pages of the origin share processes, workers and logins.
    "origin-agent-cluster",
    "service-worker-allowed",
    "set-login",
    "secure-session-registration",
    "sec-session-registration",
    "shared-storage-write",
    "attribution-reporting-register-source",
    "attribution-reporting-register-trigger",
];

/// Removes headers that a program inside may not send in our name.
pub(super) fn clean_answer(headers: &mut HeaderMap, named_by: &NamedBy) {
    strip_connection(headers);
    let path = match named_by {
        NamedBy::Path(prefix) => Some(format!("{prefix}/")),
        NamedBy::Headers | NamedBy::Host => None,
    };
    let cookies = headers.get_all(SET_COOKIE).iter();
    let kept: Vec<HeaderValue> = cookies.filter_map(|cookie| own_cookie(cookie, path.as_deref())).collect();
    headers.remove(SET_COOKIE);
    for cookie in kept {
        headers.append(SET_COOKIE, cookie);
    }
    match named_by {
        NamedBy::Path(_) | NamedBy::Headers => OF_THE_ORIGIN.iter().for_each(|name| drop(headers.remove(*name))),
        // That origin belongs to the port.
        NamedBy::Host => {}
    }
    if let NamedBy::Path(_) = named_by {
        // Content below our own origin must not act with its authority.
        let policy = "sandbox allow-downloads allow-forms allow-modals allow-popups allow-scripts";
        headers.append(http::header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    }
}

/// A cookie as a program inside may set it: for its own host, below its own path; `None` if it may not. A cookie
/// without a name is sent back as its value alone, which can look like any other cookie, including ours.
fn own_cookie(cookie: &HeaderValue, path: Option<&str>) -> Option<HeaderValue> {
    let text = cookie.to_str().ok()?;
    let mut parts = text.split(';').map(str::trim);
    let pair = parts.next()?;
    let name = pair.split_once('=')?.0.trim();
    if name.is_empty() || name == COOKIE_NAME {
        return None;
    }
    let is_kept = |attribute: &&str| {
        let name = attribute.split('=').next().unwrap_or_default().trim();
        !(name.eq_ignore_ascii_case("domain") || (path.is_some() && name.eq_ignore_ascii_case("path")))
    };
    let mut kept = vec![pair];
    kept.extend(parts.filter(is_kept));
    let path = path.map(|path| format!("Path={path}"));
    kept.extend(path.as_deref());
    HeaderValue::from_str(&kept.join("; ")).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_belongs_to_a_connection_stays_with_it() {
        let mut given = headers(&[
            ("connection", "close, x-mine"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("x-other", "2"),
        ]);
        strip_connection(&mut given);
        assert_eq!(given, headers(&[("x-other", "2")]));
    }

    #[test]
    fn our_credentials_stay_and_theirs_go_on() {
        let mut ours = headers(&[
            ("authorization", "Bearer sgr_abc"),
            ("x-api-key", "sgr_abc"),
            ("saggar-access-token", "t"),
            ("saggar-sandbox", "sbx_x"),
            ("cookie", "a=1; saggar_token=t; b=2"),
            ("cookie", "saggar_token=t"),
        ]);
        strip_credentials(&mut ours);
        assert_eq!(ours, headers(&[("cookie", "a=1; b=2")]));
        let theirs = headers(&[("authorization", "Basic Zm9v"), ("x-api-key", "theirs"), ("cookie", "a=1")]);
        let mut passed = theirs.clone();
        strip_credentials(&mut passed);
        assert_eq!(passed, theirs);
    }

    #[test]
    fn a_program_inside_sets_no_cookie_of_ours() {
        for cookie in
            ["saggar_token=evil; Path=/", " saggar_token =evil", "=saggar_token=evil", "saggar_token", "; Path=/", ""]
        {
            for named_by in [NamedBy::Host, NamedBy::Headers, NamedBy::Path("/p".to_owned())] {
                let value = HeaderValue::from_static(cookie);
                let mut given = HeaderMap::from_iter([(SET_COOKIE, value)]);
                clean_answer(&mut given, &named_by);
                assert!(!given.contains_key(SET_COOKIE), "{cookie:?} {named_by:?}");
            }
        }
        let mut given =
            headers(&[("set-cookie", "theirs=1"), ("set-cookie", "saggar_tokens=1; path=/x; DOMAIN=a.example")]);
        clean_answer(&mut given, &NamedBy::Host);
        assert_eq!(given, headers(&[("set-cookie", "theirs=1"), ("set-cookie", "saggar_tokens=1; path=/x")]));
    }

    #[test]
    fn a_cookie_of_a_port_under_a_path_stays_below_it() {
        let mut given = headers(&[("set-cookie", "a=1; Path=/; Domain=example.com; HttpOnly"), ("set-cookie", "b=2")]);
        clean_answer(&mut given, &NamedBy::Path("/p".to_owned()));
        let cookies: Vec<&HeaderValue> = given.get_all(SET_COOKIE).iter().collect();
        assert_eq!(cookies, ["a=1; HttpOnly; Path=/p/", "b=2; Path=/p/"]);
    }

    #[test]
    fn what_acts_on_a_whole_origin_acts_on_the_ports_own_alone() {
        let all: Vec<(&str, &str)> = OF_THE_ORIGIN.iter().map(|name| (*name, "1")).collect();
        for (named_by, is_passed) in
            [(NamedBy::Host, true), (NamedBy::Headers, false), (NamedBy::Path("/p".to_owned()), false)]
        {
            let mut given = headers(&all);
            given.insert("refresh", HeaderValue::from_static("1"));
            clean_answer(&mut given, &named_by);
            assert_eq!(given.contains_key("clear-site-data"), is_passed, "{named_by:?}");
            let expected = if is_passed { all.len() } else { 0 };
            assert_eq!(OF_THE_ORIGIN.iter().filter(|name| given.contains_key(**name)).count(), expected);
            assert!(given.contains_key("refresh"));
        }
    }
}
