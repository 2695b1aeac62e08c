//! Methods of requests. A rule lists only known ones, so that a typing error can't become a rule that never matches.

/// What an upgrade is decided as, beside GET. Not a method of HTTP: a request that uses it is refused.
pub(super) const WEBSOCKET: &str = "WEBSOCKET";

/// In the order in which rules list them.
const KNOWN: &[&str] = &[
    "GET",
    "HEAD",
    "OPTIONS",
    "POST",
    "PUT",
    "PATCH",
    "DELETE",
    "QUERY",
    "PURGE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "REPORT",
    "SEARCH",
    WEBSOCKET,
];

/// Maximum length of a request's method, in bytes.
const METHOD_LEN_MAX: usize = 32;

/// The methods of a rule: each once, in a fixed order.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Methods(Vec<&'static str>);

impl Methods {
    /// Parses `GET,POST`. An error says what to write.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut asked = Vec::new();
        for name in text.split(',') {
            let upper = name.to_ascii_uppercase();
            match KNOWN.iter().position(|known| *known == upper) {
                Some(index) if name == upper => asked.push(index),
                Some(_) => return Err(format!("methods are written in capitals: write {upper}")),
                None if name == "*" => return Err("leave the method out to mean every method".to_owned()),
                None if matches!(upper.as_str(), "CONNECT" | "TRACE" | "TRACK") => {
                    return Err(format!("{upper} is never allowed"));
                }
                None if name.is_empty() => return Err("write methods as GET,POST, without spaces".to_owned()),
                None => return Err(format!("{name:?} is not a method: use {}", KNOWN.join(", "))),
            }
        }
        asked.sort_unstable();
        asked.dedup();
        Ok(Self(asked.into_iter().map(|index| KNOWN[index]).collect()))
    }

    /// Whether every method matches, because none is listed.
    pub(super) fn is_every(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn matches_strictly(&self, method: &str) -> bool {
        self.is_every() || self.0.contains(&method)
    }

    /// Ignores case, as some servers do.
    pub(super) fn matches_loosely(&self, method: &str) -> bool {
        self.is_every() || self.0.iter().any(|known| known.eq_ignore_ascii_case(method))
    }

    pub(super) fn joined(&self) -> String {
        self.0.join(",")
    }
}

/// Why a method can't be decided about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// TRACE and TRACK return the request, with the credentials that were added to it.
    Never,
    Upgrade,
    Long,
    Malformed,
}

/// Whether a method can be decided at all.
pub(super) fn check(method: &str) -> Result<(), Unusable> {
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    match () {
        () if method.len() > METHOD_LEN_MAX => Err(Unusable::Long),
        () if method.is_empty() || !method.bytes().all(is_token) => Err(Unusable::Malformed),
        () if ["CONNECT", "TRACE", "TRACK"].iter().any(|never| never.eq_ignore_ascii_case(method)) => {
            Err(Unusable::Never)
        }
        () if WEBSOCKET.eq_ignore_ascii_case(method) => Err(Unusable::Upgrade),
        () => Ok(()),
    }
}
