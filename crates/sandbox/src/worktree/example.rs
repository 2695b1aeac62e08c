//! A repository with one commit, as small as can be, for trials of `doctor` and `probe`.

use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::ZlibEncoder;

use super::object::{ObjectId, ObjectKind};

/// Makes `.git` in a directory. Its commit has one file `trial` and one `kept/file`.
pub fn plant(directory: &Path, trial: &[u8]) -> std::io::Result<()> {
    let git = directory.join(".git");
    for place in ["objects", "refs/heads"] {
        std::fs::create_dir_all(git.join(place))?;
    }
    let put = |kind: ObjectKind, content: &[u8]| {
        let id = ObjectId::of(kind, content);
        let (place, name) = id.loose();
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(format!("{} {}\0", kind.name(), content.len()).as_bytes())?;
        encoder.write_all(content)?;
        std::fs::create_dir_all(git.join("objects").join(&place))?;
        std::fs::write(git.join("objects").join(place).join(name), encoder.finish()?)?;
        Ok::<_, std::io::Error>(id)
    };
    let entry = |mode: &str, name: &str, id: ObjectId| [format!("{mode} {name}\0").as_bytes(), &id.0].concat();
    let kept = put(ObjectKind::Tree, &entry("100644", "file", put(ObjectKind::Blob, b"")?))?;
    let top = [entry("40000", "kept", kept), entry("100644", "trial", put(ObjectKind::Blob, trial)?)].concat();
    let tree = put(ObjectKind::Tree, &top)?;
    let who = "Saggar <saggar@localhost> 0 +0000";
    let commit = put(ObjectKind::Commit, format!("tree {tree}\nauthor {who}\ncommitter {who}\n\ntrial\n").as_bytes())?;
    std::fs::write(git.join("refs/heads/main"), format!("{commit}\n"))?;
    std::fs::write(git.join("config"), "[core]\n\trepositoryformatversion = 0\n")?;
    std::fs::write(git.join("HEAD"), "ref: refs/heads/main\n")
}
