//! Request examples of the API reference. Their order is the order of the reference, so that each can use what came before it; a test of
//! the documentation runs them all.

/// An example of one operation.
pub(super) struct Example {
    /// Its name in the OpenAPI document.
    pub(super) operation: &'static str,
    /// A marker for the test of the documentation.
    pub(super) mark: Option<&'static str>,
    /// Commands; each is preceded by `$ ` if its output is shown. Empty if a command line can't show the operation.
    pub(super) text: &'static str,
}

/// The common beginning of the examples.
pub(super) const PREPARATION: &str = r#"## Examples

The examples use `curl` and these variables. Start a server, and give its key to the shell:

```console
$ mkdir site && echo one > site/page
$ saggar serve --volumes-bytes-max 1G --workspaces site=$PWD/site
API key (shown this once): sgr_nOn3AYEhZRz4CzVJhQpGdX4kTZoxm8ORX_BzsU1yHLw
...
$ export SAGGAR_API_KEY=sgr_nOn3AYEhZRz4CzVJhQpGdX4kTZoxm8ORX_BzsU1yHLw
```

```sh
api=http://127.0.0.1:7420/api/v1
auth="Authorization: Bearer $SAGGAR_API_KEY"
pick() { python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])' "$1"; }   # one field of an answer
```
"#;

const fn run(operation: &'static str, text: &'static str) -> Example {
    Example { operation, mark: None, text }
}

const fn marked(operation: &'static str, mark: &'static str, text: &'static str) -> Example {
    Example { operation, mark: Some(mark), text }
}

const REPEATED: &str = "repeat until shown";

pub(super) const EXAMPLES: &[Example] = &[
    run("health", r#"curl -sf http://127.0.0.1:7420/health"#),
    run("capabilities", r#"curl -sf -H "$auth" $api/capabilities"#),
    run(
        "createSandbox",
        r#"sandbox=$(curl -sf -H "$auth" --json '{"ttl": "1h", "limits": {"memory": "512M"}, "labels": {"team": "red"}}' $api/sandboxes | pick id)
other=$(curl -sf -H "$auth" -H 'Idempotency-Key: order-17' -X POST $api/sandboxes | pick id)"#,
    ),
    run("listSandboxes", r#"curl -sf -H "$auth" "$api/sandboxes?state=running&label=team%3Dred&limit=10""#),
    run(
        "getSandbox",
        r#"$ curl -sf -H "$auth" $api/sandboxes/$sandbox | pick state
running"#,
    ),
    run(
        "updateSandbox",
        r#"curl -sf -H "$auth" -X PATCH --json '{"labels": {"team": "blue"}, "idle_timeout": "10m"}' $api/sandboxes/$sandbox"#,
    ),
    run("setTimeout", r#"curl -sf -H "$auth" --json '{"ttl": "30m"}' $api/sandboxes/$sandbox/timeout"#),
    run("pauseSandbox", r#"curl -sf -H "$auth" -X POST $api/sandboxes/$sandbox/pause"#),
    run("resumeSandbox", r#"curl -sf -H "$auth" --json '{"ttl": "1h"}' $api/sandboxes/$sandbox/resume"#),
    run(
        "setEgress",
        r#"$ proxied=$(curl -sf -H "$auth" --json '{"network": "proxied"}' $api/sandboxes | pick id)
$ curl -sf -H "$auth" -X PUT --json '{"allow": ["@pypi", "api.example.com"]}' $api/sandboxes/$proxied/egress | pick network
proxied"#,
    ),
    run("getNetwork", r#"curl -sf -H "$auth" $api/sandboxes/$proxied/network"#),
    run("readEvents", r#"curl -sf -H "$auth" "$api/sandboxes/$sandbox/events?limit=20""#),
    run("readLogs", r#"curl -sf -H "$auth" $api/sandboxes/$sandbox/logs"#),
    run(
        "takeSnapshot",
        r#"snapshot=$(curl -sf -H "$auth" --json '{"labels": {"step": "1"}}' $api/sandboxes/$sandbox/snapshots | pick id)
later=$(curl -sf -H "$auth" --json '{}' $api/sandboxes/$sandbox/snapshots | pick id)"#,
    ),
    run("listSnapshots", r#"curl -sf -H "$auth" "$api/snapshots?sandbox=$sandbox&label=step%3D1""#),
    run(
        "getSnapshot",
        r#"$ curl -sf -H "$auth" $api/snapshots/$later | pick has_processes
False"#,
    ),
    run(
        "diffSnapshots",
        r#"$ curl -sf -H "$auth" "$api/snapshots/$later/diff?from=$snapshot" | pick items
[]"#,
    ),
    run(
        "forkSandbox",
        r#"$ curl -sf -H "$auth" --json '{"count": 2, "ttl": "1m"}' $api/sandboxes/$sandbox/fork | pick has_processes
False"#,
    ),
    run(
        "rollBackSandbox",
        r#"$ curl -sf -H "$auth" --json "{\"snapshot\": \"$snapshot\"}" $api/sandboxes/$sandbox/rollback | pick state
running"#,
    ),
    run("exportSnapshot", r#"curl -sf -H "$auth" -o snapshot.tar $api/snapshots/$snapshot/archive"#),
    run(
        "importSnapshot",
        r#"$ curl -sf -H "$auth" -H 'Content-Type: application/x-tar' --data-binary @snapshot.tar "$api/snapshots/import?label=from%3Delsewhere" | pick labels
{'from': 'elsewhere'}"#,
    ),
    run("removeSnapshot", r#"curl -sf -H "$auth" -X DELETE $api/snapshots/$later"#),
    run("getMetrics", r#"curl -sf -H "$auth" $api/sandboxes/$sandbox/metrics"#),
    run(
        "endSandbox",
        r#"$ curl -sf -H "$auth" -X DELETE $api/sandboxes/$other | pick state
ended"#,
    ),
    run(
        "startExec",
        r#"$ curl -sf -H "$auth" --json '{"command": "echo $GREETING", "env": {"GREETING": "hello"}, "timeout": "10s"}' $api/sandboxes/$sandbox/execs | pick stdout
hello

$ exec=$(curl -sf -H "$auth" --json '{"command": ["sh"], "tty": {"cols": 80, "rows": 24}, "stdin": true, "wait": false}' $api/sandboxes/$sandbox/execs | pick id)"#,
    ),
    run("listExecs", r#"curl -sf -H "$auth" $api/sandboxes/$sandbox/execs"#),
    run("getExec", r#"curl -sf -H "$auth" $api/sandboxes/$sandbox/execs/$exec"#),
    run(
        "resizeExec",
        r#"curl -sf -H "$auth" --json '{"cols": 120, "rows": 40}' $api/sandboxes/$sandbox/execs/$exec/resize"#,
    ),
    run("signalExec", r#"curl -sf -H "$auth" --json '{"signal": "CONT"}' $api/sandboxes/$sandbox/execs/$exec/signal"#),
    run(
        "writeStdin",
        r#"printf 'echo done; exit\n' | curl -sf -H "$auth" -H 'Content-Type: application/octet-stream' --data-binary @- $api/sandboxes/$sandbox/execs/$exec/stdin"#,
    ),
    run(
        "followExec",
        r#"curl -sf -H "$auth" -H 'Accept: text/event-stream' -H 'Last-Event-ID: 0-0' $api/sandboxes/$sandbox/execs/$exec/stream"#,
    ),
    run("attachExec", ""),
    run(
        "createCodeContext",
        r#"context=$(curl -sf -H "$auth" --json '{"language": "python", "cwd": "/tmp", "env": {"MODE": "demo"}}' $api/sandboxes/$sandbox/code/contexts | pick id)"#,
    ),
    run(
        "runCode",
        r#"$ curl -sf -H "$auth" --json "{\"context\": \"$context\", \"code\": \"x = 6 * 7\\nx\"}" $api/sandboxes/$sandbox/code/run | pick results
[{'main': True, 'formats': {'text/plain': '42'}}]
$ curl -sf -H "$auth" --json '{"language": "bash", "code": "echo hello", "timeout": "10s"}' $api/sandboxes/$sandbox/code/run | pick stdout
hello

$ curl -sfN -H "$auth" -H 'Accept: text/event-stream' --json '{"code": "print(1)"}' $api/sandboxes/$sandbox/code/run | grep ^event
event: started
event: stdout
event: ended"#,
    ),
    run("listCodeContexts", r#"curl -sf -H "$auth" $api/sandboxes/$sandbox/code/contexts"#),
    run(
        "getCodeContext",
        r#"$ curl -sf -H "$auth" $api/sandboxes/$sandbox/code/contexts/$context | pick cwd
/tmp"#,
    ),
    run("restartCodeContext", r#"curl -sf -H "$auth" -X POST $api/sandboxes/$sandbox/code/contexts/$context/restart"#),
    run("removeCodeContext", r#"curl -sf -H "$auth" -X DELETE $api/sandboxes/$sandbox/code/contexts/$context"#),
    run(
        "writeFile",
        r#"printf 'hello\n' | curl -sf -H "$auth" -X PUT -H 'Content-Type: application/octet-stream' --data-binary @- "$api/sandboxes/$sandbox/files?path=project/notes.txt&parents=true""#,
    ),
    run(
        "readFile",
        r#"$ curl -sf -H "$auth" "$api/sandboxes/$sandbox/files?path=project/notes.txt"
hello"#,
    ),
    run("listFiles", r#"curl -sf -H "$auth" "$api/sandboxes/$sandbox/files/list?path=project&depth=2""#),
    run("statFile", r#"curl -sf -H "$auth" "$api/sandboxes/$sandbox/files/stat?path=project/notes.txt""#),
    run(
        "makeDirectory",
        r#"curl -sf -H "$auth" --json '{"path": "project/src/lib", "parents": true}' $api/sandboxes/$sandbox/files/mkdir"#,
    ),
    run(
        "moveFile",
        r#"curl -sf -H "$auth" --json '{"from": "project/notes.txt", "to": "project/src/notes.txt"}' $api/sandboxes/$sandbox/files/move"#,
    ),
    run(
        "setMetadata",
        r#"curl -sf -H "$auth" -X PUT --json '{"metadata": {"origin": "upload"}}' "$api/sandboxes/$sandbox/files/metadata?path=project/src/notes.txt""#,
    ),
    run("getMetadata", r#"curl -sf -H "$auth" "$api/sandboxes/$sandbox/files/metadata?path=project/src/notes.txt""#),
    run(
        "signFile",
        r#"curl -sf -H "$auth" --json '{"path": "project/src/notes.txt", "expires": "5m"}' $api/sandboxes/$sandbox/files/sign"#,
    ),
    run(
        "downloadTree",
        r#"curl -sf -H "$auth" "$api/sandboxes/$sandbox/files/tree?path=project" > project.tar && tar -tf project.tar"#,
    ),
    run(
        "uploadTree",
        r#"curl -sf -H "$auth" -X PUT -H 'Content-Type: application/x-tar' --data-binary @project.tar "$api/sandboxes/$sandbox/files/tree?path=copy""#,
    ),
    marked(
        "watchFiles",
        "not run: it goes on until the sandbox has ended",
        r#"curl -sN -H "$auth" -H 'Accept: text/event-stream' "$api/sandboxes/$sandbox/files/watch?path=project&recursive=true""#,
    ),
    run("removeFile", r#"curl -sf -H "$auth" -X DELETE "$api/sandboxes/$sandbox/files?path=copy&recursive=true""#),
    run(
        "startRun",
        r#"run=$(curl -sf -H "$auth" --json '{
  "agent": {
    "name": "painter",
    "task": "Paint the shed.",
    "model": {"provider": "scripted", "script": {"turns": [
      {"calls": [{"tool": "ask_human", "arguments": {"question": "Which colour?"}}]},
      {"text": "Painted."}
    ]}},
    "tools": {"ask_human": {}},
    "budget": {"steps": 20}
  },
  "labels": {"team": "red"}
}' $api/runs | pick id)"#,
    ),
    run("listRuns", r#"curl -sf -H "$auth" "$api/runs?agent=painter&label=team%3Dred""#),
    marked(
        "getRun",
        REPEATED,
        r#"$ curl -sf -H "$auth" $api/runs/$run | pick question
{'id': 2, 'text': 'Which colour?', 'asked_at': '...'}"#,
    ),
    run("readJournal", r#"curl -sf -H "$auth" "$api/runs/$run/journal?after=2""#),
    run("pauseRun", r#"curl -sf -H "$auth" -X POST $api/runs/$run/pause"#),
    run("resumeRun", r#"curl -sf -H "$auth" -X POST $api/runs/$run/resume"#),
    run("forkRun", r#"fork=$(curl -sf -H "$auth" --json '{"at_step": 1}' $api/runs/$run/fork | pick id)"#),
    run("raiseBudget", r#"curl -sf -H "$auth" --json '{"more": {"steps": 10}}' $api/runs/$run/budget"#),
    run(
        "signalRun",
        r#"curl -sf -H "$auth" --json '{"name": "answer", "question": 2, "body": "blue"}' $api/runs/$run/signal"#,
    ),
    marked(
        "decideStep",
        "not run: it takes a crash to park a step",
        r#"curl -sf -H "$auth" --json '{"decision": "done", "result": "it was sent"}' $api/runs/$run/steps/7/decide"#,
    ),
    run("replayRun", r#"curl -sf -H "$auth" $api/runs/$run/replay"#),
    run("exportRun", r#"curl -sf -H "$auth" $api/runs/$run/export > fixture.json"#),
    marked(
        "rollBackRun",
        REPEATED,
        r#"$ curl -sf -H "$auth" --json '{"at_step": 1}' $api/runs/$fork/rollback | pick stays_done
[]"#,
    ),
    run("cancelRun", r#"curl -sf -H "$auth" -X POST $api/runs/$fork/cancel"#),
    marked(
        "removeRun",
        REPEATED,
        r#"$ curl -s -o /dev/null -w '%{http_code}\n' -H "$auth" -X DELETE $api/runs/$fork
204"#,
    ),
    run("createKey", r#"key=$(curl -sf -H "$auth" --json '{"name": "ci", "expires": "30d"}' $api/keys | pick id)"#),
    run("listKeys", r#"curl -sf -H "$auth" $api/keys"#),
    run("revokeKey", r#"curl -sf -H "$auth" -X DELETE $api/keys/$key"#),
    run(
        "setSecret",
        r#"$ curl -sf -H "$auth" -X PUT --json '{"value": "sk-an-example-value", "binding": {"rules": ["api.openai.com"], "slot": "bearer"}}' $api/secrets/openai | pick version
1"#,
    ),
    run("listSecrets", r#"curl -sf -H "$auth" $api/secrets"#),
    run(
        "getSecret",
        r#"$ curl -sf -H "$auth" $api/secrets/openai | pick used_by
[]"#,
    ),
    run("removeSecret", r#"curl -sf -H "$auth" -X DELETE "$api/secrets/openai?force=true""#),
    run(
        "listChanges",
        r#"site=$(curl -sf -H "$auth" --json '{"workspace": "site"}' $api/sandboxes | pick id)
curl -sf -H "$auth" --json '{"command": "echo two > page; echo new > other"}' $api/sandboxes/$site/execs
curl -sf -H "$auth" -X DELETE $api/sandboxes/$site
curl -sf -H "$auth" $api/sandboxes/$site/changes"#,
    ),
    run("diffChanges", r#"curl -sf -H "$auth" "$api/sandboxes/$site/changes/diff?path=page""#),
    run("applyChanges", r#"curl -sf -H "$auth" --json '{"paths": ["page"]}' $api/sandboxes/$site/changes/apply"#),
    run("dropChanges", r#"curl -sf -H "$auth" -X POST $api/sandboxes/$site/changes/drop"#),
    run(
        "createVolume",
        r#"$ curl -sf -H "$auth" --json '{"name": "data", "size": "16M", "sharing": "shared"}' $api/volumes | pick size
16M"#,
    ),
    run("listVolumes", r#"curl -sf -H "$auth" $api/volumes"#),
    run(
        "getVolume",
        r#"$ curl -sf -H "$auth" $api/volumes/data | pick used_by
[]"#,
    ),
    run("removeVolume", r#"curl -sf -H "$auth" -X DELETE $api/volumes/data"#),
    run(
        "uploadTemplate",
        r#"umoci init --layout oci && umoci new --image oci:demo && umoci insert --rootless --image oci:demo /bin/busybox /bin/sh
tar -cf image.tar -C oci .
job=$(curl -sf -H "$auth" -H 'Content-Type: application/x-tar' --data-binary @image.tar "$api/template-jobs/upload?name=demo" | pick id)"#,
    ),
    run(
        "importTemplate",
        r#"$ curl -s -H "$auth" --json '{"source": "docker://ghcr.io/acme/tools:1"}' $api/template-jobs/import | pick detail
this server does not fetch images from ghcr.io:443"#,
    ),
    run(
        "buildTemplate",
        r#"mkdir context && printf 'FROM demo\nENV GREETING=hello\n' > context/Dockerfile && tar -cf context.tar -C context .
curl -sf -H "$auth" -H 'Content-Type: application/x-tar' --data-binary @context.tar "$api/template-jobs/build?name=greeting""#,
    ),
    marked(
        "getTemplateJob",
        REPEATED,
        r#"$ curl -sf -H "$auth" $api/template-jobs/$job | pick state
succeeded"#,
    ),
    run("readTemplateLog", r#"curl -sf -H "$auth" -H 'Accept: text/event-stream' $api/template-jobs/$job/log"#),
    run("listTemplateJobs", r#"curl -sf -H "$auth" $api/template-jobs"#),
    run(
        "cancelTemplateJob",
        r#"$ curl -sf -H "$auth" -X DELETE $api/template-jobs/$job | pick state
succeeded"#,
    ),
    run("listTemplates", r#"curl -sf -H "$auth" $api/templates"#),
    run(
        "tagTemplate",
        r#"$ curl -sf -H "$auth" -X PUT --json '{"from": "demo"}' $api/templates/demo:stable | pick name
demo:stable"#,
    ),
    run("getTemplate", r#"curl -sf -H "$auth" $api/templates/demo:stable"#),
    run(
        "removeTemplate",
        r#"$ curl -sf -H "$auth" -X DELETE $api/templates/demo:stable | pick template
named"#,
    ),
];

/// The position of an operation in the reference.
pub(super) fn position(operation: &str) -> usize {
    EXAMPLES.iter().position(|example| example.operation == operation).unwrap_or(usize::MAX)
}
