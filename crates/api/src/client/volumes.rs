//! Volumes of a project.

use hyper::Method;
use saggar_domain::VolumeName;

use super::error::Error;
use super::send::Client;
use crate::route;
use crate::volume::{CreateVolume, Volume, VolumeList};

impl Client {
    /// Creates a volume in our project.
    pub async fn create_volume(&self, volume: &CreateVolume) -> Result<Volume, Error> {
        self.post(route::VOLUMES).json(volume).value().await
    }

    /// All volumes of our project.
    pub async fn list_volumes(&self) -> Result<VolumeList, Error> {
        self.get(route::VOLUMES).value().await
    }

    /// One volume.
    pub async fn volume(&self, name: &VolumeName) -> Result<Volume, Error> {
        self.get(&path(name)).value().await
    }

    /// Removes a volume that no sandbox uses.
    pub async fn remove_volume(&self, name: &VolumeName) -> Result<(), Error> {
        self.request(Method::DELETE, &path(name)).done().await
    }
}

fn path(name: &VolumeName) -> String {
    route::VOLUME.replace("{volume}", name.as_str())
}
