#!/usr/bin/env bash
# Runs one task of each agent framework, unmodified and with a scripted model, against a real server: run.sh SAGGAR [smolagents|openai|langchain]…;
# default: all.
#
# Each framework has its own environment below the build directory, created once from pinned versions. A missing tool is a failure, never
# a reason to skip.
set -euo pipefail
readonly HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
readonly ROOT=$HERE/../..
readonly PLACE=$(realpath -m "${CARGO_TARGET_DIR:-$ROOT/target}/frameworks")
source "$ROOT/scripts/environments.sh"
readonly PATIENCE=600

export SAGGAR=${1:?usage: run.sh SAGGAR [smolagents|openai|langchain]…}
[[ -x $SAGGAR ]] || fail "$SAGGAR is not a program" "make build"
SAGGAR=$(realpath "$SAGGAR")
shift
export PYTHONDONTWRITEBYTECODE=1
unset "${!E2B_@}"
# A volume with the packages that smolagents expects in its sandbox.
export SERVE_FLAGS="--volumes-bytes-max 512M --volume-size 200M"

main() {
    # It starts the server.
    python_environment "$PLACE/../e2b/2.63" "$ROOT/tests/e2b/requirements-2.63.txt" "e2b 2.63"
    local framework
    for framework in "${@:-smolagents openai langchain}"; do
        for framework in $framework; do
            case $framework in
            smolagents)
                if [[ $EUID -eq 0 ]]; then task smolagents smolagents_task.py; else echo "smolagents: not run here: only root can make the volume that it needs"; fi
                ;;
            openai) task openai openai_task.py ;;
            langchain) task langchain langchain_task.py ;;
            *) fail "no such framework: $framework" "use smolagents, openai or langchain" ;;
            esac
        done
    done
}

# task FRAMEWORK PROGRAM ARGUMENT…
task() {
    local name=$1 program=$2
    shift 2
    python_environment "$PLACE/$name" "$HERE/requirements-$name.txt" "$name"
    echo "==> $name"
    PYTHONPATH=$ROOT/tests/e2b timeout "$PATIENCE" "$PLACE/../e2b/2.63/bin/python" "$ROOT/tests/e2b/serve.py" "$PLACE/$name/bin/python" "$HERE/$program" "$@"
}

main "$@"
