#!/usr/bin/env python3
"""Services from Debian, each in a sandbox of a server that starts from an image with them, and answering a request there.

    run.py SAGGAR PLACE

Makes the image with debootstrap and apt-get from the mirror that this machine uses, once: PLACE keeps it. Then imports it, starts a
server, and creates sandboxes with `--storage disk`. Also installs a package with apt-get inside of one, through a managed network. Needs root.

SAGGAR_SERVICES_DEBIAN names another mirror.
"""

import hashlib
import io
import ipaddress
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.parse

SUITE = "bookworm"
PACKAGES = ["ca-certificates", "chromium", "nginx-light", "postgresql", "redis-server"]
PATIENCE = 180
PAGE = "data:text/html,<p>one%20and%20one%20is</p><script>document.body.append(1+1)</script>"

# What is run inside, as root of the sandbox, and what the last line of its output must be. Each starts its service, asks it, and ends it.
SERVICES = {
    "postgresql": (
        """set -e
        bin=$(echo /usr/lib/postgresql/*/bin); data=/var/lib/postgresql/test
        as() { setpriv --reuid postgres --regid postgres --clear-groups env HOME=/tmp "$@"; }
        as $bin/initdb -D $data >/dev/null
        as $bin/pg_ctl -D $data -w -o '-k /tmp' -l /tmp/log start >/dev/null || { cat /tmp/log; exit 1; }
        as psql -h /tmp -d postgres -qAt -c 'create table t(n int); insert into t select generate_series(1, 1000)' -c 'select sum(n) from t'
        as $bin/pg_ctl -D $data -w stop >/dev/null
        as $bin/pg_ctl -D $data -w -o '-k /tmp' -l /tmp/log start >/dev/null
        as psql -h /tmp -d postgres -qAt -c 'select count(*) from t'
        as $bin/pg_ctl -D $data -w stop >/dev/null""",
        "1000",
    ),
    "redis": (
        """set -e
        redis-server --port 6379 --daemonize yes --dir /tmp --save '' >/dev/null
        for try in $(seq 100); do redis-cli ping >/dev/null 2>&1 && break; sleep 0.1; done
        redis-cli set greeting hello >/dev/null
        redis-cli get greeting
        redis-cli shutdown nosave""",
        "hello",
    ),
    "nginx": (
        """set -e
        echo served > /var/www/html/index.html
        nginx
        exec 3<>/dev/tcp/127.0.0.1/80
        printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3
        cat <&3 | tail -1
        nginx -s stop""",
        "served",
    ),
    "chromium": (
        f"""set -e
        export HOME=/tmp
        chromium --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --dump-dom '{PAGE}' 2>/tmp/log | tr -d '\\n' || {{ tail -5 /tmp/log; exit 1; }}""",
        "<html><head></head><body><p>one and one is</p><script>document.body.append(1+1)</script>2</body></html>",
    ),
}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    if os.geteuid() != 0:
        sys.exit("error: debootstrap and storage on disk need root\n  help: sudo")
    saggar, place = os.path.realpath(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    mirror = os.environ.get("SAGGAR_SERVICES_DEBIAN") or own_mirror()
    archive = image(place, mirror)
    with tempfile.TemporaryDirectory(prefix="saggar-services-") as directory:
        data = pathlib.Path(directory) / "data"
        run(saggar, "template", "import", archive, "--name", "services", "--data-dir", data)
        failures = serve(saggar, data, mirror)
    sys.exit(bool(failures))


def serve(saggar, data, mirror):
    """The number of services that don't answer."""
    settings = ["--auth", "off", "--port", "0", "--public-templates", "services", "--disk-storage-max", "4G", "--pool-max", "0"]
    server = subprocess.Popen([saggar, "serve", "--data-dir", data, *settings], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        os.environ["SAGGAR_URL"] = address(server)
        failures = 0
        for name, (script, expected) in SERVICES.items():
            failures += attempt(saggar, name, [], script, expected)
        # A package of the mirror, which comes with its own set-id program and user.
        rules = [flag for rule in ["@debian", *special(mirror)] for flag in ("--allow", rule)]
        update = "apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends sudo >/dev/null && stat -c %a /usr/bin/sudo"
        failures += attempt(saggar, "apt-get", ["--net", "proxied", *rules], update, "4755")
        return failures
    finally:
        server.terminate()
        server.wait()


def attempt(saggar, name, flags, script, expected):
    """Whether it failed."""
    create = [saggar, "sandbox", "create", "--template", "services", "--user", "root", "--storage", "disk", "--disk", "2G", "--memory", "2G", *flags]
    made = subprocess.run(create, capture_output=True, text=True, timeout=PATIENCE)
    if made.returncode:
        return told(name, 0, made.stderr)
    sandbox, began = made.stdout.strip(), time.monotonic()
    try:
        command = [saggar, "sandbox", "exec", sandbox, "--", "/bin/bash", "-c", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        lines = done.stdout.strip().splitlines()
        is_right = done.returncode == 0 and lines and lines[-1] == expected
        return told(name, time.monotonic() - began, None if is_right else f"exit status {done.returncode}: {done.stdout}{done.stderr}")
    except subprocess.TimeoutExpired:
        return told(name, PATIENCE, "no answer")
    finally:
        subprocess.run([saggar, "sandbox", "kill", sandbox], capture_output=True)


def told(name, seconds, complaint):
    print(f"{'WRONG' if complaint else 'ok':6}{name:12}{seconds:6.1f} s {complaint or ''}", flush=True)
    return bool(complaint)


def address(server):
    """Where the server listens, as it says itself."""
    said = ""
    for line in server.stdout:
        said += line
        if found := re.search(r"https?://[0-9.:]+", line):
            return found.group()
    sys.exit(f"error: the server didn't start\n{said}")


def special(mirror):
    """The addresses of a mirror that no rule by name reaches: those that are not public."""
    host = urllib.parse.urlsplit(mirror).hostname
    addresses = {found[4][0] for found in socket.getaddrinfo(host, 80, socket.AF_INET)}
    return sorted(found for found in addresses if not ipaddress.ip_address(found).is_global)


def own_mirror():
    """The mirror of this machine."""
    for file in sorted(pathlib.Path("/etc/apt").glob("sources.list*/**/*")) + [pathlib.Path("/etc/apt/sources.list")]:
        if file.is_file():
            for found in re.findall(r"^(?:URIs:|deb)\s+.*?(https?://\S+/debian)/?(?:\s|$)", file.read_text(), re.MULTILINE):
                return found
    return "http://deb.debian.org/debian"


def image(place, mirror):
    """An archive as `docker save` writes it, with one layer: what debootstrap and apt-get make."""
    key = hashlib.sha256(json.dumps([SUITE, PACKAGES, 1]).encode()).hexdigest()[:12]
    archive = place / f"services-{key}.tar"
    if archive.exists():
        return archive
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="saggar-debian-", dir=place) as directory:
        root, layer = pathlib.Path(directory) / "root", pathlib.Path(directory) / "layer.tar"
        print(f"making an image of {', '.join(PACKAGES)}", flush=True)
        run("debootstrap", "--variant=minbase", SUITE, root, mirror)
        # Nothing is started while it is installed.
        (root / "usr/sbin/policy-rc.d").write_text("#!/bin/sh\nexit 101\n")
        (root / "usr/sbin/policy-rc.d").chmod(0o755)
        shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
        install = ["apt-get", "-qq", "install", "-y", "--no-install-recommends", *PACKAGES]
        run("chroot", root, *install, env=environment)
        run("tar", "--create", "--sort=name", "--numeric-owner", "--file", layer, "--directory", root, "--exclude=./var/cache/apt/archives/*.deb", ".")
        write_archive(archive, layer)
    return archive


def write_archive(archive, layer):
    with open(layer, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    config = json.dumps({
        "architecture": "amd64", "os": "linux", "config": {"Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }).encode()
    manifest = json.dumps([{"Config": "config.json", "RepoTags": ["services:latest"], "Layers": ["layer.tar"]}]).encode()
    half = archive.with_suffix(".half")
    with tarfile.open(half, "w", format=tarfile.PAX_FORMAT) as whole:
        for name, content in (("config.json", config), ("manifest.json", manifest)):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            whole.addfile(entry, io.BytesIO(content))
        whole.add(layer, "layer.tar")
    half.rename(archive)


def run(*command, env=None):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, env=env)
    if done.returncode:
        sys.exit(f"error: {command[0]} ended with {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


if __name__ == "__main__":
    main()
