#!/usr/bin/env bash
# What durable runs, the network boundary and the model gateway are measured against, in environments of their own below the build directory. Called by scripts/setup.sh bench.
set -euo pipefail
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$HERE/../..
readonly PLACE=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}/peers")
# The oldest Node on which the SDK works; an older one fails in the middle of a call.
readonly NODE_NEEDED=22.0.0
source "$ROOT/scripts/environments.sh"

node_on_path "$PLACE/node-wheel" "$NODE_NEEDED"
node_packages "$PLACE/restate" "$HERE" "Restate"
# Where the benchmark finds it, whichever it is: the program itself, which ends when it is killed, and not a script around it.
ln -sfn "$(node -p process.execPath)" "$PLACE/node"
# Where its packages are found.
cp "$HERE/restate.mjs" "$PLACE/restate/"
python_environment "$PLACE/dbos" "$HERE/requirements.txt" "DBOS"
python_environment "$PLACE/mitmproxy" "$HERE/mitmproxy.txt" "mitmproxy"
python_environment "$PLACE/litellm" "$HERE/litellm.txt" "LiteLLM"
