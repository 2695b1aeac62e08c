//! What a model's calls ask for: an effect, a child with its part of the budget, or the end of the run. A call that asks for nothing that
//! can be done gets a message instead.

use saggar_domain::RunId;

use super::Planner;
use crate::body::Body;
use crate::budget::{Budget, Spending};
use crate::built_in::BuiltIn;
use crate::child::DEPTH_MAX;
use crate::effect::{Class, Effect, ToolCall};
use crate::key::EffectKey;

/// What a call asks for.
#[allow(clippy::large_enum_variant, reason = "there is one at a time")]
pub(super) enum Asked {
    Do(Effect, Class),
    /// The end of the run, with this answer.
    Finish(Body),
}

impl Planner<'_> {
    /// The effect of a call, or the message that the model gets instead.
    pub(super) fn effect(&self, call: &ToolCall) -> Result<Asked, String> {
        let Some(tool) = self.agent.tools.get(&call.tool) else {
            return Err(format!("there is no tool {:?}", call.tool));
        };
        if let Some(complaint) = &call.invalid {
            return Err(complaint.clone());
        }
        let Some(asked) = BuiltIn::of(call) else {
            let class = call.class.filter(|class| *class == Class::Once).unwrap_or(tool.class);
            return Ok(Asked::Do(Effect::CallTool { call: call.clone() }, class));
        };
        match asked? {
            BuiltIn::Wait { seconds, signal } => {
                let until = self.now.after(std::time::Duration::from_secs(seconds));
                let signal = signal.filter(|_| self.rules.wait_for_signals());
                Ok(Asked::Do(Effect::Wait { call: call.clone(), until, signal }, Class::Pure))
            }
            BuiltIn::AskHuman { question } => {
                Ok(Asked::Do(Effect::AskHuman { call: call.clone(), question }, Class::Pure))
            }
            BuiltIn::Delegate { task, agent } => Ok(Asked::Do(self.delegate(call, task, agent)?, Class::Keyed)),
            BuiltIn::Finish { answer } => Ok(Asked::Finish(answer)),
        }
    }

    /// The child that a call requests, with its agent's own budget. The budget is cut to what is left later.
    fn delegate(&self, call: &ToolCall, task: Body, agent: Option<String>) -> Result<Effect, String> {
        let budget = match &agent {
            None => self.agent.budget,
            Some(name) => {
                let agent = self.agent.agents.get(name).ok_or_else(|| format!("there is no agent {name:?}"))?;
                agent.budget
            }
        };
        if self.born.depth >= DEPTH_MAX {
            return Err(format!("a run {DEPTH_MAX} below the first starts none: do it yourself"));
        }
        let key = EffectKey::of(&self.born.id, self.born.generation, self.last_step + 1);
        let child = RunId::from_random(key.bits());
        Ok(Effect::Delegate { call: call.clone(), child, agent, task, budget })
    }

    /// The maximum budget of a child. Calls of the same reply that are still to come keep their part: other children
    /// as much as this one, and any other call what it needs.
    pub(super) fn left_after(&self, reserved: Spending) -> Budget {
        let mut ledger = self.ledger;
        ledger.reserve(reserved.plus(self.kept_back(0)));
        let mut shares = 1;
        if self.rules.allow_several_steps() {
            for call in self.calls.iter().skip(1) {
                let is_child = matches!(BuiltIn::of(call), Some(Ok(BuiltIn::Delegate { .. })));
                shares += u64::from(is_child);
                let children = u64::from(is_child);
                ledger.reserve(Spending { steps: 1, tool_calls: 1, children, ..Spending::default() });
            }
        }
        let wall_ms = self.agent.budget.wall_ms.map(|limit| {
            let passed = self.now.as_millis().saturating_sub(self.born.started_at.as_millis());
            limit.saturating_sub(passed)
        });
        Budget { wall_ms, ..ledger.left().shared(shares) }
    }
}
