//! A data directory and a key file beside it.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use saggar_domain::secret::{Binding, SecretName, SecretValue};
use saggar_domain::{ProjectId, Timestamp};
use saggar_runtime::{
    Action, Fault, KeyFile, Permit, PoolSize, SECRETS, Sandboxes, SetSecret, Settings, Subject, Written,
};
use saggar_store::Store;

/// A value that occurs nowhere by chance.
pub const CANARY: &str = "sk-canary-7f3b9d20c4e8";

/// Removed at the end.
pub struct Place(PathBuf);

impl Place {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let unique = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("saggar-secrets-{}-{unique}", std::process::id()));
        std::fs::create_dir_all(path.join("data")).unwrap();
        Self(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn data(&self) -> PathBuf {
        self.join("data")
    }

    pub fn key_path(&self) -> PathBuf {
        self.join("keys/secrets.key")
    }

    pub fn key_file(&self) -> KeyFile {
        KeyFile::new(self.key_path(), self.data())
    }

    pub async fn open(&self) -> Project {
        self.open_with(self.key_path()).await
    }

    pub async fn open_with(&self, key_path: PathBuf) -> Project {
        open(&self.data(), key_path, Store::open(&self.data()).unwrap()).await
    }

    /// What `saggar check` finds.
    pub fn findings(&self) -> Vec<String> {
        let checked = saggar_runtime::runs::check_data_directory(&self.data(), &self.key_file()).unwrap();
        checked.findings.into_iter().map(|finding| format!("{}: {}", finding.about, finding.what)).collect()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What stays is in the temporary directory.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub async fn open(data: &Path, key_path: PathBuf, store: Store) -> Project {
    let settings = Settings {
        data_directory: data.to_owned(),
        secrets_key_file: key_path,
        program: "/nonexistent".into(),
        capacity: 1,
        pool: PoolSize { least: 0, most: 0 },
        default_ttl: Duration::from_secs(60),
        ttl_max: Duration::from_secs(60),
        allow_host_network: false,
        public_templates: Vec::new(),
        import_registries: Vec::new(),
        import_size_max: saggar_domain::ByteSize::from_bytes(1 << 30),
        build_network: Vec::new(),
        build_memory: saggar_domain::ByteSize::from_bytes(1 << 30),
        build_cpus: saggar_domain::Cpus::millis(1000),
        build_disk: saggar_domain::ByteSize::from_bytes(1 << 30),
        build_timeout: std::time::Duration::from_secs(60),
        template_jobs_per_project: 2,
        disk_storage_max: None,
        warm_imports: Vec::new(),
        workspaces: Default::default(),
        snapshots: saggar_runtime::SnapshotLimits { count_max: 0, bytes_max: saggar_domain::ByteSize::from_bytes(0) },
        volumes: saggar_runtime::VolumeLimits {
            count_max: 0,
            bytes_max: None,
            default_size: saggar_domain::ByteSize::mebibytes(16),
        },
        egress_maxima: Default::default(),
        retention: Duration::from_secs(60),
        runs_retention: Duration::from_secs(60),
        paused_max: Duration::from_secs(60),
    };
    let now = Timestamp::from(std::time::SystemTime::now());
    let project = store.default_project(ProjectId::from_random([1; 16]), now).await.unwrap().id;
    Project { sandboxes: Sandboxes::open(settings, store).unwrap(), id: project }
}

/// A project, by its key.
pub struct Project {
    pub sandboxes: Sandboxes,
    pub id: ProjectId,
}

impl Project {
    pub fn permit(&self) -> Permit {
        Permit::decide(&Subject::Anybody { project: self.id.clone() }, Action::Manage(SECRETS)).unwrap()
    }

    pub async fn set(&self, name: &str, value: Option<&str>, host: Option<&str>) -> Result<Written, Fault> {
        let set = SetSecret {
            name: SecretName::parse(name).unwrap(),
            binding: host.map(binding),
            value: value.map(|value| SecretValue::parse(value).unwrap()),
        };
        self.sandboxes.set_secret(&self.permit(), set).await.map(|(_, written)| written)
    }

    pub async fn set_new(&self, name: &str, value: &str) {
        assert_eq!(self.set(name, Some(value), Some("api.example.com")).await.unwrap(), Written::Created);
    }

    /// Whether a secret has this value: storing it again changes nothing. If it has another one, it loses that, so the test must end.
    #[must_use]
    pub async fn has(&self, name: &str, value: &str) -> bool {
        self.set(name, Some(value), None).await.unwrap() == Written::Same
    }

    pub async fn names(&self) -> Vec<(String, u64)> {
        let rows = self.sandboxes.secrets(&self.permit()).await.unwrap();
        rows.into_iter().map(|row| (row.name.to_string(), row.version)).collect()
    }
}

pub fn binding(host: &str) -> Binding {
    serde_json::from_value(serde_json::json!({ "rules": [host], "slot": "bearer" })).unwrap()
}

/// Whether any byte of any file below is part of the text.
pub fn is_anywhere(text: &str, below: &Path) -> bool {
    std::fs::read_dir(below).unwrap().any(|entry| {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            return is_anywhere(text, &entry.path());
        }
        let bytes = std::fs::read(entry.path()).unwrap();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    })
}

pub fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

pub fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}
