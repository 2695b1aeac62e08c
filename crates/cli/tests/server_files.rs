//! Files over HTTP: in and out, in the sandbox's own view, whatever path, link or archive is tried.

mod http;

use std::io::{BufReader, Write};

use http::archive::{end, entry, file, with_size};
use http::{Server, eventually, read_answer, read_chunk, read_head, send};
use serde_json::{Value, json};

fn encoded(path: &str) -> String {
    path.bytes()
        .map(|byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[test]
fn what_was_written_is_read_back_whole_and_in_part() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let content: Vec<u8> = (0..3_000_000u32).map(|index| (index % 251) as u8).collect();
    let path = format!("{sandbox}/files?path=dir%2Ffile&parents=true&mode=0640");
    assert_eq!(server.put(&path, &content).expect(200)["bytes"], 3_000_000);
    let read = server.get(&format!("{sandbox}/files?path=/home/user/dir/file"));
    assert_eq!((read.status, read.body == content), (200, true));
    assert_eq!(read.header("x-content-type-options"), Some("nosniff"));
    let part = server.request("GET", &format!("{sandbox}/files?path=dir/file"), &["Range: bytes=1000000-1000009"], b"");
    assert_eq!((part.status, &part.body[..]), (206, &content[1_000_000..1_000_010]));
    assert_eq!(part.header("content-range"), Some("bytes 1000000-1000009/3000000"));
    let tail = server.request("GET", &format!("{sandbox}/files?path=dir/file"), &["Range: bytes=-3"], b"");
    assert_eq!(tail.body, &content[2_999_997..]);
    server
        .request("GET", &format!("{sandbox}/files?path=dir/file"), &["Range: bytes=3000000-"], b"")
        .problem(416, "range_not_satisfiable");
    let stat = server.get(&format!("{sandbox}/files/stat?path=dir/file")).expect(200);
    assert_eq!((&stat["kind"], &stat["mode"], &stat["size"]), (&json!("file"), &json!("0640"), &json!(3_000_000)));
    assert_eq!(server.sh(&sandbox, "wc -c < dir/file")["stdout"], "3000000\n");
    server.post(&format!("{sandbox}/files/move"), &json!({ "from": "dir/file", "to": "moved" })).expect(204);
    server.post(&format!("{sandbox}/files/mkdir"), &json!({ "path": "a/b/c", "parents": true })).expect(204);
    let list = server.get(&format!("{sandbox}/files/list?path=.&depth=3")).expect(200);
    let mut paths: Vec<&str> =
        list["entries"].as_array().unwrap().iter().map(|entry| entry["path"].as_str().unwrap()).collect();
    paths.sort_unstable();
    assert_eq!(paths.iter().filter(|path| path.contains("/a")).count(), 3, "{paths:?}");
    server.put(&format!("{sandbox}/files/metadata?path=moved"), br#"{}"#).problem(415, "unsupported_media_type");
    server.delete(&format!("{sandbox}/files?path=a")).problem(409, "directory_not_empty");
    server.delete(&format!("{sandbox}/files?path=a&recursive=true")).expect(204);
    server.get(&format!("{sandbox}/files?path=a")).problem(404, "file_not_found");
    server.get(&format!("{sandbox}/files?path=/tmp")).problem(409, "is_a_directory");
    server.put(&format!("{sandbox}/files?path=/etc/x"), b"x");
    assert_eq!(server.sh(&sandbox, "cat /etc/x 2>/dev/null || echo none")["stdout"], "none\n");
}

/// A host file that must never be read or changed from a sandbox.
fn canary() -> std::path::PathBuf {
    let path = http::new_directory().join("canary");
    std::fs::write(&path, "host only").expect("it is there");
    path
}

#[test]
fn no_path_leads_to_the_host() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let canary = canary();
    let name = canary.to_str().unwrap();
    let up = "../".repeat(12);
    let paths = [
        name.to_owned(),
        format!("{up}{name}"),
        format!("/proc/1/root{name}"),
        format!("/proc/self/root{name}"),
        format!("/proc/self/cwd/{up}{name}"),
        format!("..\\..\\{name}"),
        format!("....//....//{name}"),
        format!("%2e%2e%2f%2e%2e%2f{name}"),
        format!("\u{ff0e}\u{ff0e}/{name}"),
        format!("/home/user-evil/..{name}"),
        format!("/workspace-evil{name}"),
        format!("{name}..."),
    ];
    for path in &paths {
        for path in [encoded(path), encoded(&encoded(path))] {
            let read = server.get(&format!("{sandbox}/files?path={path}"));
            assert!(!read.text().contains("host only"), "{path}");
            for suffix in ["stat", "list", "tree", "metadata"] {
                let answer = server.get(&format!("{sandbox}/files/{suffix}?path={path}"));
                assert!(
                    answer.status < 500 && !answer.text().contains("host only"),
                    "{suffix} {path}: {}",
                    answer.text()
                );
            }
            let written = server.put(&format!("{sandbox}/files?path={path}&parents=true"), b"from a sandbox");
            assert!(written.status < 500, "{path}: {}", written.text());
            server.delete(&format!("{sandbox}/files?path={path}&recursive=true"));
        }
        let moved = server.post(&format!("{sandbox}/files/move"), &json!({ "from": "/etc/hostname", "to": path }));
        assert!(moved.status < 500, "{path}: {}", moved.text());
        server.post(&format!("{sandbox}/files/mkdir"), &json!({ "path": path, "parents": true }));
        assert_eq!(std::fs::read_to_string(&canary).unwrap(), "host only", "{path}");
        assert_eq!(std::fs::read_dir(canary.parent().unwrap()).unwrap().count(), 1, "{path}");
    }
    for path in ["ok%00/../../etc", "%00", "", &"x".repeat(5000)] {
        server.get(&format!("{sandbox}/files?path={path}")).problem(400, "invalid_request");
        server.put(&format!("{sandbox}/files?path={path}"), b"x").problem(400, "invalid_request");
    }
    let odd = "new\nline\u{1b}[2J\u{202e}";
    server.put(&format!("{sandbox}/files?path={}", encoded(odd)), b"odd").expect(200);
    assert_eq!(server.get(&format!("{sandbox}/files?path={}", encoded(odd))).body, b"odd");
    let overlong = server.get(&format!("{sandbox}/files?path=%c0%ae%c0%ae%2f"));
    assert!((400..500).contains(&overlong.status), "{}", overlong.text());
    std::fs::remove_dir_all(canary.parent().unwrap()).unwrap();
}

#[test]
fn links_mean_what_they_mean_inside() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let canary = canary();
    let directory = canary.parent().unwrap().to_str().unwrap().to_owned();
    let links =
        format!("ln -s /etc/passwd a; ln -s {} host; ln -s {directory} hostdir; ln -s loop loop", canary.display());
    server.sh(&sandbox, &links);
    let inside = server.sh(&sandbox, "cat /etc/passwd")["stdout"].as_str().unwrap().to_owned();
    assert_eq!(server.get(&format!("{sandbox}/files?path=a")).text(), inside);
    server.get(&format!("{sandbox}/files?path=host")).problem(404, "file_not_found");
    server.get(&format!("{sandbox}/files?path=loop")).problem(400, "invalid_request");
    for path in ["host", "hostdir/new", "hostdir/canary"] {
        let written = server.put(&format!("{sandbox}/files?path={path}&parents=true"), b"from a sandbox");
        assert!(written.status < 500, "{path}: {}", written.text());
    }
    server.post(&format!("{sandbox}/files/mkdir"), &json!({ "path": "hostdir/made", "parents": true }));
    server.post(&format!("{sandbox}/files/move"), &json!({ "from": "a", "to": "hostdir/moved" }));
    server.delete(&format!("{sandbox}/files?path=hostdir&recursive=true"));
    assert_eq!(std::fs::read_to_string(&canary).unwrap(), "host only");
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_directory_that_keeps_becoming_a_link_never_leads_outside() {
    const FLIPS: u32 = 100_000;
    const ROUNDS: u32 = 300;
    let server = Server::start();
    let sandbox = server.sandbox();
    let canary = canary();
    let directory = canary.parent().unwrap().to_str().unwrap().to_owned();
    // Swapped with one call each, a hundred thousand times: a directory on one side, a link to the host's on the
    // other.
    let flip = format!(
        "import ctypes, os\nos.chdir('/home/user')\nlibc = ctypes.CDLL(None)\n\
         for _ in range({FLIPS}):\n  assert libc.renameat2(-100, b'd', -100, b'other', 2) == 0"
    );
    server.sh(&sandbox, &format!("mkdir d && ln -s {directory} other"));
    let flipping = json!({ "command": ["python3", "-c", flip], "wait": false });
    let flipping = server.post(&format!("{sandbox}/execs"), &flipping).expect(201);
    let flipping = format!("{sandbox}/execs/{}", flipping["id"].as_str().unwrap());
    let mut flipped = server.get(&flipping);
    let tree = [entry("d/", b'5', b"", ""), file("d/planted", b"x"), end()].concat();
    for index in 0.. {
        let answers = [
            server.put(&format!("{sandbox}/files?path=d/{index}&parents=true"), b"x"),
            server.put(&format!("{sandbox}/files/tree?path=."), &tree),
            server.get(&format!("{sandbox}/files?path=d/canary")),
            server.get(&format!("{sandbox}/files/tree?path=d")),
        ];
        for answer in answers {
            assert!(answer.status < 500 && !answer.text().contains("host only"), "{}", answer.text());
        }
        if index >= ROUNDS && flipped.expect(200)["status"] != "running" {
            break;
        }
        flipped = server.get(&flipping);
    }
    assert_eq!(flipped.expect(200)["exit_code"], 0, "{}", flipped.text());
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 1);
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn an_upload_that_breaks_off_leaves_everything_as_it_was() {
    let server = Server::start_with(&["--upload-max", "1M"]);
    let sandbox = server.sandbox();
    server.put(&format!("{sandbox}/files?path=kept"), b"before").expect(200);
    let authorization = server.authorization();
    let mut connection = server.connect();
    let path = format!("{sandbox}/files?path=kept");
    send(&mut connection, "PUT", &path, &[&authorization, "Content-Length: 500000"], b"");
    connection.write_all(&[b'x'; 100_000]).unwrap();
    drop(connection);
    server.put(&path, &vec![b'x'; (1 << 20) + 1]).problem(413, "too_large");
    let mut connection = server.connect();
    send(&mut connection, "PUT", &path, &[&authorization, "Transfer-Encoding: chunked"], b"");
    let chunk = format!("40000\r\n{}\r\n", "x".repeat(0x40000));
    for _ in 0..5 {
        // The server may refuse before it has read everything.
        let _ = connection.write_all(chunk.as_bytes());
    }
    read_answer(&mut BufReader::new(connection)).problem(413, "too_large");
    eventually("nothing but the file is there", || server.sh(&sandbox, "ls -A")["stdout"] == "kept\n");
    assert_eq!(server.get(&path).body, b"before");
}

#[test]
fn full_storage_is_an_error_there_and_nowhere_else() {
    let server = Server::start();
    let small = server.sandbox_with(&json!({ "limits": { "disk": "8M" } }));
    let other = server.sandbox();
    let large = vec![b'x'; 16 << 20];
    server.put(&format!("{small}/files?path=large"), &large).problem(507, "disk_full");
    assert_eq!(server.sh(&small, "ls -A")["stdout"], "");
    server.put(&format!("{small}/files?path=little"), b"fits").expect(200);
    server.put(&format!("{other}/files?path=large"), &large).expect(200);
}

#[test]
fn a_signed_address_is_for_one_file_one_method_and_a_while() {
    let server = Server::start();
    let sandbox = server.sandbox();
    server.put(&format!("{sandbox}/files?path=shared"), b"content").expect(200);
    let sign = |body: &Value| {
        server.post(&format!("{sandbox}/files/sign"), body).expect(200)["url"].as_str().unwrap().to_owned()
    };
    let local = |url: &str| url.split_once("localhost").unwrap().1.to_owned();
    let bare = |method: &str, path: &str, body: &[u8]| server.request_without_key(method, path, &[], body);
    let get = local(&sign(&json!({ "path": "shared", "expires": "1h" })));
    assert_eq!(bare("GET", &get, b"").body, b"content");
    bare("PUT", &get, b"x").problem(401, "unauthorized");
    bare("DELETE", &get, b"").problem(401, "unauthorized");
    for bent in [
        get.replace("shared", "other"),
        format!("{get}&user=root"),
        get.replace("/files?", "/files/tree?"),
        format!("{get}&path=/etc/passwd"),
        format!("{get}&mode=0777"),
        get.replace("expires=", "expires=9"),
        get.replace(&sandbox, &server.sandbox()),
        http::altered(&get),
        get.split("&signature=").next().unwrap().to_owned(),
    ] {
        let answer = bare("GET", &bent, b"");
        assert_ne!(bent, get);
        assert!([400, 401, 404].contains(&answer.status), "{bent}: {}", answer.text());
        assert_ne!(answer.body, b"content", "{bent}");
    }
    let put = local(&sign(&json!({ "path": "new", "method": "put", "expires": "1h" })));
    bare("PUT", &put, b"written").expect(200);
    bare("GET", &put, b"").problem(401, "unauthorized");
    assert_eq!(server.get(&format!("{sandbox}/files?path=new")).body, b"written");
    let brief = local(&sign(&json!({ "path": "shared", "expires": "1ms" })));
    eventually("its time is over", || bare("GET", &brief, b"").status == 401);
    server
        .post(&format!("{sandbox}/files/sign"), &json!({ "path": "x", "expires": "365d" }))
        .problem(400, "invalid_value");
}

#[test]
fn a_watch_tells_of_changes_below() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let mut watch = server.follow("GET", &format!("{sandbox}/files/watch?path=.&recursive=true"), &[], b"");
    watch.until("watching");
    server.sh(&sandbox, "mkdir sub && echo x > sub/file && mv sub/file sub/moved && rm -r sub");
    let mut seen: Vec<String> = Vec::new();
    while !(seen.iter().any(|one| one == "removed /home/user/sub")
        && seen.iter().any(|one| one == "created /home/user/sub"))
    {
        let event = watch.next().unwrap_or_else(|| panic!("more to come after {seen:?}"));
        seen.push(format!("{} {}", event.name, event.data["path"].as_str().unwrap_or_default()));
    }
    server.get(&format!("{sandbox}/files/watch?path=/nowhere")).problem(404, "file_not_found");
}

#[test]
fn a_tree_goes_in_and_comes_out_the_same() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let long = format!("dir/{}", "n".repeat(90));
    let archive = [
        entry("dir/", b'5', b"", ""),
        file("dir/a.txt", b"hello"),
        file(&long, &[7; 1000]),
        entry("dir/link", b'2', b"", "a.txt"),
        file("unannounced/deep/file", b""),
        end(),
    ]
    .concat();
    let report = server.put(&format!("{sandbox}/files/tree?path=target"), &archive).expect(200);
    assert_eq!(report, json!({ "files": 3, "directories": 1, "links": 1, "bytes": 1005 }));
    assert_eq!(
        server.sh(&sandbox, "cat target/dir/link; readlink target/dir/link; find target | wc -l")["stdout"],
        "helloa.txt\n8\n"
    );
    // Again over itself, and through gzip.
    server.put(&format!("{sandbox}/files/tree?path=target"), &archive).expect(200);
    server.sh(&sandbox, "ln -s nowhere target/dangling; mkfifo target/pipe; head -c 200 /dev/zero | tr '\\0' z > target/$(printf 'q%.0s' $(seq 150))");
    let out = server.get(&format!("{sandbox}/files/tree?path=target"));
    assert_eq!(out.header("content-type"), Some("application/x-tar"));
    server.put(&format!("{sandbox}/files?path=copy.tar"), &out.body).expect(200);
    let compared = server.sh(&sandbox, "rm target/pipe; mkdir copy; tar xf copy.tar -C copy && diff -r --no-dereference target copy && echo same; gzip -k copy.tar");
    assert_eq!(compared["stdout"], "same\n", "{compared}");
    let gzip = server.get(&format!("{sandbox}/files?path=copy.tar.gz")).body;
    server.put(&format!("{sandbox}/files/tree?path=unzipped"), &gzip).expect(200);
    assert_eq!(server.sh(&sandbox, "diff -r --no-dereference target unzipped && echo same")["stdout"], "same\n");
    server.get(&format!("{sandbox}/files/tree?path=/nowhere")).problem(404, "file_not_found");
}

#[test]
fn hostile_archives_are_refused_and_touch_nothing_else() {
    let server = Server::start();
    let sandbox = server.sandbox();
    server.sh(&sandbox, "mkdir target outside; echo safe > outside/file; ln -s ../outside target/pre");
    for (what, archive, status) in [
        ("above", [file("../outside/file", b"evil"), end()].concat(), 400),
        ("above, inside", [file("a/../../outside/file", b"evil"), end()].concat(), 400),
        ("absolute", [file("/home/user/outside/file", b"evil"), end()].concat(), 400),
        ("through its own link", [entry("l", b'2', b"", "../outside"), file("l/file", b"evil"), end()].concat(), 400),
        ("through a link that is there", [file("pre/file", b"evil"), end()].concat(), 400),
        ("a hard link outside", [entry("h", b'1', b"", "../outside/file"), end()].concat(), 400),
        ("a device", [entry("d", b'3', b"", ""), end()].concat(), 400),
        ("a pipe", [entry("p", b'6', b"", ""), end()].concat(), 400),
        ("a name twice", [file("a", b"1"), file("a", b"2"), end()].concat(), 400),
        ("a negative size", [with_size("n", b'0', "-0000000001\0", b"", ""), end()].concat(), 400),
        ("a size that is none", [with_size("n", b'0', "zzzzzzzzzzz\0", b"", ""), end()].concat(), 400),
        ("larger than may be", with_size("n", b'0', "77777777777\0", b"", ""), 413),
        ("cut off", file("cut", &[1; 2000])[..1000].to_vec(), 400),
        ("no archive at all", vec![b'x'; 4096], 400),
        ("nothing", Vec::new(), 400),
        ("no gzip after all", [&[0x1f, 0x8b][..], &[0; 600]].concat(), 400),
    ] {
        let answer = server.put(&format!("{sandbox}/files/tree?path=target"), &archive);
        assert_eq!(answer.status, status, "{what}: {}", answer.text());
        assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{what}");
        assert_eq!(
            server.sh(&sandbox, "cat outside/file; ls outside | wc -l; ls -A | wc -l")["stdout"],
            "safe\n1\n2\n",
            "{what}"
        );
    }
    // A link is replaced, not written through.
    server.sh(&sandbox, "ln -s ../outside/file target/onto");
    server.put(&format!("{sandbox}/files/tree?path=target"), &[file("onto", b"new"), end()].concat()).expect(200);
    assert_eq!(server.sh(&sandbox, "cat outside/file target/onto")["stdout"], "safe\nnew");
}

#[test]
fn a_bomb_stays_small() {
    let server = Server::start();
    let sandbox = server.sandbox();
    server.sh(&sandbox, "head -c 200000000 /dev/zero > /tmp/zeros 2>/dev/null; cd /tmp; tar cf - zeros | gzip -9 > /tmp/bomb.tar.gz; rm zeros");
    let bomb = server.get(&format!("{sandbox}/files?path=/tmp/bomb.tar.gz")).body;
    assert!(bomb.len() < 400_000, "{}", bomb.len());
    let target = server.sandbox();
    server.put(&format!("{target}/files/tree?path=x"), &bomb).problem(413, "too_large");
    assert_eq!(server.sh(&target, "ls x")["stdout"], "");
}

#[test]
fn a_download_of_a_tree_that_changes_is_whole_or_broken_off() {
    let server = Server::start();
    let sandbox = server.sandbox();
    let churn = "mkdir t; cd t; i=0; while :; do i=$((i+1)); head -c $((i * 7919 % 300000)) /dev/zero | tr '\\0' x > f$((i % 5)); truncate -s $((i % 100)) f$(((i+2) % 5)); done";
    server.post(&format!("{sandbox}/execs"), &json!({ "command": churn, "wait": false })).expect(201);
    eventually("it churns", || server.get(&format!("{sandbox}/files/stat?path=t/f4")).status == 200);
    for _ in 0..20 {
        let mut connection = server.connect();
        send(&mut connection, "GET", &format!("{sandbox}/files/tree?path=t"), &[&server.authorization()], b"");
        let mut reader = BufReader::new(connection);
        let (status, _) = read_head(&mut reader);
        assert_eq!(status, 200);
        let mut archive = Vec::new();
        while let Some(chunk) = read_chunk(&mut reader) {
            archive.extend_from_slice(&chunk);
        }
        // An interrupted archive has no end marker.
        if archive.ends_with(&end()) {
            server.put(&format!("{sandbox}/files/tree?path=again"), &archive).expect(200);
        }
    }
}
