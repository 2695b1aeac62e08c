//! Sandboxes that start from an image: what programs see, what they may change, and what a hostile image can't do.

mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;

use harness::image::Image;
use harness::tree::tree;
use harness::{Done, Place, finish, is_root, not_here, show};
use rustix::fs::{FlockOperation, flock};
use saggar_domain::GuestPath;

/// An ordinary user without anything.
const NOBODY: u32 = 54_321;

fn image(place: &Place) -> Image {
    Image::in_data(&place.path("data"))
}

/// `saggar run --template demo FLAGS -- /bin/sh -c SCRIPT`.
fn sh(place: &Place, flags: &[&str], script: &str) -> Done {
    place.sh(&[&["--template", "demo"], flags].concat(), script)
}

fn check(place: &Place, flags: &[&str], script: &str, stdout: &str) {
    let done = sh(place, flags, script);
    assert_eq!((done.code, done.stdout.as_str()), (0, stdout), "{script}: {done:?}");
}

/// Builders write the same empty layer again and again.
#[test]
fn a_layer_that_an_image_has_twice_counts_where_it_is_topmost() {
    let place = Place::new();
    let layers = image(&place)
        .system()
        .layer(|top| top.write("etc/greeting", "first\n"))
        .layer(|top| top.write("etc/greeting", "second\n"));
    layers.again(1).again(1).named("demo");
    check(&place, &[], "cat /etc/greeting", "first\n");
}

#[test]
fn an_image_is_the_root_and_all_of_it_can_be_changed_without_changing_the_layers() {
    let place = Place::new();
    let made = image(&place)
        .system()
        .layer(|top| {
            top.write("etc/greeting", "of the top\n");
            top.whiteout("var/lib");
            top.opaque("srv");
            top.directory("srv/new", 0o755);
        })
        .layer(|top| top.directory("data/deep/down", 0o755));
    let layers: Vec<_> = (0..3).map(|number| made.layer_path(number)).collect();
    let before: Vec<_> = layers.iter().map(|path| tree(path)).collect();
    made.named("demo");
    check(
        &place,
        &[],
        "cat /etc/greeting; ls /srv; ls -d /var/lib 2>/dev/null || echo removed",
        "of the top\nnew\nremoved\n",
    );
    // No path of the host, in the table of mounts or elsewhere.
    let done = sh(&place, &[], "cat /proc/self/mountinfo; ls -a /");
    assert!(!done.stdout.contains(&show(&place.path(""))) && !done.stdout.contains(".scratch"), "{}", done.stdout);
    check(
        &place,
        &[],
        "echo changed > /etc/greeting && rm -rf /data /etc/group && mkdir -p /opt/x /data && echo y > /data/y && cat /etc/greeting && ls /data",
        "changed\ny\n",
    );
    // Another sandbox sees nothing of it.
    check(&place, &[], "cat /etc/greeting; ls /data", "of the top\ndeep\n");
    let after: Vec<_> = layers.iter().map(|path| tree(path)).collect();
    assert_eq!(before, after);
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn the_devices_kernel_files_and_names_are_ours() {
    let place = Place::new();
    image(&place)
        .system()
        .layer(|top| {
            top.write("dev/null", "no device");
            top.write("dev/mem", "x");
            top.write("sys/x", "x");
            top.write("proc/1/x", "x");
            top.link("etc/resolv.conf", "/tmp/elsewhere");
            top.write("etc/hosts", "1.2.3.4 localhost\n");
        })
        .named("demo");
    check(
        &place,
        &[],
        "echo gone > /dev/null && ls /dev/mem /sys/x /proc/1/x 2>/dev/null; stat -c %F /dev/null /etc/resolv.conf; cat /etc/hostname; ls /tmp; \
         touch /dev/x 2>/dev/null || echo sealed; echo ok > /dev/shm/x && echo shared",
        "character special file\nregular empty file\nsandbox\nsealed\nshared\n",
    );
    let hosts = sh(&place, &[], "cat /etc/hosts").stdout;
    assert!(hosts.starts_with("127.0.0.1 localhost\n") && !hosts.contains("1.2.3.4"), "{hosts}");
}

#[test]
fn the_defaults_of_the_image_apply_and_flags_win() {
    if !is_root() {
        return not_here("only root has the image's other users");
    }
    let place = Place::new();
    image(&place)
        .system()
        .with(|defaults| {
            defaults.env = [("GREETING", "hello"), ("PATH", "/bin")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            defaults.cwd = GuestPath::parse("/srv/app").ok();
            defaults.user = Some("app".to_owned());
            defaults.entrypoint = vec!["/bin/sh".to_owned(), "-c".to_owned()];
            defaults.command = vec!["echo own command".to_owned()];
        })
        .named("demo:1.0");
    let run = |flags: &[&str]| {
        let mut arguments = vec!["run", "--template", "demo:1.0"];
        arguments.extend(flags);
        finish(place.command(arguments).spawn().expect("it was built"))
    };
    let told = |flags: &[&str], stdout: &str| {
        let done = run(flags);
        assert_eq!((done.code, done.stdout.as_str()), (0, stdout), "{flags:?}: {done:?}");
    };
    told(&[], "own command\n");
    let script =
        "echo $(id -u) $(id -g) $(id -G) $HOME $USER $GREETING $PATH $(pwd); touch ~/file && stat -c %u:%g ~/file";
    told(&["--", "/bin/sh", "-c", script], "1234 2345 2345 77 /srv/app app hello /bin /srv/app\n1234:2345\n");
    let script = "echo $(id -u) $GREETING $(pwd) $HOME";
    let flags = ["--user", "user", "--cwd", "/tmp", "-e", "GREETING=bye", "--", "/bin/sh", "-c", script];
    told(&flags, "1000 bye /tmp /home/user\n");
    told(&["--user", "root", "--", "/bin/sh", "-c", "id -u; touch /root/x && pwd"], "0\n/srv/app\n");
}

#[test]
fn a_user_that_the_image_does_not_have_is_refused_unless_another_is_asked_for() {
    let place = Place::new();
    let wrong = |defaults: &mut saggar_domain::template::Defaults| defaults.user = Some("ghost".to_owned());
    image(&place).system().with(wrong).named("demo");
    let done = sh(&place, &[], "true");
    assert_eq!(done.code, 126, "{done:?}");
    assert!(done.stderr.contains("there is no user \"ghost\" in its /etc/passwd"), "{done:?}");
    check(&place, &["--user", "root"], "echo in", "in\n");
    // The file is read without following links, and removed ones are not there.
    for (name, spoil, why) in [
        ("link", (|top: &harness::image::Tree| top.link("etc/passwd", "/etc/passwd")) as fn(&_), "can't be read"),
        ("parent", |top| top.link("etc", "/etc"), "can't be read"),
        ("removed", |top| top.whiteout("etc/passwd"), "there is no user \"app\""),
        ("hidden", |top| top.opaque("etc"), "there is no user \"app\""),
        ("large", |top| top.write("etc/passwd", &"x\n".repeat(600_000)), "can't be read"),
    ] {
        image(&place).system().layer(spoil).with(|defaults| defaults.user = Some("app".to_owned())).named(name);
        let done = place.sh(&["--template", name], "true");
        assert!(done.code == 126 && done.stderr.contains(why), "{name}: {done:?}");
    }
}

#[test]
fn links_and_files_in_the_way_are_refused_and_never_followed() {
    let place = Place::new();
    let outside = place.path("outside");
    std::fs::create_dir(&outside).expect("ours");
    let workspace = show(&place.workspace());
    let mount = format!("{}:/mnt/a/b", show(&place.workspace()));
    let target = show(&outside);
    type Spoil<'a> = Box<dyn Fn(&harness::image::Tree) + 'a>;
    let cases: Vec<(&str, Spoil<'_>, Vec<&str>, &str)> = vec![
        ("dev", Box::new(|top| top.link("dev", "/etc")), vec![], "/dev"),
        ("dev-out", Box::new(|top| top.link("dev", &target)), vec![], "/dev"),
        ("sys", Box::new(|top| top.write("sys", "")), vec![], "/sys"),
        ("proc", Box::new(|top| top.link("proc", "/")), vec![], "/proc"),
        ("tmp", Box::new(|top| top.link("tmp", "/proc/self/fd")), vec![], "/tmp"),
        ("hosts", Box::new(|top| top.directory("etc/hosts", 0o755)), vec![], "/etc/hosts"),
        ("home", Box::new(|top| top.link("home", &target)), vec![], "/home/user"),
        ("workspace", Box::new(|top| top.write("workspace", "")), vec!["--workspace", &workspace], "/workspace"),
        ("workspace-link", Box::new(|top| top.link("workspace", "/")), vec!["--workspace", &workspace], "/workspace"),
        ("mount", Box::new(|top| top.link("mnt/a", "/proc/1/root")), vec!["--mount", &mount], "/mnt/a"),
        ("mount-file", Box::new(|top| top.write("mnt/a/b", "")), vec!["--mount", &mount], "/mnt/a/b"),
    ];
    for (name, spoil, flags, path) in &cases {
        image(&place).system().layer(|top| spoil(top)).named(name);
        let user = if *name == "home" { "user" } else { "root" };
        let done = place.sh(&[&["--user", user, "--template", name], flags.as_slice()].concat(), "true");
        let message = format!("the template has something else than a directory at {path}, or a link on the way to it");
        assert!(done.code == 126 && done.stderr.contains(&message), "{name}: {done:?}");
        assert_eq!(std::fs::read_dir(&outside).expect("ours").count(), 0, "{name}");
        assert_eq!(place.records(), Vec::<String>::new(), "{name}");
    }
    // In its own /etc nothing else is needed than a directory.
    image(&place).system().layer(|top| top.link("etc", "/proc/self")).named("etc");
    let done = place.sh(&["--user", "root", "--template", "etc"], "true");
    assert!(done.code == 126 && done.stderr.contains("at /etc/hosts"), "{done:?}");
}

#[test]
fn files_that_we_write_replace_links_of_the_image() {
    let place = Place::new();
    let outside = place.write("outside/file", "untouched");
    let target = show(&outside);
    image(&place)
        .system()
        .layer(|top| {
            top.link("etc/hosts", &target);
            top.link("etc/hostname", "/bin/sh");
        })
        .named("demo");
    check(&place, &[], "stat -c %F /etc/hosts /etc/hostname /bin/sh", "regular file\nregular file\nregular file\n");
    assert_eq!(std::fs::read_to_string(outside).expect("ours"), "untouched");
}

#[test]
fn a_template_that_is_missing_or_damaged_is_named() {
    let place = Place::new();
    let made = image(&place).system().layer(|top| top.write("x", ""));
    let (first, second) = (made.layer_path(0), made.layer_path(1));
    let ids = (made.layer_id(0), made.layer_id(1));
    made.named("demo:two");
    let missing = place.sh(&["--template", "demo"], "true");
    assert!(
        missing.code == 126 && missing.stderr.contains("there is no template \"demo\"; there are: demo:two"),
        "{missing:?}"
    );
    assert!(missing.stderr.contains("saggar template import"), "{missing:?}");
    let refused = |id: &str| {
        let done = place.sh(&["--template", "demo:two"], "true");
        assert!(done.code == 126 && done.stderr.contains(&format!("layer {id}")), "{done:?}");
        assert!(!done.stderr.contains(&show(&place.path(""))), "{done:?}");
    };
    let record = std::fs::read_to_string(second.join("layer.json")).expect("ours");
    std::fs::write(second.join("layer.json"), record.replace("\"id\":\"sha256:", "\"id\":\"sha256:00")).expect("ours");
    refused(&ids.1);
    std::fs::write(second.join("layer.json"), record).expect("ours");
    std::fs::rename(first.join("tree"), first.join("elsewhere")).expect("ours");
    refused(&ids.0);
    std::fs::rename(first.join("elsewhere"), first.join("tree")).expect("ours");
    assert_eq!(place.sh(&["--template", "demo:two"], "true").code, 0);
}

#[test]
fn a_template_is_locked_while_it_is_used() {
    let place = Place::new();
    let manifest = std::fs::File::open(image(&place).system().named("demo")).expect("ours");
    let mut child = place
        .command(["run", "--template", "demo", "--stdin", "-", "--", "/bin/sh", "-c", "echo up; cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("it was built");
    let mut line = [0u8; 3];
    std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut line).expect("it says so");
    let lock = || flock(&manifest, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(lock(), Err(rustix::io::Errno::WOULDBLOCK));
    drop(child.stdin.take());
    assert_eq!(finish(child).code, 0);
    assert_eq!(lock(), Ok(()));
}

#[test]
fn set_id_bits_can_be_set_where_nothing_is_shared_and_give_nothing() {
    let place = Place::new();
    image(&place)
        .system()
        .layer(|top| {
            top.program("id");
            top.mode("bin/id", 0o6755);
        })
        .named("demo");
    let script =
        "cp /bin/cat /bin/own && chmod 6755 /bin/own && stat -c %a /bin/own && mkdir -m 2755 /opt && stat -c %a /opt";
    check(&place, &[], script, "6755\n2755\n");
    if is_root() {
        // The image's own program with these bits, by another user.
        check(&place, &["--user", "user"], "/bin/id -u; stat -c %a /bin/id", "1000\n6755\n");
    }
    let workspace = show(&place.workspace());
    let mount = format!("{workspace}:/data:rw");
    for flags in [
        vec!["--workspace", workspace.as_str(), "--fs", "workspace-write"],
        vec!["--workspace", workspace.as_str(), "--fs", "scratch"],
        vec!["--mount", mount.as_str()],
    ] {
        let done = sh(
            &place,
            &flags,
            "cp /bin/cat /bin/own; chmod 6755 /bin/own 2>/dev/null || echo refused; stat -c %a /bin/own",
        );
        assert_eq!(done.stdout, "refused\n755\n", "{flags:?}: {done:?}");
    }
    let read_only = ["--workspace", workspace.as_str(), "--fs", "read-only"];
    check(&place, &read_only, "cp /bin/cat /bin/own && chmod 4755 /bin/own && stat -c %a /bin/own", "4755\n");
}

#[test]
fn a_workspace_keeps_its_owner_and_its_changes_whatever_the_images_user() {
    let place = Place::new();
    image(&place).system().with(|defaults| defaults.user = is_root().then(|| "app".to_owned())).named("demo");
    let workspace = show(&place.workspace());
    place.write("workspace/old", "old");
    check(
        &place,
        &["--workspace", &workspace, "--fs", "workspace-write"],
        "pwd; echo new > new; cat new old",
        "/workspace\nnew\nold",
    );
    let (mine, new) = (std::fs::metadata(place.workspace()), std::fs::metadata(place.workspace().join("new")));
    assert_eq!(mine.expect("ours").uid(), new.expect("it was made").uid());
    let done = sh(&place, &["--workspace", &workspace, "--fs", "scratch"], "echo more > more; rm old; ls");
    assert_eq!(done.stdout, "more\nnew\n", "{done:?}");
    assert!(done.stderr.contains("saggar changes"), "{done:?}");
    assert!(place.workspace().join("old").exists());
}

#[test]
fn the_disk_limit_holds_for_the_whole_root() {
    let place = Place::new();
    image(&place).system().named("demo");
    let script = "dd if=/dev/zero of=/var/lib/fill bs=65536 count=1000 2>/dev/null; dd if=/dev/zero of=/bin/x bs=65536 count=1000 2>&1 | cat >/tmp/y; \
                  stat -c %s /var/lib/fill /bin/x; rm /var/lib/fill && echo freed > /etc/x && cat /etc/x";
    let done = sh(&place, &["--disk", "16M"], script);
    let numbers: Vec<u64> = done.stdout.lines().filter_map(|line| line.parse().ok()).collect();
    assert!(numbers.iter().sum::<u64>() < 16 << 20 && numbers[0] > 8 << 20, "{done:?}");
    assert!(done.stdout.ends_with("freed\n"), "{done:?}");
}

#[test]
fn an_ordinary_user_starts_from_its_own_import() {
    if !is_root() {
        return not_here("the other tests are about an ordinary user");
    }
    let place = Place::new();
    let binary = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &binary);
    for path in [place.path(""), place.path("data")] {
        std::fs::create_dir_all(&path).expect("ours");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("ours");
    }
    std::fs::set_permissions(place.path("data"), PermissionsExt::from_mode(0o700)).expect("ours");
    image(&place)
        .imported_by(NOBODY)
        .system()
        .layer(|top| {
            top.whiteout("var/lib");
            top.link("lost", "/nowhere");
        })
        .named("demo");
    let run = |flags: &[&str], script: &str| {
        let mut command = std::process::Command::new(&binary);
        command.args(["run", "--template", "demo"]).args(flags).args(["--", "/bin/sh", "-c", script]);
        command.env("SAGGAR_DATA_DIR", place.path("data")).current_dir("/").uid(NOBODY).gid(NOBODY);
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("copied here"))
    };
    let script = "id -u; ls -d /var/lib 2>/dev/null; echo x > /etc/x && rm -rf /srv && mkdir /srv && ls /srv && stat -c %u /bin/sh; \
                  chmod 4755 /bin/cat && stat -c %a /bin/cat";
    let done = run(&[], script);
    assert_eq!((done.code, done.stdout.as_str()), (0, "0\n0\n4755\n"), "{done:?}");
    let done = run(&["--user", "user"], "id -u; touch ~/x && stat -c %u ~/x");
    assert_eq!((done.code, done.stdout.as_str()), (0, "1000\n1000\n"), "{done:?}");
}

/// The data directory is never visible inside.
#[test]
fn the_store_of_templates_can_not_be_mounted() {
    let place = Place::new();
    image(&place).system().named("demo");
    let data = place.path("data/templates");
    let mount = format!("{}:/data", show(Path::new(&data)));
    let done = sh(&place, &["--mount", &mount], "true");
    assert!(done.code == 126 && done.stderr.contains("overlaps"), "{done:?}");
}

#[test]
fn a_managed_network_brings_its_certificates_and_names() {
    let place = Place::new();
    image(&place)
        .system()
        .layer(|top| {
            top.write("etc/ssl/certs/own.pem", "of the image");
            top.link("etc/ssl/certs/ca-certificates.crt", "/bin/sh");
        })
        .named("demo");
    let script = "cat /etc/resolv.conf; for f in /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/saggar-egress.pem /usr/local/share/ca-certificates/saggar-egress.crt; \
                  do read -r line < $f; stat -c %F $f; done; echo $line; cat /etc/ssl/certs/own.pem";
    let done = sh(&place, &["--net", "proxied"], script);
    let expected = "nameserver 127.0.0.1\noptions attempts:1\nregular file\nregular file\nregular file\n-----BEGIN CERTIFICATE-----\nof the image";
    assert_eq!((done.code, done.stdout.as_str()), (0, expected), "{done:?}");
    // A link is followed inside of the image, wherever it leads there, but not into what is mounted over it.
    for (path, target, real) in [
        ("etc/ssl", "/root/../root", "/root/certs"),
        ("etc/ssl/certs", "../pki/made/anew/..", "/etc/pki/made"),
        ("etc/ssl/certs", "../../../../../srv", "/srv"),
    ] {
        let linked = image(&place).system().layer(|top| {
            top.write("srv/own", "");
            top.write("etc/pki/made/anew/own", "");
            top.link(path, target);
        });
        linked.named("link");
        let script =
            format!("read -r line < /etc/ssl/certs/saggar-egress.pem; echo $line; ls {real}/saggar-egress.pem");
        let done = place.sh(&["--template", "link", "--net", "proxied"], &script);
        let expected = format!("-----BEGIN CERTIFICATE-----\n{real}/saggar-egress.pem\n");
        assert_eq!((done.code, done.stdout.as_str()), (0, expected.as_str()), "{path} {target}: {done:?}");
    }
    for target in ["/proc/self", "/dev", "/nowhere/at/all", "certs"] {
        image(&place).system().layer(|top| top.link("etc/ssl/certs", target)).named("link");
        let done = place.sh(&["--template", "link", "--net", "proxied"], "true");
        assert!(done.code == 126 && done.stderr.contains("at /etc/ssl/certs"), "{target}: {done:?}");
    }
}

#[test]
fn a_working_directory_that_is_missing_is_made() {
    let place = Place::new();
    let started = |path: &str, expected: &str| {
        let linked = image(&place).system().layer(|top| {
            top.write("data/file", "");
            top.link("srv/link", "../data");
            top.link("srv/nowhere", "/none/at/all");
        });
        linked.with(|defaults| defaults.cwd = GuestPath::parse(path).ok()).named("demo");
        let done = sh(&place, &["--user", "root"], "pwd -P; touch here && stat -c %a-%u .");
        assert_eq!(done.stdout, expected, "{path}: {done:?}");
    };
    started("/srv/app/deep", "/srv/app/deep\n755-0\n");
    started("/srv/link/app", "/data/app\n755-0\n");
    started("/tmp", "/tmp\n1777-0\n");
    started("/srv/nowhere", "");
    // One that was asked for and is missing is a mistake.
    let done = sh(&place, &["--cwd", "/srv/other"], "pwd");
    assert!(done.code == 126 && done.stderr.contains("/srv/other"), "{done:?}");
}

#[test]
fn a_home_that_an_image_names_leads_nowhere_outside_and_keeps_nothing_from_starting() {
    if !is_root() {
        return not_here("only root has several users inside");
    }
    let place = Place::new();
    let planted = place.path("planted");
    let outside = planted.display();
    let up = |levels: usize| format!("{}{outside}", "/..".repeat(levels));
    let homes = [
        (up(1), "/ /"),
        (up(4), "/ /"),
        (format!("/srv/.{}", up(3)), "/ /"),
        ("/dev/null".to_owned(), "/ /"),
        ("/run-link/app".to_owned(), "/run-link/app /data/app"),
        ("/made/here".to_owned(), "/made/here /made/here"),
    ];
    for (home, expected) in homes {
        let made = image(&place).system().layer(|top| {
            top.write("etc/passwd", &format!("app:x:1234:1234::{home}:/bin/sh\n"));
            top.write("data/file", "");
            top.link("run-link", "data");
        });
        made.with(|defaults| defaults.user = Some("app".to_owned())).named("demo");
        let done = sh(&place, &["--user", "template"], "echo $HOME $(cd && pwd -P)");
        assert_eq!(done.stdout.trim_end(), expected, "{home}: {done:?}");
        assert!(!planted.exists(), "{home}");
    }
}

#[test]
fn many_layers_are_stacked_in_their_order() {
    let place = Place::new();
    let many = (0..130).fold(image(&place).system(), |image, number: u32| {
        image.layer(|top| {
            top.write("top", &format!("{number}\n"));
            top.write(&format!("of/{number}"), "");
        })
    });
    many.named("demo");
    check(&place, &[], "cat /top; set -- /of/*; echo $#", "129\n130\n");
}
