//! The client of one registry for one repository.

use std::cell::RefCell;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use saggar_domain::net::{AddressClass, parse_authority};
use saggar_domain::template::ContentDigest;
use saggar_domain::{Code, Problem};
use serde::Deserialize;
use zeroize::Zeroizing;

use super::challenge::Challenge;
use super::dial::{Connection, Reach};
use super::http::{Answer, get};
use super::pace::Paced;
use super::trust::Trust;
use super::url::{Url, escaped};
use super::{Credentials, RegistryOptions};
use crate::blob::{Bytes, Checked, Promise, problem_of};
use crate::document::{DOCUMENT_BYTES_MAX, accepted, read};
use crate::failure::{refused, shown};
use crate::source::{Blobs, RegistryReference, Version};

const REDIRECTS_MAX: usize = 5;
/// Maximum size of a token service's answer.
const TOKEN_BYTES_MAX: u64 = 256 << 10;
const ANY: &str = "*/*";

pub(crate) struct Registry {
    /// Of the repository, with nothing after it.
    base: Url,
    repository: String,
    options: RegistryOptions,
    trust: Option<Trust>,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// The value of the header that the registry accepted last.
    authorization: Option<Zeroizing<String>>,
    is_special: bool,
}

impl Registry {
    pub(crate) fn new(reference: &RegistryReference, options: &RegistryOptions) -> Result<Self, Problem> {
        let is_tls = !options.is_plain_http;
        let target = format!("/v2/{}", reference.repository());
        Ok(Self {
            base: Url::new(is_tls, reference.host(), reference.port(), target),
            repository: reference.repository().to_owned(),
            options: options.clone(),
            trust: if is_tls { Some(Trust::of_the_host()?) } else { None },
            state: RefCell::default(),
        })
    }

    /// A manifest or an index, by a tag or a digest. A digest is compared.
    pub(crate) fn manifest(&self, version: &Version) -> Result<Vec<u8>, Problem> {
        let answer = self.fetch(&format!("manifests/{version}"), &accepted())?;
        let mut document = Vec::new();
        answer.body.take(DOCUMENT_BYTES_MAX + 1).read_to_end(&mut document).map_err(problem_of)?;
        if document.len() as u64 > DOCUMENT_BYTES_MAX {
            return Err(refused(
                format!("the image's manifest is larger than {DOCUMENT_BYTES_MAX} bytes"),
                "the image is malformed or hostile: don't use it, or build it anew",
            ));
        }
        match version {
            Version::Digest(digest) if ContentDigest::of(&document) != *digest => Err(refused(
                format!("the registry answered with another manifest than {digest}"),
                "try again; if it stays like this, don't trust this registry",
            )),
            _ => Ok(document),
        }
    }

    /// Fetches something of the repository, with a token if the registry asks for one, and follows redirects.
    fn fetch(&self, part: &str, accept: &str) -> Result<Answer, Problem> {
        let url = Url { target: format!("{}/{part}", self.base.target), ..self.base.clone() };
        let authorization = self.state.borrow().authorization.clone();
        let mut answer = self.request(&url, accept, authorization.as_ref())?;
        if answer.status == 401 {
            let authorization = self.authorize(&answer)?;
            answer = self.request(&url, accept, Some(&authorization))?;
            self.state.borrow_mut().authorization = Some(authorization);
        }
        let mut at = url;
        for _ in 0..REDIRECTS_MAX {
            match answer.status {
                200 => return Ok(answer),
                301 | 302 | 303 | 307 | 308 => {
                    at = self.redirected(&at, &answer)?;
                    let own = self.state.borrow().authorization.clone().filter(|_| at.is_same_server(&self.base));
                    answer = self.request(&at, accept, own.as_ref())?;
                }
                status => return Err(self.denied(part, status)),
            }
        }
        if answer.status == 200 { Ok(answer) } else { Err(self.misled("redirects more than five times")) }
    }

    fn redirected(&self, from: &Url, answer: &Answer) -> Result<Url, Problem> {
        let location = answer.header("location").unwrap_or_default();
        let to = from.joined(location).ok_or_else(|| {
            self.misled(&format!("redirects to {}, which is no web address", shown(location.as_bytes())))
        })?;
        if self.base.is_tls && !to.is_tls {
            return Err(self.misled(&format!("redirects to {} without TLS", to.authority())));
        }
        Ok(to)
    }

    /// The value of the header that answers a challenge.
    fn authorize(&self, answer: &Answer) -> Result<Zeroizing<String>, Problem> {
        let challenges: Vec<Challenge> = answer.headers("www-authenticate").filter_map(Challenge::parse).collect();
        let bearer = challenges.iter().find(|challenge| matches!(challenge, Challenge::Bearer { .. }));
        match bearer.or(challenges.first()) {
            Some(Challenge::Bearer { realm, service, scope }) => {
                let token = self.token(realm, service.as_deref(), scope.as_deref())?;
                Ok(Zeroizing::new(format!("Bearer {}", token.as_str())))
            }
            Some(Challenge::Basic) => match self.credentials_for(&self.base)? {
                Some(credentials) => Ok(basic(credentials)),
                None => Err(self.denied("", 401)),
            },
            None => Err(self.misled("asks for credentials in a way that isn't known")),
        }
    }

    /// The credentials, for a server that asks for them. Those that are not for it are an error, not left out: without them the answer would
    /// be that access is refused.
    fn credentials_for(&self, to: &Url) -> Result<Option<&Credentials>, Problem> {
        let Some(credentials) = &self.options.credentials else { return Ok(None) };
        let Some(binding) = &credentials.bound_to else { return Ok(Some(credentials)) };
        let path = to.target.split('?').next().unwrap_or_default();
        let to_whom = parse_authority(to.authority().as_bytes(), Some(to.port));
        let is_bound = to.is_tls && to_whom.is_ok_and(|to| binding.matching().request(&to, "GET", path).is_ok());
        if is_bound {
            return Ok(Some(credentials));
        }
        let why = if to.is_tls { "not bound to it" } else { "never sent without TLS" };
        Err(Problem::new(
            Code::InvalidValue,
            format!(
                "{} asks for the credentials of {}, and the secret is {why}",
                to.authority(),
                self.base.authority()
            ),
            "bind the secret to the registry's host, and to the host of its token service",
        ))
    }

    fn token(&self, realm: &str, service: Option<&str>, scope: Option<&str>) -> Result<Zeroizing<String>, Problem> {
        #[derive(Deserialize)]
        struct Token {
            token: Option<String>,
            access_token: Option<String>,
        }
        let wrong = |why: &str| self.misled(&format!("names a token service that {why}: {}", shown(realm.as_bytes())));
        let mut url = Url::parse(realm).ok_or_else(|| wrong("is no web address"))?;
        if !url.is_tls && !url.is_same_server(&Url { target: url.target.clone(), ..self.base.clone() }) {
            return Err(wrong("has no TLS"));
        }
        let default = format!("repository:{}:pull", self.repository);
        let mut query = format!("scope={}", escaped(scope.unwrap_or(&default)));
        if let Some(service) = service {
            query.push_str(&format!("&service={}", escaped(service)));
        }
        let separator = if url.target.contains('?') { '&' } else { '?' };
        url.target.push(separator);
        url.target.push_str(&query);
        let answer = self.request(&url, ANY, self.credentials_for(&url)?.map(basic).as_ref())?;
        if answer.status != 200 {
            return Err(self.denied("", answer.status));
        }
        let mut document = Zeroizing::new(Vec::new());
        answer.body.take(TOKEN_BYTES_MAX).read_to_end(&mut document).map_err(problem_of)?;
        let Token { token, access_token } = read(&document, "token")?;
        let token = token.or(access_token).map(Zeroizing::new).ok_or_else(|| wrong("answers without a token"))?;
        // It becomes part of a header.
        if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(wrong("answers with a token that can't be sent"));
        }
        Ok(token)
    }

    fn request(&self, url: &Url, accept: &str, authorization: Option<&Zeroizing<String>>) -> Result<Answer, Problem> {
        let is_own = url.is_same_server(&self.base);
        let is_registry_special = self.state.borrow().is_special;
        let reach = if is_own { Reach::Named } else { Reach::Led { is_registry_special } };
        let dialled = self.options.dialer.dial(&url.host, url.port, reach)?;
        if is_own {
            self.state.borrow_mut().is_special = dialled.class.is_some();
        }
        // Below TLS, so that its handshake counts too.
        let paced = Box::new(Paced::new(dialled.connection, self.options.pace));
        let connection: Box<dyn Connection> = if url.is_tls {
            let trust = match &self.trust {
                Some(trust) => trust.clone(),
                None => Trust::of_the_host()?,
            };
            trust.wrap(paced, &url.host)?
        } else if dialled.class == Some(AddressClass::Loopback) {
            paced
        } else {
            return Err(Problem::new(
                Code::InvalidValue,
                format!("{} is not on a loopback address, so it is not used without TLS", url.authority()),
                "leave out --plain-http, or copy the image with a tool that you trust the network with",
            ));
        };
        get(connection, url, accept, authorization)
    }

    fn denied(&self, part: &str, status: u16) -> Problem {
        let registry = self.base.authority();
        let repository = &self.repository;
        match status {
            401 | 403 => Problem::new(
                Code::InvalidImage,
                format!("the registry {registry} refuses access to {repository} (status {status})"),
                "give credentials with --username and --password-stdin, or check that the repository exists",
            ),
            404 => Problem::new(
                Code::InvalidImage,
                format!("the registry {registry} has no {part} of {repository}"),
                "check the repository and the tag",
            ),
            429 => Problem::new(
                Code::Stream,
                format!("the registry {registry} limits how often it is asked (status 429)"),
                "wait and try again, or give credentials with --username and --password-stdin",
            ),
            _ => Problem::new(
                Code::Stream,
                format!("the registry {registry} failed to answer with {part} of {repository} (status {status})"),
                "try again later",
            ),
        }
    }

    fn misled(&self, what: &str) -> Problem {
        refused(format!("the registry {} {what}", self.base.authority()), "check the registry's name, or don't use it")
    }
}

impl Blobs for Registry {
    fn open(&self, promise: &Promise) -> Result<Bytes, Problem> {
        let answer = self.fetch(&format!("blobs/{}", promise.digest), ANY)?;
        Ok(Box::new(Checked::new(Box::new(answer.body), promise.clone())))
    }

    fn open_manifest(&self, promise: &Promise) -> Result<Bytes, Problem> {
        let document = self.manifest(&Version::Digest(promise.digest.clone()))?;
        Ok(Box::new(std::io::Cursor::new(document)))
    }
}

fn basic(credentials: &Credentials) -> Zeroizing<String> {
    let pair = Zeroizing::new(format!("{}:{}", credentials.username, credentials.password.as_str()));
    Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;
    use std::sync::{Arc, Mutex};

    use super::super::dial::{Dial, Dialled};
    use super::*;

    /// Finds every host at an address of one class, and remembers what was allowed.
    struct Recorder {
        class: Option<AddressClass>,
        asked: Mutex<Vec<Reach>>,
    }

    impl Dial for Recorder {
        fn dial(&self, _host: &str, _port: u16, reach: Reach) -> Result<Dialled, Problem> {
            self.asked.lock().expect("no thread of a test panics").push(reach);
            Ok(Dialled { connection: Box::new(Cursor::new(Vec::new())), class: self.class })
        }
    }

    #[test]
    fn a_secret_goes_only_where_it_is_bound_to_and_only_over_tls() {
        let binding = r#"{"rules": ["registry.example/v2/team/**", "auth.example:8443"], "slot": "bearer"}"#;
        let credentials = Credentials {
            username: "me".to_owned(),
            password: Zeroizing::new("canary".to_owned()),
            bound_to: Some(serde_json::from_str(binding).unwrap()),
        };
        let options = RegistryOptions { credentials: Some(credentials), ..RegistryOptions::default() };
        let reference = RegistryReference::parse("registry.example/team/app:1").unwrap();
        let registry = Registry::new(&reference, &options).unwrap();
        for (url, is_bound) in [
            ("https://registry.example/v2/team/app/manifests/1", true),
            ("https://auth.example:8443/token?scope=x", true),
            ("http://registry.example/v2/team/app", false),
            ("https://registry.example/v2/other/app", false),
            ("https://registry.example:444/v2/team/app", false),
            ("https://auth.example/token", false),
            ("https://evil.example/v2/team/app", false),
        ] {
            let found = registry.credentials_for(&Url::parse(url).unwrap());
            assert_eq!(found.is_ok(), is_bound, "{url}");
            let shown = found.map(|_| ()).map_err(|problem| format!("{} {}", problem.message, problem.help));
            assert!(!format!("{shown:?}").contains("canary"), "{url}");
        }
        assert!(registry.credentials_for(&registry.base).unwrap().is_some());
    }

    #[test]
    fn the_dialer_is_told_where_the_registry_is() {
        for (class, is_registry_special) in
            [(None, false), (Some(AddressClass::Private), true), (Some(AddressClass::Loopback), true)]
        {
            let dialer = Arc::new(Recorder { class, asked: Mutex::default() });
            let options = RegistryOptions { is_plain_http: true, dialer: dialer.clone(), ..RegistryOptions::default() };
            let reference = RegistryReference::parse("registry.example/team/app:1").unwrap();
            let registry = Registry::new(&reference, &options).unwrap();
            let elsewhere = Url::parse("http://elsewhere.example/").unwrap();
            for url in [&registry.base, &elsewhere] {
                // Nobody answers, and without TLS only loopback is used.
                assert!(registry.request(url, ANY, None).is_err());
            }
            let asked = dialer.asked.lock().unwrap().clone();
            assert_eq!(asked, [Reach::Named, Reach::Led { is_registry_special }], "{class:?}");
        }
    }
}
