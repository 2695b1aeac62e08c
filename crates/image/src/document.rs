//! The documents of an image: index, manifest and configuration, as OCI and Docker write them.
//!
//! They come from others, so unknown fields are ignored, and what is used is checked.

use std::collections::BTreeMap;

use saggar_domain::template::{BuiltInRoot, ContentDigest, Defaults, ExposedPort, LayerId};
use saggar_domain::{GuestPath, Labels, Problem, Timestamp};
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::blob::Promise;
use crate::failure::{refused, shown};

/// Maximum size of a document.
pub(crate) const DOCUMENT_BYTES_MAX: u64 = 4 << 20;
/// Maximum number of layers of an image.
const LAYERS_MAX: usize = 127;
/// Of what an exported snapshot says besides.
const SNAPSHOT_SCHEMA: &str = "saggar.snapshot-archive/v1";
const HOSTILE: &str = "the image is malformed or hostile: don't use it, or build it anew";

const MANIFESTS: &[&str] =
    &["application/vnd.oci.image.manifest.v1+json", "application/vnd.docker.distribution.manifest.v2+json"];
const INDEXES: &[&str] =
    &["application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json"];
/// How a layer's media type begins; the rest names its compression, which is seen from the data.
const LAYER_PREFIXES: &[&str] =
    &["application/vnd.oci.image.layer.v1.tar", "application/vnd.docker.image.rootfs.diff.tar"];

/// All media types of what a reference may lead to.
pub(crate) fn accepted() -> String {
    [MANIFESTS, INDEXES].concat().join(", ")
}

/// What a reference leads to.
#[derive(Debug)]
pub(crate) enum Top {
    Manifest(ImageManifest),
    Index(Vec<Descriptor>),
}

impl Top {
    /// The kind follows from the fields and must agree with the media type: a document that can be read as both kinds
    /// would have one digest and two meanings.
    pub(crate) fn parse(document: &[u8]) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Either {
            schema_version: Option<u32>,
            media_type: Option<String>,
            config: Option<Descriptor>,
            layers: Option<Vec<Descriptor>>,
            manifests: Option<Vec<Descriptor>>,
        }
        let either: Either = read(document, "manifest")?;
        let of = |known: &[&str]| either.media_type.as_deref().is_none_or(|found| known.contains(&found));
        if either.schema_version.is_some_and(|version| version != 2) {
            return Err(refused(
                "the image's manifest is in Docker's first format, which has no digests",
                "push the image anew with a current version of its tool",
            ));
        }
        match (either.config, either.layers, either.manifests) {
            (Some(config), Some(layers), None) if of(MANIFESTS) => Ok(Self::Manifest(ImageManifest { config, layers })),
            (None, None, Some(manifests)) if of(INDEXES) => Ok(Self::Index(manifests)),
            _ => Err(refused("the image's manifest is neither a manifest nor an index", HOSTILE)),
        }
    }
}

#[derive(Debug)]
pub(crate) struct ImageManifest {
    pub(crate) config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// Names a blob.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    pub(crate) platform: Option<Platform>,
    #[serde(default)]
    annotations: Option<BTreeMap<String, String>>,
}

impl Descriptor {
    pub(crate) fn promise(&self) -> Result<Promise, Problem> {
        let digest = ContentDigest::parse(&self.digest).ok_or_else(|| {
            refused(
                format!("the image names a blob by {}, which is not a SHA-256 digest", shown(self.digest.as_bytes())),
                "build the image anew with SHA-256 digests",
            )
        })?;
        Ok(Promise { digest, size: self.size })
    }

    /// The name that an image layout gives an image.
    pub(crate) fn reference(&self) -> Option<&str> {
        self.annotations.as_ref()?.get("org.opencontainers.image.ref.name").map(String::as_str)
    }

    /// Attestations and other things that are listed beside images, but are none.
    pub(crate) fn is_image(&self) -> bool {
        let is_known = self.media_type.is_empty() || [MANIFESTS, INDEXES].concat().contains(&self.media_type.as_str());
        is_known && self.platform.as_ref().is_none_or(|platform| platform.os != "unknown")
    }

    pub(crate) fn check_layer(&self) -> Result<(), Problem> {
        if self.media_type.is_empty() || LAYER_PREFIXES.iter().any(|prefix| self.media_type.starts_with(prefix)) {
            return Ok(());
        }
        Err(refused(
            format!(
                "the layer {} has the unknown media type {}",
                shown(self.digest.as_bytes()),
                shown(self.media_type.as_bytes())
            ),
            "use an image with ordinary layers: tar archives, plain or compressed with gzip or zstd",
        ))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(crate) struct Platform {
    pub(crate) os: String,
    pub(crate) architecture: String,
    #[serde(default)]
    pub(crate) variant: Option<String>,
}

impl Platform {
    /// Of this program.
    pub(crate) fn here() -> Self {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        Self { os: "linux".into(), architecture: architecture.into(), variant: None }
    }

    pub(crate) fn runs_here(&self) -> bool {
        let here = Self::here();
        // Variants of this architecture are levels of its instruction set; the lowest has none.
        self.os == here.os
            && self.architecture == here.architecture
            && self.variant.as_deref().is_none_or(|v| v == "v8" || v == "v1")
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// The configuration of an image.
#[derive(Debug)]
pub(crate) struct ImageConfig {
    pub(crate) layers: Vec<LayerId>,
    pub(crate) defaults: Defaults,
    pub(crate) platform: Platform,
    pub(crate) created: Option<Timestamp>,
    /// What an exported snapshot says besides, which other programs ignore.
    pub(crate) snapshot: Option<SnapshotNote>,
}

/// What an image can't say about a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SnapshotNote {
    schema: String,
    /// What the layers lie over, if they are not a whole root by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) root: Option<BuiltInRoot>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) start: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<String>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub(crate) labels: Labels,
}

impl SnapshotNote {
    pub(crate) fn new(root: Option<BuiltInRoot>, defaults: &Defaults, labels: Labels) -> Self {
        let (start, ready) = (defaults.start.clone(), defaults.ready.clone());
        Self { schema: SNAPSHOT_SCHEMA.to_owned(), root, start, ready, labels }
    }

    fn check(self) -> Result<Self, Problem> {
        match self.schema == SNAPSHOT_SCHEMA {
            true => Ok(self),
            false => Err(refused(
                format!(
                    "the snapshot is of schema {}, and this version reads {SNAPSHOT_SCHEMA}",
                    shown(self.schema.as_bytes())
                ),
                "use the version of Saggar that exported it, or a later one",
            )),
        }
    }
}

impl ImageConfig {
    pub(crate) fn parse(document: &[u8]) -> Result<Self, Problem> {
        #[derive(Deserialize)]
        struct Raw {
            #[serde(flatten)]
            platform: Platform,
            created: Option<String>,
            config: Option<RawDefaults>,
            rootfs: RawRoot,
            #[serde(rename = "saggar")]
            snapshot: Option<SnapshotNote>,
        }
        #[derive(Deserialize)]
        struct RawRoot {
            diff_ids: Vec<String>,
        }
        let raw: Raw = read(document, "configuration")?;
        let count = raw.rootfs.diff_ids.len();
        if count == 0 || count > LAYERS_MAX {
            return Err(refused(
                format!("the image has {count} layers; it must have 1 to {LAYERS_MAX}"),
                "build the image anew with fewer layers",
            ));
        }
        if !raw.platform.runs_here() {
            return Err(other_platform(&[raw.platform]));
        }
        let id = |text: &String| {
            LayerId::parse(text)
                .ok_or_else(|| refused(format!("{} is not a layer's digest", shown(text.as_bytes())), HOSTILE))
        };
        Ok(Self {
            layers: raw.rootfs.diff_ids.iter().map(id).collect::<Result<_, _>>()?,
            defaults: raw.config.unwrap_or_default().checked()?,
            platform: raw.platform,
            // For display alone: one in another form is left out.
            created: raw.created.and_then(|text| Timestamp::parse(&text).ok()),
            snapshot: raw.snapshot.map(SnapshotNote::check).transpose()?,
        })
    }
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct RawDefaults {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    exposed_ports: Option<BTreeMap<String, IgnoredAny>>,
    labels: Option<BTreeMap<String, String>>,
}

impl RawDefaults {
    fn checked(self) -> Result<Defaults, Problem> {
        let wrong =
            |what: String| refused(format!("the image's configuration can't be used: {what}"), "build the image anew");
        let some = |text: Option<String>| text.filter(|text| !text.is_empty());
        let mut ports = Vec::new();
        for text in self.exposed_ports.unwrap_or_default().keys() {
            ports
                .push(ExposedPort::parse(text).ok_or_else(|| wrong(format!("{text:?} is not a port such as 80/tcp")))?);
        }
        let mut env = BTreeMap::new();
        for entry in self.env.unwrap_or_default() {
            // A later entry of the same name wins, as in a shell. One without a value says nothing.
            if let Some((name, value)) = entry.split_once('=') {
                env.insert(name.to_owned(), value.to_owned());
            }
        }
        let defaults = Defaults {
            env,
            cwd: some(self.working_dir).map(|path| GuestPath::parse(&path)).transpose().map_err(wrong)?,
            user: some(self.user),
            entrypoint: self.entrypoint.unwrap_or_default(),
            command: self.cmd.unwrap_or_default(),
            ports,
            labels: self.labels.unwrap_or_default(),
            start: None,
            ready: None,
        };
        defaults.check().map_err(wrong)
    }
}

pub(crate) fn other_platform(found: &[Platform]) -> Problem {
    let list: Vec<String> = found.iter().map(Platform::to_string).collect();
    let here = Platform::here();
    refused(
        format!("the image is for {}, and this host runs {here}", shown(list.join(", ").as_bytes())),
        format!("use an image for {here}"),
    )
}

/// Reads JSON that somebody else wrote.
pub(crate) fn read<T: DeserializeOwned>(document: &[u8], what: &str) -> Result<T, Problem> {
    serde_json::from_slice(document)
        .map_err(|error| refused(format!("the image's {what} can't be read: {error}"), "fetch or build the image anew"))
}
