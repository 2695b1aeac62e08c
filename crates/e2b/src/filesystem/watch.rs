//! Watches a directory over a stream.

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::request::Parts;
use saggar_http::access::Insider;
use saggar_runtime::{Action, FileEvent, FileEventKind, FilePath, Files, Heard, Watching};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::{acting, directory, entry, place, to_read};
use crate::connect::{self, Source};
use crate::failure::{CallFailure, Code};
use crate::state::Shared;

/// Maximum number of events that wait for the client. More wait in the sandbox, which has a limit too.
const WAITING_MAX: usize = 64;

/// The protocol version since which agents can report that all events were sent.
const SETTLE_SINCE: u32 = 3;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WatchRequest {
    pub(super) path: String,
    pub(super) recursive: bool,
    /// Whether each event includes the entry. There are no network mounts here, for which E2B has another option.
    pub(super) include_entry: bool,
}

/// A watched directory.
pub(super) struct Watched {
    watching: Watching,
    path: FilePath,
    /// For examining entries, if requested.
    files: Option<Files>,
    /// Whether its agent reports the content of new files, and can report that all events were sent: agents of older
    /// versions can't.
    is_current: bool,
}

impl Watched {
    pub(super) async fn begin(
        server: &Shared,
        insider: &Insider,
        parts: &Parts,
        request: &WatchRequest,
    ) -> Result<Self, CallFailure> {
        let actor = acting(server, insider, parts)?;
        let path = place(&request.path, &actor.home)?;
        let mut files = to_read(server, insider, &actor).await?;
        directory(&mut files, &path).await?;
        let watching = files.watch(&path, request.recursive).await?;
        let files = if request.include_entry { Some(to_read(server, insider, &actor).await?) } else { None };
        let described = server.sandboxes.describe(&insider.may(Action::ReadSandbox)?).await?;
        Ok(Self { watching, path, files, is_current: described.guest_protocol >= SETTLE_SINCE })
    }

    /// The next event; `None` if the sandbox is gone. May be cancelled while it waits.
    pub(super) async fn next(&mut self) -> Result<Option<FileEvent>, CallFailure> {
        Ok(self.watching.next().await?)
    }

    /// The next event, or that all events were sent. Like [`Watched::next`].
    pub(super) async fn hear(&mut self) -> Result<Option<Heard>, CallFailure> {
        Ok(self.watching.hear().await?)
    }

    /// Requests a report when all events until now were sent; false if the agent can't do that.
    pub(super) async fn settle(&mut self) -> Result<bool, CallFailure> {
        if self.is_current {
            self.watching.settle().await?;
        }
        Ok(self.is_current)
    }

    /// The events to report: none, one or two.
    pub(super) async fn told(&mut self, event: FileEvent) -> Result<Vec<Value>, CallFailure> {
        let name = String::from_utf8_lossy(&event.path).into_owned();
        let mut told = Vec::new();
        for kind in kinds(&event, self.is_current)? {
            let mut one = json!({ "name": name, "type": kind });
            if let Some(files) = &mut self.files
                && let Ok(path) = self.path.join(&event.path)
                // An entry that is gone again can't be examined.
                && let Ok(entry) = entry::of(files, &path).await
            {
                one["entry"] = entry;
            }
            told.push(one);
        }
        Ok(told)
    }
}

/// The names of an event. With an older agent, a file that appears already has its whole content: clients that wait
/// for it to be written get that event too.
fn kinds(event: &FileEvent, is_current: bool) -> Result<&'static [&'static str], CallFailure> {
    Ok(match event.kind {
        FileEventKind::Created if event.is_directory || is_current => &["EVENT_TYPE_CREATE"],
        FileEventKind::Created => &["EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE"],
        FileEventKind::Written => &["EVENT_TYPE_WRITE"],
        FileEventKind::Removed => &["EVENT_TYPE_REMOVE"],
        FileEventKind::Moved => &["EVENT_TYPE_RENAME"],
        FileEventKind::Attributes => &["EVENT_TYPE_CHMOD"],
        FileEventKind::Overflow => {
            return Err(CallFailure::new(
                Code::DataLoss,
                "some changes were missed: read the directory, then watch again",
            ));
        }
    })
}

/// Watches until the client disconnects.
pub(super) async fn watch(
    server: Shared,
    insider: &Insider,
    parts: &Parts,
    body: Body,
) -> Result<Response, CallFailure> {
    let request: WatchRequest = connect::asked(parts, body).await?;
    let timeout = connect::timeout(&parts.headers)?;
    let watched = Watched::begin(&server, insider, parts, &request).await?;
    let (sender, told) = mpsc::channel(WAITING_MAX);
    let changes = Changes {
        told,
        task: tokio::spawn(tell(watched, sender)).abort_handle(),
        deadline: timeout.map(|timeout| Instant::now() + timeout),
        state: Progress::Beginning,
    };
    Ok(connect::answer(server, &parts.headers, changes))
}

/// Examines entries and reports them. A separate task, because an examination must not be interrupted.
async fn tell(mut watched: Watched, sender: mpsc::Sender<Result<Vec<Value>, CallFailure>>) {
    loop {
        let told = match watched.next().await {
            Ok(Some(event)) => watched.told(event).await,
            Ok(None) => Err(CallFailure::new(Code::Unavailable, "the connection to the sandbox ended")),
            Err(failure) => Err(failure),
        };
        let is_last = told.is_err();
        // The client is gone, or this was the last event.
        if sender.send(told).await.is_err() || is_last {
            return;
        }
    }
}

struct Changes {
    told: mpsc::Receiver<Result<Vec<Value>, CallFailure>>,
    task: AbortHandle,
    deadline: Option<Instant>,
    state: Progress,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Beginning,
    Going,
    Over,
}

impl Drop for Changes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Source for Changes {
    const KEEP_ALIVE: &'static str = r#"{"keepalive":{}}"#;

    async fn next(&mut self) -> Option<Bytes> {
        match self.state {
            Progress::Over => return None,
            Progress::Going => {}
            Progress::Beginning => {
                self.state = Progress::Going;
                return Some(connect::envelope(&json!({ "start": {} })));
            }
        }
        let told = match self.deadline {
            None => self.told.recv().await,
            Some(deadline) => match tokio::time::timeout_at(deadline, self.told.recv()).await {
                Ok(told) => told,
                Err(_) => {
                    Some(Err(CallFailure::new(Code::DeadlineExceeded, "the watch lasted as long as its timeout")))
                }
            },
        };
        match told {
            Some(Ok(events)) => {
                let messages = events.iter().map(|event| connect::envelope(&json!({ "filesystem": event })));
                Some(messages.collect::<Vec<_>>().concat().into())
            }
            Some(Err(failure)) => {
                self.state = Progress::Over;
                Some(failure.end())
            }
            None => {
                self.state = Progress::Over;
                Some(CallFailure::new(Code::Internal, "the watch was interrupted").end())
            }
        }
    }
}
