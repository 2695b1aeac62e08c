//! The workspace as tidy sees it: our crates with their dependencies, and every text file. All reading happens here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

/// Larger files are data, which no rule applies to.
const FILE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Shared folders: they may contain unrelated directories, and our own tests and docs may name paths in them.
const SHARED_FOLDERS: &[&str] = &["/", "/mnt", "/opt", "/srv", "/tmp", "/usr/src", "/var/tmp"];

#[derive(Default)]
pub struct Workspace {
    pub crates: Vec<Crate>,
    pub files: Vec<TextFile>,
    /// Absolute paths that exist only where the repository is checked out.
    pub machine_paths: Vec<String>,
}

impl Workspace {
    pub fn read(root: &Path) -> Result<Self> {
        let files = list_files(root)?;
        Ok(Self {
            crates: read_crates(root)?,
            files: files.iter().filter_map(|path| read_text(root, path).transpose()).collect::<Result<_>>()?,
            machine_paths: machine_paths(root)?,
        })
    }

    /// The crate that contains a file.
    pub fn crate_of(&self, file: &TextFile) -> Option<&Crate> {
        self.crates.iter().find(|member| Path::new(&file.path).starts_with(&member.folder))
    }

    /// The line of a manifest that names a dependency; 1 if it can't be found.
    pub fn line_of_dependency(&self, member: &Crate, dependency: &str) -> usize {
        let manifest = self.files.iter().find(|file| file.path == member.manifest());
        let names_it = |line: &str| {
            let rest = line.trim_start().strip_prefix(dependency);
            rest.is_some_and(|rest| rest.starts_with([' ', '.', '=']))
        };
        manifest.and_then(|file| file.text.lines().position(names_it)).map_or(1, |index| index + 1)
    }
}

pub struct Crate {
    pub package: String,
    /// Relative to the repository's root.
    pub folder: String,
    /// The root files of its library and programs.
    pub roots: Vec<String>,
    /// Names of its direct dependencies of all kinds.
    pub dependencies: Vec<String>,
}

impl Crate {
    pub fn manifest(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }
}

/// A text file of the repository.
pub struct TextFile {
    /// Relative to the repository's root.
    pub path: String,
    pub text: String,
}

impl TextFile {
    pub fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// The last component of its path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    /// Whether one of the folders above it has this name.
    pub fn is_under(&self, folder: &str) -> bool {
        self.path.split('/').rev().skip(1).any(|component| component == folder)
    }
}

/// The part of `cargo metadata` that matters here.
#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    dependencies: Vec<Dependency>,
    targets: Vec<Target>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    src_path: PathBuf,
}

fn read_crates(root: &Path) -> Result<Vec<Crate>> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(root);
    let metadata: Metadata = serde_json::from_slice(&output_of(&mut command)?).context("parsing cargo metadata")?;
    metadata.packages.into_iter().map(|package| to_crate(root, package)).collect()
}

fn to_crate(root: &Path, package: Package) -> Result<Crate> {
    let folder = package.manifest_path.parent().context("a manifest without a folder")?;
    let is_shipped = |target: &&Target| {
        let apart = ["test", "bench", "example", "custom-build"];
        !target.kind.iter().any(|kind| apart.contains(&kind.as_str()))
    };
    Ok(Crate {
        folder: relative(root, folder)?,
        roots: package
            .targets
            .iter()
            .filter(is_shipped)
            .map(|target| relative(root, &target.src_path))
            .collect::<Result<_>>()?,
        dependencies: package.dependencies.into_iter().map(|dependency| dependency.name).collect(),
        package: package.name,
    })
}

fn relative(root: &Path, path: &Path) -> Result<String> {
    let path = path.strip_prefix(root).with_context(|| format!("{} is outside of the repository", path.display()))?;
    Ok(path.to_str().context("a path that is not UTF-8")?.to_owned())
}

/// Tracked files, and those that `git add` would add; without git, as in an unpacked release, every file except built
/// ones.
fn list_files(root: &Path) -> Result<Vec<String>> {
    if !root.join(".git").exists() {
        let mut files = Vec::new();
        walk(root, root, &mut files)?;
        return Ok(files);
    }
    let mut command = Command::new("git");
    command
        .arg("-c")
        // The checkout may belong to a user other than the one who builds.
        .arg(format!("safe.directory={}", root.display()))
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"])
        .current_dir(root);
    let listing = String::from_utf8(output_of(&mut command)?).context("a file name that is not UTF-8")?;
    Ok(listing.split_terminator('\0').map(str::to_owned).collect())
}

fn walk(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("listing {}", folder.display()))? {
        let entry = entry.with_context(|| format!("listing {}", folder.display()))?;
        let kind = entry.file_type().with_context(|| format!("looking at {}", entry.path().display()))?;
        let is_built = entry.file_name() == "target" || entry.file_name() == "node_modules";
        if kind.is_dir() && !is_built {
            walk(root, &entry.path(), files)?;
        } else if kind.is_file() {
            files.push(relative(root, &entry.path())?);
        }
    }
    Ok(())
}

/// `None` for a file that isn't regular, is deleted but still tracked, is too large, or isn't text.
fn read_text(root: &Path, path: &str) -> Result<Option<TextFile>> {
    let full = root.join(path);
    let is_readable = fs::symlink_metadata(&full).is_ok_and(|found| found.is_file() && found.len() <= FILE_BYTES_MAX);
    if !is_readable {
        return Ok(None);
    }
    let bytes = fs::read(&full).with_context(|| format!("reading {path}"))?;
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    Ok(text.map(|text| TextFile { path: path.to_owned(), text }))
}

/// The checkout and the folders beside it, which exist only on this machine.
fn machine_paths(root: &Path) -> Result<Vec<String>> {
    let parent = root.parent().context("the repository is the whole file system")?;
    if SHARED_FOLDERS.iter().any(|folder| parent == Path::new(folder)) {
        return Ok(Vec::new());
    }
    let mut paths = Vec::new();
    for entry in fs::read_dir(parent).with_context(|| format!("listing {}", parent.display()))? {
        let entry = entry.with_context(|| format!("listing {}", parent.display()))?;
        // Hidden folders have the same names in every home: a test may well name /root/.ssh.
        let is_hidden = entry.file_name().as_encoded_bytes().starts_with(b".");
        if !is_hidden && entry.path().is_dir() {
            paths.extend(entry.path().to_str().map(str::to_owned));
        }
    }
    Ok(paths)
}

fn output_of(command: &mut Command) -> Result<Vec<u8>> {
    let output = command.output().with_context(|| format!("starting {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(output.stdout)
}
