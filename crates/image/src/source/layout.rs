//! OCI image layouts: `index.json` and blobs by their digest.

use saggar_domain::Problem;
use saggar_domain::template::ImageSource;

use super::FoundImage;
use super::files::Files;
use super::resolve::{Blobs, from_top};
use crate::blob::{Bytes, Checked, Promise};
use crate::document::{DOCUMENT_BYTES_MAX, Descriptor, Top};
use crate::failure::{refused, shown};

struct Layout(Files);

impl Blobs for Layout {
    fn open(&self, promise: &Promise) -> Result<Bytes, Problem> {
        let path = format!("blobs/sha256/{}", promise.digest.hex());
        Ok(Box::new(Checked::new(self.0.read(path.as_bytes())?, promise.clone())))
    }
}

pub(super) fn open(files: Files, image: Option<&str>) -> Result<FoundImage, Problem> {
    let index = files.read_all(b"index.json", DOCUMENT_BYTES_MAX)?;
    let Top::Index(images) = Top::parse(&index)? else {
        return Err(refused("the image layout's index.json is not an index", "copy or build the image anew"));
    };
    let images = pick(images, image)?;
    from_top(Box::new(Layout(files)), Top::Index(images), ImageSource::Layout)
}

/// A layout may have several images, each under a name.
fn pick(images: Vec<Descriptor>, image: Option<&str>) -> Result<Vec<Descriptor>, Problem> {
    let mut names: Vec<String> = images.iter().filter_map(Descriptor::reference).map(str::to_owned).collect();
    names.sort();
    names.dedup();
    let listed = || shown(names.join(", ").as_bytes());
    match image {
        Some(image) => {
            let picked: Vec<Descriptor> = images.into_iter().filter(|found| found.reference() == Some(image)).collect();
            if picked.is_empty() {
                return Err(refused(
                    format!("the image layout has no image {}", shown(image.as_bytes())),
                    format!("choose one of {}", listed()),
                ));
            }
            Ok(picked)
        }
        None if names.len() > 1 => Err(refused(
            format!("the image layout has {} images: {}", names.len(), listed()),
            "choose one with --image NAME",
        )),
        None => Ok(images),
    }
}
