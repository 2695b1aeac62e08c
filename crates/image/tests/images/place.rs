//! A data directory of a test, and imports into it.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use saggar_domain::{Problem, TemplateName, Timestamp};
use saggar_image::{Imported, Limits, RegistryOptions, Request, Source, Store, import};
use saggar_sandbox::{DataDirectory, LOCAL_PROJECT};

use crate::image::Image;

/// Removed when it is dropped.
pub struct Place {
    root: PathBuf,
}

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("saggar-image-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(&root).expect("the directory is ours");
        Self { root: root.canonicalize().expect("the directory is ours") }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub fn store(&self) -> Store {
        let data = DataDirectory::open(Some(&self.path("data"))).expect("the directory is ours");
        Store::open(&data, LOCAL_PROJECT).expect("the directory is ours")
    }

    /// Where a layer's files are.
    pub fn tree(&self, layer: &str) -> PathBuf {
        self.path("data/templates/local/layers").join(layer).join("tree")
    }

    /// Names of everything in the store, locks apart: what an import left.
    pub fn stored(&self) -> Vec<String> {
        let mut found = Vec::new();
        for part in ["names", "manifests", "layers", "staging"] {
            for entry in std::fs::read_dir(self.path("data/templates/local").join(part)).expect("the directory is ours")
            {
                found.push(format!("{part}/{}", entry.expect("the directory is ours").file_name().to_string_lossy()));
            }
        }
        found.sort();
        found
    }

    /// Imports an image as `demo`, from a layout in a directory.
    pub fn import(&self, image: &Image) -> Result<Imported, Problem> {
        let layout = self.path("layout");
        if layout.exists() {
            std::fs::remove_dir_all(&layout).expect("the directory is ours");
        }
        image.layout(&layout);
        self.import_from(&layout, Limits::default())
    }

    pub fn import_from(&self, source: &Path, limits: Limits) -> Result<Imported, Problem> {
        let source = Source::Files(source.to_owned());
        self.request(Request { limits, ..request(source) })
    }

    pub fn request(&self, request: Request) -> Result<Imported, Problem> {
        import(&self.store(), &request, &mut |_| {})
    }
}

pub fn request(source: Source) -> Request {
    Request {
        source,
        name: demo(),
        image: None,
        limits: Limits::default(),
        registry: RegistryOptions::default(),
        now: Timestamp::from_millis(1_800_000_000_000),
        stop: Arc::default(),
    }
}

pub fn demo() -> TemplateName {
    TemplateName::parse("demo").expect("the test wrote it")
}

/// Whether owners are kept here. What an ordinary user gets is checked beside it.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays is in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.root);
    }
}
