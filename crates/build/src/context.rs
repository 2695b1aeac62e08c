//! The sources of COPY: a directory of the host, an earlier stage or a template, as a view; and the paths in it that a step names.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;
use saggar_domain::{Code, Problem};
use saggar_image::{Beyond, Fate, ResolveError, View};

use crate::glob::{is_pattern, name_matches};
use crate::ignore::IgnoreList;

const IGNORE_FILE: &str = ".dockerignore";
/// Maximum size of `.dockerignore`.
const IGNORE_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of paths that the patterns of one step stand for.
const PATHS_MAX: usize = 100_000;

/// A directory of the host that files are copied from.
pub(crate) struct Context {
    pub(crate) view: View,
    ignored: IgnoreList,
}

impl Context {
    pub(crate) fn open(path: &Path) -> Result<Self, Problem> {
        let fail = |errno: Errno| {
            let why = std::io::Error::from(errno).kind();
            Problem::new(
                Code::InvalidValue,
                format!("the context {:?} can't be opened: {why}", path.display().to_string()),
                "name a directory that this user can read",
            )
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(CWD, path, flags, Mode::empty()).map_err(fail)?;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let ignored = match openat2(&directory, IGNORE_FILE, flags, Mode::empty(), resolve) {
            Ok(file) => {
                let mut bytes = Vec::new();
                File::from(file).take(IGNORE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|_| fail(Errno::IO))?;
                if bytes.len() as u64 > IGNORE_BYTES_MAX {
                    return Err(fail(Errno::FBIG));
                }
                IgnoreList::parse(&String::from_utf8_lossy(&bytes))?
            }
            Err(Errno::NOENT) => IgnoreList::default(),
            // Without its list, files could be copied that are not to be.
            Err(errno) => return Err(fail(errno)),
        };
        Ok(Self { view: View::of_directory(directory), ignored })
    }

    pub(crate) fn fate(&self, path: &[u8]) -> Fate {
        match self.ignored.ignores(path) {
            false => Fate::Taken,
            true if self.ignored.has_exceptions() => Fate::Searched,
            true => Fate::Left,
        }
    }
}

/// The paths that the sources of a COPY stand for, without links.
pub(crate) fn paths(view: &View, sources: &[String], beyond: Beyond) -> Result<Vec<Vec<u8>>, Problem> {
    let mut found = Vec::new();
    for source in sources {
        let before = found.len();
        for path in expanded(view, source, beyond)? {
            let path = view.resolve(&path, beyond).map_err(|error| unusable(source, error))?;
            found.push(path);
        }
        if found.len() == before {
            return Err(wrong(format!("nothing matches {source:?}"), "check the pattern, and .dockerignore"));
        }
    }
    Ok(found)
}

/// Paths before links are followed. A name without a pattern stands for itself.
fn expanded(view: &View, source: &str, beyond: Beyond) -> Result<Vec<Vec<u8>>, Problem> {
    let mut paths = vec![Vec::new()];
    for part in source.split('/').filter(|part| !part.is_empty() && *part != ".") {
        let mut next = Vec::new();
        for path in paths {
            if !is_pattern(part) {
                next.push(joined(&path, part.as_bytes()));
                continue;
            }
            let place = view.resolve(&path, beyond).map_err(|error| unusable(source, error))?;
            let names = match view.names(&place) {
                Ok(names) => names,
                // What is no directory has no names in it.
                Err(Errno::NOENT | Errno::NOTDIR) => Vec::new(),
                Err(errno) => return Err(unusable(source, ResolveError::Errno(errno))),
            };
            let matching = names.iter().filter(|name| name_matches(part.as_bytes(), name));
            next.extend(matching.map(|name| joined(&path, name)));
            if next.len() > PATHS_MAX {
                return Err(wrong(
                    format!("{source:?} stands for more than {PATHS_MAX} paths"),
                    "name a directory instead",
                ));
            }
        }
        paths = next;
    }
    Ok(paths)
}

fn joined(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
}

fn unusable(source: &str, error: ResolveError) -> Problem {
    match error {
        ResolveError::Outside => wrong(
            format!("{source:?} leads out of what is copied from"),
            "name a path inside it, without '..' and links to elsewhere",
        ),
        ResolveError::TooManyLinks => {
            wrong(format!("the links to {source:?} lead in a circle"), "name the file itself")
        }
        ResolveError::Errno(errno) => {
            let why = std::io::Error::from(errno).kind();
            wrong(format!("{source:?} can't be read: {why}"), "check its permissions, then build again")
        }
    }
}

fn wrong(what: String, help: &str) -> Problem {
    Problem::new(Code::InvalidValue, what, help)
}
