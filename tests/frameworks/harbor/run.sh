#!/usr/bin/env bash
# Harbor's oracle agent against a real server: run.sh SAGGAR. The packages are those of PyPI, pinned, in an environment below the build directory.
set -euo pipefail
readonly NAME=harbor
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$HERE/../../..
readonly PLACE=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}/frameworks")
source "$ROOT/scripts/environments.sh"
source "$HERE/../recent_python.sh"

export SAGGAR=${1:?usage: run.sh SAGGAR}
[[ -x $SAGGAR ]] || fail "$SAGGAR is not a program" "make build"
SAGGAR=$(realpath "$SAGGAR")
[[ $(id -u) == 0 ]] || fail "sandboxes of images on a server need root" "sudo"
export PYTHONDONTWRITEBYTECODE=1
unset "${!E2B_@}"

recent_python "$PLACE/python"
python_environment "$PLACE/$NAME" "$HERE/requirements.txt" "$NAME"
echo "==> Harbor's oracle agent"
timeout 900 "$PLACE/$NAME/bin/python" "$HERE/check.py" "$PLACE/$NAME/bin/harbor"
