//! Execs: start, wait, follow, signal, send input.

use hyper::Method;
use saggar_domain::{ExecId, TerminalSize};

use super::attach::Attached;
use super::body::Body;
use super::error::Error;
use super::follow::ExecStream;
use super::sandboxes::SandboxHandle;
use super::send::Call;
use crate::attach::AttachQuery;
use crate::exec::{Exec, ExecList, ResizeExec, SignalExec, StartExec, StdinQuery};
use crate::output::ExecResult;
use crate::route;
use crate::stream::StreamQuery;

impl SandboxHandle {
    /// Runs a program to its end. Takes as long as the program does; use a stream for a program that outlasts a
    /// connection.
    pub async fn run(&self, exec: &StartExec) -> Result<ExecResult, Error> {
        let exec = StartExec { wait: true, ..exec.clone() };
        self.call(Method::POST, route::EXECS).json(&exec).value_whenever().await
    }

    /// Starts a program in the background.
    pub async fn start(&self, exec: &StartExec) -> Result<Exec, Error> {
        let exec = StartExec { wait: false, ..exec.clone() };
        self.call(Method::POST, route::EXECS).json(&exec).value().await
    }

    /// Starts a program and follows its output.
    pub async fn stream(&self, exec: &StartExec) -> Result<ExecStream, Error> {
        let exec = StartExec { wait: true, ..exec.clone() };
        ExecStream::start(self.clone(), &exec).await
    }

    /// The sandbox's execs, newest first.
    pub async fn execs(&self) -> Result<ExecList, Error> {
        self.call(Method::GET, route::EXECS).value().await
    }
}

/// An exec of a sandbox.
#[derive(Clone, Debug)]
pub struct ExecHandle {
    sandbox: SandboxHandle,
    id: ExecId,
}

impl ExecHandle {
    pub(crate) fn new(sandbox: SandboxHandle, id: ExecId) -> Self {
        Self { sandbox, id }
    }

    /// The exec's id.
    pub fn id(&self) -> &ExecId {
        &self.id
    }

    /// Its sandbox.
    pub fn sandbox(&self) -> &SandboxHandle {
        &self.sandbox
    }

    /// The exec with its kept output.
    pub async fn get(&self) -> Result<ExecResult, Error> {
        self.call(Method::GET, route::EXEC).value().await
    }

    /// Follows its output.
    pub async fn follow(&self, query: StreamQuery) -> Result<ExecStream, Error> {
        ExecStream::attach(self, query).await
    }

    /// Sends bytes to its stdin.
    pub async fn send_stdin(&self, bytes: impl Into<bytes::Bytes>) -> Result<(), Error> {
        self.stdin(bytes.into(), StdinQuery { end: false }).await
    }

    /// Sends the last bytes to its stdin, and closes it.
    pub async fn end_stdin(&self, bytes: impl Into<bytes::Bytes>) -> Result<(), Error> {
        self.stdin(bytes.into(), StdinQuery { end: true }).await
    }

    /// Sends a signal.
    pub async fn signal(&self, signal: &SignalExec) -> Result<(), Error> {
        self.call(Method::POST, route::EXEC_SIGNAL).json(signal).done().await
    }

    /// Resizes its terminal.
    pub async fn resize(&self, size: TerminalSize) -> Result<(), Error> {
        self.call(Method::POST, route::EXEC_RESIZE).json(&ResizeExec(size)).done().await
    }

    /// Opens a WebSocket to it, for terminals.
    pub async fn attach(&self, query: AttachQuery) -> Result<Attached, Error> {
        Attached::open(self, query).await
    }

    async fn stdin(&self, bytes: bytes::Bytes, query: StdinQuery) -> Result<(), Error> {
        let call = self.call(Method::POST, route::EXEC_STDIN).query(&query);
        call.body(Body::whole(bytes), "application/octet-stream").done().await
    }

    pub(crate) fn call(&self, method: Method, template: &str) -> Call {
        self.sandbox.call(method, &template.replace("{exec}", self.id.as_str()))
    }
}
