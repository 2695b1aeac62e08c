#!/usr/bin/env bash
# Runs E2B's unmodified clients against a real server: run.sh SAGGAR [new|old|node|bench]…; default: the first three.
#
# Each client has its own environment below the build directory, created once from pinned versions. A missing tool is a failure, never
# a reason to skip.
set -euo pipefail
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$HERE/../..
readonly PLACE=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}/e2b")
source "$ROOT/scripts/environments.sh"
# The oldest Node that the client supports.
readonly NODE_NEEDED=20.18.0
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
    # The code interpreter has a client of its own, which is not for the older one.
    local more=(--ignore test_network.py)
    [[ $1 == 2.63 ]] || more+=(--ignore test_code.py)
    [[ -n ${WHOLE_SUITE:-} ]] || more+=(-m "not whole")
    (cd "$HERE" && timeout "$PATIENCE" "$PLACE/$1/bin/python" -m pytest -q -p no:cacheprovider --timeout 120 "${more[@]}" .)
    echo "==> e2b $1 (Python), in a small internet"
    (cd "$HERE" && WORLD_LOG=$PLACE/seen-$1.log timeout "$PATIENCE" unshare --net --mount python3 "$ROOT/tests/network/world.py" "$PLACE/seen-$1.log" \
        "$PLACE/$1/bin/python" -m pytest -q -p no:cacheprovider --timeout 120 test_network.py)
}

# environment VERSION
environment() {
    python_environment "$PLACE/$1" "$HERE/requirements-$1.txt" "e2b $1"
}

node_client() {
    environment 2.63
    node_on_path "$PLACE/node-wheel" "$NODE_NEEDED"
    local place=$PLACE/node
    node_packages "$place" "$HERE" "e2b for Node"
    # The directory of its packages.
    cp "$HERE/surface.test.mjs" "$HERE/code.test.mjs" "$place/"
    local files=(surface.test.mjs)
    [[ -z ${WHOLE_SUITE:-} ]] || files+=(code.test.mjs)
    echo "==> e2b 2.51 (Node $(node --version))"
    (cd "$place" && PYTHONPATH=$HERE timeout "$PATIENCE" "$PLACE/2.63/bin/python" "$HERE/serve.py" node --test --test-concurrency=1 "${files[@]}")
}

# Executes and times commands from its standard input, for `cargo measure bench --only e2b`.
bench() {
    environment 2.63 >&2
    (cd "$HERE" && timeout "$PATIENCE" "$PLACE/2.63/bin/python" bench.py)
}

main "$@"
