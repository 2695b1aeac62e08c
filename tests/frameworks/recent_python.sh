# A recent Python for packages that need one. To be sourced after scripts/environments.sh.

# recent_python PLACE: makes `python3` a Python of at least 3.12.
recent_python() {
    local place=$1 candidate found
    for candidate in python3 python3.14 python3.13 python3.12 "$HOME"/.pyenv/versions/3.1[2-9]*/bin/python3; do
        found=$("$candidate" -c 'import sys; print(sys.executable) if sys.version_info >= (3, 12) else sys.exit(1)' 2>/dev/null) || continue
        mkdir -p "$place"
        ln -sf "$found" "$place/python3"
        export PATH=$place:$PATH
        return 0
    done
    fail "there is no Python of at least 3.12 here" "install one, such as with pyenv"
}
