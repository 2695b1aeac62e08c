//! `saggar template build`: what a template is made of, what the cache has, and what a build refuses.

mod building;
mod harness;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::{Command, Stdio};

use building::{Context, build, build_json, line, run, stored, template, template_json};
use harness::{Place, finish, is_root};
use serde_json::{Value, json};

#[test]
fn a_dockerfile_becomes_a_template_and_the_second_build_is_cached() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("app/hello", "hello of the context");
    context.dockerfile(
        "ARG WHO=nobody\nENV GREETING=\"hi $WHO\"\nWORKDIR /srv\nCOPY app .\nRUN cat hello && echo \" $WHO\" && id -u && pwd > made\nCMD echo $GREETING; cat made\nLABEL a=b\nEXPOSE 80",
    );
    let done = build(&place, &["--build-arg", "WHO=you"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(
        done.stdout.starts_with("built demo: sha256:") && done.stdout.contains("; 0 of 9 steps cached"),
        "{done:?}"
    );
    for expected in ["[6/9] RUN cat hello", "[6/9]   hello of the context you\n", "[6/9]   0\n"] {
        assert!(done.stderr.contains(expected), "{expected}: {done:?}");
    }
    assert_eq!(run(&place, &[]).stdout, "hi you\n/srv\n");
    let shown = template_json(&place, &["show", "demo"]);
    assert_eq!(shown["manifest"]["defaults"]["ports"], json!(["80/tcp"]), "{shown}");
    assert_eq!(shown["manifest"]["image"]["source"], "build", "{shown}");

    let again = build(&place, &["--build-arg", "WHO=you"]);
    assert!(again.stdout.contains("; 4 of 9 steps cached"), "{again:?}");
    assert!(again.stderr.contains("[6/9] cached") && !again.stderr.contains("hello of the context you"), "{again:?}");
    let id = |text: &str| text.lines().next().map(str::to_owned);
    assert_eq!(id(&again.stdout), id(&done.stdout));
    assert_eq!(template(&place, &["check"]).code, 0);
    assert_eq!(place.records(), Vec::<String>::new());
}

#[test]
fn a_layer_has_everything_that_a_program_changed_and_nothing_of_the_runtime() {
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile(concat!(
        "RUN mkdir -p /d/sub /gone/deep /again/old && echo one > /d/f && echo x > /gone/deep/x && echo y > /again/old/y && chmod 1777 /d/sub\n",
        "RUN ln /d/f /d/g && ln -s ../nowhere /d/l && mkfifo /d/p && chmod 6711 /d/f && chown 7:8 /d/sub && touch -t 200102030405 /d/sub && ",
        "truncate -s 5000000 /d/hole && echo end >> /d/hole && echo z > /d/closed && chmod 000 /d/closed && ",
        "rm -rf /gone /again && mkdir /again && echo new > /again/new && echo changed > /etc/hosts && touch /tmp/kept && echo \"$HOSTNAME\" > /.wh.name",
    ));
    let built = build_json(&place, &[]);
    assert_eq!(built["error"], Value::Null, "{built}");
    let script = "cd /d; stat -c '%n %a %u:%g %h %F %s' f g p sub hole closed; readlink l; ls /again /; ls -d /gone; cat /again/new; stat -c %Y sub; cat /etc/hosts; ls /tmp";
    let seen = run(&place, &["/bin/sh", "-c", script]);
    let (uid, owners) = if is_root() { ("6711", "7:8") } else { ("711", "0:0") };
    for expected in [
        format!("f {uid} 0:0 2 regular file 4\n"),
        format!("g {uid} 0:0 2 regular file 4\n"),
        "p 644 0:0 1 fifo 0\n".to_owned(),
        format!("sub 1777 {owners} "),
        "hole 644 0:0 1 regular file 5000004\n".to_owned(),
        "../nowhere\n".to_owned(),
        "/again:\nnew\n".to_owned(),
        "\nnew\n".to_owned(),
        "127.0.0.1 localhost".to_owned(),
        "\nkept\n".to_owned(),
    ] {
        assert!(seen.stdout.contains(&expected), "{expected}: {seen:?}");
    }
    assert!(seen.stderr.contains("/gone: No such file"), "{seen:?}");
    // The last step's layer alone, on disk.
    let tree = place.path("data/templates/local/layers").join(&context.layer(-1)[7..]).join("tree");
    let names = |path: &str| {
        let mut names: Vec<String> = std::fs::read_dir(tree.join(path))
            .expect("ours")
            .map(|entry| entry.expect("ours").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(""), [".wh.name", "again", "d", "gone", "tmp"]);
    let hole = std::fs::metadata(tree.join("d/hole")).expect("ours");
    assert!(hole.blocks() * 512 < 100_000, "{} blocks", hole.blocks());
    let file = std::fs::metadata(tree.join("d/f")).expect("ours");
    if is_root() {
        // Set-id bits belong to an id that no user has.
        assert_eq!((file.mode() & 0o7777, file.uid()), (0o6711, saggar_sandbox::STORE_IDS.start));
    }
    assert_eq!(template(&place, &["check"]).code, 0);
}

#[test]
fn a_step_that_changes_nothing_makes_no_layer() {
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile("RUN true\nRUN cat /etc/hosts > /dev/null; touch /etc/x && rm /etc/x\nWORKDIR /bin");
    let built = build_json(&place, &[]);
    assert_eq!(built["layers"], 1, "{built}");
    assert_eq!(build_json(&place, &[])["cached_steps"], 4);
}

#[test]
fn the_cache_depends_on_everything_that_matters_and_on_nothing_else() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("data/file", "one");
    let steps = "COPY data /data\nARG A=1\nRUN cat /data/file > /copy\n";
    context.dockerfile(steps);
    let cached = |arguments: &[&str]| {
        let built = build_json(&place, arguments);
        assert_eq!(built["error"], Value::Null, "{built}");
        built["cached_steps"].as_u64().expect("a number")
    };
    assert_eq!(cached(&[]), 0);
    assert_eq!(cached(&[]), 3);
    // Another time of a file, another place of the context, comments.
    let file = context.path("data/file");
    let past = std::fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    std::fs::File::options().write(true).open(&file).and_then(|file| file.set_times(past)).expect("ours");
    context.dockerfile(&format!("# comment\n{steps}"));
    assert_eq!(cached(&[]), 3);
    // Contents, permissions, names, arguments, networks.
    context.write("data/file", "two");
    assert_eq!(cached(&[]), 1);
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("ours");
    assert_eq!(cached(&[]), 1);
    assert_eq!(cached(&["--build-arg", "A=2"]), 2);
    assert_eq!(cached(&["--build-arg", "A=2"]), 3);
    if is_root() {
        assert_eq!(cached(&["--net", "host"]), 2);
    }
    assert_eq!(cached(&["--no-cache"]), 0);
    assert_eq!(cached(&[]), 3);
    // A damaged record and a missing layer are no errors.
    for record in std::fs::read_dir(place.path("data/templates/local/builds")).expect("ours") {
        let path = record.expect("ours").path();
        let text = std::fs::read_to_string(&path).expect("ours");
        std::fs::write(&path, text.replacen("sha256:", "sha256:0", 1)).expect("ours");
    }
    assert_eq!(cached(&[]), 0);
    let gone = &context.layer(-1)[7..];
    std::fs::remove_dir_all(place.path("data/templates/local/layers").join(gone)).expect("ours");
    assert_eq!(cached(&[]), 2);
    // The template before, which has no name any more, needs that layer.
    assert_eq!(template(&place, &["check"]).code, 1);
    assert_eq!(template(&place, &["gc"]).code, 0);
    assert_eq!(template(&place, &["check"]).code, 0);
}

#[test]
fn layers_of_the_cache_stay_until_they_are_forgotten() {
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile("RUN echo > /made");
    assert_eq!(build(&place, &[]).code, 0);
    let removed = template(&place, &["rm", "demo"]);
    assert_eq!(removed.stdout, "removed demo and 0 of its layers\n");
    assert_eq!(build_json(&place, &[])["cached_steps"], 2);
    template(&place, &["rm", "demo"]);
    let old = std::fs::FileTimes::new()
        .set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(8 * 86_400));
    let records: Vec<_> =
        std::fs::read_dir(place.path("data/templates/local/builds")).expect("ours").flatten().collect();
    std::fs::File::open(records[0].path()).and_then(|file| file.set_times(old)).expect("ours");
    let collected = template_json(&place, &["gc"]);
    assert_eq!((&collected["cached"], &collected["layers"]), (&json!(1), &json!(1)), "{collected}");
    let collected = template_json(&place, &["gc", "--all"]);
    assert_eq!((&collected["cached"], &collected["layers"]), (&json!(1), &json!(1)), "{collected}");
    assert_eq!(stored(&place), Vec::<String>::new());
}

#[test]
fn a_failed_step_is_named_with_its_line_its_status_and_its_last_output() {
    let place = Place::new();
    let context = Context::new(&place);
    context.dockerfile(
        "RUN echo fine > /fine\n\nRUN for i in $(seq 1 50); do echo line $i; done; echo broken >&2; exit 7",
    );
    let done = build(&place, &[]);
    assert_eq!((done.code, done.stdout.as_str()), (1, ""), "{done:?}");
    let number = line(3);
    for expected in [
        &format!("step 4 of 4 (line {number}), RUN for i in")[..],
        "it exited with status 7",
        "\n    line 50\n",
        "broken",
        "\n  help: ",
    ] {
        assert!(done.stderr.contains(expected), "{expected}: {done:?}");
    }
    assert!(!done.stderr.contains("\n    line 20\n") && !done.stderr.contains("/data/"), "{done:?}");
    let failed = build_json(&place, &[]);
    assert_eq!(
        (&failed["step"], &failed["line"], &failed["exit_code"], &failed["error"]["code"]),
        (&json!(4), &json!(number), &json!(7), &json!("build_failed")),
        "{failed}"
    );
    assert_eq!(failed["output"].as_array().map(Vec::len), Some(20), "{failed}");
    // Nothing has a name, and the steps before are cached.
    assert_eq!(template(&place, &["list"]).stdout, "");
    assert_eq!(stored(&place).iter().filter(|name| !name.starts_with("layers/")).count(), 0);
    context.dockerfile("RUN echo fine > /fine\n");
    assert_eq!(build_json(&place, &[])["cached_steps"], 2);
    // What fails doesn't take a name away.
    context.dockerfile("RUN false");
    let before = template_json(&place, &["show", "demo"]);
    assert_eq!(build(&place, &[]).code, 1);
    assert_eq!(template_json(&place, &["show", "demo"])["id"], before["id"]);
}

#[test]
fn what_can_not_be_built_is_refused_with_a_remedy() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("file", "x");
    context.write("secret", "x");
    context.write("secrets/one", "x");
    context.write(".dockerignore", "secret*\n!secrets/none\n");
    context.write("one/name", "x");
    context.write("two/name/file", "x");
    symlink("/etc", context.path("absolute")).expect("ours");
    symlink("../outside", context.path("climbs")).expect("ours");
    symlink("loop", context.path("loop")).expect("ours");
    std::fs::File::create(context.path("huge")).and_then(|file| file.set_len(10 << 30)).expect("ours");
    for (steps, arguments, code, expected) in [
        ("COPY ../x /", &[][..], 125, "leads out of what is copied from"),
        ("COPY absolute/passwd /", &[], 125, "leads out of what is copied from"),
        ("COPY climbs /", &[], 125, "leads out of what is copied from"),
        ("COPY loop /", &[], 125, "lead in a circle"),
        ("COPY one two /", &[], 125, "correct the step: two of its sources may have the same name"),
        ("RUN truncate -s 3G /hole", &["--max-size", "1G"], 125, "what the steps copy and write is larger than 1G"),
        ("COPY missing /", &[], 125, "there is no \"missing\""),
        ("COPY *.none /", &[], 125, "nothing matches \"*.none\""),
        ("COPY secret /", &[], 125, ".dockerignore"),
        // It would be searched for exceptions, and has none.
        ("COPY secrets /", &[], 125, ".dockerignore"),
        ("COPY huge /", &["--max-size", "1G"], 125, "more than the "),
        ("COPY --chown=ghost file /", &[], 125, "there is no user \"ghost\""),
        ("COPY file /bin", &["--max-entries", "1"], 125, "more than"),
        ("COPY --from=ghost /x /", &[], 125, "neither an earlier stage nor a template"),
        ("COPY bin/busybox /bin/sh/x", &[], 125, "no directory"),
        ("WORKDIR /bin/busybox", &[], 125, "no directory"),
        ("USER ghost\nRUN true", &[], 125, "there is no user \"ghost\""),
        ("RUN [\"/bin/none\"]", &[], 1, "/bin/none"),
        ("RUN echo > /x", &["--disk", "1"], 125, "limit disk"),
        ("WHAT x", &[], 125, "the instruction \"WHAT\" is not known"),
    ] {
        context.dockerfile(steps);
        let done = build(&place, arguments);
        assert_eq!((done.code, done.stdout.as_str()), (code, ""), "{steps}: {done:?}");
        assert!(done.stderr.contains(expected) && done.stderr.contains("\n  help: "), "{steps}: {done:?}");
    }
    for (file, expected) in [
        ("FROM debian:12", "import it with `saggar template import docker://debian:12 --name debian:12`"),
        ("FROM ghcr.io/a/b:1", "import the image with `saggar template import docker://ghcr.io/a/b:1 --name b:1`"),
        ("FROM host", "nothing can be built on it"),
        ("FROM scratch", "COPY some files first"),
        ("FROM scratch\nRUN true", "COPY some first"),
    ] {
        context.write("Dockerfile", file);
        let done = build(&place, &[]);
        assert!(done.code == 125 && done.stderr.contains(expected), "{file}: {done:?}");
    }
    assert_eq!(template(&place, &["list"]).stdout, "");
    context.dockerfile("");
    let done = template(&place, &["build", "context", "--name", "base"]);
    assert!(done.stderr.contains("built in"), "{done:?}");
}

#[test]
fn copies_go_where_links_of_the_image_lead_and_never_outside() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("tree/sub/file", "of the context");
    context.write("tree/top", "top");
    context.write("tree/left.log", "ignored");
    context.write("tree/keep.log", "kept");
    context.write(".dockerignore", "**/*.log\n!**/keep.log\n");
    symlink("../../../etc/passwd", context.path("tree/link")).expect("ours");
    let outside = place.path("outside");
    context.dockerfile(&format!(
        "RUN mkdir -p /real /home/app && ln -s real /alias && ln -s /../../../..{} /escape && chmod 700 /home/app && chown 5:6 /home/app && ln -s ../../real /home/app/sub\n\
         COPY tree /alias/\nCOPY tree/top /escape/here\nCOPY --chmod=640 tree/top tree/sub/file /many/\nCOPY tree /home/app\nCOPY bin/b?syb[o]x /one",
        outside.display()
    ));
    let done = build(&place, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let script = "ls -A /real; readlink /real/link; cat /real/sub/file; ls -A /many; stat -c %a /many/top; stat -c '%a %u:%g' /home/app; readlink /home/app/sub; cat /real/file; ls /one";
    let seen = run(&place, &["/bin/sh", "-c", script]);
    let owners = if is_root() { "5:6" } else { "0:0" };
    assert_eq!(
        seen.stdout,
        format!(
            "file\nkeep.log\nlink\nsub\ntop\n../../../etc/passwd\nof the contextfile\ntop\n640\n700 {owners}\n../../real\nof the context/one\n"
        ),
        "{seen:?}"
    );
    assert!(!outside.exists());
}

#[test]
fn a_directory_may_have_more_files_than_a_process_may_open() {
    let place = Place::new();
    let context = Context::new(&place);
    for number in 0..300 {
        context.write(&format!("many/{number}"), "");
    }
    context.dockerfile("COPY many /many");
    let plain = place.command(["template", "build", "context", "--name", "demo"]);
    let mut limited = Command::new("prlimit");
    limited.arg("--nofile=128").arg(plain.get_program()).args(plain.get_args()).current_dir(place.path(""));
    limited.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    limited.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(limited.spawn().expect("it is installed"));
    assert_eq!(done.code, 0, "{done:?}");
    assert_eq!(run(&place, &["/bin/sh", "-c", "set -- /many/*; echo $#"]).stdout, "300\n");
}

#[test]
fn the_group_of_a_copy_follows_its_user() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("file", "x");
    context.write("etc/passwd", "app:x:12:34::/:/bin/sh\n");
    let users = ["1000", "app", "1000:5", "12"];
    let copies = users.map(|user| format!("COPY --chown={user} file /{user}\n")).concat();
    context.dockerfile(&format!("COPY etc /etc\n{copies}"));
    let done = build(&place, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let seen = run(&place, &["/bin/stat", "-c", "%u:%g", "/1000", "/app", "/1000:5", "/12"]);
    let expected = if is_root() { "1000:1000\n12:34\n1000:5\n12:12\n" } else { "0:0\n0:0\n0:0\n0:0\n" };
    assert_eq!(seen.stdout, expected, "{seen:?}");
}

#[test]
fn stages_are_built_as_far_as_they_are_needed() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write(
        "Dockerfile",
        "FROM scratch AS tools\nCOPY bin /bin\nENV PATH=/bin A=1\nFROM tools AS unused\nRUN exit 1\nFROM tools AS made\nRUN echo $A > /out && chmod 600 /out && chown 3:4 /out\nFROM tools\nCOPY --from=made /out /result/\nCOPY --from=1 /out /none\n",
    );
    let done = build(&place, &[]);
    // The last step needs the stage that fails.
    assert!(done.code == 1 && done.stderr.contains("RUN exit 1: it exited with status 1"), "{done:?}");
    let text = std::fs::read_to_string(context.path("Dockerfile")).expect("ours");
    context.write("Dockerfile", text.trim_end().rsplit_once('\n').expect("several lines").0);
    let done = build(&place, &[]);
    assert_eq!(done.code, 0, "{done:?}");
    let seen = run(&place, &["/bin/stat", "-c", "%a %u:%g", "/result/out"]);
    assert_eq!(seen.stdout, if is_root() { "600 3:4\n" } else { "600 0:0\n" }, "{seen:?}");
    let done = build(&place, &["--target", "made"]);
    assert!(done.code == 0 && done.stdout.contains("; 2 of 3 steps cached"), "{done:?}");
    // A template of the store is a base and a source too.
    context.write("Dockerfile", "FROM demo\nRUN cat /out\nCOPY --from=demo /out /again\n");
    let done = template(&place, &["build", "context", "--name", "second:1"]);
    assert!(done.code == 0 && done.stderr.contains("[1/2]   1\n"), "{done:?}");
}

#[test]
fn a_recipe_file_is_built_as_a_dockerfile_is() {
    let place = Place::new();
    let context = Context::new(&place);
    context.write("file", "x");
    context.write(
        "steps.toml",
        r#"
schema = "saggar.build/v1"
start = "sleep 1000"
ready = "test -e /made"
[[stages]]
from = "scratch"
steps = [
    { do = "copy", sources = ["bin"], to = "/bin" },
    { do = "env", set = { PATH = "/bin" } },
    { do = "run", command = ["/bin/sh", "-c", "id -u > /made"], user = "12:13" },
]
"#,
    );
    let done = build(&place, &["-f", "context/steps.toml"]);
    // Only root may write the top directory. An ordinary user's sandbox has one id, which everything in it belongs to.
    assert_eq!(done.code, if is_root() { 1 } else { 0 }, "{done:?}");
    let text = std::fs::read_to_string(context.path("steps.toml")).expect("ours").replace("12:13", "0");
    context.write("steps.toml", &text);
    assert_eq!(build(&place, &["-f", "context/steps.toml"]).code, 0);
    let shown = template_json(&place, &["show", "demo"]);
    let defaults = &shown["manifest"]["defaults"];
    assert_eq!((&defaults["start"], &defaults["ready"]), (&json!("sleep 1000"), &json!("test -e /made")), "{shown}");
}
