//! A resource of the native API: its routes and what the OpenAPI document says of them, from one table beside its handlers.

use axum::Router;
use axum::middleware::from_fn;
use axum::routing::MethodRouter;
use saggar_http::attend;
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;

use crate::server::Shared;

/// Some routes and their documentation.
pub(crate) struct Resource {
    bounded: Router<Shared>,
    streaming: Router<Shared>,
    document: Document,
}

impl Resource {
    pub(super) fn of<D: OpenApi>() -> Self {
        Self { bounded: Router::new(), streaming: Router::new(), document: D::openapi() }
    }

    /// A route that is answered within a bounded time.
    pub(super) fn bounded(mut self, path: &str, methods: MethodRouter<Shared>) -> Self {
        self.bounded = self.bounded.route(path, methods);
        self
    }

    /// A route that lasts as long as the client sends or reads, each piece within a bounded time.
    pub(super) fn streaming(mut self, path: &str, methods: MethodRouter<Shared>) -> Self {
        self.streaming = self.streaming.route(path, methods);
        self
    }

    pub(super) fn router(self) -> Router<Shared> {
        // A layer for routes that are not there is refused by axum.
        match self.bounded.has_routes() {
            true => self.bounded.route_layer(from_fn(attend::within_bounds)).merge(self.streaming),
            false => self.streaming,
        }
    }

    pub(super) fn document(self) -> Document {
        self.document
    }
}

/// Declares the resource of a file: `resource()` gives its routes and its part of the OpenAPI document.
///
/// A group of operations is described where its first ones are; other files may add to it with the same tag.
macro_rules! resource {
    (
        $(tag $tag:literal: $about:literal;)?
        $(bounded { $($path:expr => $($method:ident $handler:ident),+;)+ })?
        $(streaming { $($stream_path:expr => $($stream_method:ident $stream_handler:ident),+;)+ })?
    ) => {
        #[derive(utoipa::OpenApi)]
        #[openapi(
            paths($($($($handler,)+)+)? $($($($stream_handler,)+)+)?),
            tags($((name = $tag, description = $about))?),
        )]
        struct Documented;

        pub(super) fn resource() -> $crate::native::resource::Resource {
            $crate::native::resource::Resource::of::<Documented>()
                $($(.bounded($path, axum::routing::MethodRouter::new()$(.$method($handler))+))+)?
                $($(.streaming($stream_path, axum::routing::MethodRouter::new()$(.$stream_method($stream_handler))+))+)?
        }
    };
}

pub(super) use resource;
