//! What a session holds of its secrets.

use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::PathAndQuery;
use hyper::body::Bytes;
use saggar_domain::net::{Destination, Refusal, Rule, Rules};
use saggar_domain::secret::{Grant, SecretName, SecretValue, Slot};
use saggar_domain::{Code, Problem};
use zeroize::Zeroizing;

use crate::http::Scheme;
use crate::secret::forms::{forms, whole_base64};
use crate::secret::scrub::Patterns;

/// Values of one session together, in bytes.
const VALUES_MAX: usize = 32 * 1024;
/// All their forms together: usually about 25 times as much. Each byte takes 24 bytes of memory.
const FORMS_MAX: usize = 1024 * 1024;

/// All secrets of a session. Dropping the last owner overwrites their values.
#[derive(Default)]
pub(crate) struct Secrets {
    held: Vec<Held>,
    rules: Vec<Rule>,
    /// The forms of all values; none without secrets.
    values: Option<Arc<Patterns>>,
}

pub(super) struct Held {
    pub name: SecretName,
    matching: Rules,
    slot: Slot,
    pub content: Content,
    /// The forms of the placeholder.
    placeholder: Patterns,
}

/// What goes into the slot.
pub(super) enum Content {
    Header(HeaderName, HeaderValue),
    Query { parameter: String, value: SecretValue },
    SigV4 { access_key_id: String, region: String, service: String, value: SecretValue },
}

/// The secrets that a request gets.
pub(crate) struct Chosen {
    secrets: Arc<Secrets>,
    /// Indices of `held`.
    which: Vec<usize>,
}

impl Secrets {
    /// A secret may be granted more than once, for several variables; it is held once.
    pub fn new(mut grants: Vec<Grant>) -> Result<Self, Problem> {
        let mut names = std::collections::BTreeSet::new();
        grants.retain(|grant| names.insert(grant.name.clone()));
        let sum: usize = grants.iter().map(|grant| grant.value.expose().len()).sum();
        if sum > VALUES_MAX {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("the values of the sandbox's secrets have {sum} bytes together, more than {VALUES_MAX}"),
                "use fewer secrets in one sandbox",
            ));
        }
        let mut all = Vec::new();
        for grant in &grants {
            all.extend(forms(grant.value.expose()));
            if let Slot::Basic { user } = grant.binding.slot() {
                all.extend(whole_base64(&Zeroizing::new(format!("{user}:{}", grant.value.expose()))));
            }
        }
        if all.iter().map(|form| form.len()).sum::<usize>() > FORMS_MAX {
            return Err(Problem::new(
                Code::InvalidValue,
                format!(
                    "the values of the sandbox's secrets have {sum} bytes together, and too many special characters to be searched for"
                ),
                "use fewer secrets in one sandbox, or shorter ones",
            ));
        }
        let forms = || all.iter().map(|form| form.as_slice());
        let values = (!all.is_empty()).then(|| Arc::new(Patterns::new(forms()).with_names(forms())));
        let rules = grants.iter().flat_map(|grant| grant.binding.rules().iter().cloned()).collect();
        let held = grants.into_iter().map(Held::new).collect::<Result<_, _>>()?;
        Ok(Self { held, rules, values })
    }

    /// A text with asterisks for placeholders, which differ in every run.
    pub fn without_placeholders(&self, text: &str) -> String {
        self.held.iter().fold(text.to_owned(), |text, held| match held.placeholder.scrubbed(text.as_bytes()) {
            Some(scrubbed) => String::from_utf8_lossy(&scrubbed).into_owned(),
            None => text,
        })
    }

    /// The rules of all bindings.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The name of the only one.
    pub fn first_name(&self) -> &SecretName {
        &self.held[0].name
    }

    /// What answers must not contain.
    pub fn values(&self) -> Option<&Arc<Patterns>> {
        self.values.as_ref()
    }

    /// The secrets for a request that is allowed. Two of them can't fill the same slot.
    pub fn choose(
        self: &Arc<Self>,
        scheme: Scheme,
        to: &Destination,
        parts: &Parts,
        is_upgrade: bool,
    ) -> Result<Chosen, Refusal> {
        let path = parts.uri.path_and_query().map_or("/", PathAndQuery::as_str);
        let is_for = |held: &Held| match is_upgrade {
            true => held.matching.upgrade(to, path).is_ok(),
            false => held.matching.request(to, parts.method.as_str(), path).is_ok(),
        };
        let which: Vec<usize> = match scheme {
            Scheme::Http => Vec::new(),
            Scheme::Https => (0..self.held.len()).filter(|index| is_for(&self.held[*index])).collect(),
        };
        for (at, index) in which.iter().enumerate() {
            let (one, others) = (&self.held[*index], &which[..at]);
            if let Some(other) = others.iter().find(|other| self.held[**other].slot.conflicts(&one.slot)) {
                return Err(Refusal::new(
                    "egress/secret-conflict",
                    format!(
                        "the secrets {} and {} fill the same slot of this request",
                        self.held[*other].name, one.name
                    ),
                    "bind them to different hosts or paths, or use only one of them in this sandbox",
                ));
            }
        }
        Ok(Chosen { secrets: Arc::clone(self), which })
    }
}

impl Held {
    fn new(grant: Grant) -> Result<Self, Problem> {
        let Grant { name, placeholder, binding, value } = grant;
        let content = match binding.slot().clone() {
            Slot::Header { name: header, prefix } => {
                let header = HeaderName::from_bytes(header.as_bytes()).map_err(|_| unusable(&name))?;
                Content::Header(header, header_value(&name, &[&prefix, value.expose()])?)
            }
            Slot::Bearer => Content::Header(AUTHORIZATION, header_value(&name, &["Bearer ", value.expose()])?),
            Slot::Basic { user } => {
                use base64::Engine as _;
                let pair = Zeroizing::new(format!("{user}:{}", value.expose()));
                let encoded = Zeroizing::new(base64::engine::general_purpose::STANDARD.encode(pair.as_bytes()));
                Content::Header(AUTHORIZATION, header_value(&name, &["Basic ", &encoded])?)
            }
            Slot::Query { parameter } => Content::Query { parameter, value },
            Slot::SigV4 { access_key_id, region, service } => Content::SigV4 { access_key_id, region, service, value },
        };
        let placeholder = Patterns::new(forms(&placeholder).iter().map(|form| form.as_slice()));
        Ok(Self { matching: binding.matching(), slot: binding.slot().clone(), name, content, placeholder })
    }

    fn is_in(&self, parts: &Parts) -> bool {
        let in_headers = |headers: &HeaderMap| headers.values().any(|value| self.placeholder.is_in(value.as_bytes()));
        let target = parts.uri.path_and_query().map_or("", PathAndQuery::as_str);
        self.placeholder.is_in(target.as_bytes()) || in_headers(&parts.headers)
    }
}

impl Chosen {
    pub fn is_empty(&self) -> bool {
        self.which.is_empty()
    }

    pub fn names(&self) -> Vec<SecretName> {
        self.held().map(|held| held.name.clone()).collect()
    }

    pub(super) fn held(&self) -> impl Iterator<Item = &Held> {
        self.which.iter().map(|index| &self.secrets.held[*index])
    }

    /// A secret whose placeholder the request has, and whose value it doesn't get.
    pub fn misplaced(&self, parts: &Parts) -> Option<&SecretName> {
        let others = self.secrets.held.iter().enumerate().filter(|(index, _)| !self.which.contains(index));
        others.map(|(_, held)| held).find(|held| held.is_in(parts)).map(|held| &held.name)
    }
}

/// Shared by all requests, and overwritten with the last of them.
fn header_value(name: &SecretName, texts: &[&str]) -> Result<HeaderValue, Problem> {
    let bytes = Zeroizing::new(texts.concat().into_bytes());
    let mut value = HeaderValue::from_maybe_shared(Bytes::from_owner(bytes)).map_err(|_invalid| unusable(name))?;
    // Not kept in the tables of HTTP/2, and not shown by `Debug`.
    value.set_sensitive(true);
    Ok(value)
}

fn unusable(name: &SecretName) -> Problem {
    Problem::new(
        Code::InvalidValue,
        format!("the secret {name} can't be put into its header"),
        "set its value again, on one line and without control characters",
    )
}
