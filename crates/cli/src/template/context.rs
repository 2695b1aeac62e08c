//! The directory of a build as an archive for a server: what `.dockerignore` leaves, and always the Dockerfile and that list.
//!
//! Links are sent as links. What is neither a file, a directory nor a link is left out. A file that changes meanwhile ends the upload: half of
//! it would be a build of something that never was.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use saggar_build::IgnoreList;
use tar::{Builder, EntryType, Header};

const IGNORE_FILE: &str = ".dockerignore";
/// Maximum size of `.dockerignore`, as in a build without a server.
const IGNORE_BYTES_MAX: u64 = 1 << 20;
/// The name of a Dockerfile that is not in the directory. A file of this name is in nobody's way.
const BROUGHT: &str = ".saggar-build/Dockerfile";
/// The server removes it before anything is copied.
const BROUGHT_PLACE: &str = ".saggar-build";
/// The same for a recipe: the server knows it by its ending.
const BROUGHT_RECIPE: &str = ".saggar-build/recipe.toml";

/// What is to be sent.
#[derive(Debug)]
pub(crate) struct Packing {
    context: PathBuf,
    /// A Dockerfile that was named, wherever it is, and its text.
    brought: Option<(&'static str, String)>,
}

impl Packing {
    pub(crate) fn new(context: PathBuf, file: Option<(&Path, String)>) -> Self {
        let brought = file.map(|(file, text)| {
            let is_recipe = file.extension().is_some_and(|extension| extension == "toml");
            (if is_recipe { BROUGHT_RECIPE } else { BROUGHT }, text)
        });
        Self { context, brought }
    }

    /// The path of the Dockerfile in the archive.
    pub(crate) fn dockerfile(&self, default: &Path) -> String {
        self.brought.as_ref().map_or_else(|| default.display().to_string(), |(name, _)| (*name).to_owned())
    }

    pub(crate) fn context(&self) -> &Path {
        &self.context
    }

    /// Writes the archive.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let ignored = ignored(&self.context)?;
        let mut archive = Builder::new(out);
        if let Some((name, text)) = &self.brought {
            let mut header = plain(EntryType::Regular, 0o644, text.len() as u64);
            archive.append_data(&mut header, name, text.as_bytes())?;
        }
        let mut waiting = vec![PathBuf::new()];
        while let Some(below) = waiting.pop() {
            for entry in std::fs::read_dir(self.context.join(&below))? {
                let entry = entry?;
                let (full, name) = (entry.path(), below.join(entry.file_name()));
                let kind = entry.file_type()?;
                if name == Path::new(BROUGHT_PLACE) {
                    continue;
                }
                let is_ours = name == Path::new(IGNORE_FILE) || name == Path::new("Dockerfile");
                let is_left = !is_ours && ignored.ignores(name.as_os_str().as_bytes());
                if kind.is_dir() {
                    if !is_left || ignored.has_exceptions() {
                        waiting.push(name.clone());
                    }
                    if !is_left {
                        let mode = entry.metadata()?.mode();
                        archive.append_data(&mut plain(EntryType::Directory, mode, 0), &name, io::empty())?;
                    }
                } else if is_left {
                    // What is in it stays here.
                } else if kind.is_symlink() {
                    let mut header = plain(EntryType::Symlink, 0o777, 0);
                    archive.append_link(&mut header, &name, std::fs::read_link(&full)?)?;
                } else if kind.is_file() {
                    append_file(&mut archive, &full, &name)?;
                }
            }
        }
        archive.finish()?;
        archive.into_inner()?.flush()
    }
}

fn ignored(context: &Path) -> io::Result<IgnoreList> {
    let text = match File::open(context.join(IGNORE_FILE)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(IgnoreList::default()),
        // Without its list, files could be sent that are not to be.
        Err(error) => return Err(error),
        Ok(file) => {
            let mut bytes = Vec::new();
            file.take(IGNORE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
            if bytes.len() as u64 > IGNORE_BYTES_MAX {
                return Err(io::Error::new(io::ErrorKind::FileTooLarge, ".dockerignore is too large"));
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
    };
    IgnoreList::parse(&text).map_err(|problem| io::Error::new(io::ErrorKind::InvalidData, problem.message))
}

fn append_file(archive: &mut Builder<impl Write>, full: &Path, name: &Path) -> io::Result<()> {
    let flags = rustix::fs::OFlags::RDONLY
        | rustix::fs::OFlags::NOFOLLOW
        | rustix::fs::OFlags::NONBLOCK
        | rustix::fs::OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(full, flags, rustix::fs::Mode::empty())?);
    let metadata = file.metadata()?;
    let size = metadata.len();
    let mut exact = Exact { file: file.take(size), left: size };
    archive.append_data(&mut plain(EntryType::Regular, metadata.mode(), size), name, &mut exact)
}

/// As many bytes as were announced, or an error.
struct Exact {
    file: io::Take<File>,
    left: u64,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.file.read(buffer)?;
        self.left -= length as u64;
        match length {
            0 if self.left > 0 && !buffer.is_empty() => {
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, "a file became shorter while it was sent"))
            }
            length => Ok(length),
        }
    }
}

/// Owners and times have no meaning for a build.
fn plain(kind: EntryType, mode: u32, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode & 0o777);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_ignored_is_not_sent_and_the_dockerfile_always_is() {
        let context = std::env::temp_dir().join(format!("saggar-packing-{}", std::process::id()));
        std::fs::create_dir_all(context.join("target/keep")).unwrap();
        std::fs::create_dir_all(context.join("src")).unwrap();
        for (name, text) in [
            ("Dockerfile", "FROM scratch\n"),
            (".dockerignore", "target\n!target/keep\nDockerfile\n.dockerignore\nsecret\n"),
            ("secret", "x"),
            ("target/drop", "x"),
            ("target/keep/file", "kept"),
            ("src/app", "app"),
        ] {
            std::fs::write(context.join(name), text).unwrap();
        }
        std::os::unix::fs::symlink("/etc/passwd", context.join("link")).unwrap();
        let elsewhere = Path::new("/elsewhere/My.Dockerfile");
        let packing = Packing::new(context.clone(), Some((elsewhere, "FROM base\n".to_owned())));
        assert_eq!(packing.dockerfile(Path::new("Dockerfile")), BROUGHT);
        let mut bytes = Vec::new();
        packing.write(&mut bytes).unwrap();
        let mut read = tar::Archive::new(bytes.as_slice());
        let names: BTreeSet<String> =
            read.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().display().to_string()).collect();
        let expected =
            [".dockerignore", BROUGHT, "Dockerfile", "link", "src", "src/app", "target/keep", "target/keep/file"];
        assert_eq!(names, expected.map(str::to_owned).into());
        std::fs::remove_dir_all(&context).unwrap();
    }
}
