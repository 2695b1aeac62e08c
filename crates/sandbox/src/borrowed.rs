//! Detects root of a user namespace with too few ids: root by name only, as after `unshare -r`, without the privileges
//! on the host that sandboxes need.

use saggar_domain::{Code, Problem};

use crate::ranges;

/// Returns a problem if we are such a root: everything that follows would fail for misleading reasons.
pub(crate) fn borrowed_root() -> Option<Problem> {
    if !rustix::process::geteuid().is_root() {
        return None;
    }
    // Without this file the kernel has no user namespaces, so this is the real root.
    let map = std::fs::read_to_string("/proc/self/uid_map").ok()?;
    (!has_ranges(&map)).then(|| {
        Problem::new(
            Code::UnsupportedCapability,
            "saggar runs as root of a user namespace that has no ids for sandboxes, such as `unshare -r` creates; this root has no privileges on the host",
            "start it outside that namespace, as an ordinary user or as root of the host",
        )
    })
}

/// Whether the ids for sandboxes exist in this namespace.
fn has_ranges(map: &str) -> bool {
    let wanted = ranges::all();
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (Some(first), Some(_), Some(count)) = (numbers.next(), numbers.next(), numbers.next()) else {
            return false;
        };
        (first..first + count).contains(&u64::from(wanted.start)) && first + count >= u64::from(wanted.end)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_with_the_sandboxes_ids_will_do() {
        assert!(has_ranges("         0          0 4294967295\n"));
        assert!(has_ranges("0 0 1000\n1000 5000 3000000000\n"));
        for map in ["0 1000 1\n", "0 100000 65536\n", "", "0 0 1900000000\n"] {
            assert!(!has_ranges(map), "{map:?}");
        }
    }
}
