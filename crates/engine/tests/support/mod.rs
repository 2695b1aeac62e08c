//! A run driven by hand: every event is checked against the invariants when it is applied, and the whole journal is
//! checked by a replay.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use saggar_domain::{RunId, Timestamp};
use saggar_engine::{
    AgentSpec, Body, Budget, Class, Event, Input, Message, ModelRef, ModelReply, OpenStep, Rejected, Report,
    RetryPolicy, Run, Spending, ToolCall, ToolResult, ToolSpec, Usage, replay,
};

pub struct Driven {
    pub run: Run,
    pub journal: Vec<Event>,
    pub now: Timestamp,
}

impl Driven {
    pub fn start(agent: AgentSpec) -> Self {
        let mut driven = Self::unclaimed(agent);
        driven.input(Input::claim(1)).expect("it is accepted");
        driven
    }

    pub fn unclaimed(agent: AgentSpec) -> Self {
        let mut driven = Self { run: Run::new(), journal: Vec::new(), now: Timestamp::from_millis(1_000_000) };
        let run = RunId::from_random([7; 16]);
        driven.input(Input::Start { run, agent: Box::new(agent), child_of: None }).expect("it is accepted");
        driven
    }

    pub fn input(&mut self, input: Input) -> Result<Vec<Event>, Rejected> {
        let events = self.run.decide(self.now, &input)?;
        for event in &events {
            self.run.apply(event);
            check_invariants(&self.run);
        }
        self.journal.extend(events.iter().cloned());
        Ok(events)
    }

    pub fn pass(&mut self, span: Duration) -> Vec<Event> {
        self.now = self.now.after(span);
        self.input(Input::Tick).unwrap_or_default()
    }

    pub fn report(&mut self, report: Report) -> Result<Vec<Event>, Rejected> {
        let open = self.run.open_step().expect("a step is open");
        let (step, attempt, epoch) = (open.step, open.attempt, self.run.epoch());
        self.input(Input::Reported { epoch, step, attempt, report, chance: 42 })
    }

    pub fn reply(&mut self, calls: &[(&str, &str)]) -> Vec<Event> {
        self.report(Report::Replied { reply: reply(calls), usage: Usage { tokens: 10, micros: 5 } })
            .expect("it is accepted")
    }

    pub fn returned(&mut self, text: &str) -> Vec<Event> {
        let result = ToolResult::new(Body::text(text), false);
        self.report(Report::Returned { result, snapshot: None }).expect("it is accepted")
    }

    /// Reports about a step that isn't the first.
    pub fn report_on(&mut self, step: u64, report: Report) -> Result<Vec<Event>, Rejected> {
        let open = self.run.open_steps().iter().find(|open| open.step == step).expect("it is open");
        let (attempt, epoch) = (open.attempt, self.run.epoch());
        self.input(Input::Reported { epoch, step, attempt, report, chance: 42 })
    }

    pub fn returned_on(&mut self, step: u64, text: &str) -> Vec<Event> {
        let result = ToolResult::new(Body::text(text), false);
        self.report_on(step, Report::Returned { result, snapshot: None }).expect("it is accepted")
    }

    /// Folding and replaying give the same run.
    pub fn check(&self) {
        if self.run.outcome().is_none() {
            let open = self.run.open_steps().iter().map(|open| open.reserved);
            assert_eq!(self.run.ledger().reserved(), open.fold(Spending::default(), Spending::plus));
        }
        let replayed = replay(&self.journal);
        assert_eq!(replayed.divergence, None);
        assert_eq!(replayed.agreed, self.journal.len());
        assert_eq!(format!("{:?}", replayed.run), format!("{:?}", self.run));
    }
}

pub fn check_invariants(run: &Run) {
    let open = run.open_steps();
    if run.outcome().is_some() {
        assert!(open.is_empty(), "nothing is open in a run that has finished");
    }
    for pending in run.pending() {
        assert!(open.iter().any(|open| (open.step, open.attempt) == (pending.step, pending.attempt)));
    }
    assert!(open.windows(2).all(|two| two[0].step < two[1].step), "in their order");
    let is_lonely = |open: &OpenStep| matches!(open.class, Class::Model | Class::Once);
    assert!(open.len() < 2 || !open.iter().any(is_lonely), "beside others: {open:?}");
    assert!(open.len() <= run.agent().map_or(0, |agent| agent.open_max as usize));
    let reserved = open.iter().map(|open| open.reserved).fold(Spending::default(), Spending::plus);
    let all = run.ledger().reserved();
    // What was abandoned stays reserved, up to the end in the same batch.
    assert_eq!(all, reserved.plus(all.minus(reserved)), "all that is open is reserved");
    check_turns(run.conversation());
}

/// The results of a reply's calls are told in the order of its calls.
fn check_turns(conversation: &[Message]) {
    let mut calls: Vec<&str> = Vec::new();
    for message in conversation {
        match message {
            Message::Assistant(reply) => calls = reply.calls.iter().map(|call| call.id.as_str()).collect(),
            Message::Tool { call, .. } => {
                let at = calls.iter().position(|id| id == call);
                calls.drain(..=at.expect("each call has one result, in the model's order"));
            }
            Message::System(_) | Message::User(_) | Message::Summary(_) => {}
        }
    }
}

pub fn reply(calls: &[(&str, &str)]) -> ModelReply {
    let call = |(index, (tool, arguments)): (usize, &(&str, &str))| ToolCall {
        id: format!("call_{index}"),
        tool: (*tool).to_owned(),
        arguments: Body::text(*arguments),
        read: None,
        invalid: None,
        class: None,
    };
    ModelReply::new(Body::text("done"), calls.iter().enumerate().map(call).collect())
}

/// The same agent, whose tools may be called beside each other.
pub fn parallel(open_max: u32) -> AgentSpec {
    let mut agent = AgentSpec { open_max, ..agent() };
    for tool in agent.tools.values_mut().filter(|tool| tool.class != Class::Once) {
        tool.is_parallel = true;
    }
    agent
}

pub fn agent() -> AgentSpec {
    let tool = |class| ToolSpec {
        class,
        retry: RetryPolicy::default(),
        timeout_ms: 1000,
        egress: None,
        endpoint: None,
        is_parallel: false,
        uses_sandbox: false,
    };
    AgentSpec {
        name: "tester".to_owned(),
        identity: None,
        directory: None,
        system: None,
        task: Body::text("do it"),
        model: ModelRef {
            provider: "scripted".to_owned(),
            model: "script".to_owned(),
            sampling: Default::default(),
            reply_tokens_max: 100,
            reply_micros_max: None,
            retry: RetryPolicy::default(),
        },
        tools: BTreeMap::from([
            ("pure".to_owned(), tool(Class::Pure)),
            ("keyed".to_owned(), tool(Class::Keyed)),
            ("probeable".to_owned(), tool(Class::Probeable)),
            ("once".to_owned(), tool(Class::Once)),
            ("wait".to_owned(), tool(Class::Pure)),
            ("ask_human".to_owned(), tool(Class::Pure)),
            ("delegate".to_owned(), tool(Class::Keyed)),
            ("finish".to_owned(), tool(Class::Pure)),
        ]),
        sandbox: Default::default(),
        budget: Budget::default(),
        repeats_max: 8,
        corrections_max: saggar_engine::CORRECTIONS_DEFAULT,
        output: None,
        context: None,
        open_max: saggar_engine::OPEN_STEPS_DEFAULT,
        on: Default::default(),
        snapshots: Default::default(),
        agents: BTreeMap::new(),
    }
}
