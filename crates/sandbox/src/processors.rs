//! Chooses the CPUs that a sandbox runs on: its limit rounded up, so that programs that count CPUs see that number.
//!
//! This is not the limit: a program may choose other CPUs, and the cgroup's quota applies wherever it runs. Each
//! sandbox gets neighbouring CPUs from a random start, so that many small ones spread over the machine.

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::ids::random;

/// The CPUs for a limit in thousandths of one; `None` if there are no more than that anyway.
pub(crate) fn choose(cpu_millis: u32) -> Option<CpuSet> {
    let allowed = sched_getaffinity(None).ok()?;
    let start = random().map_or(0, u32::from_ne_bytes);
    choose_of(&allowed, cpu_millis, start as usize)
}

/// As the kernel lists CPUs in a file.
pub(crate) fn list(processors: &CpuSet) -> String {
    let numbers = (0..CpuSet::MAX_CPU).filter(|cpu| processors.is_set(*cpu)).map(|cpu| cpu.to_string());
    format!("{}\n", numbers.collect::<Vec<_>>().join(","))
}

fn choose_of(allowed: &CpuSet, cpu_millis: u32, start: usize) -> Option<CpuSet> {
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let wanted = cpu_millis.div_ceil(1000).max(1) as usize;
    if wanted >= all.len() {
        return None;
    }
    let mut chosen = CpuSet::new();
    for offset in 0..wanted {
        chosen.set(all[start.wrapping_add(offset) % all.len()]);
    }
    Some(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(allowed: &[usize], cpu_millis: u32, start: usize, expected: Option<&[usize]>) {
        let mut set = CpuSet::new();
        allowed.iter().for_each(|cpu| set.set(*cpu));
        let chosen = choose_of(&set, cpu_millis, start)
            .map(|chosen| (0..CpuSet::MAX_CPU).filter(|cpu| chosen.is_set(*cpu)).collect::<Vec<_>>());
        assert_eq!(chosen.as_deref(), expected, "{cpu_millis} of {allowed:?} from {start}");
    }

    #[test]
    fn as_many_are_chosen_as_the_limit_rounds_up_to_and_only_allowed_ones() {
        check(&[0, 1, 2, 3], 1000, 2, Some(&[2]));
        check(&[0, 1, 2, 3], 1001, 3, Some(&[0, 3]));
        check(&[4, 6, 9], 500, 1, Some(&[6]));
        check(&[4, 6, 9], 2000, 5, Some(&[4, 9]));
        check(&[0, 1], 2000, 0, None);
        check(&[0, 1], 64_000, 0, None);
    }
}
