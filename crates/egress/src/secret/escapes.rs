//! A value as JSON and HTML show it: one text for each way in which common encoders escape.
//!
//! Most values have no character that any of them escapes; then all texts are the same.

use std::fmt::Write as _;

use zeroize::Zeroizing;

use crate::secret::forms::Case;

type Text = Zeroizing<String>;

/// How an encoder of JSON escapes what it could leave as it is. `"` and `\` get a backslash unless they are among these.
struct Json {
    /// Characters that become `\u` and four digits.
    coded: &'static str,
    case: Case,
    has_coded_unicode: bool,
    has_escaped_slashes: bool,
}

const fn encoder(coded: &'static str, case: Case, has_coded_unicode: bool, has_escaped_slashes: bool) -> Json {
    Json { coded, case, has_coded_unicode, has_escaped_slashes }
}

/// All of ASCII that is neither a letter nor a digit.
const PUNCTUATION: &str = " !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";

const JSON: &[Json] = &[
    // Most; with slashes: PHP that keeps Unicode.
    encoder("", Case::Lower, false, false),
    encoder("", Case::Lower, false, true),
    // Python, PHP.
    encoder("", Case::Lower, true, false),
    encoder("", Case::Lower, true, true),
    // Go, Rails; Gson.
    encoder("<>&", Case::Lower, false, false),
    encoder("<>&'=", Case::Lower, false, false),
    // For texts that get into HTML.
    encoder("<>&'", Case::Lower, true, false),
    encoder("<>&'", Case::Lower, true, true),
    encoder("<>&'\"", Case::Upper, true, true),
    // .NET.
    encoder("<>&'\"+`", Case::Upper, true, false),
    encoder("<>&'\"+`", Case::Lower, true, false),
    encoder(PUNCTUATION, Case::Upper, true, false),
    encoder(PUNCTUATION, Case::Lower, true, false),
];

pub(super) fn json(value: &str) -> Vec<Text> {
    JSON.iter().map(|encoder| encoder.encoded(value)).collect()
}

impl Json {
    fn encoded(&self, value: &str) -> Text {
        // As much as the longest escape needs for each byte.
        let mut text = Zeroizing::new(String::with_capacity(value.len() * 6));
        for character in value.chars() {
            let is_coded = if character.is_ascii() { self.coded.contains(character) } else { self.has_coded_unicode };
            if is_coded {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    let written = match self.case {
                        Case::Upper => write!(text, "\\u{unit:04X}"),
                        Case::Lower => write!(text, "\\u{unit:04x}"),
                    };
                    written.expect("writing to a string never fails");
                }
                continue;
            }
            if matches!(character, '"' | '\\') || (character == '/' && self.has_escaped_slashes) {
                text.push('\\');
            }
            text.push(character);
        }
        text
    }
}

/// What an encoder of HTML writes for some characters; the others stay.
type Entities = &'static [(char, &'static str)];

const HTML: &[Entities] = &[
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;")],
    // Most; Python; PHP; Go, Jinja, and Go's templates.
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#39;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#x27;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#039;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;")],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&#34;"), ('\'', "&#39;"), ('+', "&#43;")],
    // XML.
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&apos;")],
    // Mustache, and as OWASP advises.
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\'', "&#39;"),
        ('/', "&#x2F;"),
        ('`', "&#x60;"),
        ('=', "&#x3D;"),
    ],
    &[('&', "&amp;"), ('<', "&lt;"), ('>', "&gt;"), ('"', "&quot;"), ('\'', "&#x27;"), ('/', "&#x2F;")],
    // Handlebars.
    &[
        ('&', "&amp;"),
        ('<', "&lt;"),
        ('>', "&gt;"),
        ('"', "&quot;"),
        ('\'', "&#x27;"),
        ('`', "&#x60;"),
        ('=', "&#x3D;"),
    ],
];

pub(super) fn html(value: &str) -> Vec<Text> {
    let named = HTML.iter().map(|entities| {
        written(value, |text, character| match entities.iter().find(|(known, _)| *known == character) {
            Some((_, entity)) => text.write_str(entity),
            None => text.write_char(character),
        })
    });
    let mut texts: Vec<Text> = named.collect();
    // All that is neither a letter nor a digit, by its number.
    let numbered: [fn(&mut Text, u32) -> std::fmt::Result; 3] = [
        |text, number| write!(text, "&#{number};"),
        |text, number| write!(text, "&#x{number:x};"),
        |text, number| write!(text, "&#x{number:X};"),
    ];
    texts.extend(numbered.iter().map(|write| {
        written(value, |text, character| match character.is_ascii_alphanumeric() {
            true => text.write_char(character),
            false => write(text, character.into()),
        })
    }));
    texts
}

fn written(value: &str, write: impl Fn(&mut Text, char) -> std::fmt::Result) -> Text {
    // The longest entity of a character of one byte has six.
    let mut text = Zeroizing::new(String::with_capacity(value.len() * 6));
    for character in value.chars() {
        write(&mut text, character).expect("writing to a string never fails");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(encoded: &[Text], shown: &str) {
        assert!(encoded.iter().any(|text| text.as_str() == shown), "{shown}");
    }

    #[test]
    fn json_is_recognised_as_usual_encoders_write_it() {
        let value = "a+b/c<&>=\"é\"";
        for shown in [
            r#"a+b/c<&>=\"é\""#,
            r#"a+b\/c<&>=\"\u00e9\""#,
            r#"a+b/c\u003c\u0026\u003e=\"é\""#,
            r#"a+b/c\u003c\u0026\u003e\u003d\"é\""#,
            r"a\u002Bb/c\u003C\u0026\u003E=\u0022\u00E9\u0022",
            r"a\u002bb/c\u003c\u0026\u003e=\u0022\u00e9\u0022",
            r"a\u002Bb\u002Fc\u003C\u0026\u003E\u003D\u0022\u00E9\u0022",
        ] {
            check(&json(value), shown);
        }
    }

    #[test]
    fn html_is_recognised_as_usual_encoders_write_it() {
        let value = "a+b/c<&>='\"";
        for shown in [
            "a+b/c&lt;&amp;&gt;='\"",
            "a+b/c&lt;&amp;&gt;=&#39;&quot;",
            "a+b/c&lt;&amp;&gt;=&#x27;&quot;",
            "a&#43;b/c&lt;&amp;&gt;=&#39;&#34;",
            "a+b&#x2F;c&lt;&amp;&gt;&#x3D;&#39;&quot;",
            "a+b/c&lt;&amp;&gt;&#x3D;&#x27;&quot;",
            "a&#43;b&#47;c&#60;&#38;&#62;&#61;&#39;&#34;",
            "a&#x2b;b&#x2f;c&#x3c;&#x26;&#x3e;&#x3d;&#x27;&#x22;",
            "a&#x2B;b&#x2F;c&#x3C;&#x26;&#x3E;&#x3D;&#x27;&#x22;",
        ] {
            check(&html(value), shown);
        }
    }
}
