//! A repository with one commit, as small as can be, for trials of `doctor` and `probe`.

use std::path::Path;

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
        let whole = [format!("{} {}\0", kind.name(), content.len()).as_bytes(), content].concat();
        std::fs::create_dir_all(git.join("objects").join(&place))?;
        std::fs::write(git.join("objects").join(place).join(name), stored(&whole)?)?;
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

/// As zlib has it, in one block that isn't compressed: `doctor` is in the front, which has no room for a compressor.
fn stored(content: &[u8]) -> std::io::Result<Vec<u8>> {
    let length = u16::try_from(content.len()).map_err(|_| std::io::Error::other("more than one block"))?;
    // Adler-32.
    let (low, high) = content.iter().fold((1, 0), |(low, high), byte| {
        let low = (low + u32::from(*byte)) % 65_521;
        (low, (high + low) % 65_521)
    });
    let head = [0x78, 0x01, 1];
    let sum = (high << 16) | low;
    Ok([&head[..], &length.to_le_bytes(), &(!length).to_le_bytes(), content, &sum.to_be_bytes()].concat())
}
