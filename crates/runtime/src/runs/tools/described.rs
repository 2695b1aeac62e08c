//! A tool of one agent, as its model and its operator see it: from the catalogue, or declared by the agent.

use saggar_domain::{HttpEndpoint, Schema};
use saggar_engine::{AgentSpec, Class};

use super::http;
use super::tool::Tool;

/// What a model is told about a tool.
#[derive(Clone, Copy, Debug)]
pub struct Described<'a> {
    pub description: &'a str,
    pub arguments: &'a Schema,
}

/// `None` if there is no such tool.
pub fn described<'a>(agent: &'a AgentSpec, name: &str) -> Option<Described<'a>> {
    if let Some(endpoint) = agent.tools.get(name).and_then(|tool| tool.endpoint.as_ref()) {
        return Some(Described { description: &endpoint.description, arguments: &endpoint.schema });
    }
    let tool = Tool::find(name)?;
    Some(Described { description: tool.description, arguments: tool.arguments() })
}

/// The class of a declared tool whose author says nothing.
pub fn default_class(endpoint: &HttpEndpoint) -> Class {
    http::default_class(endpoint)
}
