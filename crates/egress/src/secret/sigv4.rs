//! AWS Signature Version 4, in the `Authorization` header.
//!
//! Whatever the program has signed with its placeholder is replaced. Signed are the host, the content type and all `x-amz-`
//! headers, which is what AWS asks for.

use hmac::{Hmac, Mac as _};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use time::OffsetDateTime;
use zeroize::Zeroizing;

use crate::http::headers;
use crate::secret::fill::{decoded, encoded_but, path_and_query, replace_target, without_parameters};

const ALGORITHM: &str = "AWS4-HMAC-SHA256";
const DATE: HeaderName = HeaderName::from_static("x-amz-date");
const TOKEN: HeaderName = HeaderName::from_static("x-amz-security-token");
pub(super) const CONTENT_HASH: HeaderName = HeaderName::from_static("x-amz-content-sha256");
const CONTENT_MD5: HeaderName = HeaderName::from_static("content-md5");
/// S3 takes paths as they are.
pub(super) const S3: &str = "s3";
const UNRESERVED: &[u8] = b"-._~";

#[derive(Clone, Copy)]
pub(super) struct Scope<'a> {
    pub access_key_id: &'a str,
    pub region: &'a str,
    pub service: &'a str,
}

/// Removes everything by which the program has signed the request: headers, and the query of a presigned URL.
pub(super) fn strip(parts: &mut Parts) {
    headers::remove_folded(&mut parts.headers, |name| [AUTHORIZATION, DATE, TOKEN].iter().any(|meant| meant == name));
    let (path, query) = path_and_query(parts);
    let is_signature = |name: &[u8]| {
        let folded = name.iter().map(|byte| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() });
        SIGNATURE_PARAMETERS.contains(&folded.collect::<Vec<u8>>().as_slice())
    };
    let kept = without_parameters(&query, is_signature);
    if kept.len() != query.len() {
        let target = if kept.is_empty() { path } else { format!("{path}?{kept}") };
        // A part of what was a path and a query is one, too.
        let is_replaced = replace_target(parts, &target);
        debug_assert!(is_replaced, "a part of a query");
    }
}

const SIGNATURE_PARAMETERS: &[&[u8]] = &[
    b"x-amz-algorithm",
    b"x-amz-credential",
    b"x-amz-date",
    b"x-amz-expires",
    b"x-amz-security-token",
    b"x-amz-signature",
    b"x-amz-signedheaders",
];

/// Signs a request whose body has this hash, or one of the words that stand for one. `None` if its head can't be signed.
pub(super) fn sign(
    parts: &mut Parts,
    authority: &HeaderValue,
    scope: &Scope<'_>,
    key: &str,
    payload_hash: &str,
    now: OffsetDateTime,
) -> Option<()> {
    let time = stamp(now);
    parts.headers.insert(DATE, HeaderValue::from_str(&time).ok()?);
    let mut headers = vec![("host".to_owned(), authority.to_str().ok()?.to_owned())];
    for name in parts.headers.keys().filter(|name| is_signed(name)) {
        headers.push((name.as_str().to_owned(), joined(&parts.headers, name)?));
    }
    headers.sort_unstable();
    let (path, query) = path_and_query(parts);
    let request = Canonical {
        method: parts.method.as_str(),
        path: &canonical_path(&path, scope.service),
        query: &canonical_query(&query),
        headers: &headers,
        payload_hash,
    };
    let mut value = HeaderValue::from_str(&request.authorization(scope, key, &time)).ok()?;
    value.set_sensitive(true);
    parts.headers.insert(AUTHORIZATION, value);
    Some(())
}

fn is_signed(name: &HeaderName) -> bool {
    name.as_str().starts_with("x-amz-") || [CONTENT_TYPE, CONTENT_MD5].contains(name)
}

struct Canonical<'a> {
    method: &'a str,
    path: &'a str,
    query: &'a str,
    /// Sorted by name.
    headers: &'a [(String, String)],
    payload_hash: &'a str,
}

impl Canonical<'_> {
    fn authorization(&self, scope: &Scope<'_>, key: &str, time: &str) -> String {
        let Scope { access_key_id, region, service } = scope;
        let date = &time[..8];
        let names: Vec<&str> = self.headers.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(";");
        let scope = format!("{date}/{region}/{service}/aws4_request");
        let text = format!("{ALGORITHM}\n{time}\n{scope}\n{}", hex(&Sha256::digest(self.text(&names))));
        let key = Zeroizing::new(format!("AWS4{key}"));
        let key = [date, region, service, "aws4_request"]
            .iter()
            .fold(Zeroizing::new(key.as_bytes().to_vec()), |key, part| Zeroizing::new(mac(&key, part.as_bytes())));
        let signature = hex(&mac(&key, text.as_bytes()));
        format!("{ALGORITHM} Credential={access_key_id}/{scope}, SignedHeaders={names}, Signature={signature}")
    }

    fn text(&self, names: &str) -> String {
        let mut text = format!("{}\n{}\n{}\n", self.method, self.path, self.query);
        for (name, value) in self.headers {
            writeln!(text, "{name}:{value}").expect("writing to a string never fails");
        }
        write!(text, "\n{names}\n{}", self.payload_hash).expect("writing to a string never fails");
        text
    }
}

/// All values of a header, with spaces reduced.
fn joined(headers: &HeaderMap, name: &HeaderName) -> Option<String> {
    let values: Option<Vec<String>> = headers
        .get_all(name)
        .iter()
        .map(|value| Some(value.to_str().ok()?.split_ascii_whitespace().collect::<Vec<_>>().join(" ")))
        .collect();
    Some(values?.join(","))
}

/// For S3, each segment encoded once. For others, without dot segments and empty ones, and encoded as it is: once more than on
/// the wire.
fn canonical_path(path: &str, service: &str) -> String {
    if service == S3 {
        let segments: Vec<String> = path
            .split('/')
            // A plus in a path is a plus.
            .map(|segment| encoded_but(&decoded(&segment.replace('+', "%2B")), UNRESERVED).to_string())
            .collect();
        return segments.join("/");
    }
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let ends_with_slash = path.ends_with('/') || path.ends_with("/.") || path.ends_with("/..");
    let mut canonical = String::new();
    for segment in segments {
        canonical.push('/');
        canonical.push_str(&encoded_but(segment.as_bytes(), UNRESERVED));
    }
    if ends_with_slash || canonical.is_empty() {
        canonical.push('/');
    }
    canonical
}

fn canonical_query(query: &str) -> String {
    let mut pairs: Vec<(String, String)> = query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            // A plus in a query is a plus, as far as the signature goes.
            let again = |text: &str| encoded_but(&decoded(&text.replace('+', "%2B")), UNRESERVED).to_string();
            (again(name), again(value))
        })
        .collect();
    pairs.sort_unstable();
    let pairs: Vec<String> = pairs.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    pairs.join("&")
}

pub(super) fn hash(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn mac(key: &[u8], text: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length");
    mac.update(text);
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        write!(text, "{byte:02x}").expect("writing to a string never fails");
    }
    text
}

fn stamp(now: OffsetDateTime) -> String {
    let (date, time) = (now.date(), now.time());
    format!(
        "{:04}{:02}{:02}T{:02}{:02}{:02}Z",
        date.year(),
        u8::from(date.month()),
        date.day(),
        time.hour(),
        time.minute(),
        time.second()
    )
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    /// From AWS's own test suite for signatures, and its documentation of S3.
    const SUITE: (&str, Scope<'_>) = (
        "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        Scope { access_key_id: "AKIDEXAMPLE", region: "us-east-1", service: "service" },
    );
    const DOCUMENTED: (&str, Scope<'_>) = (
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        Scope { access_key_id: "AKIAIOSFODNN7EXAMPLE", region: "us-east-1", service: "s3" },
    );
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn check(of: (&str, Scope<'_>), time: &str, request: &str, headers: &[(&str, &str)], hash: &str, expected: &str) {
        let (method, target) = request.split_once(' ').unwrap();
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let headers: Vec<_> = headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let canonical = Canonical {
            method,
            path: &canonical_path(path, of.1.service),
            query: &canonical_query(query),
            headers: &headers,
            payload_hash: hash,
        };
        let found = canonical.authorization(&of.1, of.0, time);
        assert!(found.ends_with(&format!("Signature={expected}")), "{request}: {found}");
    }

    #[test]
    fn signatures_are_those_of_awss_test_suite() {
        let headers = &[("host", "example.amazonaws.com"), ("x-amz-date", "20150830T123600Z")];
        for (request, expected) in [
            ("GET /", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("GET /./", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("GET /example/..", "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"),
            ("GET /ሴ", "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"),
            ("GET /example space/", "652487583200325589f1fba4c7e578f72c47cb61beeca81406b39ddec1366741"),
            ("GET /?Param2=value2&Param1=value1", "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"),
            (
                "GET /?Param-3=Value3&Param=Value2&%E1%88%B4=Value1",
                "371d3713e185cc334048618a97f809c9ffe339c62934c032af5a0e595648fcac",
            ),
        ] {
            check(SUITE, "20150830T123600Z", request, headers, EMPTY, expected);
        }
        let form = "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e";
        check(
            SUITE,
            "20150830T123600Z",
            "POST /",
            &[
                ("content-length", "13"),
                ("content-type", "application/x-www-form-urlencoded"),
                ("host", "example.amazonaws.com"),
                ("x-amz-content-sha256", form),
                ("x-amz-date", "20150830T123600Z"),
            ],
            &hash(b"Param1=value1"),
            "d3875051da38690788ef43de4db0d8f280229d82040bfac253562e56c3f20e0b",
        );
        check(
            SUITE,
            "20150830T123600Z",
            "GET /",
            &[
                ("host", "example.amazonaws.com"),
                ("my-header1", "value1"),
                ("my-header2", "\"a b c\""),
                ("x-amz-date", "20150830T123600Z"),
            ],
            EMPTY,
            "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736",
        );
    }

    #[test]
    fn signatures_are_those_of_s3s_documentation() {
        let host = ("host", "examplebucket.s3.amazonaws.com");
        let (empty, date) = (("x-amz-content-sha256", EMPTY), ("x-amz-date", "20130524T000000Z"));
        for (request, headers, expected) in [
            (
                "GET /test.txt",
                vec![host, ("range", "bytes=0-9"), empty, date],
                "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
            ),
            (
                "GET /?lifecycle",
                vec![host, empty, date],
                "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
            ),
            (
                "GET /?max-keys=2&prefix=J",
                vec![host, empty, date],
                "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
            ),
        ] {
            check(DOCUMENTED, "20130524T000000Z", request, &headers, EMPTY, expected);
        }
        let welcome = hash(b"Welcome to Amazon S3.");
        check(
            DOCUMENTED,
            "20130524T000000Z",
            "PUT /test%24file.text",
            &[
                ("date", "Fri, 24 May 2013 00:00:00 GMT"),
                host,
                ("x-amz-content-sha256", &welcome),
                date,
                ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
            ],
            &welcome,
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        );
    }

    #[test]
    fn whatever_a_program_signed_with_is_replaced() {
        let target = "/b/k?x-id=GetObject&X-Amz-Signature=ab&x%2Damz-credential=c&X-Amz-Date=1&X-Amz-Expires=1&\
                      X_Amz_Security_Token=t;X-Amz-SignedHeaders=h";
        let (mut parts, ()) = Request::builder()
            .uri(target)
            .header("authorization", "AWS4-HMAC-SHA256 Credential=mine")
            .header("x-amz-date", "20200101T000000Z")
            .header("x-amz-security-token", "mine")
            .header("x_amz_security_token", "mine")
            .header("x-amz-acl", "private")
            .body(())
            .unwrap()
            .into_parts();
        strip(&mut parts);
        assert_eq!(parts.uri, "/b/k?x-id=GetObject");
        let now = OffsetDateTime::from_unix_timestamp(1_440_938_160).unwrap();
        let host = HeaderValue::from_static("b.s3.test");
        sign(&mut parts, &host, &DOCUMENTED.1, DOCUMENTED.0, EMPTY, now).unwrap();
        assert_eq!(parts.headers["x-amz-date"], "20150830T123600Z");
        for name in ["x-amz-security-token", "x_amz_security_token"] {
            assert!(!parts.headers.contains_key(name), "{name}");
        }
        let signed = parts.headers["authorization"].to_str().unwrap();
        assert!(signed.contains("SignedHeaders=host;x-amz-acl;x-amz-date,"), "{signed}");
        assert!(!signed.contains(DOCUMENTED.0));
    }
}
