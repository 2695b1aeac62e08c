#!/usr/bin/env bash
# A self-checking tour of the sandbox, the server and durable runs: each step prints its command, runs it, and compares the result with
# the expected one. Exits with a non-zero status if any step differs. It starts its own server, on a free port with a temporary data
# directory. One agent has a script instead of a model, and another one the model of a stand-in, so neither an account nor a network is needed.
#
# usage: demo.sh [PATH_OF_SAGGAR]
set -uo pipefail

SAGGAR=$(command -v "${1:-saggar}") || {
    echo "error: no saggar at \"${1:-saggar}\"" >&2
    echo "  help: build it with: make build" >&2
    exit 1
}
# The steps read as typed commands.
PATH="$(cd "$(dirname "$SAGGAR")" && pwd):$PATH"

workspace=$(mktemp -d) || exit 1
data=$(mktemp -d) || exit 1
image=$(mktemp -d) || exit 1
listener=
# shellcheck source=scripts/demo/steps.sh
source "$(dirname "${BASH_SOURCE[0]}")/demo/steps.sh"

cleanup() {
    [[ -z $listener ]] || kill "$listener" 2>/dev/null
    end_server
    rm -rf -- "$workspace" "$data" "$image"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

tell "What can this host enforce? The doctor checks it before anything runs."
try 0 saggar doctor

tell "Run a plain command in its own sandbox."
try 0 saggar run -- echo 'hello from inside'
check "its output came through" said 'hello from inside'

tell "The host's secrets are not readable in a sandbox, not even by root."
try fails saggar run -- cat /etc/shadow
check "no password entry came out" said_not '^root:'

tell "A sandbox has no network unless it is requested. A server listens on this host's loopback:"
# The listener is the control: the same command reaches it with the host's network, so it is the sandbox that refuses.
coproc LISTENER {
    exec python3 -u -c '
import signal, socket
s = socket.create_server(("127.0.0.1", 0))
print(s.getsockname()[1])
signal.pause()'
}
listener=$LISTENER_PID
read -r port <&"${LISTENER[0]}"
connect="exec 3<>/dev/tcp/127.0.0.1/$port && echo connected"
try 0 saggar run --net host -- bash -c "$connect"
check "with --net host the server is reached" said '^connected'
try fails saggar run --net none -- bash -c "$connect"
check "with --net none it is not reached" said_not '^connected'

# A small internet of our own, in a network namespace: the demo needs no other, and so shows both sides. Only root can make one.
world=(unshare --net --mount python3 "$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/tests/network/world.py" "$data/seen")
if [[ $EUID -eq 0 ]]; then
    tell "A managed network lets pass what rules allow. Whatever else a program tries is refused, with the rule and the remedy."
    try 0 "${world[@]}" saggar run --net proxied --allow 'GET good.test/hello' -- curl -sS https://good.test/hello
    check "the allowed host answers" said '"path": "/hello"'
    try 0 "${world[@]}" saggar run --net proxied --allow 'GET good.test/hello' -- curl -sS https://evil.test/hello
    check "the other one is denied by name" said 'denied: no rule allows evil\.test:443'
    check "the refusal names its rule" said '^rule: egress/default'
    check "and what to do" said '^help: allow it with .--allow evil\.test'
    check "the denied host saw nothing" test "$(grep -c '203.0.113.11' "$data/seen")" -eq 0

    tell "A program can use a key that the sandbox never has. It holds a placeholder; the real key is put into the request outside."
    (umask 077 && printf '[demo]\nvalue = "the-real-key-of-the-demo"\nrules = ["good.test"]\nslot = "bearer"\n' >"$data/secrets.toml")
    # shellcheck disable=SC2016 # the sandbox's shell expands it.
    use='echo "the sandbox has $KEY"; curl -sS -H "Authorization: Bearer $KEY" https://good.test/with-key'
    try 0 "${world[@]}" saggar run --net proxied --allow good.test --secrets "$data/secrets.toml" --secret KEY=demo -- sh -c "$use"
    check "the sandbox has a placeholder" said '^the sandbox has saggar-[0-9a-f]{32}$'
    check "the key was not shown to it, not even by the server" said_not 'the-real-key'
    check "the server got the key" grep -q '"authorization": "Bearer the-real-key-of-the-demo"' "$data/seen"

    # A package index: one wheel, which is an archive that Python can import from.
    wheel=$data/index/simple/centuries/centuries-1.0-py3-none-any.whl
    mkdir -p "${wheel%/*}"
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "w").writestr("centuries.py", sys.argv[2])' "$wheel" \
        $'def around(year):\n    return range(year - 4, year + 5, 4)\n'
    SAGGAR_WORLD_FILES=$data/index "${world[@]}" "$(dirname "${BASH_SOURCE[0]}")/demo/story.sh" "$((steps + 1))" "$data/story" "$data/seen"
    status=$?
    if ((status <= 100)); then steps=$((steps + 4)) failures=$((failures + status)); else bad "the story was not told to its end"; fi
else
    tell "Not shown: the managed network, secrets, and an agent on a provider's wire. The demo makes a small internet of its own for them, and only root can. They need no root themselves."
fi

tell "An agent may edit its workspace, but not files that the host would later execute."
git -C "$workspace" init --quiet && mkdir -p "$workspace/.git/hooks"
echo 'written by a person' >"$workspace/notes.txt"
try 0 saggar run --workspace "$workspace" --fs workspace-write -- sh -c 'echo "written by the agent" >> notes.txt'
check "the edit is on the host" grep -q 'written by the agent' "$workspace/notes.txt"
hook='echo "echo surprise" > .git/hooks/pre-commit'
try fails saggar run --workspace "$workspace" --fs workspace-write -- sh -c "$hook"
check "there is no git hook" is_absent "$workspace/.git/hooks/pre-commit"

tell "A fork bomb hits the process limit. This one stops at 200, in case the limit does not hold."
# The odd number of seconds identifies the sleeping processes.
bomb="n=0; while [ \$n -lt 200 ]; do sleep 30.$$ & n=\$((n+1)); done; echo \"started all \$n\""
try fails saggar run --pids 32 --timeout 20s -- sh -c "$bomb"
check "it ran out of processes" said 'fork|resource temporarily unavailable'
check "it did not start them all" said_not 'started all'
check "no process of it is left" runs_nowhere "[3]0\.$$"

tell "Time is limited too."
SECONDS=0
try 124 saggar run --timeout 2s -- sleep 60
check "it was stopped long before a minute" took_less_than 20

tell "Results are available as JSON."
echo "   \$ saggar run --json -- echo hello | python3 -m json.tool"
output=$(saggar run --json -- echo hello </dev/null | python3 -m json.tool 2>&1)
status=$?
sed "s/^/   ${dim}| /; s/\$/${plain}/" <<<"$output"
check "the result is JSON, and the exit status is 0" test "$status" -eq 0

if command -v dpkg-deb >/dev/null && [[ -x /bin/busybox ]]; then
    tell "A template is built from a Dockerfile. Each RUN is a sandbox of its own; one of these installs a package."
    mkdir -p "$image/greet/DEBIAN" "$image/greet/usr/bin"
    printf '%s\n' "Package: greet" "Version: 1.0" "Architecture: all" "Maintainer: demo <demo@example.com>" "Description: says hello" >"$image/greet/DEBIAN/control"
    printf '#!/bin/sh\necho "hello from a package"\n' >"$image/greet/usr/bin/greet"
    chmod 755 "$image/greet/usr/bin/greet"
    dpkg-deb --build --root-owner-group "$image/greet" "$image/greet.deb" >/dev/null
    cp /bin/busybox "$image"
    cat >"$image/Dockerfile" <<'DOCKERFILE'
FROM scratch
COPY busybox /bin/
RUN ["/bin/busybox", "--install", "-s", "/bin"]
COPY greet.deb /tmp/
RUN mkdir -p /var/lib/dpkg/info && touch /var/lib/dpkg/status && dpkg -i /tmp/greet.deb
CMD ["greet"]
DOCKERFILE
    try 0 saggar template build "$image" --name greeter --data-dir "$data"
    try 0 saggar run --template greeter --data-dir "$data"
    check "the package is there" said "hello from a package"
    try 0 saggar template build "$image" --name greeter --data-dir "$data"
    check "the second build takes its steps from the cache" said "4 of 5 steps cached"
else
    tell "Not shown: a template built from a Dockerfile. The demo makes it from busybox-static and dpkg-deb."
fi

tell "A server provides sandboxes over HTTP. The first start needs no configuration and prints a key."
serve 0
SAGGAR_API_KEY=$(grep -o 'sgr_[A-Za-z0-9_-]*' "$data/printed" | head -n1)
export SAGGAR_API_KEY SAGGAR_URL="http://127.0.0.1:$port"
check "it is healthy" curl -sf -o /dev/null "$SAGGAR_URL/health"
try 0 saggar sandbox create --label purpose=demo
id=$output
check "that is its id" said '^sbx_[a-z2-7]{26}$'
try 0 saggar sandbox list --label purpose=demo
check "it runs" said "^$id  running"

tell "Programs run in it one after another, and share its files."
try 0 saggar sandbox exec "$id" -- sh -c 'echo "written inside" > note.txt; id -un'
check "the program is not root" said '^user$'
try 0 saggar sandbox cp "$id:note.txt" "$workspace/out.txt"
check "the file came out" grep -q 'written inside' "$workspace/out.txt"
try 0 saggar sandbox cp "$workspace/notes.txt" "$id:notes.txt"
try 0 saggar sandbox exec "$id" -- cat notes.txt
check "a file went in" said 'written by the agent'

tell "A port inside is reachable through the server, with credentials."
try 0 saggar sandbox exec "$id" --background -- python3 -m http.server 8000 --bind 127.0.0.1
site=$SAGGAR_URL/api/v1/sandboxes/$id/ports/8000/note.txt
show curl "$site" -H 'Authorization: Bearer …'
fetch() { output=$(curl -s --retry 20 --retry-delay 1 --retry-all-errors --fail "$site" -H "Authorization: Bearer $SAGGAR_API_KEY"); }
check "with the key the page is served" fetch
check "it is the file" said '^written inside$'
try 0 curl -s -o /dev/null -w '%{http_code}' "$site"
check "without a key it is refused" said '^401$'

tell "A paused sandbox is frozen and uses no CPU; resumed, it continues."
try 0 saggar sandbox pause "$id"
try 126 saggar sandbox exec "$id" -- true
check "nothing runs in it" said 'sandbox_paused'
try 0 saggar sandbox resume "$id"
check "the page is served again" fetch

tell "Killing the server ends no sandbox. The next server adopts them all, and a client that follows a program misses nothing."
# shellcheck disable=SC2016 # the sandbox's shell expands it.
lines='for i in 1 2 3 4 5 6 7 8; do echo "line $i"; sleep 0.5; done'
show saggar sandbox exec "$id" -- sh -c "$lines" '&'
timeout "$patience" saggar sandbox exec "$id" -- sh -c "$lines" >"$data/lines" 2>&1 &
following=$!
check "the program has started" kept "$data/lines" 'line 2'
kill_server
serve "$port"
try 0 saggar sandbox list --label purpose=demo
check "the sandbox runs" said "^$id  running"
check "the program continued, and ended successfully" wait "$following"
output=$(cat "$data/lines")
check "each line came once" test "$output" = "$(printf 'line %d\n' 1 2 3 4 5 6 7 8)"

tell "A snapshot keeps the files of a sandbox while its programs go on. After a destructive command, it goes back in place; and it is forked eight times."
try 0 saggar snapshot create "$id"
snapshot=$output
check "that is its id" said '^snap_[a-z2-7]{26}$'
try 0 saggar sandbox exec "$id" -- sh -c 'rm -rf ~/*; ls ~ | wc -l'
check "everything is gone" said '^0$'
try 0 saggar snapshot rollback "$id" "$snapshot"
try 0 saggar sandbox exec "$id" -- cat note.txt
check "the same sandbox has its files again" said '^written inside$'
try 0 saggar snapshot fork "$id" --count 8
forks=$output
check "there are eight" test "$(grep -c '^sbx_' <<<"$forks")" = 8
try 0 saggar sandbox exec "$(tail -n1 <<<"$forks")" -- cat note.txt
check "each has the files" said '^written inside$'
# shellcheck disable=SC2086 # the words are the ids.
try 0 saggar sandbox kill $forks

tell "Ending a sandbox kills everything in it, and its end stays on record."
try 0 saggar sandbox kill "$id"
try 0 saggar sandbox show "$id"
check "the reason is recorded" said '^ended .*killed'

tell "An agent fixes a small program and tests it. Every step is in its journal before it is executed."
agent=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/demo/mender.toml
try 0 saggar runs start "$agent"
run=$output
check "that is its id" said '^run_[a-z2-7]{26}$'
timeout "$patience" saggar runs follow "$run" >"$data/followed" 2>&1 &
following=$!
sandbox_of() { saggar runs show "$run" | sed -n 's/^  sandbox  //p'; }
test_has_begun() { saggar sandbox exec "$(sandbox_of)" -- cat runs.log 2>/dev/null | grep -q 'the test began'; }
check "it is in the middle of its test" soon test_has_begun
try 0 saggar runs show "$run"
check "it runs" said '^  state +running'

tell "The server is killed in the middle of the test. The next one resumes the run where it was."
kill_server
serve "$port"
check "the client followed the run to its end" wait "$following"
output=$(cut -c1-120 "$data/followed")
sed "s/^/   ${dim}| /; s/\$/${plain}/" <<<"$output"
check "another worker took over" test "$(grep -c ' claimed' <<<"$output")" -eq 2
check "it asked whether the test had run, instead of running it again" said 'step 7 +probed'
try 0 saggar runs show "$run"
check "it is finished" said '^  state +finished'
check "the test was run once" said 'its test was run once'

tell "The run can be replayed from its journal without executing anything, here and in a test."
try 0 saggar runs replay "$run"
check "all of it agrees" said "^([0-9]+) of \\1 entries agree"
echo "   \$ saggar runs export $run > fixture.json"
saggar runs export "$run" >"$data/fixture.json"
try 0 saggar test "$data/fixture.json"

tell "The run is forked after its fourth step with a message, and the fork continues on its own, in its own sandbox."
try 0 saggar runs fork "$run" --at 4 --with 'Take care of the year 2000.'
fork=$output
ended_run saggar runs follow "$fork"
check "it has its parent's history" said 'step 3 +settled'
check "the test was run for it too" said 'step 7 +settled .*"exit_code":0'
output=$(timeout "$patience" saggar runs follow "$fork" --json)
check "it received the message" said 'Take care of the year 2000\.'
try 0 saggar runs show "$fork"
check "it names its parent" said "^  fork of +$run"
try 0 saggar runs list
check "both are over" test "$(grep -c '  finished  .*completed' <<<"$output")" -eq 2

tell "An agent whose files are kept. They are destroyed while it waits for an answer; the run goes back in place, with its files, and a fork begins with those of an earlier step."
keeper=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/demo/keeper.toml
try 0 saggar runs start "$keeper"
kept=$output
asks() { saggar runs show "$kept" | grep -q '^  asks'; }
check "it asks" soon asks
try 0 saggar sandbox exec "$(saggar runs show "$kept" | sed -n 's/^  sandbox  //p')" --shell 'rm report.txt'
try 0 saggar runs rollback "$kept" --at 5
check "it goes back with its files" said 'goes back to step 5, with the files of step 5'
went_back() { saggar runs show "$kept" | grep -q '^  files .*with the files of step 5' && asks; }
check "it asks again" soon went_back
try 0 saggar runs answer "$kept" --question "$(saggar runs show "$kept" | sed -n 's/.*--question \([0-9]*\) TEXT.*/\1/p')" 'Go on.'
ended_run saggar runs follow "$kept"
check "the report is there again, once as a draft and once as it was changed" said 'settled .*draft.*changed'
try 0 saggar runs fork "$kept" --at 3
early=$output
try 0 saggar runs diff "$kept@3" "$kept@5" --patch
check "the change between two steps" said '^\+changed'

show kill "$server"
kill "$server"
check "the server stops on SIGTERM" wait "$server"
server=

echo
if ((failures > 0)); then
    printf '%s%d checks failed.%s\n' "$red" "$failures" "$plain"
    exit 1
fi
printf '%sAll checks passed.%s\n' "$green" "$plain"
