//! Watching files: changes as server-sent events.

use axum::extract::State;
use axum::response::Response;
use saggar_api::{FileChange, FileEvent, ServerSentEvent, WatchQuery, route};
use saggar_http::Refusal;
use saggar_http::access::{Allowed, ReadFiles};
use saggar_http::extract::Query;
use saggar_http::sse::{self, Source};
use saggar_runtime::{FileEventKind, FilePath, Files, Watching};

use super::resource::resource;
use crate::server::Shared;

resource! {
    streaming {
        route::FILES_WATCH => get watch;
    }
}

/// Hear of changes to a file or directory
///
/// Everything that happens after `watching` is told. A stream that broke off can't be resumed: look again, then watch again.
#[utoipa::path(
    get, path = "/api/v1/sandboxes/{id}/files/watch", tag = "files", operation_id = "watchFiles",
    params(("id" = saggar_api::schema::SandboxId, Path, description = "The sandbox"), WatchQuery),
    responses((status = 200, description = "Changes as they happen", body = FileEvent, content_type = "text/event-stream")),
)]
pub(crate) async fn watch(
    allowed: Allowed<ReadFiles>,
    State(server): State<Shared>,
    Query(query): Query<WatchQuery>,
) -> Result<Response, Refusal> {
    let (path, user) = server.place(&allowed.permit, &query.path, query.user)?;
    let files = Files::to_read(&server.sandboxes, &allowed.permit, user).await?;
    let watching = files.watch(&path, query.recursive).await?;
    Ok(sse::answer(server.gate.clone(), Changes { watching, path, state: Progress::Beginning }))
}

struct Changes {
    watching: Watching,
    path: FilePath,
    state: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Beginning,
    Going,
    Over,
}

impl Source for Changes {
    async fn next(&mut self) -> Option<ServerSentEvent> {
        let event = match self.state {
            Progress::Beginning => {
                self.state = Progress::Going;
                FileEvent::Watching
            }
            Progress::Going => match self.watching.next().await {
                Ok(Some(event)) => self.told(event),
                Ok(None) => return None,
                Err(fault) => {
                    self.state = Progress::Over;
                    FileEvent::Failed { problem: *Refusal::from(fault).0 }
                }
            },
            Progress::Over => return None,
        };
        Some(sse::json(String::new(), event.name(), &event))
    }
}

impl Changes {
    fn told(&self, event: saggar_runtime::FileEvent) -> FileEvent {
        let path = self.path.join(&event.path).map_or_else(|_| self.path.to_string(), |path| path.to_string());
        let change = FileChange { path, is_directory: event.is_directory };
        match event.kind {
            FileEventKind::Created => FileEvent::Created(change),
            FileEventKind::Written => FileEvent::Written(change),
            FileEventKind::Removed => FileEvent::Removed(change),
            FileEventKind::Moved => FileEvent::Moved(change),
            FileEventKind::Attributes => FileEvent::Attributes(change),
            FileEventKind::Overflow => FileEvent::Overflow,
        }
    }
}
