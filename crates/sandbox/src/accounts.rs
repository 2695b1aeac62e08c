//! The user that an image names, looked up in the image's own `/etc/passwd` and `/etc/group`.
//!
//! Both files come from a stranger. They are read on the host, from the layers as a mounted view would show them, without following any
//! link, up to a bound; and only lines in the exact form count. Ids that no sandbox has are refused.

use std::io::Read;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, fgetxattr, fstat, lgetxattr, openat, statat};
use rustix::io::Errno;
use saggar_domain::template::{Account, GivenByTemplate};
use saggar_domain::{Code, GuestPath, Problem};
use saggar_jail::Identity;

use crate::templates::HeldTemplate;

/// Maximum size of either file.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The name of uid and gid 0.
const ROOT: &str = "root";
/// Maximum number of further groups of a user.
const GROUPS_MAX: usize = 64;
/// Maximum length of a home directory.
const HOME_LEN_MAX: usize = 1024;

/// Everything that a spec takes from this image.
pub fn given_by(template: &HeldTemplate) -> Result<GivenByTemplate, Problem> {
    Ok(GivenByTemplate { account: Some(account(template)?), ..given_for_any_user(template) })
}

/// The same without the image's user: programs of a server's sandbox run as the users that its clients name.
pub fn given_for_any_user(template: &HeldTemplate) -> GivenByTemplate {
    let defaults = template.manifest.defaults();
    GivenByTemplate { id: template.id.clone(), env: defaults.env.clone(), cwd: defaults.cwd.clone(), account: None }
}

fn account(template: &HeldTemplate) -> Result<Account, Problem> {
    let layers: Vec<BorrowedFd<'_>> = template.layers.iter().rev().map(|layer| layer.tree()).collect();
    let refuse = |why: String| {
        Problem::new(
            Code::UnsupportedCapability,
            format!("the image's user can't be used: {why}"),
            "choose a user with --user root or --user user, or repair the image and import it again",
        )
    };
    let read = |name: &str| {
        read_from(&layers, name).map_err(|errno| refuse(format!("its /etc/{name} can't be read: {errno}")))
    };
    let wanted = template.manifest.defaults().user.as_deref().unwrap_or("0");
    let mut account = find(wanted, &read("passwd")?, &read("group")?).map_err(refuse)?;
    // An ordinary user's sandbox has one id, which is uid and gid, and no group apart from it.
    if !rustix::process::geteuid().is_root() {
        account.gid = account.uid;
        account.groups.clear();
    }
    Ok(account)
}

/// The same in layers, the topmost first: `USER` or `USER:GROUP`. The error says what is wrong with it.
pub fn account_in(layers: &[BorrowedFd<'_>], wanted: &str) -> Result<Account, String> {
    let read =
        |name: &str| read_from(layers, name).map_err(|errno| format!("the image's /etc/{name} can't be read: {errno}"));
    find(wanted, &read("passwd")?, &read("group")?)
}

/// Finds `USER` or `USER:GROUP`, each a name or a number.
fn find(wanted: &str, passwd: &[u8], group: &[u8]) -> Result<Account, String> {
    let (user, group_wanted) = match wanted.split_once(':') {
        Some((user, group)) => (user, Some(group)),
        None => (wanted, None),
    };
    let entries = || lines(passwd).filter_map(User::parse);
    let by_name = entries().find(|entry| entry.name == user);
    let (uid, entry) = match (number(user)?, by_name) {
        (_, Some(entry)) => (entry.uid, Some(entry)),
        (Some(uid), None) => (uid, entries().find(|entry| entry.uid == uid)),
        // It has no other meaning, and an image of a single program has no file that says so.
        (None, None) if user == ROOT => (0, entries().find(|entry| entry.uid == 0)),
        (None, None) => return Err(format!("there is no user {user:?} in its /etc/passwd")),
    };
    let gid = match group_wanted {
        Some(wanted) => {
            match (lines(group).filter_map(Group::parse).find(|entry| entry.name == wanted), number(wanted)?) {
                (Some(entry), _) => entry.gid,
                (None, Some(gid)) => gid,
                (None, None) if wanted == ROOT => 0,
                (None, None) => return Err(format!("there is no group {wanted:?} in its /etc/group")),
            }
        }
        None => entry.as_ref().map_or(0, |entry| entry.gid),
    };
    if gid == Identity::AGENTS_GROUP {
        return Err(format!("group {gid} is reserved: its members would see every process of the sandbox"));
    }
    let name = entry.as_ref().map_or_else(|| uid.to_string(), |entry| entry.name.to_owned());
    let is_member = |entry: &Group<'_>| {
        ![gid, Identity::AGENTS_GROUP].contains(&entry.gid) && entry.members.split(',').any(|member| member == name)
    };
    let mut groups: Vec<u32> =
        lines(group).filter_map(Group::parse).filter(is_member).map(|entry| entry.gid).take(GROUPS_MAX).collect();
    groups.sort_unstable();
    groups.dedup();
    let home = entry.map(|entry| entry.home).filter(|home| is_home(home)).unwrap_or("/").to_owned();
    Ok(Account { name, uid, gid, groups, home })
}

/// `None` if it is not written as a number; an error if it is one that no sandbox has.
fn number(text: &str) -> Result<Option<u32>, String> {
    if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    let id = text.parse().ok().filter(|id| is_id(*id));
    id.map(Some).ok_or_else(|| format!("id {text} is not below {}", Identity::RANGE))
}

fn is_id(id: u32) -> bool {
    id < Identity::RANGE
}

/// Whether programs can begin there. It is the image's own text: with `..` in it, it would lead out of the root in which it is made. Services
/// often have `/dev/null`, which is none.
fn is_home(home: &str) -> bool {
    let is_elsewhere = |path: &GuestPath| ["/dev", "/proc", "/sys"].iter().any(|tree| path.is_within(tree));
    GuestPath::parse(home).is_ok_and(|path| !is_elsewhere(&path))
        && home.len() <= HOME_LEN_MAX
        && !home.chars().any(char::is_control)
}

fn lines(file: &[u8]) -> impl Iterator<Item = &str> {
    file.split(|byte| *byte == b'\n').filter_map(|line| std::str::from_utf8(line).ok())
}

struct User<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> User<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, _] = fields.as_slice() else { return None };
        let id = |text: &str| number(text).ok().flatten();
        (is_name(name)).then_some(Self { name, uid: id(uid)?, gid: id(gid)?, home })
    }
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

impl<'a> Group<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, gid, members] = fields.as_slice() else { return None };
        is_name(name).then_some(Self { name, gid: number(gid).ok().flatten()?, members })
    }
}

/// As far as it goes into an environment variable.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 256 && !name.chars().any(char::is_control)
}

/// Reads a file of /etc from layers, the topmost first, as a view of them shows it. A missing one is empty.
/// Whether programs find an id of the machine in the template. What can't be read counts as one.
pub(crate) fn has_machine_id(template: &HeldTemplate) -> bool {
    let layers: Vec<BorrowedFd<'_>> = template.layers.iter().rev().map(|layer| layer.tree()).collect();
    read_from(&layers, "machine-id").map_or(true, |found| !found.is_empty())
}

fn read_from(layers: &[BorrowedFd<'_>], name: &str) -> Result<Vec<u8>, Errno> {
    for layer in layers {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let etc = match openat(layer, "etc", flags, Mode::empty()) {
            Ok(etc) => etc,
            Err(Errno::NOENT) => continue,
            // Removed in this layer, or something else than a directory: nothing below it shows.
            Err(_) if is_whiteout(*layer, "etc")? => return Ok(Vec::new()),
            Err(errno) => return Err(errno),
        };
        match statat(&etc, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) if is_whiteout_in(&etc, name)? => return Ok(Vec::new()),
            Ok(_) => return read_file(&etc, name),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        if is_marked(&etc, "user.overlay.opaque", b"y") {
            break;
        }
    }
    Ok(Vec::new())
}

fn read_file(directory: &OwnedFd, name: &str) -> Result<Vec<u8>, Errno> {
    // A fifo must not block us, and a device not be opened for more than a look.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = openat(directory, name, flags, Mode::empty())?;
    let stat = fstat(&file)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let mut bytes = Vec::new();
    std::fs::File::from(file)
        .take(FILE_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(Errno::FBIG);
    }
    Ok(bytes)
}

fn is_whiteout(directory: BorrowedFd<'_>, name: &str) -> Result<bool, Errno> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice && stat.st_rdev == 0)
}

/// Either form: a device 0/0, or an empty file with a mark.
fn is_whiteout_in(directory: &OwnedFd, name: &str) -> Result<bool, Errno> {
    use std::os::fd::{AsFd, AsRawFd};
    if is_whiteout(directory.as_fd(), name)? {
        return Ok(true);
    }
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok(lgetxattr(path, "user.overlay.whiteout", &mut [0u8; 8]).is_ok())
}

fn is_marked(directory: &OwnedFd, attribute: &str, value: &[u8]) -> bool {
    let mut found = [0u8; 8];
    fgetxattr(directory, attribute, &mut found).is_ok_and(|length| found.get(..length) == Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &[u8] = b"root:x:0:0:root:/root:/bin/sh\napp:x:1001:2001:,,,:/srv/app:/bin/sh\nbad line\n1234:x:7:7::/seven:/bin/sh\nhuge:x:70000:1::/:/\nrel:x:9:9::home:/bin/sh\n\xff\xfe:x:1:1:::\n";
    const GROUP: &[u8] = b"root:x:0:\nstaff:x:50:app,root\nvideo:x:44:app\nhuge:x:70000:app\napp:x:2001:app\n";

    fn account(name: &str, uid: u32, gid: u32, groups: &[u32], home: &str) -> Result<Account, String> {
        Ok(Account { name: name.to_owned(), uid, gid, groups: groups.to_vec(), home: home.to_owned() })
    }

    #[test]
    fn users_are_found_by_name_or_number() {
        for (wanted, found) in [
            ("0", account("root", 0, 0, &[50], "/root")),
            ("root", account("root", 0, 0, &[50], "/root")),
            ("app", account("app", 1001, 2001, &[44, 50], "/srv/app")),
            ("1001", account("app", 1001, 2001, &[44, 50], "/srv/app")),
            ("app:video", account("app", 1001, 44, &[50, 2001], "/srv/app")),
            ("app:7", account("app", 1001, 7, &[44, 50, 2001], "/srv/app")),
            // A name comes before a number, as elsewhere.
            ("1234", account("1234", 7, 7, &[], "/seven")),
            // Without an entry: no home and the group root.
            ("4321", account("4321", 4321, 0, &[], "/")),
            ("rel", account("rel", 9, 9, &[], "/")),
        ] {
            assert_eq!(find(wanted, PASSWD, GROUP), found, "{wanted}");
        }
        // An image without these files has root all the same.
        for wanted in ["0", "root", "root:root", "0:0"] {
            assert_eq!(find(wanted, b"", b""), account("0", 0, 0, &[], "/"), "{wanted}");
        }
        // The group that sees every process is no further group of anybody.
        assert_eq!(
            find("app", PASSWD, b"all:x:65533:app\nvideo:x:44:app\n"),
            account("app", 1001, 2001, &[44], "/srv/app")
        );
        let seer = b"seer:x:1001:65533::/:/bin/sh\n";
        assert_eq!(find("seer:7", seer, b""), account("seer", 1001, 7, &[], "/"));
        for (wanted, passwd, group) in [
            ("seer", &seer[..], &b""[..]),
            ("1001", seer, b""),
            ("app:65533", PASSWD, b""),
            ("app:all", PASSWD, b"all:x:65533:\n"),
        ] {
            let why = "group 65533 is reserved: its members would see every process of the sandbox";
            assert_eq!(find(wanted, passwd, group), Err(why.to_owned()), "{wanted}");
        }
        for (wanted, why) in [
            ("nobody", "there is no user \"nobody\" in its /etc/passwd"),
            ("huge", "there is no user \"huge\" in its /etc/passwd"),
            ("app:none", "there is no group \"none\" in its /etc/group"),
            ("65536", "id 65536 is not below 65536"),
            ("99999999999999999999", "id 99999999999999999999 is not below 65536"),
            ("", "there is no user \"\" in its /etc/passwd"),
        ] {
            assert_eq!(find(wanted, PASSWD, GROUP), Err(why.to_owned()), "{wanted}");
        }
    }
}
