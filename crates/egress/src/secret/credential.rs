//! One secret for the requests of this process itself: put into its slot by the rules of its binding, and removed from
//! answers. Not for AWS signatures, which need the hash of the body.

use std::sync::Arc;

use http::Request;
use saggar_domain::Problem;
use saggar_domain::net::Refusal;
use saggar_domain::secret::{Grant, SecretName};

use super::fill::put;
use super::held::{Content, Secrets};
use super::scrub::{Patterns, Scrubber};
use crate::http::Scheme;
use crate::outside::{HttpAddress, Security};

pub struct Credential(Arc<Secrets>);

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credential").finish_non_exhaustive()
    }
}

impl Credential {
    pub fn new(grant: Grant) -> Result<Self, Problem> {
        Secrets::new(vec![grant]).map(|secrets| Self(Arc::new(secrets)))
    }

    pub fn name(&self) -> &SecretName {
        self.0.first_name()
    }

    /// The same request with the value in its slot. Refused unless the binding allows this request, and over TLS.
    pub fn put<B>(&self, address: &HttpAddress, request: Request<B>) -> Result<Request<B>, Refusal> {
        let refuse = |message: String, help: &str| Refusal::new("egress/secret-unbound", message, help);
        let scheme = match address.security() {
            Security::Plain => Scheme::Http,
            Security::Tls => Scheme::Https,
        };
        let (mut parts, body) = request.into_parts();
        let chosen = self.0.choose(scheme, address.to(), &parts, false)?;
        let Some(held) = chosen.held().next() else {
            let names = self.name();
            return Err(match scheme {
                Scheme::Http => refuse(
                    format!("the secret {names} would be sent unencrypted to {}", address.to()),
                    "use an https:// URL",
                ),
                Scheme::Https => refuse(
                    format!("the secret {names} is not bound to this request to {}", address.to()),
                    "add a rule for it to the secret's binding",
                ),
            });
        };
        if matches!(held.content, Content::SigV4 { .. }) || !put(held, &mut parts) {
            return Err(refuse(
                format!("the secret {} has a slot that this request can't have", held.name),
                "bind it as `bearer`, `basic`, a header or a query parameter",
            ));
        }
        Ok(Request::from_parts(parts, body))
    }

    /// Removes the value from an answer.
    pub fn scrubber(&self) -> Option<Scrubber> {
        self.0.values().cloned().map(Scrubber::new)
    }

    pub fn patterns(&self) -> Option<&Arc<Patterns>> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(slot: &str) -> Credential {
        let json = format!(
            r#"{{"name":"orders","placeholder":"saggar-00000000","binding":{{"rules":["GET api.example.com/v1/**"],"slot":{slot}}},"value":"canary-value"}}"#
        );
        Credential::new(serde_json::from_str(&json).unwrap()).unwrap()
    }

    fn put_into(credential: &Credential, url: &str, method: &str) -> Result<Request<()>, Refusal> {
        let address = HttpAddress::parse(url).unwrap();
        let request = Request::builder().method(method).uri(address.target()).header("authorization", "own");
        credential.put(&address, request.body(()).unwrap())
    }

    #[test]
    fn a_value_goes_into_its_slot_and_only_where_it_is_bound() {
        let url = "https://api.example.com/v1/items?a=1";
        let bearer = put_into(&credential("\"bearer\""), url, "GET").unwrap();
        assert_eq!(bearer.headers()["authorization"], "Bearer canary-value");
        assert_eq!(bearer.headers().get_all("authorization").iter().count(), 1, "in place of another one");
        let query = put_into(&credential(r#"{"query":{"parameter":"key"}}"#), url, "GET").unwrap();
        assert_eq!(query.uri().to_string(), "/v1/items?a=1&key=canary-value");
        for (url, method, why) in [
            ("http://api.example.com/v1/items", "GET", "unencrypted"),
            ("https://api.example.com/v2/items", "GET", "not bound"),
            ("https://evil.example.com/v1/items", "GET", "not bound"),
            ("https://api.example.com/v1/items", "POST", "not bound"),
        ] {
            let refusal = put_into(&credential("\"bearer\""), url, method).unwrap_err();
            assert!(refusal.message.contains(why) && refusal.message.contains("orders"), "{refusal:?}");
            assert!(!format!("{refusal:?}").contains("canary"));
        }
        let aws = r#"{"sigv4":{"access_key_id":"AKIDEXAMPLE","region":"eu-central-1","service":"s3"}}"#;
        assert!(put_into(&credential(aws), url, "GET").unwrap_err().message.contains("a slot that"));
    }

    #[test]
    fn a_value_that_comes_back_is_removed() {
        let mut scrubber = credential("\"bearer\"").scrubber().unwrap();
        let mut answer = scrubber.push("you sent canary-".into()).to_vec();
        answer.extend(scrubber.push("value and more".into()));
        answer.extend(scrubber.finish());
        assert_eq!(String::from_utf8(answer).unwrap(), "you sent ************ and more");
    }
}
