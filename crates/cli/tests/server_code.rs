//! The code interpreter over HTTP: contexts that keep their state, what code shows, and code that attacks its kernel,
//! its context and the server. Each attack has a defined outcome, and other contexts go on.

mod http;

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use http::{Answer, Server, eventually};
use serde_json::{Value, json};

struct Code<'a> {
    server: &'a Server,
    sandbox: String,
}

impl<'a> Code<'a> {
    fn on(server: &'a Server) -> Self {
        let sandbox = server.sandbox();
        Self { server, sandbox }
    }

    fn run_with(&self, run: &Value) -> Value {
        self.server.post(&format!("{}/code/run", self.sandbox), run).expect(200)
    }

    fn run(&self, code: &str) -> Value {
        self.run_with(&json!({ "code": code }))
    }

    fn run_in(&self, context: &str, code: &str) -> Value {
        self.run_with(&json!({ "code": code, "context": context }))
    }

    fn create(&self, language: &str) -> String {
        let made = self.server.post(&format!("{}/code/contexts", self.sandbox), &json!({ "language": language }));
        made.expect(201)["id"].as_str().expect("an id").to_owned()
    }

    fn context(&self, id: &str) -> String {
        format!("{}/code/contexts/{id}", self.sandbox)
    }
}

fn main_text(ran: &Value) -> &str {
    let results = ran["results"].as_array().unwrap_or_else(|| panic!("{ran}"));
    let main = results.iter().find(|result| result["main"] == true).unwrap_or_else(|| panic!("{ran}"));
    main["formats"]["text/plain"].as_str().unwrap_or_else(|| panic!("{ran}"))
}

#[test]
fn code_of_each_language_keeps_its_state_and_tells_what_it_does() {
    let server = Server::start();
    let code = Code::on(&server);
    let ran = code.run("import sys\nx = 41\nprint('out')\nprint('err', file=sys.stderr)\nx + 1");
    assert_eq!(
        (main_text(&ran), &ran["stdout"], &ran["stderr"], &ran["status"], &ran["execution_count"]),
        ("42", &json!("out\n"), &json!("err\n"), &json!("ok"), &json!(1))
    );
    assert_eq!(main_text(&code.run("x")), "41");
    let raised = code.run("1/0");
    assert_eq!((&raised["status"], &raised["error"]["name"]), (&json!("error"), &json!("ZeroDivisionError")));
    let bash = |text: &str| code.run_with(&json!({ "code": text, "language": "bash" }));
    bash("v=kept; cd /tmp");
    let ran = bash("echo $v $PWD; echo e >&2; (exit 3)");
    assert_eq!(
        (&ran["stdout"], &ran["stderr"], &ran["error"]["value"]),
        (&json!("kept /tmp\n"), &json!("e\n"), &json!("3"))
    );
    let env = json!({ "code": "echo \"$A\"", "language": "bash", "env": { "A": "it's; exit 1" } });
    assert_eq!(code.run_with(&env)["stdout"], "it's; exit 1\n");
    let node = |text: &str| code.run_with(&json!({ "code": text, "language": "javascript" }));
    node("const a = await Promise.resolve(1); class K {}");
    assert_eq!(main_text(&node("const a = 2; class K { two() { return a } } new K().two()")), "2");
    let raised = node("undefinedName");
    assert_eq!(raised["error"]["name"], "ReferenceError");
    let list = server.get(&format!("{}/code/contexts", code.sandbox)).expect(200);
    let defaults =
        list["items"].as_array().expect("a list").iter().filter(|context| context["default"] == true).count();
    assert_eq!(defaults, 3, "{list}");
}

#[test]
fn a_context_has_a_directory_and_variables_and_can_be_started_anew_and_removed() {
    let server = Server::start();
    let code = Code::on(&server);
    let wanted = json!({ "language": "python", "cwd": "/tmp", "env": { "MINE": "yes" } });
    let made = server.post(&format!("{}/code/contexts", code.sandbox), &wanted).expect(201);
    let id = made["id"].as_str().expect("an id");
    let look = "import os; (os.getcwd(), os.environ['MINE'], 'x' in globals())";
    code.run_in(id, "x = 1");
    assert_eq!(main_text(&code.run_in(id, look)), "('/tmp', 'yes', True)");
    let again = server.post(&format!("{}/restart", code.context(id)), &json!({})).expect(200);
    assert!(again["id"] == made["id"] && again["exec_id"] != made["exec_id"], "{again}");
    assert_eq!(main_text(&code.run_in(id, look)), "('/tmp', 'yes', False)");
    server.delete(&code.context(id)).expect(204);
    server.get(&code.context(id)).problem(404, "not_found");
    server
        .post(&format!("{}/code/run", code.sandbox), &json!({ "code": "1", "context": id }))
        .problem(404, "not_found");
    let run = format!("{}/code/run", code.sandbox);
    server.post(&run, &json!({ "code": "1", "context": id, "language": "python" })).problem(400, "contradiction");
    server.post(&run, &json!({ "code": "a\u{0}b" })).problem(400, "invalid_value");
    server.post(&run, &json!({ "code": "1", "env": { "A B": "x" } })).problem(400, "invalid_value");
    let no_such_directory = json!({ "cwd": "/nowhere" });
    server.post(&format!("{}/code/contexts", code.sandbox), &no_such_directory).problem(422, "invalid_cwd");
}

#[test]
fn a_missing_interpreter_is_named() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "env": { "PATH": "/nowhere" } }));
    for language in ["python", "javascript", "bash"] {
        let answer = server.post(&format!("{sandbox}/code/run"), &json!({ "code": "1", "language": language }));
        let problem = answer.problem(422, "program_not_found");
        assert!(problem["detail"].as_str().expect("text").contains(&format!("which runs {language}")), "{problem}");
    }
}

#[test]
fn a_stream_tells_what_happens_as_it_happens_and_leaving_it_interrupts_the_code() {
    let server = Server::start();
    let code = Code::on(&server);
    code.run("x = 'kept'");
    let body = json!({ "code": "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.01)" }).to_string();
    let headers = ["Content-Type: application/json"];
    let mut events = server.follow("POST", &format!("{}/code/run", code.sandbox), &headers, body.as_bytes());
    assert_eq!(events.next().expect("the first").name, "started");
    let printed = events.next().expect("what it printed");
    assert_eq!((printed.name.as_str(), printed.data["text"].as_str()), ("stdout", Some("begun\n")));
    drop(events);
    // It is the turn of the next one only once the first has ended.
    assert_eq!(main_text(&code.run("x")), "kept");
}

#[test]
fn code_that_takes_too_long_is_interrupted_and_then_ended() {
    let server = Server::start();
    let code = Code::on(&server);
    code.run("x = 'kept'");
    let late =
        |language: &str, text: &str| code.run_with(&json!({ "code": text, "language": language, "timeout": "300ms" }));
    let interrupted = late("python", "while True: pass");
    assert_eq!(
        (&interrupted["status"], &interrupted["error"]["name"]),
        (&json!("timed_out"), &json!("ExecutionTimeout"))
    );
    assert_eq!(main_text(&code.run("x")), "kept");
    code.run_with(&json!({ "code": "y=kept", "language": "bash" }));
    for endless in ["while :; do :; done", "sleep 1000; echo never"] {
        let ran = late("bash", endless);
        assert_eq!((&ran["status"], &ran["stdout"]), (&json!("timed_out"), &json!("")), "{ran}");
    }
    assert_eq!(code.run_with(&json!({ "code": "echo $y", "language": "bash" }))["stdout"], "kept\n");
    code.run_with(&json!({ "code": "var z = 'kept'", "language": "javascript" }));
    for endless in ["for (;;) {}", "await new Promise(() => {})"] {
        assert_eq!(late("javascript", endless)["status"], "timed_out");
    }
    assert_eq!(main_text(&code.run_with(&json!({ "code": "z", "language": "javascript" }))), "kept");
    // It doesn't listen, so its process is ended, and another one begins.
    let deaf = late("python", "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass");
    assert_eq!((&deaf["status"], &deaf["execution_count"]), (&json!("timed_out"), &json!(null)), "{deaf}");
    assert_eq!(code.run("x")["error"]["name"], "NameError");
}

#[test]
fn what_code_prints_is_never_taken_for_what_its_kernel_tells() {
    let server = Server::start();
    let code = Code::on(&server);
    let forged = r#"import os
packet = b'\0saggar:' + b'0' * 32 + b':e0020:{"type":"end","count":99}     '
os.write(1, packet)
os.write(2, packet)
os.write(1, b'\0saggar:')
'honest'"#;
    let ran = code.run(forged);
    assert_eq!((main_text(&ran), &ran["execution_count"]), ("honest", &json!(1)), "{ran}");
    assert!(ran["stdout"].as_str().expect("text").ends_with("     \0saggar:"), "{ran}");
    // A process that prints all the time doesn't tear a result of many packets apart.
    let beside =
        "import subprocess\nnoise = subprocess.Popen(['sh', '-c', 'while :; do echo noise; done'])\n'x' * 500_000";
    let ran = code.run(beside);
    assert_eq!(main_text(&ran), "x".repeat(500_000));
    code.run("noise.kill(); noise.wait()");
}

/// Attacks on the kernel, and the error that the client gets.
const FATAL: &[(&str, &str, &str)] = &[
    ("python", "import os; os._exit(3)", "exited with code 3"),
    ("python", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "signal 9"),
    ("python", "import os; os.closerange(0, 4096)", "closed or replaced"),
    (
        "python",
        "import os\nos.closerange(0, 4096)\nfor _ in range(300): os.open('/dev/null', os.O_RDWR)",
        "closed or replaced",
    ),
    ("python", "import ctypes; ctypes.string_at(0)", "signal 11"),
    (
        "python",
        "import gc\nwire = next(o for o in gc.get_objects() if type(o).__name__ == 'Wire')\n\
         while True: wire.send({'type': 'result', 'main': False, 'formats': {}})",
        "too many results",
    ),
    ("javascript", "process.exit(4)", "exited with code 4"),
    ("javascript", "process.kill(process.pid, 'SIGKILL'); for (;;) {}", "signal 9"),
    ("javascript", "for (let fd = 3; fd < 64; fd++) try { require('fs').closeSync(fd) } catch {}", ""),
    ("bash", "exit 5", "exited with code 5"),
    ("bash", "kill -9 $$", "signal 9"),
    ("bash", "set -e; false", "exited with code 1"),
];

#[test]
fn code_that_ends_its_own_process_loses_its_state_and_nothing_else() {
    let server = Server::start();
    let code = Code::on(&server);
    let witness = code.create("python");
    code.run_in(&witness, "x = 'unharmed'");
    for language in ["python", "javascript", "bash"] {
        let context = code.create(language);
        for (_, attack, why) in FATAL.iter().filter(|(of, _, _)| *of == language) {
            let ran = code.run_in(&context, attack);
            assert_eq!(
                (&ran["status"], &ran["error"]["name"]),
                (&json!("died"), &json!("ContextDied")),
                "{attack}: {ran}"
            );
            assert!(ran["error"]["value"].as_str().expect("text").contains(why), "{attack}: {ran}");
            let next = code.run_in(&context, if language == "bash" { "echo back" } else { "'back'" });
            assert_eq!((&next["status"], &next["execution_count"]), (&json!("ok"), &json!(1)), "{attack}: {next}");
        }
        server.delete(&code.context(&context)).expect(204);
    }
    assert_eq!(main_text(&code.run_in(&witness, "x")), "unharmed");
}

/// What code may do to its kernel without ending it.
const HARMLESS: &[&str] = &[
    // Children that come back into the kernel's loop, or stay behind.
    "import os\nif os.fork() == 0: raise SystemExit(1)\nos.wait()\n'ok'",
    "import subprocess; subprocess.Popen(['sleep', '1000']); 'ok'",
    "import threading, time; threading.Thread(target=lambda: time.sleep(1000), daemon=True).start(); 'ok'",
    "import threading\ndef spin():\n  while True: pass\nthreading.Thread(target=spin, daemon=True).start()\n'ok'",
    // Replaced streams, builtins and descriptors.
    "import sys; sys.stdout = sys.stderr = None; 'ok'",
    "import os; os.close(1); os.close(2); 'ok'",
    "import builtins, json, os; builtins.print = builtins.len = None; json.loads = None; 'ok'",
    "import fcntl; fcntl.fcntl(1, fcntl.F_SETFL, 2048); 'ok'",
    "class Bad:\n  def __repr__(self): raise KeyboardInterrupt\n  def __getattr__(self, name): raise ValueError\ntry: display(Bad())\nexcept BaseException: pass\n'ok'",
    // Signals to itself, and a debugger.
    "import os, signal\ntry: os.kill(os.getpid(), signal.SIGINT)\nexcept KeyboardInterrupt: pass\n'ok'",
    "import ctypes, os\nctypes.CDLL(None).ptrace(16, os.getppid(), 0, 0)\n'ok'",
];

#[test]
fn code_that_tampers_with_its_kernel_gets_an_answer_and_others_go_on() {
    let server = Server::start();
    let code = Code::on(&server);
    code.run("x = 'unharmed'");
    for attack in HARMLESS {
        let context = code.create("python");
        let ran = code.run_with(&json!({ "code": attack, "context": context, "timeout": "20s" }));
        let (is_ok, died) = (ran["status"] == "ok", ran["status"] == "died");
        assert!(is_ok || died, "{attack}: {ran}");
        server.delete(&code.context(&context)).expect(204);
    }
    assert_eq!(main_text(&code.run("x")), "unharmed");
}

#[test]
fn floods_are_bounded() {
    let server = Server::start();
    let code = Code::on(&server);
    code.run("x = 'kept'");
    let endless = json!({ "code": "while True: print('y' * 1000)", "timeout": "1s" });
    let ran = code.run_with(&endless);
    assert_eq!(ran["status"], "timed_out", "{}", ran["error"]);
    assert!(ran["stdout"].as_str().expect("text").len() <= 1 << 20 && ran["stdout_dropped_bytes"].as_u64() > Some(0));
    let large = code.run("'x' * (100 << 20)");
    assert!(main_text(&large).len() < 2 << 20 && main_text(&large).contains("cut after"));
    assert!(large["stderr"].as_str().expect("text").contains("results are limited"));
    let many = code.run("for i in range(2000): display(i)");
    assert_eq!((&many["status"], &many["error"]["name"]), (&json!("error"), &json!("RuntimeError")));
    assert!(many["results"].as_array().expect("a list").len() <= 1000);
    let raised = code.run("raise ValueError('v' * (10 << 20))");
    assert!(raised["error"]["value"].as_str().expect("text").len() < 2 << 20, "it is cut");
    assert_eq!(main_text(&code.run("x")), "kept");
}

#[test]
fn a_sandbox_has_so_many_contexts_and_no_more() {
    let server = Server::start();
    let code = Code::on(&server);
    let contexts: Vec<String> = (0..16).map(|_| code.create("bash")).collect();
    let one_more = server.post(&format!("{}/code/contexts", code.sandbox), &json!({ "language": "bash" }));
    one_more.problem(409, "conflict");
    server.delete(&code.context(&contexts[0])).expect(204);
    code.create("bash");
}

#[test]
fn contexts_outlive_a_kill_of_the_server_and_code_that_nobody_follows_makes_way() {
    let mut server = Server::start();
    let sandbox = server.sandbox();
    let run = |server: &Server, code: &str| {
        server.post(&format!("{sandbox}/code/run"), &json!({ "code": code, "timeout": "30s" })).expect(200)
    };
    run(&server, "x = 'kept'");
    let body = json!({ "code": "print('begun', flush=True)\nwhile True: pass" }).to_string();
    let headers = ["Content-Type: application/json"];
    let mut events = server.follow("POST", &format!("{sandbox}/code/run"), &headers, body.as_bytes());
    while events.next().expect("it prints").name != "stdout" {}
    server.kill();
    server.begin();
    let ran = run(&server, "x");
    assert_eq!((main_text(&ran), &ran["status"]), ("kept", &json!("ok")), "{ran}");
}

/// The first code of a language waits for its interpreter. Whoever comes next finds a context that works.
#[test]
fn a_client_that_leaves_while_its_context_starts_spoils_it_for_nobody() {
    let server = Server::start();
    let sandbox = server.sandbox_with(&json!({ "env": { "PATH": "/home/user/bin:/usr/bin:/bin" } }));
    let slow =
        "#!/bin/sh\ntouch /tmp/begun\nwhile [ ! -e /tmp/go ]; do sleep 0.02; done\nexec /usr/bin/python3 \"$@\"\n";
    let place = "cd /home/user && mkdir -p bin && cat > bin/python3";
    let placed = server.sh(&sandbox, &format!("{place} <<'END'\n{slow}END\nchmod 755 bin/python3"));
    assert_eq!(placed["exit_code"], 0, "{placed}");
    let mut connection = server.connect();
    let body = json!({ "code": "1" }).to_string();
    let headers = ["Content-Type: application/json", &server.authorization()];
    http::send(&mut connection, "POST", &format!("{sandbox}/code/run"), &headers, body.as_bytes());
    eventually("the interpreter begins", || server.sh(&sandbox, "test -e /tmp/begun")["exit_code"] == 0);
    drop(connection);
    // The server has noticed that when it has answered somebody else.
    server.sh(&sandbox, "touch /tmp/go");
    let ran = server.post(&format!("{sandbox}/code/run"), &json!({ "code": "2 + 2" })).expect(200);
    assert_eq!((main_text(&ran), &ran["status"]), ("4", &json!("ok")), "{ran}");
}

#[test]
fn executions_of_one_context_take_turns() {
    let server = Server::start();
    let code = Code::on(&server);
    code.run("log = []");
    std::thread::scope(|scope| {
        for number in 0..4 {
            let code = &code;
            scope.spawn(move || {
                code.run(&format!("import time\nlog.append({number}); time.sleep(0.05); log.append({number})"))
            });
        }
    });
    let log = code.run("log");
    let numbers: Vec<u32> = serde_json::from_str(main_text(&log)).expect("a list");
    assert!(numbers.len() == 8 && numbers.chunks(2).all(|pair| pair[0] == pair[1]), "{numbers:?}");
    eventually("nothing waits", || code.run("1")["status"] == "ok");
}

/// A project's sandbox, as E2B's clients see it: the headers of its code interpreter.
fn of_e2b(server: &Server, authorization: &str) -> (String, [String; 4]) {
    let key = authorization.replace("Authorization: Bearer ", "X-API-Key: ");
    let json = "Content-Type: application/json";
    let made =
        server.request_without_key("POST", "/v2/sandboxes", &[&key, json], br#"{"templateID":"base","timeout":300}"#);
    let made = made.expect(201);
    let [id, token] = ["sandboxID", "envdAccessToken"].map(|name| made[name].as_str().expect("text").to_owned());
    let sandbox = format!("E2b-Sandbox-Id: {id}");
    (id, [json.into(), sandbox, "E2b-Sandbox-Port: 49999".into(), format!("X-Access-Token: {token}")])
}

/// Begins a request whose body has yet to come: a connection, once the server reads the body, or its refusal.
fn begin(server: &Server, path: &str, headers: &[&str], length: Option<usize>) -> Result<BufReader<TcpStream>, Answer> {
    let length = length.map_or("Transfer-Encoding: chunked".to_owned(), |length| format!("Content-Length: {length}"));
    let mut connection = server.connect();
    let headers: Vec<&str> = headers.iter().copied().chain([length.as_str(), "Expect: 100-continue"]).collect();
    http::send(&mut connection, "POST", path, &headers, b"");
    let mut reader = BufReader::new(connection);
    if !reader.fill_buf().expect("an answer").starts_with(b"HTTP/1.1 100") {
        return Err(http::read_answer(&mut reader));
    }
    http::read_head(&mut reader);
    Ok(reader)
}

/// Each request may be large, and a client may have many under way. A project has so much of the server's memory and no more.
#[test]
fn many_large_executions_of_a_project_are_refused_and_those_of_another_run() {
    const MIB: usize = 1 << 20;
    let mut server = Server::start();
    let theirs = http::other_project(&mut server);
    let own = server.authorization();
    let (id, headers) = of_e2b(&server, &own);
    let headers = headers.each_ref().map(String::as_str);
    let native = format!("/api/v1/sandboxes/sbx_{id}/code/run");
    let bearer = ["Content-Type: application/json", own.as_str()];
    // One piece of code runs, so others wait for their turn.
    let endless = json!({ "code": "print('begun', flush=True)\nwhile True: pass" }).to_string();
    let mut running = server.follow("POST", &native, &bearer[..1], endless.as_bytes());
    while running.next().expect("it prints").name != "stdout" {}

    // 13 requests of the largest size arrive: 117 of 128 MiB.
    let arriving = || begin(&server, "/execute", &headers, Some(9 * MIB));
    let mut held: Vec<_> = (0..13).map(|_| arriving().expect("there is room")).collect();
    let refused = |length: usize| {
        let answer = begin(&server, "/execute", &headers, Some(length)).expect_err("there is no room");
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert!(answer.text().contains("may have 128 MiB together"), "{}", answer.text());
    };
    // One that doesn't say its length counts as the largest until it has arrived; then its code counts.
    let mut waiting = begin(&server, "/execute", &headers, None).expect("there is room");
    refused(5 * MIB);
    let code = json!({ "code": format!("print('waited') #{}", "x".repeat(4 * MIB - 1000)) }).to_string();
    write!(waiting.get_mut(), "{:x}\r\n{code}\r\n0\r\n\r\n", code.len()).expect("it is read");
    eventually("the code waits for its turn", || begin(&server, "/execute", &headers, Some(5 * MIB)).is_ok());
    // That one left. The code and these take everything.
    eventually("7 MiB are free", || {
        let begun = begin(&server, "/execute", &headers, Some(7 * MIB));
        begun.map(|connection| held.push(connection)).is_ok()
    });
    refused(MIB);
    // The native API counts the same.
    let answer = begin(&server, &native, &bearer, Some(MIB)).expect_err("there is no room");
    assert_eq!(answer.header("retry-after"), Some("1"), "{answer:?}");
    answer.problem(429, "capacity");

    // Another project has its own.
    let (other, headers) = of_e2b(&server, &theirs);
    let headers = headers.each_ref().map(String::as_str);
    let ran = server.request_without_key("POST", "/execute", &headers, br#"{"code":"6 * 7"}"#);
    assert!(ran.status == 200 && ran.text().contains("42"), "{}", ran.text());
    server.request_without_key("DELETE", &format!("/api/v1/sandboxes/sbx_{other}"), &[&theirs], b"").expect(200);

    // What waited runs, and the room is given back.
    drop(running);
    let ran = http::read_answer(&mut waiting);
    assert!(ran.status == 200 && ran.text().contains("waited"), "{}", ran.text());
    drop(held);
    eventually("all room is free", || (0..14).map(|_| arriving()).collect::<Result<Vec<_>, _>>().is_ok());
}

#[test]
fn a_warm_python_gives_each_context_its_imports_and_fresh_randomness() {
    let server = Server::start_with(&["--warm-imports", "decimal,fractions"]);
    let code = Code::on(&server);
    // The warm process is an exec, and listens when it has done its imports.
    eventually("the warm process listens", || {
        server.sh(&code.sandbox, "test -S /tmp/.saggar-code-*/python.sock")["exit_code"] == 0
    });
    let look = "import os, random, sys\n('fractions' in sys.modules, os.getppid(), os.environ.get('MINE'), os.getcwd(), random.random())";
    let seen: Vec<Value> = (0..3)
        .map(|number| {
            let wanted = json!({ "cwd": "/tmp", "env": { "MINE": number.to_string() } });
            let made = server.post(&format!("{}/code/contexts", code.sandbox), &wanted).expect(201);
            let told = code.run_in(made["id"].as_str().expect("an id"), &format!("{look}.__repr__()"));
            let list = main_text(&told).replace('(', "[").replace(')', "]").replace('\'', "\"").replace("True", "true");
            serde_json::from_str(&list).unwrap_or_else(|error| panic!("{error}: {list}"))
        })
        .collect();
    for (number, context) in seen.iter().enumerate() {
        assert_eq!((&context[0], &context[2], &context[3]), (&json!(true), &json!(number.to_string()), &json!("/tmp")));
        assert_eq!(context[1], seen[0][1], "they are forks of one process");
    }
    assert!(seen[0][4] != seen[1][4] && seen[1][4] != seen[2][4], "{seen:?}");
    // It is interrupted, dies and is removed like any other.
    code.run("x = 'kept'");
    let late = code.run_with(&json!({ "code": "while True: pass", "timeout": "300ms" }));
    assert_eq!(late["status"], "timed_out");
    assert_eq!(main_text(&code.run("x")), "kept");
    assert!(
        code.run("import os; os._exit(3)")["error"]["value"].as_str().expect("text").contains("exited with code 3")
    );
    let id = code.create("python");
    let pid = main_text(&code.run_in(&id, "import os; os.getpid()")).to_owned();
    server.delete(&code.context(&id)).expect(204);
    eventually("the fork is gone", || server.sh(&code.sandbox, &format!("test -e /proc/{pid}"))["exit_code"] == 1);
    // Without the warm process contexts start as usual.
    server.sh(&code.sandbox, "pkill -9 -f python3; true");
    assert_eq!(main_text(&code.run("6 * 7")), "42");
}
