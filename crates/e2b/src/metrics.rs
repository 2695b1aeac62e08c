//! A sandbox's usage in E2B's units.

use saggar_http::Refusal;
use saggar_http::wire;
use saggar_runtime::Permit;
use saggar_supervisor::control::Sample;

use super::failure::CallFailure;
use crate::state::Shared;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Used {
    pub(super) at_ms: u64,
    pub(super) cpu_count: u64,
    pub(super) cpu_used_pct: f64,
    pub(super) mem_used: u64,
    pub(super) mem_total: u64,
    pub(super) disk_used: u64,
    pub(super) disk_total: u64,
}

/// The current usage.
pub(super) async fn now(server: &Shared, permit: &Permit) -> Result<Used, CallFailure> {
    let all = all(server, permit).await?;
    all.last().copied().ok_or_else(|| CallFailure::from(Refusal::internal()))
}

/// Past usage, oldest first, and the current one.
pub(super) async fn all(server: &Shared, permit: &Permit) -> Result<Vec<Used>, Refusal> {
    let sandbox = wire::sandbox(server.sandboxes.get(permit).await?, Vec::new())?;
    let report = server.sandboxes.usage(permit).await?;
    let limits = &sandbox.spec.limits;
    let totals = Used {
        at_ms: 0,
        cpu_count: cpu_count(limits.cpus),
        cpu_used_pct: 0.0,
        mem_used: 0,
        mem_total: limits.memory.bytes(),
        disk_used: 0,
        disk_total: limits.disk.bytes(),
    };
    let samples = report.samples.iter().chain([&report.now]);
    let mut before: Option<Sample> = None;
    Ok(samples
        .map(|sample| {
            let used = used(totals, before.as_ref(), sample);
            before = Some(*sample);
            used
        })
        .collect())
}

/// Whole CPUs, as E2B counts them: at least one.
pub(super) fn cpu_count(cpus: saggar_domain::Cpus) -> u64 {
    u64::from(cpus.as_millis().div_ceil(1000).max(1))
}

fn used(totals: Used, before: Option<&Sample>, sample: &Sample) -> Used {
    Used {
        at_ms: sample.at_ms,
        cpu_used_pct: before.map_or(0.0, |before| percent(before, sample)),
        mem_used: sample.memory_bytes.unwrap_or(0),
        disk_used: sample.disk_bytes.unwrap_or(0),
        ..totals
    }
}

/// CPU time between two samples, as a percentage of one CPU.
fn percent(before: &Sample, sample: &Sample) -> f64 {
    let (Some(earlier), Some(later)) = (before.cpu_usec, sample.cpu_usec) else { return 0.0 };
    let span_ms = sample.at_ms.saturating_sub(before.at_ms).max(1) as f64;
    let percent = later.saturating_sub(earlier) as f64 / 10.0 / span_ms;
    (percent * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_of_one_cpu_between_two_samples() {
        let at = |at_ms, cpu_usec| Sample { at_ms, cpu_usec: Some(cpu_usec), ..Sample::default() };
        assert_eq!(percent(&at(0, 0), &at(1000, 500_000)), 50.0);
        assert_eq!(percent(&at(0, 0), &at(1000, 2_000_000)), 200.0);
        assert_eq!(percent(&at(1000, 5), &at(1000, 5)), 0.0);
        assert_eq!(percent(&Sample::default(), &at(1000, 5)), 0.0);
    }
}
