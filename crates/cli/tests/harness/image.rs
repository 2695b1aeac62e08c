//! Templates made by hand: directories as layers, in the form in which an import leaves them.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use saggar_domain::template::{
    Amount, ContentDigest, Defaults, Dropped, Image as ImageFacts, ImageSource, LayerEntry, LayerId, LayerRecord,
    Manifest, NameRecord, Owners, TemplateId,
};
use saggar_domain::{TemplateName, Timestamp};
use saggar_sandbox::STORE_IDS;

use super::is_root;

/// Enough for scripts of tests.
const PROGRAMS: &[&str] = &[
    "sh", "cat", "chmod", "chown", "cp", "dd", "env", "id", "ls", "mkdir", "mv", "pwd", "readlink", "rm", "sleep",
    "stat", "touch",
];

/// A template in the making.
pub struct Image {
    project: PathBuf,
    layers: Vec<LayerId>,
    pub defaults: Defaults,
    /// Whose files the layers are; root's by default, if we are root.
    owner: Option<u32>,
}

/// The files of one layer. Paths are relative.
pub struct Tree(PathBuf);

impl Image {
    /// In the data directory that is given, for `saggar run`.
    pub fn in_data(data: &Path) -> Self {
        Self::in_project(data, "local")
    }

    pub fn in_project(data: &Path, project: &str) -> Self {
        let project = data.join("templates").join(project);
        Self { project, layers: Vec::new(), defaults: Defaults::default(), owner: None }
    }

    /// As an import of an ordinary user leaves it.
    pub fn imported_by(mut self, uid: u32) -> Self {
        self.owner = Some(uid);
        self
    }

    /// A layer with a shell, a few programs and the usual directories.
    pub fn system(self) -> Self {
        self.layer(|tree| {
            for name in PROGRAMS {
                tree.program(name);
            }
            tree.write("etc/passwd", "root:x:0:0:root:/root:/bin/sh\napp:x:1234:2345::/srv/app:/bin/sh\n");
            tree.write("etc/group", "root:x:0:\napp:x:2345:\nextra:x:77:app\n");
            for (path, mode) in [("root", 0o700), ("tmp", 0o1777), ("srv/app", 0o755), ("var/lib", 0o755)] {
                tree.directory(path, mode);
            }
            tree.own("srv/app", 1234, 2345);
        })
    }

    /// Another layer on top.
    pub fn layer(mut self, fill: impl FnOnce(&Tree)) -> Self {
        let id = LayerId::of(super::unique().to_string().as_bytes());
        let place = self.project.join("layers").join(id.hex());
        let tree = Tree(place.join("tree"));
        std::fs::create_dir_all(&tree.0).expect("ours");
        fill(&tree);
        let (owners, owner) = match self.owner {
            Some(owner) => (Owners::Dropped, Owner::Of(owner)),
            None if is_root() => (Owners::Shifted, Owner::Shifted),
            None => (Owners::Dropped, Owner::Kept),
        };
        shift(&tree.0, &owner);
        let none = Amount { entries: 0, bytes: 0 };
        let record = LayerRecord::new(id.clone(), owners, ContentDigest::of(b""), none, none, Dropped::default());
        std::fs::write(place.join("layer.json"), serde_json::to_vec(&record).expect("it is JSON")).expect("ours");
        self.layers.push(id);
        self
    }

    /// The same layer once more, on top.
    pub fn again(mut self, number: usize) -> Self {
        self.layers.push(self.layers[number].clone());
        self
    }

    pub fn with(mut self, change: impl FnOnce(&mut Defaults)) -> Self {
        change(&mut self.defaults);
        self
    }

    /// Gives it a name; returns the path of its manifest.
    pub fn named(self, name: &str) -> PathBuf {
        let name = TemplateName::parse(name).expect("a name");
        let layers = self.layers.iter().map(|id| LayerEntry { id: id.clone(), bytes: 0, entries: 0 }).collect();
        let manifest = Manifest::new(layers, self.defaults, facts()).expect("it is whole");
        let id: TemplateId = manifest.id();
        let path = self.project.join("manifests").join(format!("{}.json", id.hex()));
        let names = self.project.join("names").join(name.name());
        for directory in [path.parent().expect("it has one"), &names] {
            std::fs::create_dir_all(directory).expect("ours");
        }
        std::fs::write(&path, manifest.document()).expect("ours");
        let record = NameRecord::new(id, Timestamp::from_millis(0));
        std::fs::write(names.join(name.tag()), serde_json::to_vec(&record).expect("it is JSON")).expect("ours");
        if let Some(owner) = self.owner {
            give(self.project.parent().and_then(Path::parent).expect("the data directory"), owner);
        }
        path
    }

    /// The path of a layer on disk.
    pub fn layer_path(&self, number: usize) -> PathBuf {
        self.project.join("layers").join(self.layers[number].hex())
    }

    pub fn layer_id(&self, number: usize) -> String {
        self.layers[number].to_string()
    }
}

impl Tree {
    pub fn path(&self, path: &str) -> PathBuf {
        let path = self.0.join(path);
        std::fs::create_dir_all(path.parent().expect("it is relative")).expect("ours");
        path
    }

    pub fn write(&self, path: &str, content: &str) {
        std::fs::write(self.path(path), content).expect("ours");
    }

    pub fn directory(&self, path: &str, mode: u32) {
        let path = self.path(path);
        std::fs::create_dir_all(&path).expect("ours");
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("ours");
    }

    pub fn link(&self, path: &str, target: &str) {
        symlink(target, self.path(path)).expect("ours");
    }

    pub fn mode(&self, path: &str, mode: u32) {
        std::fs::set_permissions(self.path(path), PermissionsExt::from_mode(mode)).expect("ours");
    }

    /// The owner inside. Only root can give one.
    pub fn own(&self, path: &str, uid: u32, gid: u32) {
        if is_root() {
            lchown(self.path(path), Some(uid), Some(gid)).expect("we are root");
        }
    }

    /// Removes what a lower layer has.
    pub fn whiteout(&self, path: &str) {
        rustix::fs::mknodat(
            rustix::fs::CWD,
            self.path(path),
            rustix::fs::FileType::CharacterDevice,
            rustix::fs::Mode::empty(),
            0,
        )
        .expect("anyone may make a whiteout");
    }

    /// Hides what lower layers have in this directory.
    pub fn opaque(&self, path: &str) {
        self.directory(path, 0o755);
        rustix::fs::setxattr(self.path(path), "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())
            .expect("the filesystem has attributes");
    }

    /// Copies a program of the host and the libraries it needs, in /bin.
    pub fn program(&self, name: &str) {
        let found =
            ["/usr/bin", "/bin"].iter().map(|directory| Path::new(directory).join(name)).find(|path| path.exists());
        let source = found.unwrap_or_else(|| panic!("this host has no {name}"));
        std::fs::copy(&source, self.path(&format!("bin/{name}"))).expect("there is room");
        let listed = Command::new("ldd").arg(&source).output().expect("ldd is there");
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        let paths: BTreeSet<&str> = listed.split_whitespace().filter(|word| word.starts_with('/')).collect();
        for library in paths {
            let place = self.path(library.trim_start_matches('/'));
            if !place.exists() {
                std::fs::copy(library, place).expect("there is room");
            }
        }
    }
}

enum Owner {
    Shifted,
    Of(u32),
    Kept,
}

/// Gives all files the owners that they have on disk.
fn shift(path: &Path, owner: &Owner) {
    let metadata = std::fs::symlink_metadata(path).expect("ours");
    let (uid, gid) = match owner {
        Owner::Shifted => (STORE_IDS.start + metadata.uid(), STORE_IDS.start + metadata.gid()),
        Owner::Of(uid) => (*uid, *uid),
        Owner::Kept => (metadata.uid(), metadata.gid()),
    };
    lchown(path, Some(uid), Some(gid)).expect("we are root, or it is ours");
    if !metadata.is_symlink() {
        // A change of owner clears set-id bits.
        std::fs::set_permissions(path, metadata.permissions()).expect("ours");
    }
    if metadata.is_dir() {
        for entry in std::fs::read_dir(path).expect("ours") {
            shift(&entry.expect("ours").path(), owner);
        }
    }
}

fn give(path: &Path, owner: u32) {
    shift(path, &Owner::Of(owner));
}

fn facts() -> ImageFacts {
    ImageFacts {
        source: ImageSource::Layout,
        config: ContentDigest::of(b"by hand"),
        platform: "linux/amd64".to_owned(),
        created: None,
    }
}
