//! Reads the templates of one project from the data directory, and keeps one from being removed while it is used.
//!
//! ```text
//! templates/PROJECT/names/NAME/TAG      → the id of a template
//!                   manifests/HEX.json  → its layers and defaults; a user of the template holds a shared lock on it
//!                   layers/HEX/         → layer.json and tree/
//! ```
//!
//! Only reads: `crates/image` writes all of it. A removal takes the exclusive lock of a manifest and then unlinks it, so
//! a reader that gets its lock afterwards sees a file without a name and looks again.

use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, ResolveFlags, flock, fstat, openat2};
use rustix::io::Errno;
use saggar_domain::template::{
    DocumentError, LayerId, LayerRecord, MANIFEST_BYTES_MAX, Manifest, NameRecord, RECORD_BYTES_MAX, TemplateId,
};
use saggar_domain::{Code, Problem, TemplateName};

use crate::data::DataDirectory;

/// The project of templates that are used without a server.
pub const LOCAL_PROJECT: &str = "local";
/// How often a name is looked up again because its template was removed meanwhile.
const LOOKUPS_MAX: u32 = 16;
/// Maximum number of names that a message lists.
const LISTED_MAX: usize = 8;

/// The templates of one project.
#[derive(Clone, Debug)]
pub struct Templates {
    root: PathBuf,
}

/// A name, and what it leads to or why that can't be read.
pub type NamedRecord = (TemplateName, Result<NameRecord, Problem>);

/// A template that can't be removed until this is dropped.
#[derive(Debug)]
pub struct HeldTemplate {
    pub id: TemplateId,
    pub manifest: Manifest,
    /// The first is the bottom.
    pub layers: Vec<StoredLayer>,
    _lock: OwnedFd,
}

/// A layer on disk.
#[derive(Debug)]
pub struct StoredLayer {
    pub id: LayerId,
    pub record: LayerRecord,
    /// The top of its files.
    tree: OwnedFd,
    path: PathBuf,
}

impl StoredLayer {
    /// The same as [`Self::tree`], by its absolute path without links.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    pub fn tree(&self) -> BorrowedFd<'_> {
        self.tree.as_fd()
    }
}

impl Templates {
    /// `project` is [`LOCAL_PROJECT`] or the id of a server's project.
    pub fn new(data: &DataDirectory, project: &str) -> Self {
        Self { root: data.path().join("templates").join(project) }
    }

    /// The directory of everything below.
    pub fn root(&self) -> &std::path::Path {
        &self.root
    }

    /// Finds a template by its name and holds it.
    pub fn find(&self, name: &TemplateName) -> Result<HeldTemplate, Problem> {
        for _ in 0..LOOKUPS_MAX {
            let Some(record) = self.name(name)? else { return Err(self.missing(name)) };
            let path = format!("manifests/{}.json", record.template.hex());
            let lock = match self.open(&path, OFlags::RDONLY) {
                Ok(file) => file,
                // Removed since the name was read: the name is gone too, or leads elsewhere.
                Err(Errno::NOENT) => continue,
                Err(errno) => return Err(unreadable(name, "its manifest", &errno)),
            };
            flock(&lock, FlockOperation::LockShared).map_err(|errno| unreadable(name, "its manifest", &errno))?;
            let is_removed = fstat(&lock).map_err(|errno| unreadable(name, "its manifest", &errno))?.st_nlink == 0;
            if is_removed {
                continue;
            }
            let document = read(&lock, MANIFEST_BYTES_MAX).map_err(|error| unreadable(name, "its manifest", &error))?;
            // Without its digest: hashing is slow where the processor's features are emulated, and this is done at every
            // start. `saggar template check` compares it.
            let manifest = Manifest::read(&document)
                .map_err(|error| refused(name, &format!("manifest {}", record.template), &error))?;
            let layers = manifest.layers().iter().map(|layer| self.layer(name, &layer.id)).collect::<Result<_, _>>()?;
            return Ok(HeldTemplate { id: record.template, manifest, layers, _lock: lock });
        }
        Err(Problem::new(
            Code::DataDirectory,
            format!("template {name} leads to a manifest that doesn't exist"),
            "import it again; `saggar template check` lists all damage",
        ))
    }

    /// Holds the template with this id, whatever its names; `None` if it is gone.
    pub fn find_id(&self, id: &TemplateId) -> Result<Option<HeldTemplate>, Problem> {
        let fail = |what: &str, error: &dyn std::fmt::Display| {
            Problem::new(
                Code::DataDirectory,
                format!("template {id} can't be used: {what}: {error}"),
                "import it again; `saggar template check` lists all damage",
            )
        };
        let lock = match self.open(&format!("manifests/{}.json", id.hex()), OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(fail("its manifest can't be read", &errno)),
        };
        flock(&lock, FlockOperation::LockShared).map_err(|errno| fail("its manifest can't be locked", &errno))?;
        if fstat(&lock).map_err(|errno| fail("its manifest can't be read", &errno))?.st_nlink == 0 {
            return Ok(None);
        }
        let document = read(&lock, MANIFEST_BYTES_MAX).map_err(|error| fail("its manifest can't be read", &error))?;
        let manifest = Manifest::read(&document).map_err(|error| fail("its manifest", &error))?;
        let name = TemplateName::default();
        let layers = manifest.layers().iter().map(|layer| self.layer(&name, &layer.id)).collect::<Result<_, _>>()?;
        Ok(Some(HeldTemplate { id: id.clone(), manifest, layers, _lock: lock }))
    }

    /// Holds a template that has no name and whose manifest is stored nowhere, while `lock` keeps its layers from being removed. Messages call
    /// it by `name`.
    pub fn assemble(&self, name: &TemplateName, manifest: Manifest, lock: OwnedFd) -> Result<HeldTemplate, Problem> {
        let layers = manifest.layers().iter().map(|layer| self.layer(name, &layer.id)).collect::<Result<_, _>>()?;
        Ok(HeldTemplate { id: manifest.id(), manifest, layers, _lock: lock })
    }

    /// All names with what they lead to, sorted. One that can't be read is an error.
    pub fn names(&self) -> Result<Vec<(TemplateName, NameRecord)>, Problem> {
        self.records()?.into_iter().map(|(name, record)| Ok((name, record?))).collect()
    }

    /// All names, sorted, each with what it leads to or why that can't be read.
    pub fn records(&self) -> Result<Vec<NamedRecord>, Problem> {
        let mut names = Vec::new();
        for name in self.listed("names")? {
            for tag in self.listed(&format!("names/{name}"))? {
                // Other files, such as one that is being written, are not names.
                let Some(name) = TemplateName::parse(&format!("{name}:{tag}")) else { continue };
                if let Some(record) = self.name(&name).transpose() {
                    names.push((name, record));
                }
            }
        }
        names.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(names)
    }

    /// What a name leads to; `None` if there is no such name.
    pub fn name(&self, name: &TemplateName) -> Result<Option<NameRecord>, Problem> {
        let path = format!("names/{}/{}", name.name(), name.tag());
        let file = match self.open(&path, OFlags::RDONLY) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
            Err(errno) => return Err(unreadable(name, "its name", &errno)),
        };
        let document = read(&file, RECORD_BYTES_MAX).map_err(|error| unreadable(name, "its name", &error))?;
        NameRecord::parse(&document).map(Some).map_err(|error| refused(name, "its name", &error))
    }

    fn layer(&self, name: &TemplateName, id: &LayerId) -> Result<StoredLayer, Problem> {
        let what = format!("layer {id}");
        let place = format!("layers/{}", id.hex());
        let file = self
            .open(&format!("{place}/layer.json"), OFlags::RDONLY)
            .map_err(|errno| unreadable(name, &what, &errno))?;
        let document = read(&file, RECORD_BYTES_MAX).map_err(|error| unreadable(name, &what, &error))?;
        let record = LayerRecord::parse(&document, id).map_err(|error| refused(name, &what, &error))?;
        let tree = self
            .open(&format!("{place}/tree"), OFlags::PATH | OFlags::DIRECTORY)
            .map_err(|errno| unreadable(name, &what, &errno))?;
        let path = self
            .root
            .join(&place)
            .join("tree")
            .canonicalize()
            .map_err(|error| unreadable(name, &what, &error.kind()))?;
        Ok(StoredLayer { id: id.clone(), record, tree, path })
    }

    /// Opens a file of the store. There are no links in it above the layers' own files.
    fn open(&self, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::openat(CWD, &self.root, directory, Mode::empty())?;
        openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
    }

    fn listed(&self, directory: &str) -> Result<Vec<String>, Problem> {
        let fail = |error: std::io::Error| {
            Problem::new(
                Code::DataDirectory,
                format!("the names of templates can't be listed: {}", error.kind()),
                "check the data directory's permissions and its disk",
            )
        };
        let directory = match self.open(directory, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT | Errno::NOTDIR) => return Ok(Vec::new()),
            Err(errno) => return Err(fail(errno.into())),
        };
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::new(directory).map_err(|errno| fail(errno.into()))? {
            let entry = entry.map_err(|errno| fail(errno.into()))?;
            if let Some(name) = entry.file_name().to_str().ok().filter(|name| !name.starts_with('.')) {
                names.push(name.to_owned());
            }
        }
        Ok(names)
    }

    fn missing(&self, name: &TemplateName) -> Problem {
        let mut known: Vec<String> =
            self.names().unwrap_or_default().into_iter().map(|(name, _)| name.to_string()).collect();
        let more = known.len().saturating_sub(LISTED_MAX);
        known.truncate(LISTED_MAX);
        let mut listed =
            if known.is_empty() { "there are none yet".to_owned() } else { format!("there are: {}", known.join(", ")) };
        if more > 0 {
            listed.push_str(&format!(" and {more} more"));
        }
        Problem::new(
            Code::UnsupportedCapability,
            format!("there is no template {:?}; {listed}", name.as_str()),
            format!("import one with `saggar template import SOURCE --name {name}`, or use `base`, which is built in"),
        )
    }
}

fn read(file: &OwnedFd, most: u64) -> std::io::Result<Vec<u8>> {
    let mut document = Vec::new();
    std::fs::File::from(file.try_clone()?).take(most + 1).read_to_end(&mut document)?;
    if document.len() as u64 > most {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(document)
}

fn unreadable(name: &TemplateName, what: &str, error: &dyn std::fmt::Display) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("template {name} can't be used: {what} can't be read: {error}"),
        "import it again; `saggar template check` lists all damage",
    )
}

fn refused(name: &TemplateName, what: &str, error: &DocumentError) -> Problem {
    Problem::new(
        Code::DataDirectory,
        format!("template {name} can't be used because of {what}: {error}"),
        "import it again, or use the version of saggar that wrote it; `saggar template check` lists all damage",
    )
}
