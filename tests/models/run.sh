#!/usr/bin/env bash
# Runs the unmodified clients of OpenAI, Anthropic and Google against a real server and a provider stand-in: run.sh SAGGAR [--smoke] [python|node|gemini]…
#
# Each language has its own environment below the build directory, created once from pinned versions. A missing tool is a failure, never
# a reason to skip.
set -euo pipefail
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$HERE/../..
readonly PLACE=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}/models")
source "$ROOT/scripts/environments.sh"
# The oldest Node that the clients support.
readonly NODE_NEEDED=20.0.0
readonly PATIENCE=600

export SAGGAR=${1:?usage: run.sh SAGGAR [--smoke] [python|node|gemini]…}
[[ -x $SAGGAR ]] || { echo "error: $SAGGAR is not a program" >&2; echo "  help: make build" >&2; exit 1; }
SAGGAR=$(realpath "$SAGGAR")
shift
export MODELS_SMOKE=
[[ ${1:-} == --smoke ]] && { export MODELS_SMOKE=1; shift; }
export PYTHONDONTWRITEBYTECODE=1
unset "${!OPENAI_@}" "${!ANTHROPIC_@}" "${!GOOGLE_@}" "${!GEMINI_@}"

main() {
    local client
    python_environment "$PLACE/python" "$HERE/requirements.txt" "openai and anthropic (Python)"
    for client in "${@:-python node gemini}"; do
        for client in $client; do
            case $client in
            python) python_client ;;
            node) node_client ;;
            gemini) gemini_client ;;
            *) fail "no such client: $client" "use python, node or gemini" ;;
            esac
        done
    done
}

python_client() {
    echo "==> openai and anthropic (Python)"
    (cd "$HERE" && timeout "$PATIENCE" "$PLACE/python/bin/python" serve.py "$PLACE/python/bin/python" test_models.py)
}

node_client() {
    node_on_path "$PLACE/node-wheel" "$NODE_NEEDED"
    local place=$PLACE/node
    node_packages "$place" "$HERE" "openai and @anthropic-ai/sdk"
    # The directory of its packages.
    cp "$HERE/models.test.mjs" "$place/"
    echo "==> openai and @anthropic-ai/sdk (Node $(node --version))"
    (cd "$place" && timeout "$PATIENCE" "$PLACE/python/bin/python" "$HERE/serve.py" node --test --test-concurrency=1 models.test.mjs)
}

# The gateway speaks Gemini's wire to providers only. Their client says whether the stand-in does.
gemini_client() {
    python_environment "$PLACE/gemini" "$HERE/gemini.txt" "google-genai"
    echo "==> google-genai (Python)"
    (cd "$HERE" && timeout "$PATIENCE" "$PLACE/gemini/bin/python" serve.py "$PLACE/gemini/bin/python" test_gemini.py)
}

main "$@"
