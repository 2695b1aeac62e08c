#!/usr/bin/env bash
# Runs Schemathesis against its own server: valid and invalid requests generated from the OpenAPI document. No response may be a
# 5xx, and every response must match the document. Bounded in time and examples; takes about two minutes.
# The same requests each time, unless a seed says otherwise: a check of a change must not depend on chance. SEED=random explores.
#
# usage: schemathesis.sh PATH_OF_SAGGAR [SEED|random]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly VERSION=4.32.5
readonly SECONDS_MAX=60 EXAMPLES_MAX=25
readonly CHECKS=not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,response_schema_conformance

fail() {
    echo "error: $1" >&2
    echo "  help: $2" >&2
    exit 1
}

saggar=$(command -v "${1:?usage: schemathesis.sh PATH_OF_SAGGAR [SEED]}") || fail "no saggar at \"$1\"" "build it with: make build"
seed=${2:-17714}
[[ $seed != random ]] || seed=$RANDOM
mkdir -p "${CARGO_TARGET_DIR:-target}"
venv=$(realpath "${CARGO_TARGET_DIR:-target}")/schemathesis-$VERSION

if [[ ! -x $venv/bin/st ]]; then
    echo "==> installing schemathesis $VERSION from PyPI, once"
    rm -rf -- "$venv" "$venv.new"
    python3 -c 'import ensurepip, venv' 2>/dev/null ||
        fail "python3 has no venv module, which Schemathesis needs" "install it with: scripts/setup.sh test"
    # Under a temporary name until it is complete, so that an interrupted installation isn't used.
    python3 -m venv "$venv.new"
    "$venv.new/bin/pip" install --quiet --disable-pip-version-check "schemathesis==$VERSION" ||
        fail "schemathesis $VERSION can't be installed from PyPI" "check the network, then run this again"
    # The scripts in bin/ contain the directory they were created in, so python is called directly.
    mv "$venv.new" "$venv"
    printf '#!/bin/sh\nexec "%s/bin/python3" -m schemathesis.cli "$@"\n' "$venv" >"$venv/bin/st.new"
    chmod +x "$venv/bin/st.new"
    mv "$venv/bin/st.new" "$venv/bin/st"
fi

work=$(mktemp -d)
server=
# Ends the sandboxes that the requests have created, then the server.
cleanup() {
    if [[ -n $server ]]; then
        local left
        while left=$("$saggar" sandbox list --json --limit 100 | ids_of) && [[ -n $left ]]; do
            # shellcheck disable=SC2086 # the words are the ids.
            "$saggar" sandbox kill $left >/dev/null || break
        done
        kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
    fi
    rm -rf -- "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

ids_of() { python3 -c 'import json, sys; print(" ".join(item["id"] for item in json.load(sys.stdin)["items"]))'; }

"$saggar" serve --port 0 --data-dir "$work/data" --capacity 64 --pool-max 2 --default-ttl 10m --ttl-max 20m >"$work/printed" 2>"$work/log" &
server=$!
for _ in {1..200}; do
    grep -q '^listening on ' "$work/printed" && break
    kill -0 "$server" 2>/dev/null || fail "the server did not start: $(cat "$work/log")" "see the lines above"
    sleep 0.1
done
SAGGAR_URL=$(sed -n 's/^listening on //p' "$work/printed")
SAGGAR_API_KEY=$(grep -o 'sgr_[A-Za-z0-9_-]*' "$work/printed" | head -n1)
export SAGGAR_URL SAGGAR_API_KEY

SANDBOX=$("$saggar" sandbox create --ttl 15m)
SPARE_SANDBOX=$("$saggar" sandbox create --ttl 15m)
EXEC=$("$saggar" sandbox exec "$SANDBOX" --background -- echo finished)
"$saggar" key create spare >/dev/null
read -r SPARE_KEY FIRST_KEY < <("$saggar" key list --json | ids_of)
SCHEMATHESIS_DIRECTORY=$PWD/scripts/schemathesis
export SANDBOX SPARE_SANDBOX EXEC SPARE_KEY FIRST_KEY SCHEMATHESIS_DIRECTORY

status=0
for ids in any real; do
    echo "==> schemathesis, $ids ids (seed $seed)"
    # In a temporary directory, because it leaves files in the current one.
    (cd "$work" && exec "$venv/bin/st" --config-file "$SCHEMATHESIS_DIRECTORY/$ids.toml" run "$SAGGAR_URL/api/v1/openapi.json" \
        --checks "$CHECKS" --max-examples "$EXAMPLES_MAX" --max-time "$SECONDS_MAX" --request-timeout 30 --seed "$seed" \
        --suppress-health-check all --continue-on-failure --warnings off --no-color) >"$work/$ids" 2>&1 || status=$?
    if ((status != 0)); then
        cat "$work/$ids"
        break
    fi
    sed -n '/^Test cases:/,/passed/{/passed/p}' "$work/$ids"
    # Without them most requests would have been rejected early.
    "$saggar" key list >/dev/null || fail "the key no longer works" "find the request that revoked it, and exclude it in hooks.py"
    "$saggar" sandbox exec "$SANDBOX" -- true || fail "the sandbox is gone" "find the request that ended it, and exclude it in hooks.py"
done
kill -0 "$server" 2>/dev/null || fail "the server is gone" "$(tail -n 5 "$work/log")"
if grep -E ' ERROR |panicked' "$work/log"; then
    fail "the server logged errors" "see the lines above"
fi
((status == 0)) || fail "Schemathesis found failures" "repeat it with: scripts/schemathesis.sh $saggar $seed"
