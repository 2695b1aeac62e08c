#!/usr/bin/env bash
# Looks for tests that depend on chance: runs the suite again and again from one build, the second half of the rounds beside processes that
# only compute. Prints a line for each round, and fails if any test failed in any round.
#
# usage: test-repeat.sh ROUNDS BUSY [ARGUMENT OF cargo nextest run]…
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly ROUNDS=${1:?usage: test-repeat.sh ROUNDS BUSY [ARGUMENT OF cargo nextest run]…}
readonly BUSY=${2:?usage: test-repeat.sh ROUNDS BUSY [ARGUMENT OF cargo nextest run]…}
shift 2
if (($# == 0)); then set -- --workspace; fi
export NEXTEST_PROFILE=ci
# A busy process ends by itself, should this script be killed.
readonly BUSY_SECONDS_MAX=7200

main() {
    local round busy failures=0 before=$((ROUNDS - ROUNDS / 2))
    log=$(mktemp)
    trap end EXIT
    cargo nextest run --locked --no-run "$@"
    for ((round = 1; round <= ROUNDS; round++)); do
        busy=0
        if ((round > before)); then busy=$BUSY; fi
        round "$round" "$busy" "$@" || failures=$((failures + 1))
    done
    echo "$((ROUNDS - failures)) of $ROUNDS rounds without a failure"
    ((failures == 0))
}

# round NUMBER BUSY ARGUMENT…
round() {
    local number=$1 busy=$2 begun=$SECONDS status=0
    shift 2
    start_busy "$busy"
    cargo nextest run --locked "$@" >"$log" 2>&1 || status=$?
    local load
    read -r load _ </proc/loadavg
    end_busy
    echo "round $number, $busy busy processes, $((SECONDS - begun)) s, load $load: $(sed -n 's/^ *Summary \[[^]]*\] *//p' "$log" | tail -1)"
    if ((status != 0)); then
        # Each failed test is listed again after the summary.
        sed -n '/^ *Summary/,$p' "$log"
    fi
    return "$status"
}

busy_pids=()

start_busy() {
    local number
    for ((number = 0; number < $1; number++)); do
        timeout "$BUSY_SECONDS_MAX" bash -c 'while :; do :; done' &
        busy_pids+=($!)
    done
}

end_busy() {
    ((${#busy_pids[@]})) || return 0
    kill "${busy_pids[@]}" 2>/dev/null || true
    wait "${busy_pids[@]}" 2>/dev/null || true
    busy_pids=()
}

end() {
    end_busy
    rm -f "$log"
}

main "$@"
