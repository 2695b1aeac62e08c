//! The list of models: one form that clients of both providers understand, with what the operator and the project want to know.

use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use saggar_gateway::catalogue::{Route, Target};
use saggar_gateway::{ClientWire, Failure, FailureKind};
use serde_json::{Value, json};

use super::{caller, failed};
use crate::server::Shared;

/// Both providers' clients want a date, and a route has none.
const CREATED: u64 = 0;
const CREATED_AT: &str = "1970-01-01T00:00:00Z";

pub(super) async fn all(State(server): State<Shared>, request: Request) -> Response {
    let (wire, mut parts) = (wire(&request), request.into_parts().0);
    let listed = async {
        let (caller, permit) = caller(&server, &mut parts).await?;
        let catalogue = server.models.catalogue();
        let open = catalogue.routes().filter(|route| caller.models.allows(&route.name));
        let data: Vec<Value> = open.map(|route| model(route)).collect();
        let id = |model: Option<&Value>| model.map_or(Value::Null, |model| model["id"].clone());
        let (first, last) = (id(data.first()), id(data.last()));
        let mut list = json!({
            "object": "list",
            "data": data,
            "has_more": false,
            "first_id": first,
            "last_id": last,
        });
        // What the project spends is no business of a sandbox's programs.
        let Some(permit) = permit else { return Ok(list) };
        let spent = server.sandboxes.model_spending(&permit).await;
        let spent = spent.map_err(|fault| failed::of(&fault.into()))?;
        let routes: Value = spent
            .routes
            .iter()
            .map(|(route, sum)| (route.clone(), serde_json::to_value(sum).unwrap_or_default()))
            .collect::<serde_json::Map<_, _>>()
            .into();
        let budget = catalogue.budget(&caller.project).map(|budget| budget.limit.0);
        list["saggar"] = json!({
            "budget_micros": budget,
            "spent_today_micros": spent.today.0,
            "spent_micros": spent.in_all.0,
            "set_aside_micros": spent.set_aside.0,
            "routes": routes,
        });
        Ok(list)
    };
    match listed.await {
        Ok(list) => axum::Json::<Value>(list).into_response(),
        Err(failure) => failed::answer(wire, &failure),
    }
}

pub(super) async fn one(State(server): State<Shared>, request: Request) -> Response {
    let (wire, path) = (wire(&request), request.uri().path().to_owned());
    let mut parts = request.into_parts().0;
    let found = async {
        let (caller, _) = caller(&server, &mut parts).await?;
        let name = path.split_once("/models/").map_or("", |(_, name)| name);
        // Slashes and colons of names may come encoded.
        let name = name.replace("%2F", "/").replace("%2f", "/").replace("%3A", ":").replace("%3a", ":");
        let catalogue = server.models.catalogue();
        let missing =
            || Failure::new(FailureKind::NotFound, "this model does not exist; list them with GET /v1/models");
        let open = catalogue.route(&name).filter(|route| caller.models.allows(&route.name));
        open.map(|route| model(route)).ok_or_else(missing)
    };
    match found.await {
        Ok(model) => axum::Json::<Value>(model).into_response(),
        Err(failure) => failed::answer(wire, &failure),
    }
}

/// Only clients of Anthropic name its version.
pub(super) fn wire(request: &Request) -> ClientWire {
    match request.headers().contains_key("anthropic-version") {
        true => ClientWire::Anthropic,
        false => ClientWire::Chat,
    }
}

fn model(route: &Route) -> Value {
    let targets: Vec<Value> = route.all().map(|target| target_of(target)).collect();
    json!({
        "id": route.name,
        "object": "model",
        "type": "model",
        "created": CREATED,
        "created_at": CREATED_AT,
        "owned_by": "saggar",
        "display_name": route.name,
        "saggar": { "targets": targets },
    })
}

fn target_of(target: &Target) -> Value {
    let origin = target.origin();
    json!({
        "provider": origin.provider,
        "model": origin.model,
        "wire": target.wire,
        "weight": target.weight,
        "prices": target.prices,
    })
}
