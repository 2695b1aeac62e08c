//! Authentication and authorisation: the one place where requests become permits.
//!
//! A handler names its action by the type of its first argument, and gets a permit or is not called. Credentials are
//! an API key, a signed URL (for the one file and method it names), for ports the sandbox's access token, and for
//! E2B's data plane the token of its inside.

pub mod keys;
mod run;
pub mod signed;
pub mod spelling;

use std::borrow::Cow;
use std::marker::PhantomData;

use axum::extract::{FromRef, FromRequestParts};
use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, Method};
use saggar_api::{Code, route};
use saggar_domain::{ProjectId, SandboxId};
use saggar_runtime::{Action, Permit, Subject};

use crate::gate::{Gate, Shared};
use crate::refusal::Refusal;
use crate::request::extract::path_sandbox;
use crate::request::{context, host};

pub use run::{ForkRun, OnRun, ReadRun, RemoveRun, TellRun};

/// A permit for the action `W`, on the sandbox that the path names.
pub struct Allowed<W> {
    pub permit: Permit,
    what: PhantomData<W>,
}

/// An action of a handler.
pub trait Wanted: Send + 'static {
    /// Whether the path names the sandbox that it acts on.
    const ON_SANDBOX: bool = true;
    /// Whether a signed URL may replace a key.
    const SIGNED: bool = false;

    fn action(id: Option<SandboxId>) -> Option<Action>;
}

/// Defines the actions of handlers as types: on the sandbox that the path names, or on the project's objects. A
/// handler's file may define its own.
#[macro_export]
macro_rules! wanted {
    ($($(#[$doc:meta])* $name:ident on sandbox => $action:ident $(, $signed:ident)?;)+) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl $crate::access::Wanted for $name {
            $(const $signed: bool = true;)?

            fn action(id: Option<saggar_domain::SandboxId>) -> Option<saggar_runtime::Action> {
                id.map(saggar_runtime::Action::$action)
            }
        }
    )+};
    ($($(#[$doc:meta])* $name:ident => $action:ident $(($argument:expr))?;)+) => {$(
        $(#[$doc])*
        pub enum $name {}

        impl $crate::access::Wanted for $name {
            const ON_SANDBOX: bool = false;

            fn action(_id: Option<saggar_domain::SandboxId>) -> Option<saggar_runtime::Action> {
                Some(saggar_runtime::Action::$action $(($argument))?)
            }
        }
    )+};
}

wanted! {
    /// Reads one sandbox.
    Read on sandbox => ReadSandbox;
    /// Changes its lifecycle.
    Change on sandbox => ChangeSandbox;
    Kill on sandbox => KillSandbox;
    /// Runs programs in it.
    Exec on sandbox => Exec;
    /// Reads its files.
    ReadFiles on sandbox => ReadFiles;
    /// Changes its files.
    WriteFiles on sandbox => WriteFiles;
    /// Reads one file, also with a signature.
    ReadFile on sandbox => ReadFiles, SIGNED;
    /// Changes one file, also with a signature.
    WriteFile on sandbox => WriteFiles, SIGNED;
}

wanted! {
    /// Creates a sandbox.
    Create => CreateSandbox;
    List => ListSandboxes;
    RunsStart => StartRun;
    RunsList => ListRuns;
}

impl<S, W> FromRequestParts<S> for Allowed<W>
where
    S: Send + Sync,
    W: Wanted,
    Shared: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let server = &Shared::from_ref(state);
        let subject = if W::SIGNED && signed::is_signed(parts.uri.query()) {
            let id = path_sandbox(parts).await?;
            signed::subject(server, &id, &parts.method, parts.uri.query())?
        } else {
            authenticate(server, &parts.headers).await?.ok_or_else(Refusal::unauthorized)?
        };
        let id = if W::ON_SANDBOX { Some(path_sandbox(parts).await?) } else { None };
        let action = W::action(id).ok_or_else(Refusal::internal)?;
        Ok(Self { permit: decide(&subject, action)?, what: PhantomData })
    }
}

/// Proof of any valid key, if there is no object to act on.
pub struct Known;

impl<S> FromRequestParts<S> for Known
where
    S: Send + Sync,
    Shared: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let subject =
            authenticate(&Shared::from_ref(state), &parts.headers).await?.ok_or_else(Refusal::unauthorized)?;
        context::note(&subject, None).map(|()| Self)
    }
}

/// A client that reads several sandboxes of its project in one request.
pub struct SandboxReader(Subject);

impl SandboxReader {
    /// A permit to read one of them. Whether it is the project's is checked by the lookup.
    pub fn permit(&self, id: SandboxId) -> Result<Permit, Refusal> {
        Ok(Permit::decide(&self.0, Action::ReadSandbox(id))?)
    }
}

impl<S> FromRequestParts<S> for SandboxReader
where
    S: Send + Sync,
    Shared: FromRef<S>,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let subject =
            authenticate(&Shared::from_ref(state), &parts.headers).await?.ok_or_else(Refusal::unauthorized)?;
        context::note(&subject, Some(&Action::ListSandboxes))?;
        Ok(Self(subject))
    }
}

/// Authorises access to a port. `token` is the presented access token, wherever it was.
pub async fn port(
    server: &Gate,
    headers: &HeaderMap,
    token: Option<&str>,
    id: &SandboxId,
    port: u16,
) -> Result<Permit, Refusal> {
    let action = Action::UsePort(id.clone(), port);
    let bearer = |project: ProjectId| Subject::Bearer { project, action: action.clone() };
    if let Some(project) = server.sandboxes.public_port(id, port) {
        return decide(&bearer(project), action);
    }
    if let Some(token) = token
        && server.sandboxes.signing().verify(&["access/v1", id.as_str()], token)
        && let Some(project) = server.sandboxes.project_of(id)
    {
        return decide(&bearer(project), action);
    }
    match authenticate(server, headers).await? {
        Some(subject) => decide(&subject, action),
        None => Err(Refusal::new(
            Code::Unauthorized,
            "the request has neither an API key nor the sandbox's access token",
            "send the sandbox's token as `Saggar-Access-Token`, or declare the port public",
        )),
    }
}

/// The inside of a live sandbox, before authentication.
pub struct Inside {
    id: SandboxId,
    project: ProjectId,
}

/// A client with the token of a sandbox's inside, which allows everything inside it, and nothing elsewhere.
#[derive(Clone, Debug)]
pub struct Insider {
    id: SandboxId,
    project: ProjectId,
}

/// The inside of a sandbox; `None` if it isn't live.
pub fn inside(server: &Gate, id: &SandboxId) -> Option<Inside> {
    server.sandboxes.project_of(id).map(|project| Inside { id: id.clone(), project })
}

impl Inside {
    /// A permit to check whether it runs, which only needs its id.
    pub fn may_be_looked_at(&self) -> Result<Permit, Refusal> {
        let action = Action::ReadSandbox(self.id.clone());
        decide(&Subject::Bearer { project: self.project.clone(), action: action.clone() }, action)
    }

    /// Authenticates by the token itself.
    pub fn by_token(self, server: &Gate, token: &str) -> Option<Insider> {
        server.sandboxes.is_inside_token(&self.id, token).then_some(Insider { id: self.id, project: self.project })
    }

    /// Authenticates as one who may use this port of it: by the token of its ports, or without any if the port is public.
    /// For requests that do no more than a program behind that port would.
    pub async fn by_port(self, server: &Gate, headers: &HeaderMap, port: u16) -> Result<Insider, Refusal> {
        let token = crate::ports::shown_token(headers);
        self::port(server, headers, token, &self.id, port).await?;
        Ok(Insider { id: self.id, project: self.project })
    }

    /// Authenticates by a value that only the token's holder can have made: `fits` checks a token.
    pub fn by_fit(self, server: &Gate, fits: impl FnOnce(&str) -> bool) -> Option<Insider> {
        fits(&server.sandboxes.inside_token(&self.id)).then_some(Insider { id: self.id, project: self.project })
    }
}

impl Insider {
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// A permit for an action inside.
    pub fn may(&self, action: fn(SandboxId) -> Action) -> Result<Permit, Refusal> {
        let action = action(self.id.clone());
        decide(&Subject::Bearer { project: self.project.clone(), action: action.clone() }, action)
    }
}

/// A permit for the volumes of a project, for the holder of a volume's token.
pub fn volumes_of(subject: &Subject) -> Result<Permit, Refusal> {
    decide(subject, Action::Manage(saggar_runtime::VOLUMES))
}

/// Decides, and counts the request for its subject.
fn decide(subject: &Subject, action: Action) -> Result<Permit, Refusal> {
    context::note(subject, Some(&action))?;
    Ok(Permit::decide(subject, action)?)
}

/// The subject; `None` if there is no valid credential.
async fn authenticate(server: &Gate, headers: &HeaderMap) -> Result<Option<Subject>, Refusal> {
    if let Some(subject) = &server.everybody {
        // Without keys, the browser's own headers are what keeps web pages out.
        return if is_from_a_page(headers) { Err(from_a_page()) } else { Ok(Some(subject.clone())) };
    }
    match shown_key(headers) {
        Some(key) => Ok(server.keys.subject(server.sandboxes.store(), &key).await?),
        None => Ok(None),
    }
}

/// The key in a request.
pub fn shown_key(headers: &HeaderMap) -> Option<Cow<'_, str>> {
    let bearer = headers.get(AUTHORIZATION).and_then(|value| {
        let (scheme, key) = value.to_str().ok()?.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(key.trim())
    });
    let shown = bearer.filter(|key| is_ours(key)).or_else(|| headers.get(route::header::API_KEY)?.to_str().ok());
    shown.map(spelling::plain)
}

/// Whether a text looks like one of our keys.
pub fn is_ours(key: &str) -> bool {
    spelling::plain(key).starts_with("sgr_")
}

fn is_from_a_page(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    headers.contains_key(ORIGIN) || !host::is_loopback(host)
}

fn from_a_page() -> Refusal {
    Refusal::new(
        Code::Forbidden,
        "without keys, requests from web pages and other hosts are refused",
        "set auth = \"keys\", or use 127.0.0.1 without an Origin header",
    )
}

/// The name of a method in signed URLs.
pub fn method_name(method: &Method) -> Option<&'static str> {
    match *method {
        Method::GET | Method::HEAD => Some("get"),
        Method::PUT => Some("put"),
        _ => None,
    }
}
