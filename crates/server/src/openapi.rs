//! The OpenAPI document: what the handlers say of themselves, and what holds for all of them.

use std::sync::OnceLock;

use saggar_api::{PROBLEM_MEDIA_TYPE, Problem};
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{ContentBuilder, InfoBuilder, OpenApi, Ref, RefOr, ResponseBuilder, SecurityRequirement};
use utoipa::{PartialSchema, ToSchema};

use crate::native;

/// The document, as it is served and kept in docs/openapi.json.
pub fn text() -> &'static str {
    static TEXT: OnceLock<String> = OnceLock::new();
    TEXT.get_or_init(|| document().to_pretty_json().expect("our own document can be written") + "\n")
}

pub fn document() -> OpenApi {
    let mut document = native::document();
    document.info = InfoBuilder::new()
        .title("Saggar")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Sandboxes over the network. Every error is `application/problem+json` with a stable `code` and what to do next. \
             What listens in a sandbox is reached at `/api/v1/sandboxes/{id}/ports/{port}/…`, with the headers `Saggar-Sandbox` \
             and `Saggar-Port`, or at the host `{port}-{id}.DOMAIN`.",
        ))
        .license(Some(utoipa::openapi::License::new("Apache-2.0")))
        .build();
    let components = document.components.get_or_insert_default();
    let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("An API key: sgr_…")).build();
    components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
    components.add_security_scheme("header", SecurityScheme::ApiKey(header));
    components.schemas.insert(Problem::name().into_owned(), Problem::schema());
    let mut needed = Vec::new();
    Problem::schemas(&mut needed);
    components.schemas.extend(needed);
    let none: [&str; 0] = [];
    document.security = Some(vec![SecurityRequirement::new("bearer", none), SecurityRequirement::new("header", none)]);
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name(Problem::name()))).build();
            let response = ResponseBuilder::new()
                .description("It was not done, and why")
                .content(PROBLEM_MEDIA_TYPE, problem)
                .build();
            operation.responses.responses.insert("default".to_owned(), RefOr::T(response));
        }
    }
    document
}
