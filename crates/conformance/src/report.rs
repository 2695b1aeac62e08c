//! Reports of a probe: machine-readable results, and a page for people.

use std::collections::BTreeMap;

use saggar_domain::{Capabilities, Tier};
use serde::{Deserialize, Serialize};

/// The verdict on a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything was as expected, and nothing succeeded that shouldn't.
    Pass,
    /// Everything was as expected, and something is not stopped here; the case names the page that says so.
    Documented,
    Fail,
    /// The host lacks a feature that the case needs, and `doctor` says so.
    NotApplicable,
}

impl Verdict {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Documented => "documented",
            Self::Fail => "fail",
            Self::NotApplicable => "not-applicable",
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseResult {
    pub id: String,
    pub tier: Tier,
    pub verdict: Verdict,
    /// The outcome of each member.
    pub observed: BTreeMap<String, String>,
    /// The expected outcome of each member.
    pub expected: BTreeMap<String, String>,
    pub ms: u64,
    pub title: String,
    /// Why it would be harmful if it worked.
    pub why: String,
    /// The page that documents what is not stopped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub documented: Option<String>,
    /// Why it failed or doesn't apply.
    #[serde(default)]
    pub reasons: Vec<String>,
}

#[derive(Debug, Serialize)]
pub struct Summary {
    /// Capabilities of the host.
    pub host: Capabilities,
    /// All results, in the order of the data.
    pub results: Vec<CaseResult>,
    pub elapsed_ms: u64,
    /// Number of workers that ran cases in parallel.
    pub workers: usize,
}

impl Summary {
    pub fn count(&self, verdict: Verdict) -> usize {
        self.results.iter().filter(|result| result.verdict == verdict).count()
    }

    pub fn members(&self) -> usize {
        self.results.iter().map(|result| result.observed.len()).sum()
    }
}

/// Renders the whole probe as one page.
pub fn markdown(summary: &Summary) -> String {
    let mut page = String::from("# Conformance report\n\n");
    let host = &summary.host;
    page.push_str(&format!("- saggar {} on {} as {}\n", host.version, host.host, host.identity));
    page.push_str(&format!(
        "- {} cases, {} members: {} passed, {} documented as not stopped, {} failed, {} not applicable; {:.1} s with {} workers\n\n",
        summary.results.len(),
        summary.members(),
        summary.count(Verdict::Pass),
        summary.count(Verdict::Documented),
        summary.count(Verdict::Fail),
        summary.count(Verdict::NotApplicable),
        summary.elapsed_ms as f64 / 1000.0,
        summary.workers
    ));
    page.push_str("Each case also checks that events came in order, that nothing said names a directory of the runtime or a secret of its\nenvironment, that the attempt ended as it should, and that no process, mount, cgroup, record or descriptor was left.\n\n");
    page.push_str("| case | verdict | members | ms | attempt |\n|---|---|---|---|---|\n");
    for result in &summary.results {
        let page_of_gap = result.documented.as_ref().filter(|_| result.verdict == Verdict::Documented);
        let documented = page_of_gap.map(|page| format!(" (documented: {page})")).unwrap_or_default();
        page.push_str(&format!(
            "| {} | {} | {} | {} | {}{documented} |\n",
            result.id,
            result.verdict.as_str(),
            result.observed.len(),
            result.ms,
            cell(&result.title)
        ));
    }
    for (heading, verdict) in [("Failed", Verdict::Fail), ("Not applicable", Verdict::NotApplicable)] {
        let chosen: Vec<&CaseResult> = summary.results.iter().filter(|result| result.verdict == verdict).collect();
        if chosen.is_empty() {
            continue;
        }
        page.push_str(&format!("\n## {heading}\n"));
        for result in chosen {
            page.push_str(&format!("\n### {} {}\n\n{}\n\n", result.id, result.title, result.why));
            result.reasons.iter().for_each(|reason| page.push_str(&format!("- {}\n", cell(reason))));
        }
    }
    page.push_str("\n## The host\n\n| what | status | reason | by |\n|---|---|---|---|\n");
    for row in [&host.tiers, &host.filesystem, &host.network, &host.limits, &host.mechanisms].into_iter().flatten() {
        page.push_str(&format!(
            "| {} | {} | {} | {} |\n",
            row.name,
            row.status.as_str(),
            cell(&row.reason),
            cell(&row.mechanism)
        ));
    }
    page.push_str("\n## Every member\n\n| case | member | observed | expected |\n|---|---|---|---|\n");
    for result in &summary.results {
        for (member, observed) in &result.observed {
            let expected = result.expected.get(member).map_or("", String::as_str);
            page.push_str(&format!("| {} | {} | {} | {} |\n", result.id, cell(member), cell(observed), cell(expected)));
        }
    }
    page
}

/// Escapes text from inside a sandbox for a table cell: no markup, no control characters.
fn cell(text: &str) -> String {
    let safe = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    safe.flat_map(|c| match c {
        '|' | '<' | '`' | '*' | '[' | '\\' => vec!['\\', c],
        c => vec![c],
    })
    .collect()
}
