//! `saggar template`: imports by the command line, whatever happens in the middle, and runs programs in what was imported.

mod harness;
#[allow(dead_code)]
#[path = "../../image/tests/images/image.rs"]
mod image;
#[allow(dead_code)]
#[path = "../../image/tests/images/tar.rs"]
mod tar;

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use harness::{Done, Place, finish, is_root, not_here};
use image::Image;
use serde_json::{Value, json};
use tar::{Head, Tar};

/// Of an ordinary user.
const NOBODY: u32 = 65534;
const SIGKILL: i32 = 9;

fn template(place: &Place, arguments: &[&str]) -> Done {
    finish(place.command([&["template"], arguments].concat()).spawn().expect("the binary was built"))
}

fn template_json(place: &Place, arguments: &[&str]) -> Value {
    template(place, &[arguments, &["--json"]].concat()).json()
}

/// An image with two layers of its own, as a layout in a directory.
fn layout(place: &Place, name: &str) {
    let archives = ["first", "second"].map(|layer| Tar::new().file(layer, format!("{name} {layer}").as_bytes()).end());
    Image::new(archives).layout(&place.path(name));
}

/// Everything in the store, locks apart.
fn stored(place: &Place) -> Vec<String> {
    let mut found = Vec::new();
    for part in ["names", "manifests", "layers", "staging"] {
        for entry in std::fs::read_dir(place.path("data/templates/local").join(part)).into_iter().flatten().flatten() {
            found.push(format!("{part}/{}", entry.file_name().to_string_lossy()));
        }
    }
    found
}

/// A shell and what it needs, as one static file.
fn busybox() -> Vec<u8> {
    std::fs::read("/bin/busybox").expect("make setup-test installs it")
}

fn system() -> Tar {
    ["sh", "cat", "id", "ls", "pwd"]
        .iter()
        .fold(Tar::new().add(&Head { mode: 0o755, ..Head::new("bin/busybox", b'0') }, &busybox()), |tar, name| {
            tar.link(&format!("bin/{name}"), "busybox")
        })
}

#[test]
fn a_template_is_imported_listed_shown_checked_and_removed() {
    let place = Place::new();
    layout(&place, "demo");
    let done = template(&place, &["import", "demo"]);
    assert_eq!((done.code, done.stderr.as_str()), (0, ""), "{done:?}");
    assert!(
        done.stdout.starts_with("imported demo: sha256:") && done.stdout.contains("in 2 layers, 2 entries"),
        "{done:?}"
    );
    let again = template_json(&place, &["import", "demo", "--name", "other:1.0"]);
    assert_eq!((&again["shared_layers"], &again["error"]), (&json!(2), &Value::Null), "{again}");

    let list = template_json(&place, &["list"]);
    let names: Vec<&Value> = list["templates"].as_array().expect("a list").iter().map(|entry| &entry["name"]).collect();
    assert_eq!(names, ["demo", "other:1.0"], "{list}");
    let shown = template_json(&place, &["show", "other:1.0"]);
    assert_eq!((&shown["id"], shown["layers"].as_array().map(Vec::len)), (&again["id"], Some(2)), "{shown}");
    let done = template(&place, &["check"]);
    assert!(
        done.code == 0 && done.stdout.contains("checked 1 template, 2 layers") && done.stdout.contains("0 findings"),
        "{done:?}"
    );

    let done = template(&place, &["rm", "demo"]);
    assert_eq!(done.stdout, "removed demo; other names lead to the template\n");
    let done = template(&place, &["rm", "other:1.0"]);
    assert_eq!(done.stdout, "removed other:1.0 and 2 of its layers\n");
    assert_eq!(stored(&place), Vec::<String>::new());
    let done = template(&place, &["list"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, ""));
}

#[test]
fn errors_name_the_object_and_the_remedy_and_no_path_of_the_data_directory() {
    let place = Place::new();
    let archive = Tar::new().file("../../x", b"").end();
    Image::new([archive]).layout(&place.path("hostile"));
    for (arguments, expected) in [
        (&["import", "hostile"][..], "layer 1 of 1, sha256:"),
        (&["import", "missing"], "missing can't be opened"),
        (&["import", "Upper"], "no name for the template"),
        (&["import", "hostile", "--name", "base"], "built in"),
        (&["show", "nope"], "there is no template \"nope\"; there are none yet"),
        (&["rm", "nope"], "there is no template \"nope\""),
        (&["import", "docker://127.0.0.1:1/a", "--plain-http"], "127.0.0.1:1 can't be reached"),
    ] {
        let done = template(&place, arguments);
        assert_eq!((done.code, done.stdout.as_str()), (125, ""), "{arguments:?}: {done:?}");
        assert!(done.stderr.contains(expected) && done.stderr.contains("\n  help: "), "{arguments:?}: {done:?}");
        assert!(!done.stderr.contains("templates/local") && !done.stderr.contains("/data"), "{done:?}");
        let json = template_json(&place, arguments);
        assert!(json["error"]["message"].as_str().is_some_and(|message| message.contains(expected)), "{json}");
    }
    let changed = template_json(&place, &["import", "hostile"]);
    assert_eq!(changed["error"]["code"], "invalid_image");
}

#[test]
fn a_changed_layer_is_a_finding() {
    let place = Place::new();
    layout(&place, "demo");
    let imported = template_json(&place, &["import", "demo"]);
    let id = imported["manifest"]["layers"][0]["id"].as_str().expect("a digest").to_owned();
    let file = place.path("data/templates/local/layers").join(&id["sha256:".len()..]).join("tree/first");
    std::fs::write(file, "changed").expect("ours");
    let done = template(&place, &["check"]);
    assert_eq!(done.code, 1, "{done:?}");
    assert!(done.stdout.starts_with(&format!("{id}: the layer's files were changed")), "{done:?}");
}

#[test]
fn a_kill_at_any_step_leaves_all_or_nothing_and_the_rest_is_collected() {
    for (point, is_visible) in [
        ("import/layer", false),
        ("import/synced", false),
        ("import/renamed", false),
        ("import/layers", false),
        ("import/manifest", false),
        ("import/named", true),
    ] {
        let place = Place::new();
        layout(&place, "demo");
        layout(&place, "next");
        let killed = finish(
            place
                .command(["template", "import", "demo"])
                .env("FAIL_AT", format!("kill {point}"))
                .spawn()
                .expect("built"),
        );
        assert_eq!(killed.code, -SIGKILL, "{point}: {killed:?}");
        let names = template_json(&place, &["list"])["templates"].as_array().map(Vec::len);
        assert_eq!(names, Some(usize::from(is_visible)), "{point}");
        let check = template(&place, &["check"]);
        assert_eq!(check.code, 0, "{point}: {check:?}");
        // The next import removes the rest, and says so.
        let next = template_json(&place, &["import", "next"]);
        let collected = &next["collected"];
        let count = |what: &str| collected[what].as_u64().expect("a number");
        assert_eq!(
            count("interrupted") + count("layers") + count("templates") > 0,
            !is_visible || count("interrupted") > 0,
            "{point}: {collected}"
        );
        assert!(is_visible || count("interrupted") + count("layers") > 0, "{point}: {collected}");
        let again = template_json(&place, &["import", "demo"]);
        assert_eq!(again["error"], Value::Null, "{point}: {again}");
        assert_eq!(template(&place, &["check"]).code, 0, "{point}");
        template(&place, &["rm", "demo"]);
        template(&place, &["rm", "next"]);
        assert_eq!(stored(&place), Vec::<String>::new(), "{point}");
    }
}

#[test]
fn a_kill_while_damage_is_repaired_leaves_the_old_or_the_new() {
    for (point, is_repaired) in [("import/repair", false), ("import/renamed", true)] {
        let place = Place::new();
        layout(&place, "demo");
        let imported = template_json(&place, &["import", "demo"]);
        let id = imported["manifest"]["layers"][0]["id"].as_str().expect("a digest").to_owned();
        let file = place.path("data/templates/local/layers").join(&id["sha256:".len()..]).join("tree/first");
        std::fs::write(&file, "changed").expect("ours");
        let killed = finish(
            place
                .command(["template", "import", "demo"])
                .env("FAIL_AT", format!("kill {point}"))
                .spawn()
                .expect("built"),
        );
        assert_eq!(killed.code, -SIGKILL, "{point}: {killed:?}");
        assert_eq!(template(&place, &["check"]).code, i32::from(!is_repaired), "{point}");
        assert_eq!(template_json(&place, &["import", "demo"])["error"], Value::Null, "{point}");
        assert_eq!(template(&place, &["check"]).code, 0, "{point}");
        assert_eq!(template(&place, &["gc"]).code, 0, "{point}");
        assert!(stored(&place).iter().all(|name| !name.starts_with("staging/")), "{point}");
    }
}

#[test]
fn a_name_that_cannot_be_read_is_listed_found_and_removed() {
    let place = Place::new();
    layout(&place, "demo");
    assert_eq!(template(&place, &["import", "demo"]).code, 0);
    std::fs::write(place.path("data/templates/local/names/demo/latest"), "{").expect("ours");
    let list = template(&place, &["list"]);
    assert!(list.code == 0 && list.stdout.contains("demo") && list.stdout.contains("unreadable"), "{list:?}");
    let check = template(&place, &["check"]);
    assert!(check.code == 1 && check.stdout.contains("demo: template demo can't be used"), "{check:?}");
    let removed = template(&place, &["rm", "demo"]);
    assert!(removed.code == 0 && removed.stdout.starts_with("removed demo; it was damaged"), "{removed:?}");
    assert_eq!(template(&place, &["gc"]).code, 0);
    assert_eq!(stored(&place), Vec::<String>::new());
}

#[test]
fn a_kill_while_something_is_removed_harms_nothing_else() {
    for point in [
        "remove/name",
        "remove/unnamed",
        "remove/manifest",
        "collect/manifests",
        "collect/layer",
        "collect/removing",
        "collect/removed",
    ] {
        let place = Place::new();
        layout(&place, "demo");
        layout(&place, "other");
        for name in ["demo", "other"] {
            assert_eq!(template(&place, &["import", name]).code, 0);
        }
        let killed = finish(
            place.command(["template", "rm", "demo"]).env("FAIL_AT", format!("kill {point}")).spawn().expect("built"),
        );
        assert_eq!(killed.code, -SIGKILL, "{point}: {killed:?}");
        assert_eq!(template(&place, &["check"]).code, 0, "{point}");
        let gone = template(&place, &["show", "demo"]);
        assert!(gone.stderr.contains("there are: other"), "{point}: {gone:?}");
        let collected = template_json(&place, &["gc"]);
        assert!(
            collected["layers"].as_u64() > Some(0) || collected["interrupted"].as_u64() > Some(0),
            "{point}: {collected}"
        );
        let left = stored(&place);
        assert_eq!(left.iter().filter(|name| name.starts_with("layers/")).count(), 2, "{point}: {left:?}");
        assert_eq!(left.len(), 4, "{point}: {left:?}");
        assert_eq!(template(&place, &["check"]).code, 0, "{point}");
    }
}

#[test]
fn a_kill_while_the_cache_is_removed_keeps_what_has_a_name() {
    for point in ["collect/cache", "collect/manifests", "collect/layer", "collect/removing", "collect/removed"] {
        let place = Place::new();
        for name in ["demo", "gone"] {
            place.write(&format!("{name}/file"), name);
            place.write(&format!("{name}/Dockerfile"), "FROM scratch\nCOPY file /file\nCOPY file /again\n");
            assert_eq!(template(&place, &["build", name, "--name", name]).code, 0);
        }
        assert_eq!(template(&place, &["rm", "gone"]).code, 0);
        let all = place.command(["template", "gc", "--all"]).env("FAIL_AT", format!("kill {point}")).spawn();
        let killed = finish(all.expect("built"));
        assert_eq!(killed.code, -SIGKILL, "{point}: {killed:?}");
        let collected = template_json(&place, &["gc", "--all"]);
        let counts = ["interrupted", "layers", "cached"].map(|what| collected[what].as_u64().expect("a number"));
        assert!(counts.iter().sum::<u64>() > 0, "{point}: {collected}");
        let left = stored(&place);
        assert!(left.len() == 4 && left.iter().all(|name| !name.starts_with("staging/")), "{point}: {left:?}");
        let check = template(&place, &["check"]);
        assert!(check.code == 0 && check.stdout.contains("checked 1 template, 2 layers"), "{point}: {check:?}");
    }
}

#[test]
fn nobody_waits_while_the_files_of_a_template_are_removed() {
    let place = Place::new();
    layout(&place, "large");
    Image::new([system().end()]).layout(&place.path("tools"));
    for name in ["large", "tools"] {
        assert_eq!(template(&place, &["import", name]).code, 0);
    }
    let pipe = place.path("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().is_ok_and(|status| status.success()));
    let mut removing = place.command(["template", "rm", "large"]);
    let removing = removing.env("FAIL_AT", "wait collect/removing").env("FAIL_UNTIL", &pipe).spawn().expect("built");
    assert_eq!(std::fs::read_to_string(&pipe).expect("ours"), "reached");
    // It has not removed a file yet.
    assert_eq!(stored(&place).iter().filter(|name| name.starts_with("staging/")).count(), 2, "{:?}", stored(&place));
    assert_eq!(template(&place, &["import", "tools", "--name", "more"]).code, 0);
    place.write("app/Dockerfile", "FROM tools\nRUN echo made > /made\n");
    let built = template(&place, &["build", "app", "--name", "built"]);
    assert_eq!(built.code, 0, "{built:?}");
    assert_eq!(place.run(&["--template", "built"], &["/bin/cat", "/made"]).stdout, "made\n");
    let removed = template(&place, &["rm", "more"]);
    assert!(removed.code == 0 && removed.stdout.contains("removed more"), "{removed:?}");
    let collected = template_json(&place, &["gc"]);
    assert_eq!(collected["error"], Value::Null, "{collected}");
    // What is being removed is somebody's work, and is left to them.
    assert_eq!(stored(&place).iter().filter(|name| name.starts_with("staging/")).count(), 2, "{:?}", stored(&place));
    std::fs::write(&pipe, "on").expect("ours");
    let done = finish(removing);
    assert_eq!(done.stdout, "removed large and 2 of its layers\n", "{done:?}");
    assert!(stored(&place).iter().all(|name| !name.starts_with("staging/")), "{:?}", stored(&place));
}

#[test]
fn imports_and_removals_at_the_same_time_leave_a_sound_store() {
    let place = Place::new();
    let names = ["a", "b", "c"];
    names.iter().for_each(|name| layout(&place, name));
    // All have a layer in common, which each removal could take from the others.
    let shared = Tar::new().file("shared", b"shared").end();
    for name in names {
        let own = Tar::new().file(name, b"own").end();
        Image::new([shared.clone(), own]).layout(&place.path(name));
    }
    for _ in 0..4 {
        let start = |arguments: &[&str]| place.command(arguments).spawn().expect("built");
        let mut running: Vec<_> = names.iter().map(|name| start(&["template", "import", name])).collect();
        running.push(start(&["template", "rm", "a"]));
        running.push(start(&["template", "gc"]));
        running.push(start(&["template", "import", "b", "--name", "d"]));
        let done: Vec<Done> = running.into_iter().map(finish).collect();
        for import in [&done[0], &done[1], &done[2], &done[5]] {
            assert_eq!(import.code, 0, "{import:?}");
        }
        // Either may come too early, and then says so.
        assert!(done[3].code == 0 || done[3].stderr.contains("no template \"a\""), "{:?}", done[3]);
        assert!(done[4].code == 0 || done[4].stderr.contains("an import or a build is in progress"), "{:?}", done[4]);
        let check = template(&place, &["check"]);
        assert_eq!(check.code, 0, "{check:?}");
        for name in ["b", "c", "d"] {
            assert_eq!(template(&place, &["show", name]).code, 0, "{name}");
        }
    }
}

#[test]
fn a_full_disk_is_named_and_leaves_nothing() {
    if !is_root() {
        return not_here("only root can mount a small disk");
    }
    let place = Place::new();
    let disk = place.path("small");
    std::fs::create_dir(&disk).expect("ours");
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=1m,mode=0700", "none"]).arg(&disk).status();
    assert!(mount.is_ok_and(|status| status.success()));
    let archive = Tar::new().file("large", &vec![7; 3 << 20]).end();
    Image::new([archive]).layout(&place.path("large"));
    layout(&place, "demo");
    let data = disk.join("data");
    let run = |arguments: &[&str]| {
        let mut command = place.command([&["template"], arguments].concat());
        finish(command.env("SAGGAR_DATA_DIR", &data).spawn().expect("built"))
    };
    let full = run(&["import", "large"]);
    let left = std::fs::read_dir(data.join("templates/local/staging")).map(Iterator::count);
    let small = run(&["import", "demo"]);
    let unmount = Command::new("umount").arg(&disk).status();
    assert!(unmount.is_ok_and(|status| status.success()));
    assert_eq!(full.code, 125, "{full:?}");
    assert!(full.stderr.contains("entry \"large\"") && full.stderr.contains("free space on the disk"), "{full:?}");
    assert_eq!(left.expect("ours"), 0);
    assert_eq!(small.code, 0, "{small:?}");
}

#[test]
fn an_ordinary_user_imports_and_runs_its_own_template() {
    if !is_root() {
        return not_here("the other tests are about an ordinary user");
    }
    let place = Place::new();
    let binary = place.path("saggar");
    harness::copy_program(env!("CARGO_BIN_EXE_saggar"), &binary);
    let lower = system()
        .add(&Head { mode: 0o500, uid: 7, ..Head::new("closed", b'5') }, b"")
        .add(&Head { mode: 0o4000, uid: 7, ..Head::new("closed/file", b'0') }, b"inside")
        .file("gone", b"")
        .end();
    let upper = Tar::new().file(".wh.gone", b"").end();
    Image::new([lower, upper]).layout(&place.path("demo"));
    let data = place.path("data");
    std::fs::create_dir(&data).expect("ours");
    std::os::unix::fs::lchown(&data, Some(NOBODY), Some(NOBODY)).expect("we are root");
    std::fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).expect("ours");
    let run = |arguments: &[&str]| {
        let mut command = Command::new(&binary);
        command.args(arguments).env("SAGGAR_DATA_DIR", &data).current_dir("/").uid(NOBODY).gid(NOBODY);
        finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("copied here"))
    };
    let source = place.path("demo");
    let imported = run(&["template", "import", source.to_str().expect("plain"), "--json"]).json();
    assert_eq!(imported["dropped"]["set_ids"], 1, "{imported}");
    let script = "cat /closed/file; echo; ls /gone 2>/dev/null; id -u";
    let done = run(&["run", "--template", "demo", "--user", "root", "--", "/bin/sh", "-c", script]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "inside\n0\n"), "{done:?}");
    assert_eq!(run(&["template", "check"]).code, 0);
    let removed = run(&["template", "rm", "demo"]);
    assert_eq!(removed.stdout, "removed demo and 2 of its layers\n", "{removed:?}");
}

#[test]
fn the_defaults_and_whiteouts_of_an_image_hold_in_a_sandbox() {
    let place = Place::new();
    let lower = system()
        .file("etc/passwd", b"root:x:0:0::/root:/bin/sh\napp:x:1234:1234::/srv:/bin/sh\n")
        .file("etc/group", b"root:x:0:\napp:x:1234:\n")
        .directory("srv")
        .file("srv/old", b"")
        .file("gone", b"")
        .end();
    let upper =
        Tar::new().file(".wh.gone", b"").directory("srv").file("srv/.wh..wh..opq", b"").file("srv/new", b"").end();
    let mut image = Image::new([lower, upper]);
    image.defaults = json!({
        "Env": ["GREETING=hello"], "WorkingDir": "/srv", "User": "app",
        "Entrypoint": ["/bin/sh", "-c"], "Cmd": ["echo $GREETING; pwd; id -u; ls /srv /gone 2>&1"],
    });
    image.layout(&place.path("demo"));
    assert_eq!(template(&place, &["import", "demo"]).code, 0);
    let done = finish(place.command(["run", "--template", "demo"]).spawn().expect("built"));
    let uid = if is_root() { "1234" } else { "0" };
    let expected = format!("hello\n/srv\n{uid}\nls: /gone: No such file or directory\n/srv:\nnew\n");
    assert_eq!(done.stdout, expected, "{done:?}");
}

#[test]
fn a_template_that_a_sandbox_uses_is_not_removed() {
    let place = Place::new();
    Image::new([system().file("data", b"still here").end()]).layout(&place.path("demo"));
    assert_eq!(template(&place, &["import", "demo"]).code, 0);
    let mut command = place.command(["run", "--template", "demo", "--", "/bin/sh", "-c", "echo ready; cat; cat /data"]);
    let mut child = command.stdin(Stdio::piped()).spawn().expect("built");
    let mut stdout = child.stdout.take().expect("a pipe");
    let mut ready = [0; 6];
    std::io::Read::read_exact(&mut stdout, &mut ready).expect("it starts");
    let removed = template(&place, &["rm", "demo"]);
    assert!(removed.stdout.contains("a sandbox still uses the template"), "{removed:?}");
    let collected = template_json(&place, &["gc"]);
    assert_eq!((&collected["in_use"], &collected["layers"]), (&json!(1), &json!(0)), "{collected}");
    drop(child.stdin.take());
    let mut rest = String::new();
    std::io::Read::read_to_string(&mut stdout, &mut rest).expect("a pipe");
    assert_eq!(rest, "still here");
    assert_eq!(finish(child).code, 0);
    let collected = template_json(&place, &["gc"]);
    assert_eq!((&collected["templates"], &collected["layers"]), (&json!(1), &json!(1)), "{collected}");
}

/// Runs a tool of others in the place.
fn tool(place: &Place, program: &str, arguments: &[&str]) {
    let done = Command::new(program)
        .args(arguments)
        .current_dir(place.path(""))
        .output()
        .expect("make setup-test installs it");
    assert!(done.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

/// A registry of Debian's, ended when it is dropped.
struct Registry {
    child: std::process::Child,
    address: String,
}

impl Registry {
    fn start(place: &Place) -> Self {
        let storage = place.path("registry");
        std::fs::create_dir(&storage).expect("ours");
        let config = place.write(
            "registry.yml",
            &format!(
                "version: 0.1\nlog:\n  level: info\n  formatter: json\nstorage:\n  filesystem:\n    rootdirectory: {}\nhttp:\n  addr: 127.0.0.1:0\n",
                storage.display()
            ),
        );
        let mut command = Command::new("docker-registry");
        command.arg("serve").arg(config).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("make setup-test installs it");
        // It names its port when it listens.
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stderr.take().expect("a pipe")));
        let address = loop {
            let line = lines.next().expect("it listens").expect("text");
            if let Some((_, rest)) = line.split_once("listening on ") {
                let end = rest.find(|c: char| c != ':' && c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
                break rest[..end].to_owned();
            }
        };
        // Its log must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address }
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait(); // Only to leave no zombie.
    }
}

#[test]
fn images_of_other_tools_come_from_a_layout_an_archive_and_a_registry() {
    let place = Place::new();
    place.write("files/hello", "hello\n");
    tool(&place, "umoci", &["init", "--layout", "oci"]);
    tool(&place, "umoci", &["new", "--image", "oci:demo"]);
    tool(&place, "umoci", &["insert", "--rootless", "--image", "oci:demo", "/bin/busybox", "/bin/sh"]);
    tool(&place, "umoci", &["insert", "--rootless", "--image", "oci:demo", "files", "/srv"]);
    tool(&place, "umoci", &["insert", "--rootless", "--image", "oci:demo", "--whiteout", "/srv/hello"]);
    tool(&place, "umoci", &["insert", "--rootless", "--image", "oci:demo", "files/hello", "/srv/again"]);
    let config = ["config", "--image", "oci:demo", "--config.env", "NAME=value", "--config.workingdir", "/srv"];
    tool(&place, "umoci", &config);
    let registry = Registry::start(&place);
    let target = format!("docker://{}/team/demo:1", registry.address);
    tool(&place, "skopeo", &["--insecure-policy", "copy", "-q", "--dest-tls-verify=false", "oci:oci:demo", &target]);
    tool(&place, "skopeo", &["--insecure-policy", "copy", "-q", "oci:oci:demo", "docker-archive:saved.tar:demo:1"]);

    let from_layout = template_json(&place, &["import", "oci", "--name", "layout"]);
    let from_archive = template_json(&place, &["import", "saved.tar"]);
    let from_registry = template_json(&place, &["import", &target, "--plain-http"]);
    assert_eq!(from_layout["manifest"]["layers"].as_array().map(Vec::len), Some(4), "{from_layout}");
    for (name, imported) in [("archive", &from_archive), ("registry", &from_registry)] {
        assert_eq!(imported["manifest"]["layers"], from_layout["manifest"]["layers"], "{name}: {imported}");
        assert_eq!(imported["manifest"]["defaults"], from_layout["manifest"]["defaults"], "{name}: {imported}");
    }
    assert_eq!(from_registry["name"], "demo:1");
    let script = "echo $NAME; read line < again; echo $line; echo *";
    let done = place.run(&["--template", "demo:1"], &["/bin/sh", "-c", script]);
    assert_eq!((done.code, done.stdout.as_str()), (0, "value\nhello\nagain\n"), "{done:?}");

    let missing = template(&place, &["import", &target.replace(":1", ":2"), "--plain-http", "--name", "x"]);
    assert!(missing.stderr.contains("has no manifests/2 of team/demo"), "{missing:?}");
    check_fresh(&target);
}

/// In a store of its own the registry's layers are really fetched.
fn check_fresh(target: &str) {
    let place = Place::new();
    let imported = template_json(&place, &["import", target, "--plain-http"]);
    assert_eq!(imported["shared_layers"], 0, "{imported}");
    assert_eq!(template(&place, &["check"]).code, 0);
    assert!(Path::new(&place.path("data")).exists());
}
