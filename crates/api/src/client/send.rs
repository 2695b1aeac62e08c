//! One call: builds the request, sends it, retries if that is safe, and turns error statuses into errors.

use std::sync::Arc;
use std::time::Duration;

use hyper::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Method, Request, Uri};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::answer::Answer;
use super::body::Body;
use super::connect::{Pools, failure, is_refused};
use super::dial::socket_of;
use super::error::Error;
use super::options::ClientOptions;
use super::retry;

/// A client of one server with one key.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    base: String,
    authorization: Option<HeaderValue>,
    pools: Pools,
    options: ClientOptions,
}

impl Client {
    /// Doesn't connect yet.
    pub fn new(options: ClientOptions) -> Result<Self, Error> {
        let base = match socket_of(&options.url) {
            // The name that a server knows itself by.
            Some(_) => "http://localhost".to_owned(),
            None => options.url.trim_end_matches('/').to_owned(),
        };
        let address = || Error::Address(options.url.clone());
        let uri: Uri = base.parse().map_err(|_| address())?;
        let is_http = matches!(uri.scheme_str(), Some("http" | "https"));
        if !is_http || uri.host().is_none_or(str::is_empty) || uri.query().is_some() {
            return Err(address());
        }
        let authorization = match &options.key {
            None => None,
            Some(key) => {
                let mut value = HeaderValue::try_from(format!("Bearer {}", key.reveal()))
                    .map_err(|_| Error::Address("an API key with control characters".to_owned()))?;
                value.set_sensitive(true);
                Some(value)
            }
        };
        let pools = Pools::new(&options)?;
        Ok(Self { shared: Arc::new(Shared { base, authorization, pools, options }) })
    }

    /// The server's URL.
    pub fn url(&self) -> &str {
        self.shared.options.url.trim_end_matches('/')
    }

    pub(crate) fn pools(&self) -> &Pools {
        &self.shared.pools
    }

    pub(crate) fn request(&self, method: Method, route: &str) -> Call {
        Call::new(self.clone(), method, format!("{}{route}", self.shared.base))
    }

    pub(crate) fn get(&self, route: &str) -> Call {
        self.request(Method::GET, route)
    }

    pub(crate) fn post(&self, route: &str) -> Call {
        self.request(Method::POST, route)
    }
}

/// A call that is being built.
pub(crate) struct Call {
    client: Client,
    method: Method,
    url: String,
    headers: Vec<(HeaderName, HeaderValue)>,
    body: Body,
    is_idempotent: bool,
}

impl Call {
    fn new(client: Client, method: Method, url: String) -> Self {
        let is_idempotent = method.is_idempotent();
        Self { client, method, url, headers: Vec::new(), body: Body::empty(), is_idempotent }
    }

    pub(crate) fn query(mut self, query: &impl Serialize) -> Self {
        let text = crate::read::to_query(query);
        if !text.is_empty() {
            self.url = format!("{}?{text}", self.url);
        }
        self
    }

    pub(crate) fn json(self, value: &impl Serialize) -> Self {
        let body = serde_json::to_vec(value).expect("our own types have only text keys");
        self.body(Body::whole(body), "application/json")
    }

    pub(crate) fn body(mut self, body: Body, media_type: &'static str) -> Self {
        self.body = body;
        self.headers.push((CONTENT_TYPE, HeaderValue::from_static(media_type)));
        self
    }

    pub(crate) fn accept(mut self, media_type: &'static str) -> Self {
        self.headers.push((ACCEPT, HeaderValue::from_static(media_type)));
        self
    }

    /// Adds a header. A value that isn't valid in a header is left out.
    pub(crate) fn header(mut self, name: &'static str, value: &str) -> Self {
        if let Ok(value) = HeaderValue::try_from(value) {
            self.headers.push((HeaderName::from_static(name), value));
        }
        self
    }

    /// Marks a call as safe to repeat although its method isn't.
    pub(crate) fn idempotent(mut self) -> Self {
        self.is_idempotent = true;
        self
    }

    /// The response's value, within the time limit of ordinary calls.
    pub(crate) async fn value<T: DeserializeOwned>(self) -> Result<T, Error> {
        let limit = self.client.shared.options.call_timeout;
        within(limit, async { self.answer().await?.value().await }).await
    }

    /// Waits for completion, within the time limit of ordinary calls.
    pub(crate) async fn done(self) -> Result<(), Error> {
        let limit = self.client.shared.options.call_timeout;
        within(limit, async { self.answer().await?.done().await }).await
    }

    /// The response's value, without a time limit.
    pub(crate) async fn value_whenever<T: DeserializeOwned>(self) -> Result<T, Error> {
        self.answer().await?.value().await
    }

    /// The response with an unread body, without a time limit; a problem is an error.
    pub(crate) async fn answer(self) -> Result<Answer, Error> {
        let mut failures = 0;
        let mut body = self.body;
        loop {
            let again = if self.is_idempotent { body.again() } else { None };
            let request = request(&self.client.shared, &self.method, &self.url, &self.headers, body)?;
            let error = match self.client.shared.pools.calls.request(request).await {
                Ok(response) => return Answer::of(response).await,
                Err(error) => failure(error, self.client.url()),
            };
            failures += 1;
            match again {
                Some(again) if is_refused(&error) && failures < self.client.shared.options.attempts_max => body = again,
                _ => return Err(error),
            }
            tokio::time::sleep(retry::delay(failures)).await;
        }
    }

    /// The request as an upgrade to a WebSocket.
    pub(crate) fn upgrade(self, key: &str) -> Result<Request<http_body_util::Empty<bytes::Bytes>>, Error> {
        let call = self
            .header("connection", "Upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", key);
        request(&call.client.shared, &call.method, &call.url, &call.headers, http_body_util::Empty::new())
    }
}

fn request<B>(
    shared: &Shared,
    method: &Method,
    url: &str,
    headers: &[(HeaderName, HeaderValue)],
    body: B,
) -> Result<Request<B>, Error> {
    let mut request = Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(name, value);
    }
    if let Some(authorization) = &shared.authorization {
        request = request.header(AUTHORIZATION, authorization);
    }
    // The base URL was checked when the client was created, and the rest is our own.
    request.body(body).map_err(|_| Error::Address(shared.base.clone()))
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    tokio::time::timeout(limit, call).await.unwrap_or(Err(Error::Timeout(limit.as_secs())))
}
