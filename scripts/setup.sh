#!/usr/bin/env bash
# Installs missing tools; silent if there are none. Called by the Makefile: setup.sh build|test|services|bench|compare|vm.
#
# An installed tool is used as it is, wherever it came from. System packages come from apt; Rust comes from rustup, and
# rustup from its official installer, because the distribution's Rust is too old.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly TRIPLE=x86_64-unknown-linux-musl
readonly PURPOSE=${1:?usage: setup.sh build|test|services|bench|compare|vm}

# runc is in sbin, which is not on an ordinary user's PATH.
export PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH:/usr/local/sbin:/usr/sbin:/sbin"

main() {
    case $PURPOSE in
    # The demo builds an image from it.
    build) install_packages /bin/busybox:busybox-static ;;
    # On Debian the venv module of python3 is a separate package.
    # The network clients run with the system's own python3, in a small internet that needs ip and openssl.
    # Images are made, copied and served by the tools of others.
    test)
        install_packages "$(venv_of_python)" wget:wget openssl:openssl ip:iproute2 /usr/bin/npm:npm /usr/lib/python3/dist-packages/pip:python3-pip \
            umoci:umoci skopeo:skopeo docker-registry:docker-registry /bin/busybox:busybox-static
        ;;
    services) install_packages debootstrap:debootstrap mkfs.ext4:e2fsprogs ;;
    # Debian's package starts its own PostgreSQL cluster; the benchmark creates a separate one.
    bench)
        install_packages bwrap:bubblewrap runc:runc "/usr/lib/postgresql/*/bin/initdb:postgresql" nginx:nginx-light haproxy:haproxy wrk:wrk openssl:openssl ip:iproute2 \
            /bin/busybox:busybox-static mkfs.ext4:e2fsprogs "$(venv_of_python)"
        bench/peers/install.sh
        ;;
    compare)
        install_packages bwrap:bubblewrap runc:runc runsc:runsc unshare:util-linux setpriv:util-linux
        fetch_seccomp_profile
        ;;
    vm) install_packages qemu-system-x86_64:qemu-system-x86 busybox:busybox-static cpio:cpio mke2fs:e2fsprogs "/boot/vmlinuz-*-cloud-amd64:linux-image-cloud-amd64" \
        "/usr/src/linux-headers-*-cloud-amd64:linux-headers-cloud-amd64" ;;
    *) fail "no such purpose: $PURPOSE" "use one of: build, test, services, bench, compare, vm" ;;
    esac
    install_rust
    install_target
    if [[ $PURPOSE == test ]]; then
        install_component fmt rustfmt
        install_component clippy clippy
        install_nextest
    fi
}

# install_packages COMMAND:PACKAGE…: installs the packages of missing commands (or files), plus those that every purpose needs.
install_packages() {
    local pair missing=()
    for pair in cc:build-essential make:build-essential musl-gcc:musl-tools curl:curl git:git python3:python3 "$@"; do
        has "${pair%%:*}" || missing+=("${pair#*:}")
    done
    [[ -e /etc/ssl/certs/ca-certificates.crt || -e /etc/ssl/cert.pem || -e /etc/pki/tls/certs/ca-bundle.crt ]] ||
        missing+=(ca-certificates)
    ((${#missing[@]})) || return 0

    local packages
    packages=$(printf '%s\n' "${missing[@]}" | sort -u | paste -sd ' ')
    has apt-get || fail "missing packages, and there is no apt-get here" "install the equivalents of: $packages"

    local as_root=()
    if ((EUID != 0)); then
        has sudo || fail "missing packages, and neither root nor sudo to install them" "as root: apt-get install $packages"
        as_root=(sudo)
    fi
    say "installing $packages"
    # shellcheck disable=SC2086 # the words of $packages are the arguments.
    { "${as_root[@]}" apt-get update -qq &&
        "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $packages; } ||
        fail "apt-get could not install $packages" "as root: apt-get update && apt-get install $packages"
}

# COMMAND:PACKAGE that `python3 -m venv` needs; an installed one if nothing is missing.
venv_of_python() {
    if has python3 && python3 -c 'import ensurepip, venv' 2>/dev/null; then echo python3:python3; else echo python3-venv:python3-venv; fi
}

# Docker's default profile is compiled into its daemon; Debian's source package has it as a file, and need not be installed.
fetch_seccomp_profile() {
    local package=golang-github-docker-docker-dev file=target/compare/docker-seccomp.json work
    [[ -s $file ]] && return 0
    has apt-get || fail "Docker's seccomp profile is missing, and there is no apt-get here" \
        "put profiles/seccomp/default.json of github.com/moby/moby into $file"
    say "fetching Docker's seccomp profile from the package $package"
    work=$(mktemp -d)
    (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" && dpkg -x ./*.deb .) ||
        fail "apt-get could not download $package" "run apt-get update as root, then try again"
    mkdir -p "$(dirname "$file")"
    cp "$work/usr/share/gocode/src/github.com/docker/docker/profiles/seccomp/default.json" "$file"
    rm -r "$work"
}

install_rust() {
    local needed found
    needed=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
    found=$(rust_version)
    is_at_least "$found" "$needed" && return 0

    has rustup || install_rustup "$needed" "$found"
    rustup toolchain list 2>/dev/null | grep -q stable && is_at_least "$(rust_version)" "$needed" && return 0
    say "installing the stable Rust toolchain"
    rustup toolchain install stable --profile minimal
    rustup default >/dev/null 2>&1 || rustup default stable
    found=$(rust_version)
    is_at_least "$found" "$needed" ||
        fail "Rust $needed or newer is needed; found ${found:-none}" \
            "make it the default with: rustup default stable; and see that ~/.cargo/bin comes first in PATH"
}

install_rustup() {
    say "installing Rust through rustup (needed: $1 or newer; here: ${2:-none})"
    curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --no-modify-path ||
        fail "the official rustup installer could not be run" "install Rust $1 or newer yourself, then run make again"
}

install_target() {
    [[ -d $(rustc --print sysroot)/lib/rustlib/$TRIPLE/lib ]] && return 0
    has rustup || fail "this Rust has no standard library for $TRIPLE, and there is no rustup to add it" \
        "install Rust through https://rustup.rs, or your distribution's package for that target"
    say "adding the Rust target $TRIPLE"
    rustup target add "$TRIPLE"
}

# install_component SUBCOMMAND COMPONENT
install_component() {
    cargo "$1" --version >/dev/null 2>&1 && return 0
    has rustup || fail "cargo $1 is missing, and there is no rustup to add it" "install your distribution's $2"
    say "adding the Rust component $2"
    rustup component add "$2"
}

install_nextest() {
    cargo nextest --version >/dev/null 2>&1 && return 0
    say "building cargo-nextest, once; this takes some minutes"
    cargo install --locked cargo-nextest
}

rust_version() {
    # Empty if there is none, or if rustup's proxy has no toolchain.
    has cargo && { rustc --version 2>/dev/null || true; } | awk '{ print $2 }' | cut -d- -f1 || true
}

is_at_least() { [[ -n $1 && $(printf '%s\n' "$2" "$1" | sort -V | head -n1) == "$2" ]]; }

# A command, or a file given as an absolute pattern.
has() { if [[ $1 == /* ]]; then compgen -G "$1" >/dev/null; else command -v "$1" >/dev/null 2>&1; fi; }

say() { echo "==> $*"; }

fail() {
    echo "error: $1" >&2
    echo "  help: $2" >&2
    exit 1
}

main
