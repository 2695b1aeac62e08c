//! Checks an agent without starting it, by the rules that hold when it is started.

use saggar_api::Agent;
use saggar_domain::{AgentHash, Code, Problem};
use saggar_runtime::Fault;
use serde_json::Value;

use crate::native::agent_spec;

/// An agent that a server of this version would accept, as far as that depends on the agent alone.
#[derive(Clone, Debug)]
pub struct CheckedAgent {
    pub hash: AgentHash,
    /// The agent with every default filled in, as it is kept with its runs.
    pub effective: Value,
}

/// Refuses an agent that could not be started. Whether its secrets, its template and its volumes exist is known only to
/// the server that starts it. The task may be missing.
pub fn check_agent(agent: &Agent) -> Result<CheckedAgent, Problem> {
    let refused = |(message, help): (String, String)| Problem::new(Code::InvalidValue, message, help);
    if let Some(wrong) = agent.wrong() {
        return Err(refused(wrong));
    }
    let spec = agent_spec(agent.clone());
    saggar_runtime::runs::check_agent(&spec).map_err(|fault| match fault {
        Fault::Refused(problem) => problem,
        other => Problem::new(Code::InvalidValue, other.to_string(), "correct the agent"),
    })?;
    let effective = serde_json::to_value(&spec).unwrap_or_default();
    Ok(CheckedAgent { hash: agent.hash(), effective })
}
