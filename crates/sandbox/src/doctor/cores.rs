//! Checks whether a crash inside starts something on the host: the kernel may be configured to send cores to a program
//! or a socket.
//!
//! Nothing is made to crash here: if the answer is bad, that would run the host's handler.

use saggar_domain::{Capability, Draft};

use super::trial::{Trials, succeeded};

const PATTERN: &str = "/proc/sys/kernel/core_pattern";
const NAME: &str = "core dumps";
const MECHANISM: &str = "RLIMIT_CORE, fixed by the filter";

pub(super) fn cores(trials: &Trials<'_>) -> Capability {
    let report = trials.sh(Draft::default(), "grep -Eq '^Max core file size +1 +1 ' /proc/self/limits");
    judged(&std::fs::read_to_string(PATTERN).unwrap_or_default(), succeeded(&report))
}

/// `is_one` says whether the limit inside is one byte, at which the kernel starts no program for a core.
fn judged(pattern: &str, is_one: bool) -> Capability {
    match pattern.as_bytes().first() {
        Some(b'@') => Capability::experimental(
            NAME,
            MECHANISM,
            "cores go to a socket of the host, and no limit stops that: a crash inside is reported to its listener",
            "set kernel.core_pattern to a program (|…) or a file name",
        ),
        Some(b'|') if is_one => Capability::supported(
            NAME,
            MECHANISM,
            "cores go to a program of the host, which is not started for a crash inside",
        ),
        Some(b'|') => Capability::experimental(
            NAME,
            MECHANISM,
            "a crash inside starts the host's core handler, as the host's root: the hard limit on cores is 0 here",
            "start saggar with a hard limit on cores of at least 1",
        ),
        Some(_) | None => Capability::supported(NAME, MECHANISM, "no core is written for a crash inside"),
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::Support;

    use super::*;

    #[test]
    fn a_handler_that_would_be_run_is_told_of() {
        for (pattern, is_one, expected) in [
            ("core\n", true, Support::Supported),
            ("core\n", false, Support::Supported),
            ("", false, Support::Supported),
            ("|/usr/lib/systemd/systemd-coredump %P\n", true, Support::Supported),
            ("|/usr/lib/systemd/systemd-coredump %P\n", false, Support::Experimental),
            ("@/run/cores.socket\n", true, Support::Experimental),
        ] {
            assert_eq!(judged(pattern, is_one).status, expected, "{pattern} {is_one}");
        }
    }
}
