//! Combines the two APIs and the proxy for ports into one service, and dispatches requests.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use saggar_http::{attend, context, ports};

use crate::server::Shared;
use crate::{models, native};

/// All routes of the server.
pub(crate) fn router(server: Shared) -> Router {
    let e2b = saggar_e2b::router().with_state(server.e2b.clone());
    native::router()
        .merge(e2b)
        .merge(models::router())
        .fallback(attend::nothing_there)
        .method_not_allowed_fallback(attend::no_such_method)
        .layer(from_fn_with_state(server.clone(), around))
        .with_state(server)
}

/// Wraps every request.
async fn around(State(server): State<Shared>, request: Request, next: Next) -> Response {
    let gate = server.gate.clone();
    attend::attend(&gate, request, |request| route_or_proxy(server, request, next)).await
}

async fn route_or_proxy(server: Shared, request: Request, next: Next) -> Response {
    if let Some(aim) = saggar_e2b::aim(&server.e2b, &request) {
        context::is_for_sandbox();
        return saggar_e2b::serve(server.e2b.clone(), request, aim).await;
    }
    match ports::named_by_headers(&server, &request) {
        Ok(Some(destination)) => {
            context::is_for_sandbox();
            ports::forward(server.gate.clone(), request, destination).await
        }
        Ok(None) => next.run(request).await,
        Err(refusal) => refusal.into_response(),
    }
}
