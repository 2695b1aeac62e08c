#!/bin/bash
# An upgrade with real binaries: a server of an earlier version makes sandboxes, programs and a run; this version takes them over.
#
#   scripts/test-upgrade.sh [OLD]
#
# OLD is the earlier binary. Without it, the commit that UPGRADE_FROM names (the first parent of HEAD if it names none) is built in a
# worktree of its own, which takes minutes the first time.
set -euo pipefail
cd "$(dirname "$0")/.."

old="${1:-}"
if [[ -z "$old" ]]; then
    commit=$(git rev-parse --verify "${UPGRADE_FROM:-HEAD^}^{commit}")
    place="${CARGO_TARGET_DIR:-target}/upgrade-from/$commit"
    old="$place/saggar"
    if [[ ! -x "$old" ]]; then
        echo "==> building $commit" >&2
        mkdir -p "$place"
        tree=$(mktemp -d)
        trap 'git worktree remove --force "$tree/source" 2>/dev/null || true; rm -rf "$tree"' EXIT
        git worktree add --quiet --detach "$tree/source" "$commit"
        (cd "$tree/source" && CARGO_TARGET_DIR="$tree/target" cargo build --locked --package saggar)
        built=("$tree"/target/*/debug/saggar)
        if [[ -e "${built[0]}-full" ]]; then
            cargo --locked xtask pack "${built[0]}" "${built[0]}-full" "$old"
        else
            cp "${built[0]}" "$old"
        fi
    fi
fi
if [[ ! -x "$old" ]]; then
    echo "error: $old is no program" >&2
    echo "  help: name the binary of an earlier version, or none to have one built" >&2
    exit 1
fi
echo "==> upgrade from $("$old" --version)"
OLD_SAGGAR=$(realpath "$old") cargo nextest run --locked --package saggar --test upgrade
