//! Volumes: named storage that outlives sandboxes. How a sandbox asks for one, and what is stored about one.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, de};

use crate::id::VolumeId;
use crate::mode::{Access, Sharing};
use crate::mount::check_targets;
use crate::name::name;
use crate::path::GuestPath;
use crate::problem::{Code, Problem};
use crate::quantity::ByteSize;
use crate::spec::Draft;
use crate::table::only_from_a_table;
use crate::timestamp::Timestamp;

/// Maximum number of volumes of one sandbox.
const ENTRIES_MAX: usize = 16;
/// Maximum length of a volume's name, in bytes.
const NAME_LEN_MAX: usize = 64;
const SCHEMA: &str = "saggar.volume/v1";
/// Maximum size of a volume's record, in bytes.
pub const VOLUME_RECORD_BYTES_MAX: u64 = 64 << 10;

name!(
    /// A volume's name, unique in its project. It is also the name of a directory.
    VolumeName, is_name, "a volume's name: use 1 to 64 letters, digits, '_' and '-', a letter or digit first"
);

fn is_name(text: &str) -> bool {
    (1..=NAME_LEN_MAX).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'))
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
}

impl std::str::FromStr for VolumeName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::parse(text).ok_or_else(|| Self::complaint(text))
    }
}

/// A volume of the sandbox's project, mounted at a path inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, remote = "Self")]
pub struct VolumeMount {
    pub name: VolumeName,
    pub at: GuestPath,
    #[serde(default = "read_write")]
    pub mode: Access,
}

only_from_a_table!(VolumeMount);

fn read_write() -> Access {
    Access::ReadWrite
}

impl VolumeMount {
    /// Parses `NAME:PATH` or `NAME:PATH:ro`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let complaint = || format!("{text:?} is not a volume: write NAME:PATH or NAME:PATH:ro");
        let (rest, mode) = match text.rsplit_once(':') {
            Some((rest, "rw")) => (rest, Access::ReadWrite),
            Some((rest, "ro")) => (rest, Access::ReadOnly),
            _ => (text, Access::ReadWrite),
        };
        let (name, at) = rest.split_once(':').ok_or_else(complaint)?;
        Ok(Self { name: name.parse()?, at: GuestPath::parse(at)?, mode })
    }
}

/// Refuses targets that belong to the sandbox itself or overlap each other or a mount's, and a volume that is named twice.
pub(crate) fn check_volumes(draft: &Draft) -> Result<(), Problem> {
    let volumes = &draft.volumes;
    if volumes.len() > ENTRIES_MAX {
        return Err(Problem::new(
            Code::InvalidMount,
            format!("more than {ENTRIES_MAX} volumes"),
            "put the files into fewer volumes",
        ));
    }
    for (index, volume) in volumes.iter().enumerate() {
        if volumes[..index].iter().any(|other| other.name == volume.name) {
            return Err(Problem::new(
                Code::InvalidMount,
                format!("volume {} is mounted twice", volume.name),
                "mount each volume once; programs can make links to parts of it",
            ));
        }
    }
    let targets: Vec<&GuestPath> =
        draft.mounts.iter().map(|mount| &mount.guest).chain(volumes.iter().map(|volume| &volume.at)).collect();
    check_targets(&targets)
}

/// What is stored about a volume, beside its content.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    schema: String,
    pub id: VolumeId,
    pub name: VolumeName,
    /// Everything in it takes no more than this, and all of it is reserved on the disk.
    pub size: ByteSize,
    pub sharing: Sharing,
    pub created_at: Timestamp,
}

impl VolumeRecord {
    pub fn new(id: VolumeId, name: VolumeName, size: ByteSize, sharing: Sharing, created_at: Timestamp) -> Self {
        Self { schema: SCHEMA.to_owned(), id, name, size, sharing, created_at }
    }

    /// Reads a stored record. Fields of newer versions are ignored; another schema is refused.
    pub fn read(document: &[u8]) -> Result<Self, String> {
        let record: Self = serde_json::from_slice(document).map_err(|error| error.to_string())?;
        match record.schema == SCHEMA {
            true => Ok(record),
            false => Err(format!("it is of schema {:?}, and this version reads {SCHEMA:?}", record.schema)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_read_from_the_command_line() {
        let read =
            |text: &str| VolumeMount::parse(text).map(|v| (v.name.to_string(), v.at.as_str().to_owned(), v.mode));
        assert_eq!(read("data:/data"), Ok(("data".to_owned(), "/data".to_owned(), Access::ReadWrite)));
        assert_eq!(read("Data_1:/mnt/a:ro"), Ok(("Data_1".to_owned(), "/mnt/a".to_owned(), Access::ReadOnly)));
        for wrong in
            ["", "data", "data:", ":/data", "data:data", "data:/a/../etc", "../x:/data", ".x:/data", "a/b:/data"]
        {
            assert!(VolumeMount::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_record_is_the_same_after_it_was_stored_and_another_schema_is_refused() {
        let record = VolumeRecord::new(
            VolumeId::from_random([7; 16]),
            "data".parse().unwrap(),
            ByteSize::parse("10G").unwrap(),
            Sharing::Shared,
            Timestamp::from(std::time::UNIX_EPOCH),
        );
        let stored = serde_json::to_vec(&record).unwrap();
        assert_eq!(VolumeRecord::read(&stored), Ok(record));
        let later = String::from_utf8(stored).unwrap().replace("volume/v1", "volume/v2");
        assert!(VolumeRecord::read(later.as_bytes()).unwrap_err().contains("saggar.volume/v2"));
    }
}
