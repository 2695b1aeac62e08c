//! Tries a proxied network: a namespace whose connections and DNS lead to sockets held outside, and nothing else leads
//! anywhere.

use saggar_domain::{Capability, NetworkMode};

const MECHANISM: &str = "a private namespace whose packets are assigned to an egress process (nftables, tproxy)";
const REMEDY: &str = "user namespaces must be available to this user, and the kernel must have nf_tables with tproxy: \
     as root, modprobe nft_tproxy";

/// The caller must be single-threaded.
pub(super) fn proxied() -> Capability {
    judged(tried())
}

fn tried() -> Result<(), String> {
    saggar_jail::try_proxied().map_err(|failure| format!("{failure}: {}", failure.errno()))
}

fn judged(outcome: Result<(), String>) -> Capability {
    let name = NetworkMode::Proxied.as_str();
    match outcome {
        Ok(()) => Capability::supported(
            name,
            MECHANISM,
            "a connection and a DNS question reached their gates, and other traffic was refused",
        ),
        Err(reason) => Capability::unsupported(name, MECHANISM, reason, REMEDY),
    }
}

#[cfg(test)]
mod tests {
    use saggar_domain::Support;

    use super::*;

    #[test]
    fn a_trial_that_fails_is_the_reason() {
        let failed = judged(Err("opening the network gates: no such device".into()));
        assert_eq!((failed.status, failed.reason.contains("gates")), (Support::Unsupported, true));
        assert_eq!(judged(Ok(())).status, Support::Supported);
    }
}
