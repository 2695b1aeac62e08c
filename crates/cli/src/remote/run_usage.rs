//! What a run's models have used, by model, as its journal has it: what each provider counted and billed.

use std::collections::BTreeMap;

use saggar_api::JournalQuery;
use saggar_api::client::RunHandle;
use serde_json::Value;

use super::failure::CommandFailure;
use super::shown::line;

/// Micros of one unit of money.
const MICROS: u64 = 1_000_000;

/// By provider and model.
#[derive(Debug, Default)]
pub(crate) struct RunUsage(BTreeMap<String, Sum>);

#[derive(Debug, Default)]
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
    pub(crate) async fn of(run: &RunHandle) -> Result<Self, CommandFailure> {
        let (mut usage, mut after) = (Self::default(), 0);
        loop {
            let page = run.journal(&JournalQuery { after: Some(after), ..JournalQuery::default() }).await?;
            if page.items.is_empty() {
                return Ok(usage);
            }
            after = page.last_seq;
            page.items.iter().for_each(|entry| usage.take(entry));
        }
    }

    fn take(&mut self, entry: &Value) {
        let said = &entry["result"]["replied"]["said"];
        let Some(usage) = said["usage"].as_object() else { return };
        let count = |name: &str| usage.get(name).and_then(Value::as_u64).unwrap_or_default();
        let origin = |name: &str| said["origin"][name].as_str().unwrap_or_default().to_owned();
        let sum = self.0.entry(format!("{}/{}", origin("provider"), origin("model"))).or_default();
        sum.calls += 1;
        sum.input = sum.input.saturating_add(count("input"));
        sum.cached = sum.cached.saturating_add(count("cached_read"));
        sum.written = sum.written.saturating_add(count("cache_write"));
        sum.output = sum.output.saturating_add(count("output"));
        sum.reasoning = sum.reasoning.saturating_add(count("reasoning"));
        sum.micros = sum.micros.saturating_add(count("cost"));
    }

    /// A line for each model.
    pub(crate) fn lines(&self) -> String {
        self.0.iter().map(|(model, sum)| format!("  model    {}: {}\n", line(model), sum.text())).collect()
    }
}

impl Sum {
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
        let mut usage = RunUsage::default();
        let all = json!({ "input": 100, "cached_read": 60, "cache_write": 5, "output": 20, "reasoning": 7, "cost": 1_500_000 });
        for entry in [
            replied("a", all.clone()),
            replied("a", all),
            replied("b", json!({ "input": 1, "output": 2, "cost": 3 })),
            json!({ "event": "step_settled", "result": { "replied": { "text": { "text": "scripted" } } } }),
            json!({ "event": "run_finished" }),
        ] {
            usage.take(&entry);
        }
        let expected = "  model    p/a: 2 calls, 200 tokens in (120 cached, 10 written to the cache), 40 out (14 reasoning), cost 3.000000\n  \
                        model    p/b: 1 call, 1 tokens in, 2 out, cost 0.000003\n";
        assert_eq!(usage.lines(), expected);
    }
}
