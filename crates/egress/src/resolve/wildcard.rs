//! How much of a name a wildcard rule leaves to the sandbox.

use saggar_domain::net::{HostName, Rules};

/// A label that no rule has, to see whether any label would do.
const ANY_LABEL: &str = "any-label-whatsoever";

/// How many labels of an allowed name may be anything, because a wildcard rule matches. 0: the name is allowed as it is.
pub(crate) fn labels_below_wildcard(rules: &Rules, name: &HostName) -> usize {
    let mut rest = name.as_str();
    let mut below = 0;
    let mut count = 0;
    while let Some((_, parent)) = rest.split_once('.') {
        count += 1;
        let sibling = HostName::parse(format!("{ANY_LABEL}.{parent}").as_bytes());
        if sibling.is_ok_and(|sibling| rules.resolves(&sibling)) {
            below = count;
        }
        rest = parent;
    }
    below
}
