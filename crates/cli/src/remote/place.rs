//! One end of a copy: a local path, or a path in a sandbox.

use std::ffi::OsString;
use std::path::PathBuf;

use saggar_api::FilePath;
use saggar_domain::SandboxId;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Here(PathBuf),
    There(SandboxId, FilePath),
}

impl Place {
    /// Parses `sbx_…:PATH`; anything else is a local path. A local file whose name begins like an id can be written
    /// `./sbx_…`.
    pub(crate) fn parse(text: OsString) -> Result<Self, String> {
        let Some((id, path)) = text.to_str().and_then(|text| text.split_once(':')) else {
            return Ok(Self::Here(text.into()));
        };
        match SandboxId::parse(id) {
            Some(id) => {
                // An empty path after the colon means the user's home.
                let path = if path.is_empty() { "." } else { path };
                FilePath::parse(path).map(|path| Self::There(id, path))
            }
            None if id.starts_with("sbx_") => Err(format!("{id:?} is not a sandbox id; write ./{id} for a local file")),
            None => Ok(Self::Here(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_before_a_colon_is_a_sandbox() {
        let id = SandboxId::from_random([0; 16]);
        let there = |path: &str| Ok(Place::There(id.clone(), FilePath::parse(path).unwrap()));
        assert_eq!(Place::parse(format!("{id}:/tmp/a:b").into()), there("/tmp/a:b"));
        assert_eq!(Place::parse(format!("{id}:").into()), there("."));
        for here in ["a", "./a:b", "c:d", "/x", "./sbx_a:b"] {
            assert_eq!(Place::parse(here.into()), Ok(Place::Here(here.into())));
        }
        assert!(Place::parse("sbx_short:/tmp".into()).is_err());
    }
}
