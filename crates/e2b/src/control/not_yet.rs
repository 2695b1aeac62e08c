//! Features of E2B that are not implemented: refused with a message, for authenticated clients.

use saggar_http::Refusal;
use saggar_http::access::Known;

use super::words::unsupported;

pub(super) async fn templates(_known: Known) -> Refusal {
    unsupported(
        "this call about templates is not supported yet",
        "import templates with `saggar template import --server`, and list and tag them with the client",
    )
}

pub(super) async fn secrets(_known: Known) -> Refusal {
    unsupported("secrets are not supported yet", "set environment variables with `envs`")
}

pub(super) async fn teams(_known: Known) -> Refusal {
    unsupported("teams and their keys are not supported", "use `saggar key` for keys")
}
