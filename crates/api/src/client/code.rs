//! The code interpreter of a sandbox: contexts, and code that runs in them.

use hyper::Method;
use saggar_domain::ContextId;

use super::error::Error;
use super::events::{Events, parse};
use super::sandboxes::SandboxHandle;
use crate::interpreter::{CodeContext, CodeContextList, CodeEvent, CodeExecution, CreateCodeContext, RunCode};
use crate::route;

impl SandboxHandle {
    /// Starts a context.
    pub async fn create_code_context(&self, context: &CreateCodeContext) -> Result<CodeContext, Error> {
        self.call(Method::POST, route::CODE_CONTEXTS).json(context).value_whenever().await
    }

    /// The sandbox's contexts, oldest first.
    pub async fn code_contexts(&self) -> Result<CodeContextList, Error> {
        self.call(Method::GET, route::CODE_CONTEXTS).value().await
    }

    /// Starts a context anew.
    pub async fn restart_code_context(&self, id: &ContextId) -> Result<CodeContext, Error> {
        self.call(Method::POST, &of(route::CODE_RESTART, id)).value_whenever().await
    }

    /// Ends a context.
    pub async fn remove_code_context(&self, id: &ContextId) -> Result<(), Error> {
        self.call(Method::DELETE, &of(route::CODE_CONTEXT, id)).done().await
    }

    /// Runs code to its end. It is interrupted if this is dropped.
    pub async fn run_code(&self, run: &RunCode) -> Result<CodeExecution, Error> {
        self.call(Method::POST, route::CODE_RUN).json(run).value_whenever().await
    }

    /// Runs code, and follows what it prints and shows. It is interrupted if the stream is dropped.
    pub async fn stream_code(&self, run: &RunCode) -> Result<CodeStream, Error> {
        Ok(CodeStream { events: Events::open(self.call(Method::POST, route::CODE_RUN).json(run)).await? })
    }
}

/// The events of one execution. A lost connection ends it: the server then interrupts the code.
pub struct CodeStream {
    events: Events,
}

impl CodeStream {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Result<Option<CodeEvent>, Error> {
        loop {
            match self.events.next().await? {
                None => return Ok(None),
                Some(event) => match parse(&event)? {
                    CodeEvent::Other => {}
                    event => return Ok(Some(event)),
                },
            }
        }
    }
}

fn of(route: &str, id: &ContextId) -> String {
    route.replace("{context}", id.as_str())
}
