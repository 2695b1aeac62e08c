//! Makes the images: archives as `docker save` writes them, with the tools that every host has.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::SMALL_FILES;

/// The host's, and at the same place in the image.
pub const BUSYBOX: &str = "/bin/busybox";
/// What is unpacked inside.
pub const SMALL: &str = "/small.tar";
/// Bytes of a small file.
const SMALL_BYTES: usize = 4000;

/// An image with busybox and the small files in an archive.
pub fn small(place: &Path) -> Result<PathBuf> {
    let (root, files) = (place.join("root"), place.join("files"));
    for directory in ["bin", "work", "tmp"] {
        std::fs::create_dir_all(root.join(directory))?;
    }
    std::fs::copy(BUSYBOX, root.join("bin/busybox")).context("copying busybox; make setup-bench installs it")?;
    std::fs::set_permissions(root.join("bin/busybox"), PermissionsExt::from_mode(0o755))?;
    std::fs::create_dir(&files)?;
    for number in 0..SMALL_FILES {
        std::fs::write(files.join(format!("file-{number}")), vec![b'x'; SMALL_BYTES])?;
    }
    run(Command::new("tar").arg("-cf").arg(root.join(&SMALL[1..])).arg("-C").arg(&files).arg("."))?;
    let layer = place.join("small-layer.tar");
    run(Command::new("tar").arg("-cf").arg(&layer).arg("-C").arg(&root).arg("."))?;
    let id = digest(&layer)?;
    archive(place, "small", &layer, &id)
}

/// An image with files of the host's /usr of about this size, and its layer: compressed, as registries have them.
pub fn large(place: &Path, bytes: u64) -> Result<(PathBuf, PathBuf)> {
    let mut files = Vec::new();
    let mut left = bytes;
    collect(Path::new("/usr/lib"), &mut left, &mut files)?;
    collect(Path::new("/usr/share"), &mut left, &mut files)?;
    ensure!(left == 0, "this host's /usr has less than {bytes} bytes");
    let list = place.join("large-list");
    std::fs::write(&list, files.join("\0"))?;
    let layer = place.join("large-layer.tar");
    let mut tar = Command::new("tar");
    run(tar.args(["-C", "/", "--null", "--no-recursion", "-T"]).arg(&list).arg("-cf").arg(&layer))?;
    let id = digest(&layer)?;
    run(Command::new("gzip").arg("-6").arg(&layer))?;
    let layer = place.join("large-layer.tar.gz");
    Ok((archive(place, "large", &layer, &id)?, layer))
}

/// Names of directories and files, relative to the host's root, until so many bytes of files are together.
fn collect(directory: &Path, left: &mut u64, files: &mut Vec<String>) -> Result<()> {
    let name = |path: &Path| path.to_str().map(|text| text.trim_start_matches('/').to_owned());
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect::<std::io::Result<_>>()?;
    entries.sort();
    files.extend(name(directory));
    for path in entries {
        let metadata = path.symlink_metadata()?;
        if *left == 0 {
            return Ok(());
        }
        if metadata.is_dir() {
            collect(&path, left, files)?;
        } else if metadata.is_file() && metadata.nlink() == 1 {
            *left = left.saturating_sub(metadata.len());
            files.extend(name(&path));
        }
    }
    Ok(())
}

fn archive(place: &Path, name: &str, layer: &Path, id: &str) -> Result<PathBuf> {
    let layer_name = layer.file_name().and_then(|name| name.to_str()).context("the layer has a name")?;
    let config = serde_json::json!({
        "architecture": "amd64", "os": "linux", "config": {},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{id}")]},
    });
    let manifest =
        serde_json::json!([{"Config": "config.json", "RepoTags": [format!("{name}:latest")], "Layers": [layer_name]}]);
    std::fs::write(place.join("config.json"), config.to_string())?;
    std::fs::write(place.join("manifest.json"), manifest.to_string())?;
    let archive = place.join(format!("{name}.tar"));
    run(Command::new("tar").arg("-cf").arg(&archive).arg("-C").arg(place).args([
        "config.json",
        "manifest.json",
        layer_name,
    ]))?;
    Ok(archive)
}

fn digest(file: &Path) -> Result<String> {
    let output = Command::new("sha256sum").arg(file).stdin(Stdio::null()).output().context("running sha256sum")?;
    let text = String::from_utf8(output.stdout).context("sha256sum's output")?;
    text.split(' ').next().filter(|digits| digits.len() == 64).map(str::to_owned).context("sha256sum's output")
}

/// Runs a command that must succeed.
pub fn run(command: &mut Command) -> Result<()> {
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("running {command:?}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{command:?} ended with {}: {said}", output.status);
    Ok(())
}
