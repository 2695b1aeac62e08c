//! Sandboxes of a server that start from images: whose template a name means, and what programs find there.

mod harness;
mod http;

use harness::image::Image;
use harness::{is_root, not_here};
use http::Server;
use serde_json::{Value, json};

const PROJECT: &str = "/api/v1/sandboxes";

fn image(server: &Server, project: &str, greeting: &str) -> Image {
    let image = Image::in_project(&server.data(), project).system().layer(|top| top.write("etc/greeting", greeting));
    image.with(|defaults| {
        defaults.env.insert("GREETING".to_owned(), greeting.to_owned());
        defaults.cwd = saggar_domain::GuestPath::parse("/var/lib").ok();
        // Programs of a server run as the users that its clients know.
        defaults.user = Some("app".to_owned());
    })
}

/// The project of the server's first key.
fn project_of(server: &Server) -> String {
    let sandbox = server.sandbox();
    let project = server.get(&sandbox).expect(200)["project_id"].as_str().map(str::to_owned);
    server.delete(&sandbox);
    project.expect("a sandbox says whose it is")
}

fn stdout(answer: &Value) -> &str {
    answer["stdout"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

#[test]
fn a_projects_own_template_comes_before_one_that_the_operator_shares() {
    let server = Server::start_with(&["--public-templates", "shared,both:1"]);
    let project = project_of(&server);
    image(&server, "local", "operator").named("shared");
    image(&server, "local", "operator").named("both:1");
    image(&server, "local", "operator").named("hidden");
    image(&server, &project, "project").named("both:1");
    image(&server, "prj_other", "other").named("others");
    for (name, greeting) in [("shared", "operator"), ("both:1", "project")] {
        let sandbox = server.sandbox_with(&json!({ "template": name, "network": "none" }));
        let seen = server.sh(&sandbox, "cat /etc/greeting; echo \" $GREETING $(pwd)\"");
        assert_eq!(stdout(&seen), format!("{greeting} {greeting} /var/lib\n"), "{name}");
        let told = server.get(&sandbox).expect(200);
        assert_eq!((told["template"].as_str(), told["storage"].as_str()), (Some(name), Some("memory")));
    }
    // What exists elsewhere looks like what exists nowhere.
    let problem = |name: &str| {
        let problem = server.post(PROJECT, &json!({ "template": name })).problem(404, "not_found");
        problem["detail"].as_str().unwrap_or_else(|| panic!("{problem}")).replace(name, "NAME")
    };
    assert_eq!(problem("hidden"), problem("nowhere"));
    assert_eq!(problem("others"), problem("nowhere"));
    assert_eq!(problem("both"), problem("nowhere"));
}

#[test]
fn storage_on_disk_is_what_the_operator_allows() {
    if !is_root() {
        return not_here("storage on disk needs root");
    }
    let wanted = |disk: &str| json!({ "template": "demo", "storage": "disk", "limits": { "disk": disk } });
    let refused = |server: &Server, disk: &str| {
        let problem = server.post(PROJECT, &wanted(disk)).problem(422, "unsupported_capability");
        problem["detail"].as_str().unwrap_or_else(|| panic!("{problem}")).to_owned()
    };
    let server = Server::start_with(&["--public-templates", "demo"]);
    image(&server, "local", "x").named("demo");
    assert_eq!(refused(&server, "32M"), "this server keeps the files of sandboxes in memory");
    drop(server);
    let server = Server::start_with(&["--public-templates", "demo", "--disk-storage-max", "32M"]);
    image(&server, "local", "x").named("demo");
    assert!(refused(&server, "33M").contains("32M at most"), "{}", refused(&server, "33M"));
    let sandbox = server.sandbox_with(&wanted("32M"));
    assert_eq!(
        stdout(&server.sh(&sandbox, "stat -f -c %T /var/lib; echo there > ~/x && cat ~/x")).lines().last(),
        Some("there")
    );
}

#[test]
fn users_files_and_processes_of_an_image_are_as_clients_expect() {
    if !is_root() {
        return not_here("only root has several users inside");
    }
    let server = Server::start_with(&["--public-templates", "demo"]);
    image(&server, "local", "x").named("demo");
    let sandbox = server.sandbox_with(&json!({ "template": "demo" }));
    let as_user = |user: &str, command: &str| {
        let answer = server.post(&format!("{sandbox}/execs"), &json!({ "command": command, "user": user })).expect(200);
        stdout(&answer).to_owned()
    };
    assert_eq!(
        as_user("user", "id -u; echo $HOME; touch ~/mine && stat -c %u ~/mine; touch /etc/x 2>/dev/null || echo no"),
        "1000\n/home/user\n1000\nno\n"
    );
    assert_eq!(as_user("root", "id -u; touch /etc/x && chmod 4755 /bin/cat && stat -c %a /bin/cat"), "0\n4755\n");
    // Root manages services, and sees the processes of others.
    let running = json!({ "command": "echo up; sleep 600", "user": "user" });
    let headers = ["Content-Type: application/json"];
    let mut events = server.follow("POST", &format!("{sandbox}/execs"), &headers, running.to_string().as_bytes());
    events.until("stdout");
    let count = "n=0; for p in /proc/[0-9]*; do [ \"$(stat -c %u $p)\" = 1000 ] && n=$((n+1)); done; echo $n";
    assert_ne!(as_user("root", count), "0\n");
    // A file that leaves the sandbox leaves its set-id bits behind.
    let archive = server.get(&format!("{sandbox}/files/tree?path=/bin&user=root"));
    let mut archive = tar::Archive::new(archive.body.as_slice());
    let modes: Vec<(String, u32)> = archive
        .entries()
        .expect("an archive")
        .map(|entry| entry.expect("whole"))
        .map(|entry| (entry.path().expect("a name").display().to_string(), entry.header().mode().expect("a mode")))
        .collect();
    assert!(modes.iter().any(|(name, _)| name.ends_with("cat")), "{modes:?}");
    assert!(modes.iter().all(|(_, mode)| mode & 0o6000 == 0), "{modes:?}");
}

#[test]
fn programs_run_as_root_where_the_image_says_so_also_after_a_restart_and_in_a_fork() {
    if !is_root() {
        return not_here("only root has several users inside");
    }
    let mut server = Server::start_with(&["--public-templates", "rooted,numbered"]);
    let make = |name: &str, user: &str| {
        Image::in_project(&server.data(), "local")
            .system()
            .with(|defaults| defaults.user = Some(user.to_owned()))
            .named(name);
    };
    make("rooted", "root:root");
    make("numbered", "0");
    let who = "id -u; echo $HOME; pwd";
    let root = "0\n/root\n/root\n";
    for name in ["rooted", "numbered"] {
        let sandbox = server.sandbox_with(&json!({ "template": name }));
        assert_eq!(stdout(&server.sh(&sandbox, who)), root, "{name}");
        assert_eq!(server.get(&sandbox).expect(200)["user"], "root", "{name}");
        // Who asks for a user gets that one.
        let asked = server.sandbox_with(&json!({ "template": name, "user": "user" }));
        assert_eq!(stdout(&server.sh(&asked, who)), "1000\n/home/user\n/home/user\n", "{name}");
    }
    let sandbox = server.sandbox_with(&json!({ "template": "rooted" }));
    let fork = server.post(&format!("{sandbox}/fork"), &json!({})).expect(201);
    let fork = format!("{PROJECT}/{}", fork["items"][0]["sandbox"]["id"].as_str().unwrap_or_else(|| panic!("{fork}")));
    assert_eq!(stdout(&server.sh(&fork, who)), root);
    server.stop();
    server.begin();
    assert_eq!(stdout(&server.sh(&sandbox, who)), root);
    let written = server.put(&format!("{sandbox}/files?path=by-default"), b"x");
    assert!(written.status < 300, "{}", written.text());
    assert_eq!(stdout(&server.sh(&sandbox, "stat -c %u ~/by-default")), "0\n");
}

#[test]
fn programs_and_files_are_of_the_user_that_the_image_names() {
    if !is_root() {
        return not_here("only root has several users inside");
    }
    let mut server = Server::start_with(&["--public-templates", "mine,numbered,homeless,unknown", "--pool-max", "2"]);
    let make = |name: &str, user: &str| {
        let image = Image::in_project(&server.data(), "local").system();
        let image = image.layer(|top| {
            let names = "app:x:1234:2345::/srv/app:/bin/sh\nfar:x:1300:1300::/made/home:/bin/sh\n";
            top.write("etc/passwd", names);
        });
        image.with(|defaults| defaults.user = Some(user.to_owned())).named(name);
    };
    for (name, user) in [("mine", "app"), ("numbered", "4321:77"), ("homeless", "far"), ("unknown", "nobody")] {
        make(name, user);
    }
    let who = "id -u; id -g; echo $USER $HOME; pwd; echo > ~/x && echo wrote";
    let app = "1234\n2345\napp /srv/app\n/srv/app\nwrote\n";
    let sandbox = server.sandbox_with(&json!({ "template": "mine" }));
    assert_eq!(server.get(&sandbox).expect(200)["user"], "template");
    assert_eq!(stdout(&server.sh(&sandbox, who)), app);
    let as_user = |sandbox: &str, user: &str, command: &str| {
        let answer = server.post(&format!("{sandbox}/execs"), &json!({ "command": command, "user": user })).expect(200);
        stdout(&answer).to_owned()
    };
    // The other two are there as well, and files belong to who writes them.
    let status = as_user(&sandbox, "template", "cat /proc/self/status");
    assert!(status.contains("Uid:\t1234\t1234") && status.contains("CapEff:\t0000000000000000"), "{status}");
    assert_eq!(
        as_user(&sandbox, "user", "id -u; pwd; touch ~/x && echo wrote; touch /srv/app/no 2>/dev/null || echo no"),
        "1000\n/home/user\nwrote\nno\n"
    );
    assert_eq!(as_user(&sandbox, "root", "id -u; pwd"), "0\n/root\n");
    for (query, path, owner) in
        [("by-default", "/srv/app/by-default", "1234:2345"), ("hers&user=user", "/home/user/hers", "1000:1000")]
    {
        let written = server.put(&format!("{sandbox}/files?path={query}"), b"x");
        assert!(written.status < 300, "{}", written.text());
        assert_eq!(stdout(&server.sh(&sandbox, &format!("stat -c %u:%g {path}"))), format!("{owner}\n"));
    }
    let refused = server.put(&format!("{sandbox}/files?path=/root/x"), b"x");
    assert!(refused.status >= 400, "{}", refused.status);
    // A sandbox that waited for its template is the same, and one for another user is another.
    let again = server.sandbox_with(&json!({ "template": "mine" }));
    assert_eq!(stdout(&server.sh(&again, who)), app);
    let asked = server.sandbox_with(&json!({ "template": "mine", "user": "user" }));
    assert_eq!(stdout(&server.sh(&asked, "id -u; pwd")), "1000\n/home/user\n");
    let numbered = server.sandbox_with(&json!({ "template": "numbered" }));
    assert_eq!(stdout(&server.sh(&numbered, "id -u; id -g; echo $HOME; pwd")), "4321\n77\n/\n/\n");
    let homeless = server.sandbox_with(&json!({ "template": "homeless" }));
    assert_eq!(stdout(&server.sh(&homeless, who)), "1300\n1300\nfar /made/home\n/made/home\nwrote\n");
    let refused = server.post(PROJECT, &json!({ "template": "unknown" }));
    assert!(refused.status == 422 && refused.text().contains("there is no user \\\"nobody\\\""), "{}", refused.text());
    let fork = server.post(&format!("{sandbox}/fork"), &json!({})).expect(201);
    let fork = format!("{PROJECT}/{}", fork["items"][0]["sandbox"]["id"].as_str().unwrap_or_else(|| panic!("{fork}")));
    assert_eq!(stdout(&server.sh(&fork, who)), app);
    server.stop();
    server.begin();
    assert_eq!(stdout(&server.sh(&sandbox, who)), app);
    let written = server.put(&format!("{sandbox}/files?path=after"), b"x");
    assert!(written.status < 300, "{}", written.text());
    assert_eq!(stdout(&server.sh(&sandbox, "stat -c %u:%g /srv/app/after")), "1234:2345\n");
}

#[test]
fn sandboxes_have_the_limits_that_the_image_names_unless_others_are_asked_for() {
    let server = Server::start_with(&["--public-templates", "sized,wrong"]);
    for (name, memory) in [("sized", "96M"), ("wrong", "1K")] {
        let image = Image::in_project(&server.data(), "local").system();
        let labels = [("saggar.memory", memory), ("saggar.cpus", "0.5")];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        image.with(|defaults| defaults.labels = labels.into()).named(name);
    }
    for (body, memory, cpus) in [
        (json!({ "template": "sized" }), "96M", "0.5"),
        (json!({ "template": "sized", "limits": { "memory": "128M" } }), "128M", "0.5"),
        (json!({ "template": "wrong" }), "2G", "0.5"),
    ] {
        let limits = server.get(&server.sandbox_with(&body)).expect(200)["limits"].clone();
        let told = ["memory", "cpus"].map(|name| limits[name].to_string().replace('"', ""));
        assert_eq!(told, [memory, cpus], "{limits}");
    }
}

#[test]
fn clients_of_e2b_get_the_same_templates() {
    let server = Server::start_with(&["--public-templates", "demo"]);
    image(&server, "local", "hello").named("demo");
    let create = |name: &str| {
        let key = server.authorization().replace("Authorization: Bearer ", "X-API-Key: ");
        let body = json!({ "templateID": name, "timeout": 60 }).to_string();
        server.request_without_key("POST", "/v2/sandboxes", &[&key, "Content-Type: application/json"], body.as_bytes())
    };
    let made = create("demo").expect(201);
    assert_eq!(made["templateID"], "demo", "{made}");
    let list = server.get(PROJECT).expect(200);
    let id = list["items"][0]["id"].as_str().expect("one was made").to_owned();
    assert_eq!(stdout(&server.sh(&format!("{PROJECT}/{id}"), "cat /etc/greeting")), "hello");
    let key = server.authorization().replace("Authorization: Bearer ", "X-API-Key: ");
    for (name, count) in [("demo", 1), ("demo:latest", 1), ("base", 0), ("nowhere", 0)] {
        let listed =
            server.request_without_key("GET", &format!("/v2/sandboxes?template={name}"), &[&key], b"").expect(200);
        assert_eq!(listed.as_array().map(Vec::len), Some(count), "{name}: {listed}");
    }
    for name in ["nowhere", "../x", "demo:2"] {
        let refused = create(name);
        assert_eq!(refused.status, 404, "{}", refused.text());
        assert!(refused.text().contains(&format!("template '{name}' not found")), "{}", refused.text());
    }
}
