//! The two APIs and the proxy for ports as one service: which of them a request is for.

use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use saggar_http::{attend, context, ports};

use crate::native;
use crate::server::Shared;

/// Everything the server answers.
pub(crate) fn router(server: Shared) -> Router {
    let e2b = saggar_e2b::router().with_state(server.e2b.clone());
    native::router()
        .merge(e2b)
        .fallback(attend::nothing_there)
        .method_not_allowed_fallback(attend::no_such_method)
        .layer(from_fn_with_state(server.clone(), around))
        .with_state(server)
}

/// Around every request, whatever it is for.
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
