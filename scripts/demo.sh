#!/usr/bin/env bash
# A tour of the sandbox that checks itself: each step prints its command, runs it, and compares what came of it with what
# should have. Ends with a non-zero status if any step differs.
#
# usage: demo.sh [PATH_OF_SAGGAR]
set -uo pipefail

SAGGAR=$(command -v "${1:-saggar}") || {
    echo "error: no saggar at \"${1:-saggar}\"" >&2
    echo "  help: build it with: make build" >&2
    exit 1
}
# The steps read as a person would type them.
PATH="$(cd "$(dirname "$SAGGAR")" && pwd):$PATH"

workspace=$(mktemp -d) || exit 1
listener=
output=
failures=0
steps=0

cleanup() {
    [[ -z $listener ]] || kill "$listener" 2>/dev/null
    rm -rf -- "$workspace"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

if [[ -t 1 ]]; then
    bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
else
    bold='' green='' red='' dim='' plain=''
fi

tell() { printf '\n%s%d. %s%s\n' "$bold" "$((++steps))" "$1" "$plain"; }

good() { printf '   %sok%s    %s\n' "$green" "$plain" "$1"; }

bad() {
    printf '   %sWRONG%s %s\n' "$red" "$plain" "$1"
    failures=$((failures + 1))
}

# show COMMAND…: print it as it could be typed again.
show() {
    local word line='$'
    for word in "$@"; do
        if [[ $word =~ ^[A-Za-z0-9_./:=,+-]+$ ]]; then line+=" $word"; else line+=" '${word//\'/\'\\\'\'}'"; fi
    done
    printf '   %s\n' "$line"
}

# try EXPECTED COMMAND…: run it, leave what it said in $output, and compare its exit status with EXPECTED: a number, or
# "fails" for a program that failed by itself (1 to 123; what is above is saggar's own word about the run).
try() {
    local expected=$1 status
    shift
    show "$@"
    output=$("$@" 2>&1 </dev/null)
    status=$?
    [[ -z $output ]] || sed "s/^/   ${dim}| /; s/\$/${plain}/" <<<"$output"
    if [[ $expected == "$status" ]] || { [[ $expected == fails ]] && ((status >= 1 && status <= 123)); }; then
        good "exit status $status"
    else
        bad "exit status $status, expected $expected"
    fi
}

# check FACT COMMAND…: the fact holds if the command succeeds.
check() {
    local fact=$1
    shift
    if "$@"; then good "$fact"; else bad "not so: $fact"; fi
}

said() { grep -qiE -- "$1" <<<"$output"; }
said_not() { ! said "$1"; }
is_absent() { [[ ! -e $1 && ! -L $1 ]]; }
# A pattern such as "[x]y" does not find the search itself.
runs_nowhere() { ! grep -qsa -- "$1" /proc/[0-9]*/cmdline; }
took_less_than() { ((SECONDS < $1)); }

tell "What can this host enforce? Asked before anything runs."
try 0 saggar doctor

tell "A plain command, in a sandbox of its own."
try 0 saggar run -- echo 'hello from inside'
check "its output came through" said 'hello from inside'

tell "The host's secrets are not there to be read, not even by root."
try fails saggar run -- cat /etc/shadow
check "no password entry came out" said_not '^root:'

tell "The network is closed unless it is asked for. A server listens on this host's loopback:"
# The listener is the control: the same command reaches it with the host's network, so the refusal is the sandbox's doing.
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
check "with --net host it is reached" said '^connected'
try fails saggar run --net none -- bash -c "$connect"
check "with --net none it is not" said_not '^connected'

tell "An agent may edit its workspace, but not what the host would later run."
git -C "$workspace" init --quiet && mkdir -p "$workspace/.git/hooks"
echo 'written by a person' >"$workspace/notes.txt"
try 0 saggar run --workspace "$workspace" --fs workspace-write -- sh -c 'echo "written by the agent" >> notes.txt'
check "the edit is on the host" grep -q 'written by the agent' "$workspace/notes.txt"
hook='echo "echo surprise" > .git/hooks/pre-commit'
try fails saggar run --workspace "$workspace" --fs workspace-write -- sh -c "$hook"
check "there is no git hook" is_absent "$workspace/.git/hooks/pre-commit"

tell "A fork bomb burns out. This one has a fuse of 200, in case the limit does not hold."
# The odd number of seconds is a mark to find the sleepers by.
bomb="n=0; while [ \$n -lt 200 ]; do sleep 30.$$ & n=\$((n+1)); done; echo \"started all \$n\""
try fails saggar run --pids 32 --timeout 20s -- sh -c "$bomb"
check "it ran out of processes" said 'fork|resource temporarily unavailable'
check "it did not start them all" said_not 'started all'
check "none of those it did start is left" runs_nowhere "[3]0\.$$"

tell "Time is a limit too."
SECONDS=0
try 124 saggar run --timeout 2s -- sleep 60
check "it took nothing like a minute" took_less_than 20

tell "The same, for programs."
echo "   \$ saggar run --json -- echo hello | python3 -m json.tool"
output=$(saggar run --json -- echo hello </dev/null | python3 -m json.tool 2>&1)
status=$?
sed "s/^/   ${dim}| /; s/\$/${plain}/" <<<"$output"
check "the result is JSON, and the exit status 0" test "$status" -eq 0

echo
if ((failures > 0)); then
    printf '%s%d of the checks came out wrong.%s\n' "$red" "$failures" "$plain"
    exit 1
fi
printf '%sEverything held.%s\n' "$green" "$plain"
