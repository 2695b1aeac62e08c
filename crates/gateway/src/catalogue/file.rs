//! The file: its form, and how it becomes a [`Catalogue`].

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use saggar_domain::model::{LongPrompt, Micros, Prices, RouteName, Wire};
use saggar_domain::secret::SecretName;
use saggar_domain::{ProjectId, Timeout};
use saggar_egress::outside::HttpAddress;
use serde::Deserialize;

use super::dollars::Dollars;
use super::provider::{Dialect, Endpoint, Provider, rules_for};
use super::{Budget, CATALOGUE_BYTES_MAX, Catalogue, CatalogueError, Period, Route, Target};
use crate::local::{Replay, Script};
use crate::rate::RateLimits;

const ROUTES_MAX: usize = 1_000;
const TARGETS_MAX: usize = 16;
const KEYS_MAX: usize = 64;
const RETRIES_MAX: u32 = 8;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    keys_project: Option<ProjectId>,
    #[serde(default)]
    providers: BTreeMap<String, WrittenProvider>,
    #[serde(default)]
    models: BTreeMap<String, WrittenRoute>,
    #[serde(default)]
    budgets: BTreeMap<String, WrittenBudget>,
    #[serde(default)]
    limits: BTreeMap<String, RateLimits>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenProvider {
    kind: Kind,
    #[serde(default)]
    url: Option<String>,
    #[serde(default)]
    keys: Vec<SecretName>,
    #[serde(default)]
    connect_timeout: Option<Timeout>,
    #[serde(default)]
    first_byte_timeout: Option<Timeout>,
    #[serde(default)]
    idle_timeout: Option<Timeout>,
    #[serde(default)]
    timeout: Option<Timeout>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Openai,
    Anthropic,
    Gemini,
    Compatible,
    Ollama,
    Scripted,
    Replay,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRoute {
    targets: Vec<WrittenTarget>,
    #[serde(default)]
    fallbacks: Vec<WrittenTarget>,
    #[serde(default = "two")]
    retries: u32,
    #[serde(default)]
    cache: Option<Timeout>,
    #[serde(default)]
    hedge_after: Option<Timeout>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenTarget {
    provider: String,
    model: String,
    #[serde(default)]
    wire: Option<Wire>,
    #[serde(default = "one")]
    weight: u32,
    #[serde(default)]
    prices: Option<WrittenPrices>,
    #[serde(default)]
    output_tokens_max: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenPrices {
    input: Dollars,
    output: Dollars,
    #[serde(default)]
    cached_read: Option<Dollars>,
    #[serde(default)]
    cache_write: Option<Dollars>,
    #[serde(default)]
    cache_write_long: Option<Dollars>,
    #[serde(default)]
    reasoning: Option<Dollars>,
    #[serde(default)]
    request: Option<Dollars>,
    #[serde(default)]
    long_prompt: Option<WrittenLongPrompt>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenLongPrompt {
    above: u64,
    input: Dollars,
    output: Dollars,
    #[serde(default)]
    cached_read: Option<Dollars>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenBudget {
    dollars: Dollars,
    #[serde(default)]
    period: Period,
}

type Read<T> = Result<T, CatalogueError>;

pub(super) fn read(text: &str) -> Read<Catalogue> {
    if text.len() > CATALOGUE_BYTES_MAX {
        return Err(CatalogueError(format!("it is larger than {CATALOGUE_BYTES_MAX} bytes")));
    }
    let written: Written = toml::from_str(text).map_err(|error| {
        let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
        let place = line.map(|line| format!("line {line}: ")).unwrap_or_default();
        CatalogueError(format!("{place}{}", error.message()))
    })?;
    if written.models.len() > ROUTES_MAX {
        return Err(CatalogueError(format!("it has more than {ROUTES_MAX} models")));
    }
    let mut providers = BTreeMap::new();
    for (name, provider) in written.providers {
        let made = provider.make(&name).map_err(|why| CatalogueError(format!("[providers.{name}]: {why}")))?;
        providers.insert(name, Arc::new(made));
    }
    let mut routes = BTreeMap::new();
    for (name, route) in written.models {
        let at = |why: String| CatalogueError(format!("[models.{name:?}]: {why}"));
        let parsed = name.parse::<RouteName>().map_err(at)?;
        let made = route.make(parsed.clone(), &providers).map_err(at)?;
        routes.insert(parsed, Arc::new(made));
    }
    let mut catalogue = Catalogue { routes, keys_project: written.keys_project, ..Catalogue::default() };
    for (whose, budget) in written.budgets {
        let budget = Budget { limit: budget.dollars.micros(), period: budget.period };
        match project(&whose, "budgets")? {
            None => catalogue.default_budget = Some(budget),
            Some(project) => drop(catalogue.budgets.insert(project, budget)),
        }
    }
    for (whose, limits) in written.limits {
        match project(&whose, "limits")? {
            None => catalogue.default_limits = limits,
            Some(project) => drop(catalogue.limits.insert(project, limits)),
        }
    }
    Ok(catalogue)
}

/// `None` for `default`.
fn project(text: &str, section: &str) -> Read<Option<ProjectId>> {
    match text {
        "default" => Ok(None),
        id => ProjectId::parse(id).map(Some).ok_or_else(|| {
            CatalogueError(format!("[{section}.{id}]: {id:?} is neither `default` nor a project's id, such as prj_…"))
        }),
    }
}

impl WrittenProvider {
    fn make(self, name: &str) -> Result<Provider, String> {
        let dialect = match self.kind {
            Kind::Openai => Some(Dialect::OpenAi),
            Kind::Anthropic => Some(Dialect::Anthropic),
            Kind::Gemini => Some(Dialect::Gemini),
            Kind::Compatible => Some(Dialect::Compatible),
            Kind::Ollama => Some(Dialect::Ollama),
            Kind::Scripted | Kind::Replay => None,
        };
        if self.keys.len() > KEYS_MAX {
            return Err(format!("it has more than {KEYS_MAX} keys"));
        }
        let endpoint = match dialect {
            Some(dialect) => remote(dialect, self.url.as_deref())?,
            None if self.url.is_some() || !self.keys.is_empty() => {
                return Err("it needs no network, so it has neither url nor keys".to_owned());
            }
            None if matches!(self.kind, Kind::Replay) => Endpoint::Replay,
            None => Endpoint::Scripted,
        };
        let time = |given: Option<Timeout>, seconds: u64| given.unwrap_or(Timeout::millis(seconds * 1000)).duration();
        Ok(Provider {
            name: name.to_owned(),
            endpoint,
            keys: self.keys,
            connect_timeout: time(self.connect_timeout, 10),
            first_byte_timeout: time(self.first_byte_timeout, 300),
            idle_timeout: time(self.idle_timeout, 300),
            timeout: time(self.timeout, 3600),
        })
    }
}

fn remote(dialect: Dialect, url: Option<&str>) -> Result<Endpoint, String> {
    let url = url.or(dialect.default_url()).ok_or("it needs a url, such as http://127.0.0.1:8000/v1")?;
    let address = HttpAddress::parse(url.trim_end_matches('/'))
        .map_err(|error| format!("{url:?} is not a valid URL: {error}"))?;
    if address.has_query() {
        return Err(format!("{url:?} has a query"));
    }
    let rules = Box::new(rules_for(&address)?);
    Ok(Endpoint::Remote { address: Box::new(address), dialect, rules })
}

impl WrittenRoute {
    fn make(self, name: RouteName, providers: &BTreeMap<String, Arc<Provider>>) -> Result<Route, String> {
        if self.targets.is_empty() {
            return Err("it has no targets".to_owned());
        }
        if self.targets.len() + self.fallbacks.len() > TARGETS_MAX {
            return Err(format!("it has more than {TARGETS_MAX} targets and fallbacks"));
        }
        if self.retries > RETRIES_MAX {
            return Err(format!("retries is {}; at most {RETRIES_MAX} are allowed", self.retries));
        }
        let make = |targets: Vec<WrittenTarget>| -> Result<Vec<Arc<Target>>, String> {
            targets.into_iter().map(|target| target.make(providers).map(Arc::new)).collect()
        };
        let (targets, fallbacks) = (make(self.targets)?, make(self.fallbacks)?);
        if targets.iter().all(|target| target.weight == 0) {
            return Err("every target has the weight 0".to_owned());
        }
        let mut seen = BTreeSet::new();
        if let Some(twice) =
            targets.iter().chain(&fallbacks).find(|target| !seen.insert((target.origin(), target.model.clone())))
        {
            return Err(format!("{} is named twice", twice.label()));
        }
        Ok(Route {
            name,
            targets,
            fallbacks,
            retries: self.retries,
            cache: self.cache.map(Timeout::duration),
            hedge_after: self.hedge_after.map(Timeout::duration),
        })
    }
}

impl WrittenTarget {
    fn make(self, providers: &BTreeMap<String, Arc<Provider>>) -> Result<Target, String> {
        let provider = providers.get(&self.provider).ok_or_else(|| {
            let known: Vec<&str> = providers.keys().map(String::as_str).collect();
            format!("no provider {:?} is set up; there are: {}", self.provider, known.join(", "))
        })?;
        let wire = match &provider.endpoint {
            Endpoint::Remote { dialect, .. } => {
                let wire = self.wire.unwrap_or(dialect.wire());
                if !dialect.speaks(wire) {
                    return Err(format!("provider {:?} doesn't speak {:?}", self.provider, wire.as_str()));
                }
                if self.model.is_empty() || self.model.len() > 256 || self.model.contains(char::is_control) {
                    return Err("a target's model is empty, too long, or has control characters".to_owned());
                }
                wire
            }
            Endpoint::Scripted => {
                Script::parse(&self.model).map_err(|why| why.to_string())?;
                Wire::Chat
            }
            Endpoint::Replay => {
                Replay::parse(&self.model).map_err(|why| why.to_string())?;
                Wire::Chat
            }
        };
        Ok(Target {
            provider: Arc::clone(provider),
            model: self.model,
            wire,
            weight: self.weight,
            prices: self.prices.map(WrittenPrices::make).unwrap_or_default(),
            output_tokens_max: self.output_tokens_max,
        })
    }
}

impl WrittenPrices {
    fn make(self) -> Prices {
        let price = |dollars: Option<Dollars>| dollars.map(Dollars::price);
        Prices {
            input: self.input.price(),
            output: self.output.price(),
            cached_read: price(self.cached_read),
            cache_write: price(self.cache_write),
            cache_write_long: price(self.cache_write_long),
            reasoning: price(self.reasoning),
            request: self.request.map_or(Micros::ZERO, Dollars::micros),
            long_prompt: self.long_prompt.map(|long| LongPrompt {
                above: long.above,
                input: long.input.price(),
                output: long.output.price(),
                cached_read: price(long.cached_read),
            }),
        }
    }
}

fn one() -> u32 {
    1
}

fn two() -> u32 {
    2
}
