//! Watching a directory over a stream.

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
use crate::failure::{Code, Failure};
use crate::state::Shared;

/// Most events that wait for a client to take them. More wait in the sandbox, where there is a bound too.
const WAITING_MAX: usize = 64;

/// The protocol of agents since which they can be asked whether they have told everything.
const SETTLE_SINCE: u32 = 3;

/// What to watch.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct WatchRequest {
    pub(super) path: String,
    pub(super) recursive: bool,
    /// Whether each event shows the entry. Mounts of networks, which may be watched on demand elsewhere, there are none here.
    pub(super) include_entry: bool,
}

/// A directory that is watched.
pub(super) struct Watched {
    watching: Watching,
    path: FilePath,
    /// To look at entries with, where that is asked for.
    files: Option<Files>,
    /// Whether its agent tells of the content of new files, and can be asked whether it has told everything: not one that was started before
    /// there was that.
    is_current: bool,
}

impl Watched {
    pub(super) async fn begin(
        server: &Shared,
        insider: &Insider,
        parts: &Parts,
        request: &WatchRequest,
    ) -> Result<Self, Failure> {
        let user = acting(server, insider, parts)?;
        let path = place(&request.path, user)?;
        let mut files = to_read(server, insider, user).await?;
        directory(&mut files, &path).await?;
        let watching = files.watch(&path, request.recursive).await?;
        let files = if request.include_entry { Some(to_read(server, insider, user).await?) } else { None };
        let described = server.sandboxes.describe(&insider.may(Action::ReadSandbox)?).await?;
        Ok(Self { watching, path, files, is_current: described.guest_protocol >= SETTLE_SINCE })
    }

    /// The next event; `None` when the sandbox is gone. May be cancelled while it waits for one.
    pub(super) async fn next(&mut self) -> Result<Option<FileEvent>, Failure> {
        Ok(self.watching.next().await?)
    }

    /// The next event, or that everything has been told. As [`Watched::next`].
    pub(super) async fn hear(&mut self) -> Result<Option<Heard>, Failure> {
        Ok(self.watching.hear().await?)
    }

    /// Asks to be told when everything has been told that happened until now; false where that can't be asked.
    pub(super) async fn settle(&mut self) -> Result<bool, Failure> {
        if self.is_current {
            self.watching.settle().await?;
        }
        Ok(self.is_current)
    }

    /// Events as they are told: none, one or two.
    pub(super) async fn told(&mut self, event: FileEvent) -> Result<Vec<Value>, Failure> {
        let name = String::from_utf8_lossy(&event.path).into_owned();
        let mut told = Vec::new();
        for kind in kinds(&event, self.is_current)? {
            let mut one = json!({ "name": name, "type": kind });
            if let Some(files) = &mut self.files
                && let Ok(path) = self.path.join(&event.path)
                // What is gone again has no entry.
                && let Ok(entry) = entry::of(files, &path).await
            {
                one["entry"] = entry;
            }
            told.push(one);
        }
        Ok(told)
    }
}

/// What an event is called. With an agent that doesn't tell of it, a file that appears has its content, whole, by then: clients that wait for it
/// to be written hear that too.
fn kinds(event: &FileEvent, is_current: bool) -> Result<&'static [&'static str], Failure> {
    Ok(match event.kind {
        FileEventKind::Created if event.is_directory || is_current => &["EVENT_TYPE_CREATE"],
        FileEventKind::Created => &["EVENT_TYPE_CREATE", "EVENT_TYPE_WRITE"],
        FileEventKind::Written => &["EVENT_TYPE_WRITE"],
        FileEventKind::Removed => &["EVENT_TYPE_REMOVE"],
        FileEventKind::Moved => &["EVENT_TYPE_RENAME"],
        FileEventKind::Attributes => &["EVENT_TYPE_CHMOD"],
        FileEventKind::Overflow => {
            return Err(Failure::new(Code::DataLoss, "more happened than could be told: look again, then watch again"));
        }
    })
}

/// Watches until the client goes away.
pub(super) async fn watch(server: Shared, insider: &Insider, parts: &Parts, body: Body) -> Result<Response, Failure> {
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

/// Looks at entries and tells of them. A task of its own, as a look must not be broken off.
async fn tell(mut watched: Watched, sender: mpsc::Sender<Result<Vec<Value>, Failure>>) {
    loop {
        let told = match watched.next().await {
            Ok(Some(event)) => watched.told(event).await,
            Ok(None) => Err(Failure::new(Code::Unavailable, "the connection to the sandbox ended")),
            Err(failure) => Err(failure),
        };
        let is_last = told.is_err();
        // Who listened is gone, or will be told nothing more.
        if sender.send(told).await.is_err() || is_last {
            return;
        }
    }
}

struct Changes {
    told: mpsc::Receiver<Result<Vec<Value>, Failure>>,
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
                Err(_) => Some(Err(Failure::new(Code::DeadlineExceeded, "the watch lasted as long as its timeout"))),
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
                Some(Failure::new(Code::Internal, "the watch broke off").end())
            }
        }
    }
}
