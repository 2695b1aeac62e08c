//! Makes a target's request of a client's: the same body for a provider of the same wire, a translation for any other.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use saggar_domain::model::{ModelRequest, Wire};
use serde_json::{Value, json};

use crate::attempt::{Prepared, Purpose};
use crate::catalogue::{Dialect, Endpoint, Target};
use crate::failure::Failure;
use crate::wire::chat::put::limit_name;
use crate::wire::{ClientWire, PutTo, put};

/// Maximum number of replies to one request.
const REPLIES_MAX: u64 = 1_024;
/// Fields that limit a reply, or ask for more than one, at any server that we know of.
const LIMITS: &[&str] = &[
    "max_completion_tokens",
    "max_output_tokens",
    "max_tokens",
    "max_new_tokens",
    "n_predict",
    "num_predict",
    "n",
    "n_cmpl",
    "best_of",
];

/// Fields of the responses wire that lead to what the provider keeps for the operator's key, which all projects share. What is kept there
/// is counted in no budget, and a reply in the background is billed after its call has ended.
const KEPT: &[&str] = &["previous_response_id", "conversation", "prompt"];

/// What is asked, in the client's form or in ours.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Client {
        wire: ClientWire,
        body: Value,
        is_stream: bool,
        /// `anthropic-beta` and the like.
        headers: Vec<(HeaderName, HeaderValue)>,
    },
    Ours(Arc<ModelRequest>),
}

impl Asked {
    /// Whether the target's answer can go to the client as it is.
    pub(crate) fn passes(&self, target: &Target) -> bool {
        match (self, &target.provider.endpoint) {
            (Self::Client { wire, .. }, Endpoint::Remote { .. }) => wire.wire() == target.wire,
            (Self::Client { .. }, Endpoint::Scripted | Endpoint::Replay) | (Self::Ours(_), _) => false,
        }
    }

    /// Refuses limits that could mean something else to a provider than to us: `1e6`, or 0 where it means none.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self::Client { wire, body, .. } = self else { return Ok(()) };
        if *wire == ClientWire::Responses {
            if let Some(name) = KEPT.iter().find(|name| !body[**name].is_null()) {
                let message =
                    format!("{name} is not supported: nothing is kept for projects; send the conversation itself");
                return Err(Failure::invalid(message).about(*name));
            }
            if !matches!(body["background"], Value::Null | Value::Bool(false)) {
                let message = "background is not supported: wait for the reply, or stream it";
                return Err(Failure::invalid(message).about("background"));
            }
        }
        let least = if *wire == ClientWire::Anthropic { 0 } else { 1 };
        let limits = limit_names(*wire).iter().map(|name| (*name, least, u64::MAX));
        for (name, least, most) in limits.chain([("n", 1, REPLIES_MAX)]) {
            let value = &body[name];
            if !value.is_null() && !value.as_u64().is_some_and(|number| (least..=most).contains(&number)) {
                let upper = if most == u64::MAX { String::new() } else { format!(" and at most {most}") };
                let message = format!("{name} is not a whole number of at least {least}{upper}");
                return Err(Failure::invalid(message).about(name));
            }
        }
        Ok(())
    }

    /// The limit of the reply that the request itself has.
    pub(crate) fn output_tokens(&self) -> Option<u64> {
        match self {
            Self::Client { wire, body, .. } => limit_names(*wire).iter().find_map(|name| body[*name].as_u64()),
            Self::Ours(request) => request.sampling.max_tokens,
        }
    }

    /// How many replies are asked for.
    pub(crate) fn replies(&self) -> u64 {
        match self {
            Self::Client { body, .. } => body["n"].as_u64().unwrap_or(1).clamp(1, REPLIES_MAX),
            Self::Ours(_) => 1,
        }
    }

    /// The request in our form.
    pub(crate) fn request(&self, target: &Target) -> Result<Arc<ModelRequest>, Failure> {
        match self {
            Self::Client { wire, body, .. } => wire.read(body.clone(), &target.origin()).map(Arc::new),
            Self::Ours(request) => Ok(Arc::clone(request)),
        }
    }
}

/// `is_limited`: the reply must be limited although the client gave no limit.
pub(crate) fn prepare(asked: &Asked, target: &Target, is_limited: bool, purpose: Purpose) -> Result<Prepared, Failure> {
    let Endpoint::Remote { dialect, .. } = &target.provider.endpoint else {
        return Err(Failure::invalid("this model needs no request"));
    };
    let output_tokens = target.output_tokens(asked.output_tokens());
    if let Asked::Client { wire, body, is_stream, headers } = asked
        && asked.passes(target)
    {
        let mut body = body.clone();
        body["model"] = json!(target.model);
        if purpose == Purpose::Reply {
            limit(&mut body, *wire, *dialect, output_tokens, is_limited || target.output_tokens_max.is_some());
            if *is_stream && *wire == ClientWire::Chat {
                let options = &mut body["stream_options"];
                if !options.is_object() {
                    *options = json!({});
                }
                // Usage is always asked for; a client that did not ask for it doesn't get it.
                options["include_usage"] = json!(true);
            }
        }
        let body = Bytes::from(body.to_string());
        return Ok(Prepared {
            body,
            is_stream: *is_stream && purpose == Purpose::Reply,
            headers: headers.clone(),
            purpose,
        });
    }
    let request = asked.request(target)?;
    let origin = target.origin();
    let is_limited = is_limited || target.output_tokens_max.is_some() || target.wire == Wire::Anthropic;
    let to = PutTo { origin: &origin, dialect: *dialect, output_tokens, is_limited };
    let body = put(target.wire, &request, &to)?;
    Ok(Prepared { body: Bytes::from(body.to_string()), is_stream: true, headers: Vec::new(), purpose })
}

/// The names of a reply's limit; the first that a request has counts.
fn limit_names(wire: ClientWire) -> &'static [&'static str] {
    match wire {
        ClientWire::Chat => &["max_completion_tokens", "max_tokens"],
        ClientWire::Responses => &["max_output_tokens"],
        ClientWire::Anthropic => &["max_tokens"],
    }
}

/// Leaves one limit in a request, and nothing that a server may take for another one.
fn limit(body: &mut Value, wire: ClientWire, dialect: Dialect, most: u64, must_be_there: bool) {
    let Some(fields) = body.as_object_mut() else { return };
    let names = limit_names(wire);
    let given = names.iter().find(|name| fields.get(**name).is_some_and(Value::is_u64)).copied();
    if given.is_none() && !must_be_there {
        return;
    }
    // Servers in Go read names in any case, and `ſ` as an s.
    fields.retain(|name, _| name == "n" || !LIMITS.contains(&name.to_uppercase().to_lowercase().as_str()));
    let name = match given {
        // The older servers know one name only.
        Some("max_completion_tokens") if dialect == Dialect::Ollama => "max_tokens",
        Some(name) => name,
        None if wire == ClientWire::Chat => limit_name(dialect),
        None => names[0],
    };
    fields.insert(name.to_owned(), json!(most));
}
