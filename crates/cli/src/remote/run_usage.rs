//! What a run's models have used, by model, as its journal has it: what each provider counted and billed. And what programs in its
//! sandboxes have asked of models; of a fork, with what was asked before.

use std::collections::BTreeMap;

use saggar_api::client::RunHandle;
use saggar_api::{JournalQuery, Run, RunSandboxModel};
use serde_json::Value;

use super::failure::CommandFailure;
use super::shown::line;

/// Micros of one unit of money.
const MICROS: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct RunUsage {
    /// By provider and model.
    own: BTreeMap<String, Sum>,
    /// In sandboxes of this run, by route.
    inside: BTreeMap<String, Sum>,
    /// The same for the runs whose history it has.
    inside_before: BTreeMap<String, Sum>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    calls: u64,
    input: u64,
    cached: u64,
    written: u64,
    output: u64,
    reasoning: u64,
    micros: u64,
}

impl RunUsage {
    pub(crate) async fn of(shown: &Run, run: &RunHandle) -> Result<Self, CommandFailure> {
        let (mut usage, mut after) = (Self::default(), 0);
        loop {
            let page = run.journal(&JournalQuery { after: Some(after), ..JournalQuery::default() }).await?;
            if page.items.is_empty() {
                // Newer than the last entry.
                usage.inside = shown.sandbox_models.iter().map(|model| (model.model.clone(), Sum::of(model))).collect();
                return Ok(usage);
            }
            after = page.last_seq;
            page.items.iter().for_each(|entry| usage.take(entry));
        }
    }

    fn take(&mut self, entry: &Value) {
        match entry["event"].as_str() {
            Some("sandbox_called") => {
                let models = entry["calls"]["models"].as_object().into_iter().flatten();
                self.inside = models.map(|(model, sum)| (model.clone(), Sum::read(sum))).collect();
            }
            Some("forked") => {
                for (model, sum) in std::mem::take(&mut self.inside) {
                    self.inside_before.entry(model).or_default().add(&sum);
                }
            }
            _ => {}
        }
        let said = &entry["result"]["replied"]["said"];
        let Some(usage) = said["usage"].as_object() else { return };
        let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
        let origin = |name: &str| said["origin"][name].as_str().unwrap_or_default().to_owned();
        self.own.entry(format!("{}/{}", origin("provider"), origin("model"))).or_default().add(&Sum {
            calls: 1,
            input: count("input"),
            cached: count("cached_read"),
            written: count("cache_write"),
            output: count("output"),
            reasoning: count("reasoning"),
            micros: count("cost"),
        });
    }

    /// A line for each model.
    pub(crate) fn lines(&self) -> String {
        let mut inside = self.inside_before.clone();
        for (model, sum) in &self.inside {
            inside.entry(model.clone()).or_default().add(sum);
        }
        let own = self.own.iter().map(|(model, sum)| format!("  model    {}: {}\n", line(model), sum.text()));
        let inside =
            inside.iter().map(|(model, sum)| format!("  model    {}, in sandboxes: {}\n", line(model), sum.text()));
        own.chain(inside).collect()
    }
}

impl Sum {
    fn of(model: &RunSandboxModel) -> Self {
        let &RunSandboxModel { model: _, calls, estimated: _, input, cached, written, output, reasoning, micros } =
            model;
        Self { calls, input, cached, written, output, reasoning, micros }
    }

    /// From the journal.
    fn read(sum: &Value) -> Self {
        let count = |name: &str| sum[name].as_u64().unwrap_or_default();
        Self {
            calls: count("calls"),
            input: count("input"),
            cached: count("cached"),
            written: count("written"),
            output: count("output"),
            reasoning: count("reasoning"),
            micros: count("micros"),
        }
    }

    fn add(&mut self, more: &Self) {
        for (sum, more) in [
            (&mut self.calls, more.calls),
            (&mut self.input, more.input),
            (&mut self.cached, more.cached),
            (&mut self.written, more.written),
            (&mut self.output, more.output),
            (&mut self.reasoning, more.reasoning),
            (&mut self.micros, more.micros),
        ] {
            *sum = sum.saturating_add(more);
        }
    }

    fn text(&self) -> String {
        let within = |parts: &[(&str, u64)]| {
            let parts: Vec<String> =
                parts.iter().filter(|(_, count)| *count > 0).map(|(what, count)| format!("{count} {what}")).collect();
            if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) }
        };
        format!(
            "{} {}, {} tokens in{}, {} out{}, cost {}.{:06}",
            self.calls,
            if self.calls == 1 { "call" } else { "calls" },
            self.input,
            within(&[("cached", self.cached), ("written to the cache", self.written)]),
            self.output,
            within(&[("reasoning", self.reasoning)]),
            self.micros / MICROS,
            self.micros % MICROS
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn usage_is_summed_up_by_model() {
        let replied = |model: &str, usage: Value| {
            let said = json!({ "usage": usage, "origin": { "provider": "p", "model": model } });
            json!({ "event": "step_settled", "result": { "replied": { "text": { "text": "" }, "said": said } } })
        };
        let called = |calls: u64| {
            let sum =
                json!({ "calls": calls, "estimated": 1, "input": 10 * calls, "output": calls, "micros": 7 * calls });
            json!({ "event": "sandbox_called", "calls": { "models": { "cheap": sum } } })
        };
        let mut usage = RunUsage::default();
        let all = json!({ "input": 100, "cached_read": 60, "cache_write": 5, "output": 20, "reasoning": 7, "cost": 1_500_000 });
        for entry in [
            replied("a", all.clone()),
            replied("a", all),
            replied("b", json!({ "input": 1, "output": 2, "cost": 3 })),
            json!({ "event": "step_settled", "result": { "replied": { "text": { "text": "scripted" } } } }),
            called(1),
            // It replaces what was said before.
            called(2),
            json!({ "event": "forked" }),
            called(3),
            json!({ "event": "run_finished" }),
        ] {
            usage.take(&entry);
        }
        let expected = "  model    p/a: 2 calls, 200 tokens in (120 cached, 10 written to the cache), 40 out (14 reasoning), cost 3.000000\n  \
                        model    p/b: 1 call, 1 tokens in, 2 out, cost 0.000003\n  \
                        model    cheap, in sandboxes: 5 calls, 50 tokens in, 5 out, cost 0.000035\n";
        assert_eq!(usage.lines(), expected);
    }
}
