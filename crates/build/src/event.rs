//! What a build says while it goes on, and how it ends.

use std::cell::RefCell;
use std::rc::Rc;

use saggar_domain::template::{LayerEntry, TemplateId};
use saggar_domain::{Problem, TemplateName};
use serde::{Deserialize, Serialize};

/// One line of a build's log. The last one is `Built` or `Failed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// Something that the build leaves out or doesn't do, harmlessly.
    Notice {
        line: Option<u32>,
        text: String,
    },
    /// A step begins; they are counted from 1.
    Step {
        number: usize,
        count: usize,
        line: Option<u32>,
        text: String,
    },
    /// One line of a program's output, without its end.
    Output {
        number: usize,
        stream: Stream,
        text: String,
    },
    StepEnded {
        number: usize,
        is_cached: bool,
        layer: Option<LayerEntry>,
        elapsed_ms: u64,
    },
    Built(Built),
    Failed(Failure),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    pub id: TemplateId,
    pub name: TemplateName,
    pub layers: usize,
    /// Of all layers.
    pub bytes: u64,
    pub steps: usize,
    pub cached_steps: usize,
    /// Where the name led before, if elsewhere.
    pub replaced: Option<TemplateId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub problem: Problem,
    /// Counted from 1; `None` if no step is at fault.
    pub step: Option<usize>,
    pub line: Option<u32>,
    /// Of the step's program.
    pub exit_code: Option<u8>,
    /// The last lines of its output.
    pub output: Vec<String>,
    pub is_cancelled: bool,
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self { problem, step: None, line: None, exit_code: None, output: Vec::new(), is_cancelled: false }
    }
}

/// Takes events. Output arrives while a sandbox is attended, so it must not wait long.
#[derive(Clone)]
pub struct Log(Rc<RefCell<dyn FnMut(Event)>>);

impl Log {
    pub fn new(take: impl FnMut(Event) + 'static) -> Self {
        Self(Rc::new(RefCell::new(take)))
    }

    pub fn write(&self, event: Event) {
        (self.0.borrow_mut())(event);
    }
}
