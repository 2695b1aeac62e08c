//! Features of E2B that are not implemented: refused with a message, for authenticated clients.

use axum::extract::{FromRequestParts, State};
use http::header::AUTHORIZATION;
use saggar_domain::VolumeId;
use saggar_http::Refusal;
use saggar_http::access::Known;
use saggar_http::extract::path_text;

use super::words::unsupported;
use crate::state::Shared;

pub(super) async fn templates(_known: Known) -> Refusal {
    unsupported(
        "this call about templates is not supported yet",
        "import templates with `saggar template import --server`, and list and tag them with the client",
    )
}

/// The files of a volume. Clients have a token for them instead of a key.
pub(super) async fn volume_content(
    State(server): State<Shared>,
    mut parts: http::request::Parts,
) -> Result<(), Refusal> {
    let volume = path_text(&mut parts, "volume").await.and_then(|text| VolumeId::parse(&text));
    let shown = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
    if !volume.zip(shown).is_some_and(|(volume, token)| server.sandboxes.is_volume_token(&volume, token)) {
        Known::from_request_parts(&mut parts, &server).await?;
    }
    Err(unsupported(
        "files of volumes are not supported yet outside of sandboxes",
        "mount the volume in a sandbox, and read and write its files there",
    ))
}

pub(super) async fn secrets(_known: Known) -> Refusal {
    unsupported("secrets are not supported yet", "set environment variables with `envs`")
}

pub(super) async fn teams(_known: Known) -> Refusal {
    unsupported("teams and their keys are not supported", "use `saggar key` for keys")
}
