//! The private root, the three workspace modes, mounts, and file ownership on both sides.

mod harness;

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use harness::probe::{self, REFUSED, check, check_all, check_json};
use harness::tree::{names, tree};
use harness::{Place, is_root, not_here, show};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Uid};

/// An owner that is neither root nor a real user.
const OWNER: (u32, u32) = (12_345, 23_456);

/// Every way to change a workspace that contains `file` and `directory/inner`.
const CHANGES: &[&str] = &[
    "write('/workspace/new')",
    "write('/workspace/file', os.O_APPEND)",
    "map_shared('/workspace/file')",
    "os.truncate('/workspace/file', 1)",
    "os.posix_fallocate(os.open('/workspace/file', os.O_RDWR), 0, 4096)",
    "os.copy_file_range(*[os.open('/workspace/file', os.O_RDWR)] * 2, 4, 0, 4) and None",
    "os.chmod('/workspace/file', 0o600)",
    "os.utime('/workspace/file', (1, 1))",
    "tmpfile('/workspace')",
    "os.mkdir('/workspace/made')",
    "os.mkfifo('/workspace/fifo')",
    "os.symlink('file', '/workspace/link')",
    "os.link('/workspace/file', '/workspace/second')",
    "bind(socket.AF_UNIX, '/workspace/socket')",
    "os.rename('/workspace/file', '/workspace/directory/file')",
    "exchange('/workspace/directory/inner')",
    "shutil.rmtree('/workspace/directory')",
    "os.unlink('/workspace/second')",
];

fn place_with_files() -> Place {
    let place = Place::new();
    place.write("workspace/file", "host\n");
    place.write("workspace/directory/inner", "inner\n");
    place
}

fn chown(path: &Path, (uid, gid): (u32, u32)) {
    rustix::fs::chownat(CWD, path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)), AtFlags::SYMLINK_NOFOLLOW)
        .expect("only called as root");
}

fn chmod(path: &Path, mode: u32) {
    rustix::fs::chmodat(CWD, path, Mode::from_raw_mode(mode), AtFlags::empty()).expect("ours");
}

#[test]
fn root_of_a_sandbox_writes_all_of_its_private_root_and_nothing_that_is_the_hosts() {
    let place = Place::new();
    let flags = ["--user", "root"];
    let refused = [
        "write('/usr/new')",
        "write('/usr/bin/env', os.O_APPEND)",
        "write('/usr/local/bin/new')",
        "write('/bin/new')",
        "write('/lib/new')",
        "write('/dev/new')",
        "os.unlink('/dev/null')",
        "os.chmod('/dev', 0o777)",
        "write('/sys/new')",
        "os.mkdir('/sys/fs/new')",
        "write('/proc/new')",
        "write('/.empty/new')",
        "write('/.scratch/new')",
        "os.rename('/.scratch', '/moved')",
        "os.rmdir('/usr')",
        "os.chmod('/usr/bin/env', 0o777)",
    ];
    check_all(&place, &flags, &refused, &format!("{REFUSED}|ENOENT"));
    let allowed = [
        "write('/new')",
        "os.mkdir('/data')",
        "write('/data/new')",
        "write('/etc/new')",
        "os.makedirs('/etc/foo.d/bar')",
        "write('/etc/foo.d/x')",
        "write('/etc/passwd', os.O_APPEND)",
        "os.rename('/etc/hosts', '/tmp/hosts')",
        "write('/etc/hosts')",
        "write('/etc/ld.so.cache', os.O_APPEND)",
        "write('/opt/new')",
        "write('/srv/new')",
        "write('/var/new')",
        "write('/run/new')",
        "write('/home/new')",
        "write('/mnt/new')",
        "write('/root/new')",
        "write('/home/user/new')",
        "write('/tmp/new')",
        "write('/dev/shm/new')",
        "write('/workspace/new')",
        "os.chmod('/etc/passwd', 0o600)",
    ];
    check_all(&place, &flags, &allowed, "ok|None");
    // If the host has them: directories too large to copy for each sandbox are copy-on-write.
    for directory in ["/etc/alternatives", "/etc/ssl/certs", "/etc/fonts"] {
        if Path::new(directory).is_dir() {
            check(&place, &flags, &[(&format!("write('{directory}/new')"), "ok")]);
            assert!(!Path::new(directory).join("new").exists(), "{directory} is the host's");
        }
    }
    let bundle = "/etc/ssl/certs/ca-certificates.crt";
    if is_root() && Path::new(bundle).is_file() {
        let before = std::fs::read(bundle).expect("anyone may");
        let script = format!("echo more >> {bundle} && tail -n 1 {bundle} && rm -r /etc/ssl && ls /etc/ssl");
        let done = place.sh(&flags, &script);
        assert_eq!(done.stdout, "more\n", "{done:?}");
        assert!(std::fs::read(bundle).expect("anyone may") == before, "it was the host's");
    }
    assert!(!Path::new("/etc/foo.d").exists());
}

#[test]
fn an_ordinary_user_inside_writes_only_what_is_that_users() {
    let place = Place::new();
    {
        let flags = ["--user", "user"];
        let refused = [
            "write('/new')",
            "write('/usr/new')",
            "write('/usr/bin/env', os.O_APPEND)",
            "write('/bin/new')",
            "write('/lib/new')",
            "write('/etc/new')",
            "write('/etc/passwd', os.O_APPEND)",
            "write('/var/new')",
            "write('/run/new')",
            "write('/home/new')",
            "write('/mnt/new')",
            "write('/dev/new')",
            "write('/sys/new')",
            "write('/.empty/new')",
            "os.mkdir('/etc/cron.d')",
            "os.unlink('/etc/passwd')",
            "os.rename('/etc/hosts', '/tmp/hosts')",
            "os.rename('/tmp', '/moved')",
            "os.rmdir('/home/user')",
            "os.chmod('/etc/passwd', 0o666)",
            "os.chmod('/', 0o777)",
            "os.truncate('/etc/passwd', 0)",
            "os.symlink('/tmp', '/etc/link')",
            "os.link('/etc/passwd', '/tmp/passwd')",
        ];
        check_all(&place, &flags, &refused, REFUSED);
        check_all(
            &place,
            &flags,
            &[
                "write('/tmp/a')",
                "write('/var/tmp/b')",
                "write('/home/user/a')",
                "write('/dev/shm/a')",
                "write('/workspace/a')",
            ],
            "ok",
        );
    }
    check_all(&place, &[], &["write('/root/a')", "write('/opt/a')", "write('/srv/a')"], REFUSED);
    check(&place, &["--fs", "read-only"], &[("write('/workspace/a')", REFUSED), ("write('/tmp/a')", "ok")]);
}

#[test]
fn the_root_holds_programs_and_nothing_else_of_the_host() {
    let place = Place::new();
    let secret = place.write("secret", "of the host\n");
    let system = "{'usr', 'bin', 'sbin', 'lib', 'lib32', 'lib64', 'libx32'}";
    let own = "['.empty', '.null', 'dev', 'etc', 'home', 'mnt', 'opt', 'proc', 'root', 'run', 'srv', 'sys', 'tmp', 'var', 'workspace']";
    check(
        &place,
        &[],
        &[
            (&format!("sorted(set(os.listdir('/')) - {system})"), own),
            ("os.listdir('/home')", "['user']"),
            ("os.listdir('/home/user') + os.listdir('/tmp') + os.listdir('/run') + os.listdir('/mnt')", "[]"),
            (&format!("remains('{}')", show(&secret)), "absent"),
            (&format!("remains('{}')", env!("CARGO_MANIFEST_DIR")), "absent"),
            (
                "[name for name in ('shadow', 'gshadow', 'sudoers', 'ssh', 'machine-id', 'fstab', 'cron.d') if os.path.lexists('/etc/' + name)]",
                "[]",
            ),
            ("[name for name in ('boot', 'lost+found', 'media', '.scratch') if os.path.lexists('/' + name)]", "[]"),
            ("remains('/etc/passwd')", "there"),
            ("remains('/usr/bin/env')", "there"),
        ],
    );
}

#[test]
fn a_read_only_workspace_refuses_every_change() {
    let place = place_with_files();
    let before = tree(&place.workspace());
    let workspace = show(&place.workspace());
    for user in ["user", "root"] {
        let flags = ["--workspace", &workspace, "--fs", "read-only", "--user", user];
        let existing: Vec<&str> = CHANGES
            .iter()
            .filter(|change| !change.contains("/second')") || change.contains("link("))
            .copied()
            .collect();
        check_all(&place, &flags, &existing, REFUSED);
        check(
            &place,
            &flags,
            &[("read('/workspace/file')", "host"), ("sorted(os.listdir('/workspace'))", "['directory', 'file']")],
        );
    }
    assert_eq!(tree(&place.workspace()), before);
}

#[test]
fn a_writable_workspace_takes_every_change() {
    let place = place_with_files();
    check_all(&place, &["--workspace", &show(&place.workspace())], CHANGES, "ok");
    let names = names(&place.workspace());
    assert_eq!(
        names.iter().filter(|name| !name.starts_with("own")).collect::<Vec<_>>(),
        ["fifo", "link", "made", "new", "socket"],
        "and placeholders are gone"
    );
}

#[test]
fn a_scratch_workspace_takes_every_change_and_keeps_the_host_as_it_was() {
    for user in ["user", "root"] {
        let place = place_with_files();
        let before = tree(&place.workspace());
        let workspace = show(&place.workspace());
        let flags = ["--workspace", &workspace, "--fs", "scratch", "--user", user];
        // Overlayfs supports unnamed files since Linux 6.10.
        let outcome = |change: &str| if change.starts_with("tmpfile") { "ok|EOPNOTSUPP" } else { "ok" };
        let cases: Vec<(&str, &str)> = CHANGES.iter().map(|change| (*change, outcome(change))).collect();
        check(&place, &flags, &cases);
        check(
            &place,
            &flags,
            &[
                ("write('/workspace/file')", "ok"),
                ("read('/workspace/file')", "inside"),
                ("os.unlink('/workspace/directory/inner')", "ok"),
                ("os.listdir('/workspace/directory')", "[]"),
                // No path leads to the layers, through which a lower file could be changed or a deleted one restored.
                ("write('/.scratch/upper/new')", "ENOENT"),
                ("write('/.scratch/lower/new')", "ENOENT"),
                ("os.unlink('/.scratch/upper/file')", "ENOENT"),
            ],
        );
        check(&place, &flags, &[("read('/workspace/file')", "host")]);
        assert_eq!(tree(&place.workspace()), before);
    }
}

#[test]
fn files_made_inside_belong_to_the_workspaces_owner() {
    let ours = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let owners: &[(u32, u32)] = if is_root() { &[ours, OWNER] } else { &[ours] };
    for owner in owners {
        for (user, id) in [("user", 1000), ("root", 0)] {
            let place = place_with_files();
            if is_root() {
                for path in ["workspace", "workspace/file", "workspace/directory", "workspace/directory/inner"] {
                    chown(&place.path(path), *owner);
                }
            }
            let seen = format!("({id}, {id})");
            check(
                &place,
                &["--workspace", &show(&place.workspace()), "--user", user],
                &[
                    ("write('/workspace/new')", "ok"),
                    ("write('/workspace/file')", "ok"),
                    ("os.makedirs('/workspace/a/b')", "ok"),
                    ("os.symlink('x', '/workspace/link')", "ok"),
                    ("(lambda s: (s.st_uid, s.st_gid))(os.stat('/workspace'))", &seen),
                    ("(lambda s: (s.st_uid, s.st_gid))(os.stat('/workspace/new'))", &seen),
                ],
            );
            for name in names(&place.workspace()) {
                let metadata = place.workspace().join(&name).symlink_metadata().unwrap();
                assert_eq!((metadata.uid(), metadata.gid()), *owner, "{name} made as {user}");
            }
        }
    }
}

#[test]
fn files_of_others_in_a_workspace_are_no_ones_inside() {
    if !is_root() {
        return not_here("giving a file to another user takes root");
    }
    let place = place_with_files();
    chown(&place.workspace(), OWNER);
    let private = place.write("workspace/private", "of root\n");
    chmod(&private, 0o600);
    for user in ["user", "root"] {
        check(
            &place,
            &["--workspace", &show(&place.workspace()), "--user", user],
            &[
                ("(lambda s: (s.st_uid, s.st_gid))(os.stat('/workspace/file'))", "(65534, 65534)"),
                ("read('/workspace/file')", "host"),
                ("write('/workspace/file', os.O_APPEND)", "EACCES|EPERM|EOVERFLOW"),
                ("read('/workspace/private')", "EACCES|EPERM|EOVERFLOW"),
                ("os.chmod('/workspace/private', 0o666)", "EACCES|EPERM|EOVERFLOW"),
                ("os.chown('/workspace/private', 0, 0)", "EACCES|EPERM|EOVERFLOW"),
            ],
        );
    }
    assert_eq!(std::fs::read_to_string(private).unwrap(), "of root\n");
}

#[test]
fn mounts_are_read_only_unless_asked_otherwise() {
    let place = Place::new();
    let (file, other) = (place.write("file", "host\n"), place.write("other", "host\n"));
    let (inner, shared) = (place.write("brought/inner", "host\n"), place.write("shared/inner", "host\n"));
    let (data, shared) = (inner.parent().unwrap(), shared.parent().unwrap());
    let mounts = [
        format!("{}:/opt/deep/down/file", show(&file)),
        format!("{}:/mnt/other:rw", show(&other)),
        format!("{}:/data", show(data)),
        format!("{}:/home/user/shared:rw", show(shared)),
    ];
    let flags: Vec<&str> = mounts.iter().flat_map(|mount| ["--mount", mount]).collect();
    check(
        &place,
        &flags,
        &[
            ("read('/opt/deep/down/file')", "host"),
            ("write('/opt/deep/down/file')", REFUSED),
            ("os.unlink('/opt/deep/down/file')", REFUSED),
            ("write('/opt/deep/new')", REFUSED),
            ("read('/data/inner')", "host"),
            ("write('/data/inner')", REFUSED),
            ("write('/data/new')", REFUSED),
            ("os.chmod('/data/inner', 0o777)", REFUSED),
            ("os.rename('/data', '/moved')", REFUSED),
            ("write('/mnt/other')", "ok"),
            ("os.unlink('/mnt/other')", REFUSED),
            ("write('/mnt/new')", REFUSED),
            ("write('/home/user/shared/new')", "ok"),
            ("os.unlink('/home/user/shared/inner')", "ok"),
            ("os.rename('/home/user/shared', '/home/user/moved')", REFUSED),
            ("remains('/home/user/shared/../../../' + 'secret')", "absent"),
        ],
    );
    let contents =
        [&file, &other, &data.join("inner"), &shared.join("new")].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(contents, ["host\n", "inside\n", "host\n", "inside\n"]);
    assert_eq!((names(data), names(shared)), (vec!["inner".to_owned()], vec!["new".to_owned()]));
}

#[test]
fn links_in_a_workspace_lead_nowhere_outside() {
    let place = place_with_files();
    let secret = place.write("secret", "of the host\n");
    std::os::unix::fs::symlink(&secret, place.path("workspace/absolute")).unwrap();
    std::os::unix::fs::symlink("../secret", place.path("workspace/relative")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", place.path("workspace/passwd")).unwrap();
    check(
        &place,
        &["--workspace", &show(&place.workspace())],
        &[
            ("read('/workspace/absolute')", "ENOENT"),
            ("read('/workspace/relative')", "ENOENT"),
            ("write('/workspace/relative')", REFUSED),
            ("read('/workspace/passwd').splitlines()[1]", "user:x:1000:1000:user:/home/user:/bin/bash"),
            ("os.path.samestat(os.stat('/workspace/..'), os.stat('/'))", "True"),
            ("os.path.samestat(os.stat('/proc/self/root/..'), os.stat('/'))", "True"),
            ("os.path.samestat(os.stat('/../../..'), os.stat('/'))", "True"),
        ],
    );
    assert_eq!(std::fs::read_to_string(secret).unwrap(), "of the host\n");
}

#[test]
fn the_mount_table_names_no_path_of_the_host_but_what_was_brought_in() {
    let place = place_with_files();
    let root = show(place.workspace().parent().unwrap());
    let lines = |flags: &[&str]| -> Vec<String> {
        let table =
            probe::attempts(&place, flags, &["open('/proc/self/mountinfo').read() + open('/proc/self/mounts').read()"]);
        table[0].lines().filter(|line| line.contains(&root)).map(str::to_owned).collect()
    };
    assert_eq!(lines(&[]), Vec::<String>::new());
    let workspace = show(&place.workspace());
    assert_eq!(
        lines(&["--workspace", &workspace, "--fs", "scratch"]),
        Vec::<String>::new(),
        "the layers are named as they were during set-up"
    );
    // The kernel shows which directory of its filesystem a bind mount comes from; THREAT_MODEL.md documents this.
    let shown = lines(&["--workspace", &workspace]);
    assert!(!shown.is_empty(), "a control: this test finds the path where it is");
    for line in shown {
        let fields: Vec<&str> = line.split(' ').collect();
        assert!(
            fields[3].starts_with(&workspace)
                && fields[4].starts_with("/workspace")
                && line.matches(&root).count() == 1,
            "{line}"
        );
    }
}

#[test]
fn every_mount_is_as_narrow_as_it_can_be() {
    // Landlock also guards the mounts, so attempts alone would not reveal a mount that is too wide.
    let lacking = |flag: &str| {
        format!(
            "[fields[4] for fields in sorted(map(str.split, open('/proc/self/mountinfo')), key=lambda fields: fields[4]) if '{flag}' not in fields[5].split(',')]"
        )
    };
    let devices = "'/dev/full', '/dev/null', '/dev/random', '/dev/tty', '/dev/urandom', '/dev/zero'";
    let wide =
        "'/dev/full', '/dev/null', '/dev/pts', '/dev/random', '/dev/shm', '/dev/tty', '/dev/urandom', '/dev/zero'";
    // A sandbox with a root has its private root as one mount, and parts of /etc are views.
    let user = format!(
        "[{wide}, '/home/user', '/tmp', '/workspace', '/workspace/.git', '/workspace/.git/objects', '/workspace/.git/objects/info']"
    );
    let root = format!(
        "['/', {wide}, '/workspace', '/workspace/.git', '/workspace/.git/objects', '/workspace/.git/objects/info']"
    );
    for (user, writable) in [("user", user), ("root", root)] {
        let place = Place::new();
        std::fs::create_dir(place.path("workspace/.git")).expect("ours");
        check(
            &place,
            &["--workspace", &show(&place.workspace()), "--user", user],
            &[
                (&format!("[path for path in {} if not path.startswith('/etc/')]", lacking("ro")), &writable),
                (&lacking("nosuid"), &format!("[{devices}]")),
                (
                    &lacking("nodev"),
                    "['/dev/full', '/dev/null', '/dev/pts', '/dev/random', '/dev/tty', '/dev/urandom', '/dev/zero']",
                ),
                (&format!("'/proc' in {}", lacking("noexec")), "False"),
            ],
        );
    }
}

#[test]
fn the_working_directory_is_what_was_asked_and_grants_nothing() {
    let place = place_with_files();
    let workspace = show(&place.workspace());
    for (flags, directory) in [
        (vec![], "/home/user"),
        (vec!["--user", "root"], "/root"),
        (vec!["--workspace", &workspace], "/workspace"),
        (vec!["--workspace", &workspace, "--cwd", "/workspace/directory"], "/workspace/directory"),
        (vec!["--cwd", "/tmp"], "/tmp"),
    ] {
        check(&place, &flags, &[("os.getcwd()", directory), ("write('new')", "ok")]);
    }
    for directory in ["/", "/usr", "/etc"] {
        check(
            &place,
            &["--workspace", &workspace, "--cwd", directory],
            &[("os.getcwd()", directory), ("write('new')", REFUSED)],
        );
    }
    let result =
        place.json(&["--workspace", &workspace, "--cwd", "/no/such"], &["/bin/sh", "-c", "touch /workspace/started"]);
    assert_eq!(
        (result["status"].as_str(), result["error"]["code"].as_str()),
        (Some("refused"), Some("invalid_cwd")),
        "{result}"
    );
    assert!(!place.path("workspace/started").exists());
}

#[test]
fn an_ordinary_refusal_of_the_filesystem_is_no_denial() {
    let place = Place::new();
    let result = check_json(
        &place,
        &[],
        &[
            ("write('/etc/passwd')", REFUSED),
            ("write('/usr/new')", REFUSED),
            ("os.listdir('/proc/1/fd')", "EACCES|ENOENT|EPERM"),
        ],
    );
    assert_eq!(result["denials"], serde_json::json!([]));
}

#[test]
fn a_mount_can_be_put_where_the_root_has_a_place_for_it_or_none_yet() {
    let place = Place::new();
    place.write("source/file", "of the host\n");
    let mount = |guest: &str| format!("{}:{guest}", show(&place.path("source")));
    check(
        &place,
        &["--mount", &mount("/mnt")],
        &[("read('/mnt/file')", "of the host"), ("write('/mnt/new')", REFUSED)],
    );
    check(
        &place,
        &["--mount", &mount("/home/user/b/c")],
        &[
            ("read('/home/user/b/c/file')", "of the host"),
            ("write('/home/user/b/mine')", "ok"),
            ("os.stat('/home/user/b').st_uid", "1000"),
            ("write('/home/user/b/c/new')", REFUSED),
        ],
    );
    assert_eq!(names(&place.path("source")), ["file"]);
}
