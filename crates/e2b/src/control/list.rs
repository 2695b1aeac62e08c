//! Lists sandboxes for E2B's clients: by metadata, state, age and template.

use std::collections::BTreeSet;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use saggar_api::{Sandbox, Timestamp};
use saggar_domain::{Labels, SandboxState};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, List};
use saggar_http::extract::Query;
use saggar_http::live::{self, PAGE_MAX, SandboxesAsked};
use saggar_http::wire;
use saggar_runtime::Permit;
use serde::Deserialize;
use serde_json::Value;

use super::create::template_named;
use super::info;
use crate::state::Shared;

/// Default page size.
const PAGE_DEFAULT: u32 = 100;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Asked {
    metadata: Option<String>,
    state: Vec<String>,
    limit: Option<u32>,
    next_token: Option<String>,
    template: Option<String>,
    order: Option<String>,
    started_after: Option<String>,
}

/// A page of sandboxes, newest first by default.
pub(super) async fn list(
    allowed: Allowed<List>,
    State(server): State<Shared>,
    Query(asked): Query<Asked>,
) -> Result<Response, Refusal> {
    let limit = asked.limit.unwrap_or(PAGE_DEFAULT);
    live::page_limit(Some(limit))?;
    let template = match asked.template.as_deref() {
        None => None,
        Some(name) => match template_named(name) {
            Some(template) => Some(template),
            // No sandbox can have it.
            None => return Ok(axum::Json(Vec::<Value>::new()).into_response()),
        },
    };
    let after = asked.started_after.as_deref().map(instant).transpose()?;
    let mut query = query(&asked)?;
    query.limit = Some(limit);
    let (items, next) = match asked.order.as_deref() {
        None | Some("desc") => {
            query.cursor = asked.next_token.clone();
            newest_first(&server, &allowed.permit, query, after).await?
        }
        Some("asc") => oldest_first(&server, &allowed.permit, query, after, asked.next_token.as_deref()).await?,
        Some(_) => return Err(Refusal::invalid("order is neither asc nor desc", "choose one")),
    };
    // Of a page: it may be shorter than asked for, and another may follow.
    let is_wanted = |item: &&Sandbox| template.as_ref().is_none_or(|template| item.spec.template == *template);
    let shown: Vec<Value> = items.iter().filter(is_wanted).map(info::listed).collect();
    let mut response = axum::Json(shown).into_response();
    if let Some(value) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert("x-next-token", value);
    }
    Ok(response)
}

/// All running sandboxes, for older clients.
pub(super) async fn list_running(
    allowed: Allowed<List>,
    State(server): State<Shared>,
    Query(asked): Query<Asked>,
) -> Result<axum::Json<Vec<Value>>, Refusal> {
    let mut query = query(&asked)?;
    query.states = BTreeSet::from([SandboxState::Running]);
    query.limit = Some(PAGE_MAX);
    let (items, _) = newest_first(&server, &allowed.permit, query, None).await?;
    Ok(axum::Json(items.iter().map(info::listed).collect()))
}

fn query(asked: &Asked) -> Result<SandboxesAsked, Refusal> {
    let labels = asked.metadata.as_deref().map(labels).transpose()?.unwrap_or_default();
    Ok(SandboxesAsked { states: states(&asked.state)?, labels, ..SandboxesAsked::default() })
}

fn states(asked: &[String]) -> Result<BTreeSet<SandboxState>, Refusal> {
    let names = asked.iter().flat_map(|names| names.split(',')).filter(|name| !name.is_empty());
    let state = |name: &str| match name {
        "running" => Ok(SandboxState::Running),
        "paused" => Ok(SandboxState::Paused),
        _ => Err(Refusal::invalid("unknown state", "choose running, paused or both")),
    };
    let states = names.map(state).collect::<Result<BTreeSet<_>, _>>()?;
    Ok(if states.is_empty() { BTreeSet::from([SandboxState::Running, SandboxState::Paused]) } else { states })
}

/// Names and values as a query within the query. Clients escape each one more time before that.
fn labels(text: &str) -> Result<Labels, Refusal> {
    let pairs: Vec<(String, String)> = saggar_api::read::query(text)?;
    let plain = |text: &str| -> Result<String, Refusal> {
        // As a query of one name, which is how it was escaped; a plus is not a blank here.
        let escaped = text.replace('+', "%2B").replace('&', "%26").replace('=', "%3D");
        let read: Vec<(String, String)> = saggar_api::read::query(&escaped)?;
        Ok(read.into_iter().next().map(|(name, _)| name).unwrap_or_default())
    };
    let pairs =
        pairs.iter().map(|(name, value)| Ok((plain(name)?, plain(value)?))).collect::<Result<Vec<_>, Refusal>>()?;
    wire::labels(pairs.iter().map(|(name, value)| (name.as_str(), value.as_str())))
}

/// A timestamp with a `Z` or with an offset.
fn instant(text: &str) -> Result<Timestamp, Refusal> {
    let wrong = || Refusal::invalid("startedAfter is not a timestamp", "write it like 2026-11-15T12:00:00Z");
    if text.ends_with(['Z', 'z']) {
        return Timestamp::parse(&text.to_ascii_uppercase()).map_err(|_| wrong());
    }
    let at = text.len().checked_sub(6).filter(|at| text.is_char_boundary(*at)).ok_or_else(wrong)?;
    let (moment, offset) = text.split_at(at);
    // A plus becomes a blank in a query.
    let (is_ahead, offset) = match (offset.strip_prefix(['+', ' ']), offset.strip_prefix('-')) {
        (Some(offset), _) => (true, offset),
        (None, Some(offset)) => (false, offset),
        (None, None) => return Err(wrong()),
    };
    let (hours, minutes) = offset.split_once(':').ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<u8>().map(u64::from).map_err(|_| wrong());
    let offset = (number(hours)? * 60 + number(minutes)?) * 60_000;
    let moment = Timestamp::parse(&format!("{moment}Z")).map_err(|_| wrong())?.as_millis();
    Ok(Timestamp::from_millis(if is_ahead { moment.saturating_sub(offset) } else { moment.saturating_add(offset) }))
}

fn is_after(sandbox: &Sandbox, after: Option<Timestamp>) -> bool {
    after.is_none_or(|after| sandbox.started_at.unwrap_or(sandbox.created_at) >= after)
}

async fn newest_first(
    server: &Shared,
    permit: &Permit,
    query: SandboxesAsked,
    after: Option<Timestamp>,
) -> Result<(Vec<Sandbox>, Option<String>), Refusal> {
    let page = server.sandbox_page(permit, query).await?;
    let all: Vec<Sandbox> = page.items.into_iter().map(info::with_end).collect();
    let count = all.len();
    let items: Vec<Sandbox> = all.into_iter().filter(|sandbox| is_after(sandbox, after)).collect();
    // From the first that is too old, all are.
    let next = page.next.filter(|_| items.len() == count);
    Ok((items, next))
}

/// The store has only one order. The number of live sandboxes is limited by the operator, so all of them are read and
/// reversed.
async fn oldest_first(
    server: &Shared,
    permit: &Permit,
    mut query: SandboxesAsked,
    after: Option<Timestamp>,
    token: Option<&str>,
) -> Result<(Vec<Sandbox>, Option<String>), Refusal> {
    let skipped: usize = match token {
        None => 0,
        Some(token) => {
            token.parse().map_err(|_| Refusal::invalid("the token of the next page is invalid", "pass it unchanged"))?
        }
    };
    let limit = query.limit.unwrap_or(PAGE_DEFAULT) as usize;
    query.limit = Some(PAGE_MAX);
    let mut all = Vec::new();
    loop {
        let (items, next) = newest_first(server, permit, query.clone(), after).await?;
        all.extend(items);
        match next {
            Some(next) => query.cursor = Some(next),
            None => break,
        }
    }
    all.reverse();
    let is_more = all.len() > skipped + limit;
    let items = all.into_iter().skip(skipped).take(limit).collect();
    Ok((items, is_more.then(|| (skipped + limit).to_string())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_escaped_twice() {
        // Made with Python: urlencode({quote("a b"): quote("c=d&e+%"), "k": "v"}), after the outer query is decoded.
        let labels = labels("a%2520b=c%253Dd%2526e%252B%2525&k=v").unwrap();
        let entries: Vec<_> = labels.entries().iter().collect();
        assert_eq!(entries, [(&"a b".to_owned(), &"c=d&e+%".to_owned()), (&"k".to_owned(), &"v".to_owned())]);
    }

    #[test]
    fn instants_may_have_an_offset() {
        let at = |text: &str| instant(text).map(|instant| instant.to_string()).ok();
        for text in [
            "2026-11-15T12:00:00Z",
            "2026-11-15T14:00:00+02:00",
            "2026-11-15T06:30:00.000000-05:30",
            "2026-11-15T12:00:00 00:00",
        ] {
            assert_eq!(at(text).as_deref(), Some("2026-11-15T12:00:00.000Z"), "{text}");
        }
        for wrong in ["", "yesterday", "2026-11-15", "2026-11-15T12:00:00+aa:00", "2026-11-15T12:00:00é00:0"] {
            assert_eq!(at(wrong), None, "{wrong}");
        }
    }
}
