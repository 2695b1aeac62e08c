//! Secrets in the kernel's keyring of the user: the keys `saggar:NAME` of type `user`.
//!
//! They go from the keyring into a file in memory, which only the egress process reads; our own copy is overwritten. It is in
//! this crate because it needs `unsafe`.

use std::ffi::CString;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};
use saggar_domain::secret::SecretName;
use saggar_domain::{Code, Problem};
use zeroize::Zeroizing;

const SEARCH: libc::c_ulong = 10;
const READ: libc::c_ulong = 11;
const THREAD_KEYRING: i32 = -1;
const USER_KEYRING: i32 = -4;
/// The kernel's own limit for a key of this type.
const KEY_LEN_MAX: usize = 32 * 1024;

/// A secrets file with those of the names that are in the keyring; `None` if none is, or if there is no keyring.
pub fn secrets_in_keyring(names: &[SecretName]) -> Result<Option<OwnedFd>, Problem> {
    let distinct: std::collections::BTreeSet<&SecretName> = names.iter().collect();
    let found: Vec<_> = distinct.into_iter().filter_map(|name| Some((name, key(name)?))).collect();
    if found.is_empty() {
        return Ok(None);
    }
    let file = memfd_create("secrets", MemfdFlags::CLOEXEC).map_err(std::io::Error::from).and_then(|fd| {
        let mut file = File::from(fd);
        for (name, content) in &found {
            writeln!(file, "[{name}]")?;
            file.write_all(content)?;
            writeln!(file)?;
        }
        file.rewind()?;
        Ok(file)
    });
    let failed = |error: std::io::Error| {
        let message = format!("secrets of the keyring can't be handed over: {}", error.kind());
        Problem::new(Code::SetupFailed, message, "try again")
    };
    file.map(|file| Some(file.into())).map_err(failed)
}

/// The content of a key.
fn key(name: &SecretName) -> Option<Zeroizing<Vec<u8>>> {
    let description = CString::new(format!("saggar:{name}")).ok()?;
    // SAFETY: both texts end with a NUL byte and live until the call returns. The key is linked to our thread's keyring:
    // a key can be read only by who possesses it.
    let id = unsafe {
        libc::syscall(libc::SYS_keyctl, SEARCH, USER_KEYRING, c"user".as_ptr(), description.as_ptr(), THREAD_KEYRING)
    };
    if id < 0 {
        return None;
    }
    let mut content = Zeroizing::new(vec![0u8; KEY_LEN_MAX]);
    // SAFETY: the kernel writes at most `KEY_LEN_MAX` bytes, which are there.
    let length = unsafe { libc::syscall(libc::SYS_keyctl, READ, id, content.as_mut_ptr(), KEY_LEN_MAX) };
    let length = usize::try_from(length).ok().filter(|length| *length <= KEY_LEN_MAX)?;
    content.truncate(length);
    Some(content)
}
