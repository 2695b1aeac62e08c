//! One attempt: a request to one target, up to the beginning of its answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use saggar_domain::ProjectId;
use saggar_domain::model::{ModelReply, Wire};
use saggar_domain::net::Host;
use saggar_domain::secret::{SecretName, Slot};
use saggar_egress::outside::{HttpAddress, Security};
use serde_json::Value;
use tokio::time::timeout;

use crate::catalogue::{Endpoint, Provider, Target};
use crate::failure::{Failure, FailureKind};
use crate::pool::{InUse, Pool, Way};
use crate::reading::Reading;
use crate::wire::{provider_error, without_key};
use crate::world::{ProviderKey, World};

/// Maximum size of a whole answer, in bytes.
const ANSWER_BYTES_MAX: usize = 32 << 20;
/// Maximum size of what is read of an error.
const ERROR_BYTES_MAX: usize = 64 * 1024;
/// The version of Anthropic's wire that is spoken unless the client asks for another.
const ANTHROPIC_VERSION: &str = "2023-06-01";

/// A request as a target gets it.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub body: Bytes,
    pub is_stream: bool,
    /// Of the client, for a provider of the same wire: `anthropic-beta` and the like.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    pub purpose: Purpose,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Reply,
    CountTokens,
}

/// An answer that has begun.
pub(crate) enum Started {
    /// The first event has been read.
    Stream(Box<Reading>),
    Whole {
        bytes: Bytes,
        value: Value,
    },
    Local(Box<ModelReply>),
}

/// What an attempt runs with.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    pub world: &'a dyn World,
    pub pool: &'a Arc<Pool>,
    /// The project whose secrets hold the keys.
    pub keys_project: &'a ProjectId,
}

/// Sends a request to a remote target. May be cancelled at any await; the provider then sees its connection close.
pub(crate) async fn remote(
    means: Means<'_>,
    target: &Arc<Target>,
    prepared: &Prepared,
    key: Option<&SecretName>,
) -> Result<Started, Failure> {
    let provider = &target.provider;
    let Endpoint::Remote { address, rules, .. } = &provider.endpoint else {
        return Err(Failure::new(FailureKind::Internal, "this provider is not remote"));
    };
    let path = path(address, target, prepared);
    let key = match key {
        Some(name) => Some(key_for(means, provider, address, &path, name).await?),
        None => None,
    };
    let request = request(address, &path, target, prepared, key.as_ref())?;
    let way = Way { provider: &provider.name, address, rules, connect_timeout: provider.connect_timeout };
    let late =
        || Failure::new(FailureKind::Timeout, format!("provider {} did not begin to answer in time", provider.name));
    let begin = Box::pin(async {
        let (response, used) = Box::pin(means.pool.send(means.world, &way, &request)).await?;
        let status = response.status().as_u16();
        if status != 200 {
            let secret = key.as_ref().map(|key| key.value.expose());
            return Err(Box::pin(refused(provider, response, secret, used, means.pool)).await);
        }
        let is_sse = kind(response.headers()).contains("event-stream");
        if prepared.is_stream {
            if !is_sse {
                let message = format!(
                    "provider {} did not answer with a stream but with {:?}",
                    provider.name,
                    kind(response.headers())
                );
                return Err(Failure::new(FailureKind::Upstream, message));
            }
            let secret = key.as_ref().map(|key| key.value.clone());
            let mut reading = Reading::new(target, response.into_body(), used, Arc::clone(means.pool), secret);
            reading.first().await?;
            return Ok(Started::Stream(Box::new(reading)));
        }
        if is_sse {
            return Err(Failure::new(
                FailureKind::Upstream,
                format!("provider {} answered with a stream, which was not asked for", provider.name),
            ));
        }
        let bytes = whole(provider, response.into_body(), ANSWER_BYTES_MAX).await?;
        means.pool.give_back(used);
        let secret = key.as_ref().map(|key| key.value.expose());
        let clean = secret.and_then(|secret| without_key(std::str::from_utf8(&bytes).ok()?, secret));
        let bytes = clean.map_or(bytes, Bytes::from);
        let value: Value = serde_json::from_slice(&bytes).ok().filter(Value::is_object).ok_or_else(|| {
            Failure::new(FailureKind::Upstream, format!("provider {} did not answer with a JSON object", provider.name))
        })?;
        Ok(Started::Whole { bytes, value })
    });
    let most = if prepared.is_stream { provider.first_byte_timeout } else { provider.timeout };
    timeout(most.max(Duration::from_millis(1)), begin).await.unwrap_or_else(|_elapsed| Err(late()))
}

fn path(address: &HttpAddress, target: &Target, prepared: &Prepared) -> String {
    let base = address.path().trim_end_matches('/');
    match (target.wire, prepared.purpose) {
        (Wire::Chat, _) => format!("{base}/chat/completions"),
        (Wire::Responses, Purpose::Reply) => format!("{base}/responses"),
        (Wire::Responses, Purpose::CountTokens) => format!("{base}/responses/input_tokens"),
        // People write the base with and without the version.
        (Wire::Anthropic, purpose) => {
            let base = base.strip_suffix("/v1").unwrap_or(base);
            match purpose {
                Purpose::Reply => format!("{base}/v1/messages"),
                Purpose::CountTokens => format!("{base}/v1/messages/count_tokens"),
            }
        }
        (Wire::Gemini, _) => format!("{base}/models/{}:streamGenerateContent?alt=sse", target.model),
    }
}

/// The key, if it may go there.
async fn key_for(
    means: Means<'_>,
    provider: &Provider,
    address: &HttpAddress,
    path: &str,
    name: &SecretName,
) -> Result<ProviderKey, Failure> {
    let refused = |what: String| {
        Failure::new(FailureKind::Upstream, format!("the key of provider {} can't be used: {what}", provider.name))
    };
    let key = means.world.key(means.keys_project, name).await.map_err(refused)?;
    // The operator has named an address of this very machine, which no binding can name.
    let is_here = match &address.to().host {
        Host::V4(address) => address.is_loopback(),
        Host::V6(address) => address.is_loopback(),
        Host::Name(_) => false,
    };
    if is_here {
        return Ok(key);
    }
    if address.security() != Security::Tls {
        return Err(refused(format!(
            "secret {name} would be sent unencrypted to {}; use an https:// URL",
            address.to()
        )));
    }
    let path = path.split('?').next().unwrap_or(path);
    match key.binding.matching().request(address.to(), "POST", path) {
        Ok(_) => Ok(key),
        Err(_) => Err(refused(format!("secret {name} is not bound to {}", address.to()))),
    }
}

fn request(
    address: &HttpAddress,
    path: &str,
    target: &Target,
    prepared: &Prepared,
    key: Option<&ProviderKey>,
) -> Result<Request<Bytes>, Failure> {
    let unfit = |what: &str| {
        Failure::new(
            FailureKind::Upstream,
            format!("the request can't be sent to provider {}: {what}", target.provider.name),
        )
    };
    let mut path = path.to_owned();
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        ACCEPT,
        HeaderValue::from_static(if prepared.is_stream { "text/event-stream" } else { "application/json" }),
    );
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("saggar/", env!("CARGO_PKG_VERSION"))));
    headers.insert(HOST, HeaderValue::from_str(&address.authority()).map_err(|_| unfit("its host"))?);
    if target.wire == Wire::Anthropic {
        headers.insert("anthropic-version", HeaderValue::from_static(ANTHROPIC_VERSION));
    }
    for (name, value) in &prepared.headers {
        headers.insert(name, value.clone());
    }
    if let Some(ProviderKey { binding, value }) = key {
        let (name, text) = match binding.slot() {
            Slot::Bearer => (HeaderName::from_static("authorization"), format!("Bearer {}", value.expose())),
            Slot::Header { name, prefix } => {
                (name.parse().map_err(|_| unfit("the slot of its key"))?, format!("{prefix}{}", value.expose()))
            }
            Slot::Query { parameter } => {
                let mark = if path.contains('?') { '&' } else { '?' };
                path.push_str(&format!("{mark}{parameter}={}", value.expose()));
                (HeaderName::from_static("x-goog-api-key"), value.expose().to_owned())
            }
            Slot::Basic { .. } | Slot::SigV4 { .. } => {
                return Err(unfit("its key must be bound as `bearer`, as a header or as a query parameter"));
            }
        };
        let mut text =
            HeaderValue::from_str(&text).map_err(|_| unfit("its key has characters that a header can't have"))?;
        text.set_sensitive(true);
        if !matches!(binding.slot(), Slot::Query { .. }) {
            headers.insert(name, text);
        }
    }
    let mut request = Request::new(prepared.body.clone());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = path.parse().map_err(|_| unfit("the model's name"))?;
    *request.headers_mut() = headers;
    Ok(request)
}

async fn refused(
    provider: &Provider,
    response: Response<Incoming>,
    key: Option<&str>,
    used: InUse,
    pool: &Pool,
) -> Failure {
    let (parts, body) = response.into_parts();
    let read = timeout(Duration::from_secs(5), whole(provider, body, ERROR_BYTES_MAX)).await;
    // What it says is only an addition.
    let body = match read {
        Ok(Ok(body)) => {
            pool.give_back(used);
            body
        }
        Ok(Err(_)) | Err(_) => Bytes::new(),
    };
    provider_error(&provider.name, parts.status.as_u16(), &parts.headers, &body, key)
}

async fn whole(provider: &Provider, mut body: Incoming, most: usize) -> Result<Bytes, Failure> {
    let mut all = BytesMut::new();
    loop {
        match timeout(provider.idle_timeout, body.frame()).await {
            Err(_) => {
                return Err(Failure::new(
                    FailureKind::Timeout,
                    format!("provider {} stopped in the middle of its answer", provider.name),
                ));
            }
            Ok(None) => return Ok(all.freeze()),
            Ok(Some(Err(_))) => {
                return Err(Failure::new(
                    FailureKind::Torn,
                    format!("provider {} broke off its answer", provider.name),
                ));
            }
            Ok(Some(Ok(frame))) => {
                let Ok(data) = frame.into_data() else { continue };
                if all.len() + data.len() > most {
                    return Err(Failure::new(
                        FailureKind::Upstream,
                        format!("the answer of provider {} is larger than {most} bytes", provider.name),
                    ));
                }
                all.extend_from_slice(&data);
            }
        }
    }
}

fn kind(headers: &HeaderMap) -> &str {
    headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default()
}
