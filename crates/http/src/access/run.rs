//! Permits for what is done to one run.

use std::marker::PhantomData;

use axum::extract::{FromRef, FromRequestParts};
use http::request::Parts;
use saggar_domain::RunId;
use saggar_runtime::{Action, Permit};

use super::{authenticate, decide};
use crate::gate::Shared;
use crate::refusal::Refusal;
use crate::request::extract::path_text;

/// A permit for what `W` names, on the run that the path names.
pub struct OnRun<W> {
    pub permit: Permit,
    what: PhantomData<W>,
}

/// Something a handler does to a run.
pub trait WantedOfRun: Send + 'static {
    fn action(id: RunId) -> Action;
}

macro_rules! wanted_of_run {
    ($($(#[$doc:meta])* $name:ident => $action:ident;)+) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl WantedOfRun for $name {
            fn action(id: RunId) -> Action {
                Action::$action(id)
            }
        }
    )+};
}

wanted_of_run! {
    /// Sees it and its journal.
    ReadRun => ReadRun;
    /// Tells it something.
    TellRun => TellRun;
    /// Begins another from its past.
    ForkRun => ForkRun;
    RemoveRun => RemoveRun;
}

impl<S, W> FromRequestParts<S> for OnRun<W>
where
    S: Send + Sync,
    W: WantedOfRun,
    Shared: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let subject =
            authenticate(&Shared::from_ref(state), &parts.headers).await?.ok_or_else(Refusal::unauthorized)?;
        let text = path_text(parts, "id").await.unwrap_or_default();
        let id = RunId::parse(&text).ok_or_else(|| Refusal::not_found("run", &text))?;
        Ok(Self { permit: decide(&subject, W::action(id))?, what: PhantomData })
    }
}
