//! The recording of a session, as its supervisor hands it over.

use std::os::fd::OwnedFd;

use saggar_domain::{Code, Problem};
use saggar_supervisor::egress::FromEgress;

use super::{broken, misused};
use crate::recording::Library;
use crate::session::Session;

pub(super) fn record(session: &Session, files: Vec<OwnedFd>) -> Result<FromEgress, Problem> {
    session.record(only(files)?).map_err(|error| {
        Problem::new(
            Code::Stream,
            format!("the recording can't be written: {}", error.kind()),
            "check the space and the permissions of its directory",
        )
    })?;
    Ok(FromEgress::Recording {})
}

pub(super) async fn replay(session: &Session, files: Vec<OwnedFd>) -> Result<FromEgress, Problem> {
    let file = only(files)?;
    // It may have a gigabyte.
    let loaded = tokio::task::spawn_blocking(move || Library::load(file)).await.map_err(broken)?;
    let library = loaded.map_err(|error| {
        Problem::new(
            Code::InvalidValue,
            format!("the recording can't be replayed: {error}"),
            "name a file that `saggar run --record` made, with this version of saggar",
        )
    })?;
    let (exchanges, warning) = (library.replayable(), library.warning().map(str::to_owned));
    session.replay(library).map_err(broken)?;
    Ok(FromEgress::Replaying { exchanges, warning })
}

fn only(files: Vec<OwnedFd>) -> Result<OwnedFd, Problem> {
    let [file] = <[OwnedFd; 1]>::try_from(files).map_err(|_| misused("a recording is one file"))?;
    Ok(file)
}
