//! Sandboxes: create, list, read, change, pause, end; and the server itself.

use hyper::Method;
use saggar_domain::net::EgressDraft;
use saggar_domain::{Capabilities, ExecId, SandboxId};

use super::error::Error;
use super::events::SandboxEvents;
use super::execs::ExecHandle;
use super::retry::fresh_key;
use super::send::{Call, Client};
use crate::event::{EventList, EventsQuery};
use crate::host::{Health, Metrics};
use crate::network::SandboxNetwork;
use crate::route;
use crate::sandbox::{CreateSandbox, CreatedSandbox, ListSandboxes, Sandbox, SandboxList};
use crate::update::{PauseSandbox, ResumeSandbox, SetTimeout, UpdateSandbox};

impl Client {
    /// Whether the server answers; needs no key.
    pub async fn health(&self) -> Result<Health, Error> {
        self.get(route::HEALTH).value().await
    }

    /// The capabilities of the server's host.
    pub async fn capabilities(&self) -> Result<Capabilities, Error> {
        self.get(route::CAPABILITIES).value().await
    }

    /// Creates a sandbox, with a generated idempotency key.
    pub async fn create(&self, sandbox: &CreateSandbox) -> Result<CreatedSandbox, Error> {
        self.create_once(sandbox, &fresh_key()).await
    }

    /// Creates a sandbox, or returns the one that was created with this idempotency key before.
    pub async fn create_once(&self, sandbox: &CreateSandbox, key: &str) -> Result<CreatedSandbox, Error> {
        let call = self.post(route::SANDBOXES).header(route::header::IDEMPOTENCY_KEY, key);
        call.idempotent().json(sandbox).value().await
    }

    /// One page of sandboxes, newest first.
    pub async fn list(&self, query: &ListSandboxes) -> Result<SandboxList, Error> {
        self.get(route::SANDBOXES).query(query).value().await
    }

    /// A handle for a sandbox, which need not exist.
    pub fn sandbox(&self, id: SandboxId) -> SandboxHandle {
        SandboxHandle { client: self.clone(), id }
    }
}

/// A sandbox on a server.
#[derive(Clone, Debug)]
pub struct SandboxHandle {
    client: Client,
    id: SandboxId,
}

impl SandboxHandle {
    /// The sandbox's id.
    pub fn id(&self) -> &SandboxId {
        &self.id
    }

    /// Reads the sandbox, also after its end.
    pub async fn get(&self) -> Result<Sandbox, Error> {
        self.call(Method::GET, route::SANDBOX).value().await
    }

    /// Changes it.
    pub async fn update(&self, change: &UpdateSandbox) -> Result<Sandbox, Error> {
        self.call(Method::PATCH, route::SANDBOX).json(change).value().await
    }

    /// Sets its remaining lifetime.
    pub async fn set_timeout(&self, timeout: &SetTimeout) -> Result<Sandbox, Error> {
        self.call(Method::POST, route::TIMEOUT).json(timeout).value().await
    }

    /// Ends it. When this returns, all its processes are dead and it is cleaned up; ending it again returns the same.
    pub async fn kill(&self) -> Result<Sandbox, Error> {
        self.call(Method::DELETE, route::SANDBOX).value().await
    }

    /// Freezes it.
    pub async fn pause(&self, pause: &PauseSandbox) -> Result<Sandbox, Error> {
        self.call(Method::POST, route::PAUSE).json(pause).value().await
    }

    /// Resumes it.
    pub async fn resume(&self, resume: &ResumeSandbox) -> Result<Sandbox, Error> {
        self.call(Method::POST, route::RESUME).json(resume).value().await
    }

    /// Replaces its network rules. When this returns they are in force, and connections that they forbid are cut.
    pub async fn set_egress(&self, rules: &EgressDraft) -> Result<Sandbox, Error> {
        self.call(Method::PUT, route::EGRESS).json(rules).value().await
    }

    /// Its network rules, and what it did with its network.
    pub async fn network(&self) -> Result<SandboxNetwork, Error> {
        self.call(Method::GET, route::NETWORK).value().await
    }

    /// Its resource usage.
    pub async fn metrics(&self) -> Result<Metrics, Error> {
        self.call(Method::GET, route::METRICS).value().await
    }

    /// Its events so far.
    pub async fn events(&self, query: &EventsQuery) -> Result<EventList, Error> {
        self.call(Method::GET, route::EVENTS).query(query).value().await
    }

    /// Follows its events until it has ended. Resumed after a lost connection.
    pub async fn follow_events(&self, query: &EventsQuery) -> Result<SandboxEvents, Error> {
        SandboxEvents::open(self.clone(), *query).await
    }

    /// Its events as lines of text, with the end of its execs' output.
    pub async fn logs(&self) -> Result<super::Download, Error> {
        Ok(self.call(Method::GET, route::LOGS).answer().await?.into_download())
    }

    /// A handle for one of its execs, which need not exist.
    pub fn exec(&self, exec: ExecId) -> ExecHandle {
        ExecHandle::new(self.clone(), exec)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn call(&self, method: Method, template: &str) -> Call {
        self.client.request(method, &template.replace("{id}", self.id.as_str()))
    }
}
