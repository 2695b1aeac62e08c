//! What a registry asks for before it answers: `WWW-Authenticate: Bearer realm="…",service="…",scope="…"`, or `Basic`.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Challenge {
    Basic,
    Bearer { realm: String, service: Option<String>, scope: Option<String> },
}

impl Challenge {
    /// `None` for anything else.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once(' ').unwrap_or((text, ""));
        if scheme.eq_ignore_ascii_case("basic") {
            return Some(Self::Basic);
        }
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let (mut realm, mut service, mut scope) = (None, None, None);
        let mut rest = rest.trim();
        while !rest.is_empty() {
            let (name, value, tail) = parameter(rest)?;
            match name.to_ascii_lowercase().as_str() {
                "realm" => realm = Some(value),
                "service" => service = Some(value),
                "scope" => scope = Some(value),
                _ => {}
            }
            rest = tail.trim_start();
            rest = match rest.strip_prefix(',') {
                Some(more) => more.trim_start(),
                None if rest.is_empty() => rest,
                None => return None,
            };
        }
        Some(Self::Bearer { realm: realm?, service, scope })
    }
}

/// `name="value"` or `name=value`, and what follows.
fn parameter(text: &str) -> Option<(&str, String, &str)> {
    let (name, rest) = text.split_once('=')?;
    let Some(quoted) = rest.strip_prefix('"') else {
        let end = rest.find([',', ' ']).unwrap_or(rest.len());
        return Some((name.trim(), rest[..end].to_owned(), &rest[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((name.trim(), value, &quoted[at + 1..])),
            '\\' => value.push(characters.next()?.1),
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_by_their_parameters() {
        let bearer = |realm: &str, service: Option<&str>, scope: Option<&str>| {
            Some(Challenge::Bearer {
                realm: realm.into(),
                service: service.map(Into::into),
                scope: scope.map(Into::into),
            })
        };
        for (text, expected) in [
            (
                r#"Bearer realm="https://a.b/t",service="r",scope="repository:x:pull,push""#,
                bearer("https://a.b/t", Some("r"), Some("repository:x:pull,push")),
            ),
            (r#"bearer realm=x, error="a\"b""#, bearer("x", None, None)),
            (r#"Basic realm="x""#, Some(Challenge::Basic)),
            ("basic", Some(Challenge::Basic)),
            ("Bearer", None),
            (r#"Bearer realm="x"#, None),
            (r#"Bearer realm="x" service"#, None),
            ("Digest realm=x", None),
        ] {
            assert_eq!(Challenge::parse(text), expected, "{text}");
        }
    }
}
