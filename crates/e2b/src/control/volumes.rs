//! Volumes for E2B's clients: create, list, read, destroy. They have no size there, so they get the server's default; and several
//! sandboxes may use one at once, as with E2B's own.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use saggar_domain::{Access, GuestPath, Sharing, VolumeMount, VolumeName};
use saggar_http::Refusal;
use saggar_http::access::Allowed;
use saggar_http::extract::{JsonText, path_text};
use saggar_runtime::{UsedVolume, VOLUMES};
use serde::Deserialize;
use serde_json::{Value, json};

use super::info::{Name, domain};
use crate::state::Shared;

saggar_http::wanted! {
    /// Creates, lists and removes volumes.
    Manage => Manage(VOLUMES);
}

#[derive(Debug, Deserialize)]
struct NewVolume {
    name: String,
}

/// A volume that a sandbox is to use.
#[derive(Debug, Deserialize)]
pub(super) struct Mounted {
    name: String,
    path: String,
}

impl Mounted {
    pub(super) fn wanted(self) -> Result<VolumeMount, Refusal> {
        let at = GuestPath::parse(&self.path).map_err(|complaint| {
            Refusal::new(saggar_api::Code::InvalidMount, complaint, "name an absolute path inside the sandbox")
        })?;
        Ok(VolumeMount { name: named(&self.name)?, at, mode: Access::ReadWrite })
    }
}

pub(super) async fn create(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    name: Name,
    body: JsonText,
) -> Result<Response, Refusal> {
    let NewVolume { name: asked } = body.read()?;
    let volume = server.sandboxes.create_volume(&allowed.permit, named(&asked)?, None, Sharing::Shared).await?;
    Ok((StatusCode::CREATED, axum::Json(shown(&server, &name, &volume))).into_response())
}

pub(super) async fn list(allowed: Allowed<Manage>, State(server): State<Shared>) -> Result<axum::Json<Value>, Refusal> {
    let volumes = server.sandboxes.volumes(&allowed.permit).await?;
    let item = |volume: &UsedVolume| json!({ "volumeID": volume.record.id, "name": volume.record.name });
    Ok(axum::Json(volumes.iter().map(item).collect()))
}

pub(super) async fn get(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    name: Name,
    mut parts: http::request::Parts,
) -> Result<axum::Json<Value>, Refusal> {
    let volume = find(&server, &allowed, &mut parts).await?;
    Ok(axum::Json(shown(&server, &name, &volume)))
}

pub(super) async fn destroy(
    allowed: Allowed<Manage>,
    State(server): State<Shared>,
    mut parts: http::request::Parts,
) -> Result<StatusCode, Refusal> {
    let volume = find(&server, &allowed, &mut parts).await?;
    server.sandboxes.remove_volume(&allowed.permit, &volume.record.name).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// By its id, or by its name.
async fn find(
    server: &Shared,
    allowed: &Allowed<Manage>,
    parts: &mut http::request::Parts,
) -> Result<UsedVolume, Refusal> {
    let asked = path_text(parts, "volume").await.unwrap_or_default();
    let volumes = server.sandboxes.volumes(&allowed.permit).await?;
    chosen(volumes, &asked).ok_or_else(|| Refusal::not_found("volume", &asked))
}

/// A name may look like an id: the volume that has the id goes first.
pub(super) fn chosen(mut volumes: Vec<UsedVolume>, asked: &str) -> Option<UsedVolume> {
    let by_id = volumes.iter().position(|volume| volume.record.id.as_str() == asked);
    let by_name = || volumes.iter().position(|volume| volume.record.name.as_str() == asked);
    by_id.or_else(by_name).map(|index| volumes.swap_remove(index))
}

fn named(name: &str) -> Result<VolumeName, Refusal> {
    name.parse()
        .map_err(|complaint: String| Refusal::new(saggar_api::Code::InvalidValue, complaint, "choose another name"))
}

/// The token opens the volume's content.
fn shown(server: &Shared, name: &Name, volume: &UsedVolume) -> Value {
    json!({
        "volumeID": volume.record.id,
        "name": volume.record.name,
        "token": server.sandboxes.volume_token(&volume.project, &volume.record.id),
        "domain": domain(server, name),
    })
}

#[cfg(test)]
mod tests {
    use saggar_domain::{ByteSize, ProjectId, Timestamp, VolumeId, VolumeRecord};

    use super::*;

    fn volume(id: u8, name: &str) -> UsedVolume {
        let name = name.parse().expect("a volume's name");
        let id = VolumeId::from_random([id; 16]);
        let (size, now) = (ByteSize::from_bytes(1 << 24), Timestamp::from_millis(0));
        let record = VolumeRecord::new(id, name, size, Sharing::Shared, now);
        UsedVolume { project: ProjectId::from_random([0; 16]), record, used_by: Vec::new() }
    }

    #[test]
    fn a_name_that_looks_like_an_id_does_not_hide_the_volume_with_the_id() {
        let real = volume(1, "real");
        let id = real.record.id.clone();
        let found = |asked: &str| chosen(vec![volume(2, id.as_str()), volume(1, "real")], asked).map(|it| it.record.id);
        assert_eq!(found(id.as_str()), Some(id.clone()));
        assert_eq!(found("real"), Some(id.clone()));
        assert_eq!(found("other"), None);
    }
}
