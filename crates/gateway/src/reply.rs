//! A reply as it arrives: events in one form for all wires, and how they fold into a whole reply.

use saggar_domain::model::{ModelReply, Origin, Part, Stop, TokenUsage, ToolCall, UsageSource, Verbatim, text_tokens};

/// More tokens than any model reads or writes in one call. A provider that says so is mistaken, and one such number would use up every
/// budget for good.
const TOKENS_MAX: u64 = 100_000_000;

/// Parts are numbered from 0 in the order in which they begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyEvent {
    Began {
        part: usize,
        kind: PartKind,
    },
    /// More text of a part that has begun; for a call, more of its arguments.
    Delta {
        part: usize,
        text: String,
    },
    /// Nothing more comes for this part.
    Ended {
        part: usize,
        verbatim: Option<Verbatim>,
    },
    /// A part that only the provider understands.
    Opaque {
        part: usize,
        verbatim: Verbatim,
    },
    /// The last value of each field counts.
    Used(Counted),
    Stopped(Stop),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartKind {
    Text,
    Reasoning,
    Refusal,
    /// What comes with a call that is there at once may go into its id, for clients that have no other place.
    Call {
        id: String,
        name: String,
        verbatim: Option<Verbatim>,
    },
}

/// Tokens as far as the provider has said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Including cached ones.
    pub input: Option<u64>,
    pub cached_read: Option<u64>,
    pub cache_write: Option<u64>,
    pub cache_write_long: Option<u64>,
    /// Including reasoning.
    pub output: Option<u64>,
    pub reasoning: Option<u64>,
}

impl Counted {
    pub fn update(&mut self, newer: Self) {
        self.input = newer.input.or(self.input);
        self.cached_read = newer.cached_read.or(self.cached_read);
        self.cache_write = newer.cache_write.or(self.cache_write);
        self.cache_write_long = newer.cache_write_long.or(self.cache_write_long);
        self.output = newer.output.or(self.output);
        self.reasoning = newer.reasoning.or(self.reasoning);
    }

    /// The provider's own count, if it is complete.
    pub fn complete(&self) -> Option<TokenUsage> {
        let input = self.input.filter(is_possible)?;
        let output = self.output.filter(is_possible)?;
        Some(TokenUsage { input, output, ..self.parts() }.normal())
    }

    /// What the provider has said, and estimates for the rest. A stream's own count of output comes at its end, so that an earlier one
    /// is provisional.
    pub fn estimated(&self, input: u64, output_bytes: u64) -> TokenUsage {
        let output = text_tokens(output_bytes).max(self.output.filter(is_possible).unwrap_or(0));
        let input = self.input.filter(is_possible).unwrap_or(input);
        TokenUsage { input, output, source: UsageSource::Estimated, ..self.parts() }.normal()
    }

    /// What the totals consist of, as far as it was said.
    fn parts(&self) -> TokenUsage {
        TokenUsage {
            cached_read: self.cached_read.unwrap_or(0),
            cache_write: self.cache_write.unwrap_or(0),
            cache_write_long: self.cache_write_long.unwrap_or(0),
            reasoning: self.reasoning.unwrap_or(0),
            ..TokenUsage::default()
        }
    }
}

fn is_possible(tokens: &u64) -> bool {
    *tokens <= TOKENS_MAX
}

/// Events, folded.
#[derive(Debug, Default)]
pub struct Fold {
    parts: Vec<Part>,
    counted: Counted,
    stop: Option<Stop>,
    /// Bytes of everything that the model wrote.
    written: u64,
}

impl Fold {
    pub fn event(&mut self, event: &ReplyEvent) {
        match event {
            ReplyEvent::Began { part, kind } => {
                let content = match kind {
                    PartKind::Text => Part::text(""),
                    PartKind::Reasoning => Part::Reasoning { text: String::new(), verbatim: None },
                    PartKind::Refusal => Part::Refusal { text: String::new() },
                    PartKind::Call { id, name, verbatim } => {
                        self.written += name.len() as u64;
                        let (id, name, verbatim) = (id.clone(), name.clone(), verbatim.clone());
                        Part::ToolCall(ToolCall { id, name, arguments: String::new(), verbatim })
                    }
                };
                self.put(*part, content);
            }
            ReplyEvent::Delta { part, text } => {
                self.written += text.len() as u64;
                match self.parts.get_mut(*part) {
                    Some(
                        Part::Text { text: all, .. } | Part::Reasoning { text: all, .. } | Part::Refusal { text: all },
                    ) => {
                        all.push_str(text);
                    }
                    Some(Part::ToolCall(call)) => call.arguments.push_str(text),
                    Some(Part::Image(_) | Part::ToolResult(_) | Part::Provider { .. }) | None => {}
                }
            }
            ReplyEvent::Ended { verbatim: None, .. } => {}
            ReplyEvent::Ended { part, verbatim } => match self.parts.get_mut(*part) {
                Some(Part::Text { verbatim: of, .. } | Part::Reasoning { verbatim: of, .. }) => of.clone_from(verbatim),
                Some(Part::ToolCall(call)) => call.verbatim.clone_from(verbatim),
                Some(Part::Refusal { .. } | Part::Image(_) | Part::ToolResult(_) | Part::Provider { .. }) | None => {}
            },
            ReplyEvent::Opaque { part, verbatim } => {
                self.put(*part, Part::Provider { verbatim: verbatim.clone() });
            }
            ReplyEvent::Used(counted) => self.counted.update(*counted),
            ReplyEvent::Stopped(stop) => self.stop = Some(*stop),
        }
    }

    /// A part's number is its place. One that a provider has left out stays empty.
    fn put(&mut self, part: usize, content: Part) {
        while self.parts.len() < part {
            self.parts.push(Part::text(""));
        }
        match self.parts.get_mut(part) {
            Some(place) => *place = content,
            None => self.parts.push(content),
        }
    }

    pub fn counted(&self) -> Counted {
        self.counted
    }

    pub fn written(&self) -> u64 {
        self.written
    }

    /// The whole reply. Calls without arguments have an empty object, and empty text is left out.
    pub fn finish(self, usage: TokenUsage, origin: Origin) -> ModelReply {
        let has_calls = self.parts.iter().any(|part| matches!(part, Part::ToolCall(_)));
        let stop = match self.stop {
            // Some servers say that they have finished when they call tools.
            Some(Stop::End) if has_calls => Stop::ToolCalls,
            Some(stop) => stop,
            None => Stop::Other,
        };
        let parts = self.parts.into_iter().filter_map(|part| match part {
            Part::Text { text, verbatim: None } if text.is_empty() => None,
            Part::ToolCall(call) if call.arguments.trim().is_empty() => {
                Some(Part::ToolCall(ToolCall { arguments: "{}".to_owned(), ..call }))
            }
            other => Some(other),
        });
        ModelReply { parts: parts.collect(), stop, usage, origin }
    }
}

/// The events of a reply that is there as a whole.
pub fn events_of(reply: &ModelReply) -> Vec<ReplyEvent> {
    let mut events = Vec::new();
    for (part, content) in reply.parts.iter().enumerate() {
        let (kind, text, verbatim) = match content {
            Part::Text { text, verbatim } => (PartKind::Text, text, verbatim.clone()),
            Part::Reasoning { text, verbatim } => (PartKind::Reasoning, text, verbatim.clone()),
            Part::Refusal { text } => (PartKind::Refusal, text, None),
            Part::ToolCall(call) => {
                let (id, name) = (call.id.clone(), call.name.clone());
                let kind = PartKind::Call { id, name, verbatim: call.verbatim.clone() };
                (kind, &call.arguments, call.verbatim.clone())
            }
            Part::Provider { verbatim } => {
                events.push(ReplyEvent::Opaque { part, verbatim: verbatim.clone() });
                continue;
            }
            // No model answers with these; the part keeps its place.
            Part::Image(_) | Part::ToolResult(_) => {
                events.push(ReplyEvent::Began { part, kind: PartKind::Text });
                continue;
            }
        };
        events.push(ReplyEvent::Began { part, kind });
        if !text.is_empty() {
            events.push(ReplyEvent::Delta { part, text: text.clone() });
        }
        events.push(ReplyEvent::Ended { part, verbatim });
    }
    let usage = &reply.usage;
    events.push(ReplyEvent::Used(Counted {
        input: Some(usage.input),
        cached_read: Some(usage.cached_read),
        cache_write: Some(usage.cache_write),
        cache_write_long: Some(usage.cache_write_long),
        output: Some(usage.output),
        reasoning: Some(usage.reasoning),
    }));
    events.push(ReplyEvent::Stopped(reply.stop));
    events
}
