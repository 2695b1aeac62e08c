//! The tools that the engine performs itself. What they mean is in `saggar_engine::BuiltIn`.

use std::time::Duration;

use saggar_engine::{BuiltIn, BuiltInTool};

use super::tool::{Needs, Performer, Tool};

/// What comes after a wait is meant to happen after it.
pub(super) const WAIT: Tool = Tool { is_parallel: false, ..tool(&BuiltIn::TOOLS[0], 0) };
pub(super) const ASK_HUMAN: Tool = tool(&BuiltIn::TOOLS[1], 0);
/// The child's own calls have their own risk.
pub(super) const DELEGATE: Tool = tool(&BuiltIn::TOOLS[2], 10);

/// It ends what the calls before it have begun.
pub(super) const FINISH: Tool = Tool { is_parallel: false, ..tool(&BuiltIn::TOOLS[3], 0) };

const fn tool(tool: &BuiltInTool, risk: u8) -> Tool {
    Tool {
        name: tool.name,
        description: tool.description,
        schema: tool.schema,
        class: tool.class,
        class_of: None,
        is_parallel: true,
        risk,
        // It bounds an executor, and none is involved.
        timeout: Duration::from_secs(10 * 60),
        needs: Needs::Nothing,
        performer: Performer::Engine,
    }
}
