# What the steps of the demo are made of. Sourced: needs $data, the data directory of its servers, and leaves the number of failed checks in
# $failures.
# shellcheck shell=bash
: "${steps:=0}" "${data:?}"
failures=0
server=
output=
# Time limit in seconds for work in the background.
patience=60

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

# show COMMAND…: print it in a form that can be typed again.
show() {
    local word line='$'
    for word in "$@"; do
        if [[ $word == "&" || $word =~ ^[A-Za-z0-9_./:=,+-]+$ ]]; then line+=" $word"; else line+=" '${word//\'/\'\\\'\'}'"; fi
    done
    printf '   %s\n' "$line"
}

# try EXPECTED COMMAND…: run it, keep its output in $output, and compare its exit status with EXPECTED: a number, or
# "fails" for a program that failed itself (1 to 123; higher ones are saggar's own).
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
    if "$@"; then good "$fact"; else bad "failed: $fact"; fi
}

said() { grep -qiE -- "$1" <<<"$output"; }
said_not() { ! said "$1"; }
is_absent() { [[ ! -e $1 && ! -L $1 ]]; }
# A pattern such as "[x]y" does not match the search's own command line.
runs_nowhere() { ! grep -qsa -- "$1" /proc/[0-9]*/cmdline; }
took_less_than() { ((SECONDS < $1)); }

# serve PORT [OPTION…]: start a server and wait until it listens. Sets $server to its pid and $port to its port.
serve() {
    local to=$1
    shift
    show saggar serve --port "$to" --data-dir "$data" "$@" '&'
    : >"$data/printed"
    saggar serve --port "$to" --data-dir "$data" --default-ttl 2m "$@" >"$data/printed" 2>"$data/log" &
    server=$!
    for _ in {1..300}; do
        if grep -q '^listening on ' "$data/printed"; then
            sed "s/sgr_[A-Za-z0-9_-]*/sgr_…/; s/^/   ${dim}| /; s/\$/${plain}/" "$data/printed"
            port=$(sed -n 's|^listening on http://127.0.0.1:||p' "$data/printed")
            return 0
        fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.05
    done
    bad "the server did not start: $(cat "$data/log")"
    exit 1
}

# soon COMMAND…: within twenty seconds the command succeeds.
soon() {
    for _ in {1..400}; do
        "$@" && return 0
        sleep 0.05
    done
    return 1
}

# kept FILE PATTERN: the output of a background program in FILE soon matches the pattern.
kept() { soon grep -q -- "$2" "$1"; }

# kill_server: send SIGKILL, without the shell's message about it.
kill_server() {
    show kill -9 "$server"
    { kill -9 "$server" && wait "$server"; } 2>/dev/null
}

# ended_run COMMAND…: run a command that follows a run to its end, with a time limit; its output is in $output.
ended_run() {
    show "$@"
    output=$(timeout "$patience" "$@" 2>&1 </dev/null)
    local status=$?
    cut -c1-120 <<<"$output" | sed "s/^/   ${dim}| /; s/\$/${plain}/"
    check "the run is completed" test "$status" -eq 0
}

# end_server: end the server, if there is one, and what outlives it. If the demo is interrupted, sandboxes expire within two minutes.
end_server() {
    [[ -n $server ]] || return 0
    local left
    left=$(saggar sandbox list --json 2>/dev/null | grep -o 'sbx_[a-z2-7]*' | sort -u)
    # shellcheck disable=SC2086 # the words are the ids.
    [[ -z $left ]] || saggar sandbox kill $left >/dev/null 2>&1
    kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
}
