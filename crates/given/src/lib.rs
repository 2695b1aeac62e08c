//! Reading files that a person names. A crate of its own, because the front, which must stay small, and the server both do it.
#![forbid(unsafe_code)]

mod file;

pub use file::{GivenFileError, open_given_file, read_given_file, read_given_text};
