#!/usr/bin/env python3
"""The usual clients in a proxied sandbox, unmodified, against the small internet of world.py.

    clients.py [--smoke] SAGGAR PLACE [CLIENT ...]

Each client asks a host that rules allow and inspect, and one that no rule allows. The first must answer, the second must be refused
and see nothing. `--smoke` leaves the second out. PLACE keeps pinned packages between runs. Needs root, as the world does. A missing tool is
a failure.

Where SAGGAR_CLIENTS_PYPI, SAGGAR_CLIENTS_NPM or SAGGAR_CLIENTS_DEBIAN name a registry (a URL), its client also fetches from there.
"""

import base64
import hashlib
import io
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"
PATIENCE = 120
KEY = "the-real-key-of-the-provider"


def main():
    is_smoke, arguments = "--smoke" in sys.argv, [argument for argument in sys.argv[1:] if argument != "--smoke"]
    saggar, place, chosen = os.path.realpath(arguments[0]), pathlib.Path(arguments[1]).resolve(), arguments[2:]
    if unknown := [name for name in chosen if name not in CLIENTS]:
        sys.exit(f"error: no client {unknown[0]!r}\n  help: use {', '.join(CLIENTS)}")
    if os.geteuid() != 0:
        sys.exit("error: the world needs root: it makes a network namespace\n  help: sudo")
    failures = 0
    for name in chosen or CLIENTS:
        for host, is_allowed in (("good.test", True), ("evil.test", False)):
            if is_smoke and not is_allowed:
                continue
            complaint = attempt(saggar, place, name, host, is_allowed)
            print(f"{'ok' if not complaint else 'WRONG':6}{name:10}{'allowed' if is_allowed else 'denied':9}{complaint or ''}")
            failures += bool(complaint)
        failures += 0 if is_smoke else registry(saggar, place, name)
    sys.exit(bool(failures))


def attempt(saggar, place, name, host, is_allowed):
    """What is wrong, if anything."""
    client = CLIENTS[name]
    with tempfile.TemporaryDirectory(prefix="saggar-clients-") as directory:
        directory = pathlib.Path(directory)
        directory.chmod(0o755)
        files, log = directory / "files", directory / "seen.log"
        publish(files, host)
        world = ["unshare", "--net", "--mount", sys.executable, str(HERE / "world.py"), str(log)]
        inside = [saggar, "run", "--data-dir", str(directory / "data"), "--net", "proxied", "--timeout", "90s", "--json"]
        rules = ["GET,HEAD good.test", "POST good.test/v1/**"]
        for rule in rules:
            inside += ["--allow", rule]
        for mount in client.get("mounts", lambda _: [])(place):
            inside += ["--mount", mount]
        if "secret" in client:
            inside += ["--secrets", str(secrets(directory)), "--secret", f"{client['secret']}=provider"]
        inside += ["--", "/bin/sh", "-c", client["run"].replace("HOST", host)]
        environment = dict(os.environ, SAGGAR_WORLD_FILES=str(files))
        done = subprocess.run(world + inside, env=environment, capture_output=True, text=True, timeout=PATIENCE)
        try:
            result = json.loads(done.stdout)
        except ValueError:
            return f"no result: {done.stdout[-300:]} {done.stderr[-300:]}"
        seen = [json.loads(line) for line in log.read_text().splitlines()]
        said = f"{result['stdout'][-300:]} {result['stderr'][-500:]}"
        if is_allowed:
            if result["exit_code"] != 0:
                return f"it failed with {result['exit_code']}: {said}"
            asked = [entry for entry in seen if client["asks"] in entry["path"]]
            if not asked:
                return f"the server never saw {client['asks']}: {said}"
            if "secret" in client and asked[-1]["headers"].get("authorization") != f"Bearer {KEY}":
                return f"the server did not get the key, but {asked[-1]['headers'].get('authorization')}"
            if KEY in done.stdout:
                return "the sandbox has seen the key"
            return None
        if seen:
            return f"a denied server saw {seen[0]['method']} {seen[0]['path']}"
        if not any(denial["code"] == "network_refused" for denial in result["denials"]):
            return f"no denial names it: {result['denials']} {said}"
        if result["exit_code"] == 0 and not client.get("succeeds"):
            return f"it did not fail: {said}"
        return None


def registry(saggar, place, name):
    client = CLIENTS[name]
    url = os.environ.get(client.get("registry", ""), "")
    if not url:
        if "registry" in client:
            print(f"{'-':6}{name:10}{'registry':9}not tried: {client['registry']} is not set")
        return 0
    host = urllib.parse.urlsplit(url).netloc
    with tempfile.TemporaryDirectory(prefix="saggar-clients-") as directory:
        command = [saggar, "run", "--data-dir", directory, "--net", "proxied", "--timeout", "90s", "--allow", f"GET,HEAD {host}"]
        for mount in client.get("mounts", lambda _: [])(place):
            command += ["--mount", mount]
        command += ["--", "/bin/sh", "-c", client["fetch"].replace("URL", url)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    is_good = done.returncode == 0
    print(f"{'ok' if is_good else 'WRONG':6}{name:10}{'registry':9}{'' if is_good else (done.stdout + done.stderr)[-500:]}")
    return not is_good


def publish(files, host):
    """A package for each registry, and a repository."""
    wheel = make_wheel()
    put(files / "simple/demo/index.html", f'<a href="/files/demo-1.0-py3-none-any.whl#sha256={sha256(wheel)}">demo</a>')
    put(files / "files/demo-1.0-py3-none-any.whl", wheel)
    package = make_tar("package/package.json", json.dumps({"name": "demo", "version": "1.0.0"}))
    integrity = "sha512-" + base64.b64encode(hashlib.sha512(package).digest()).decode()
    dist = {"tarball": f"https://{host}/npm/demo/-/demo-1.0.0.tgz", "integrity": integrity}
    versions = {"1.0.0": {"name": "demo", "version": "1.0.0", "dist": dist}}
    put(files / "npm/demo/index.html", json.dumps({"name": "demo", "dist-tags": {"latest": "1.0.0"}, "versions": versions}))
    put(files / "npm/demo/-/demo-1.0.0.tgz", package)
    manifest = '[package]\nname = "demo"\nversion = "1.0.0"\nedition = "2021"\n'
    crate = make_tar("demo-1.0.0/Cargo.toml", manifest, ("demo-1.0.0/src/lib.rs", ""))
    entry = {"name": "demo", "vers": "1.0.0", "deps": [], "cksum": sha256(crate), "features": {}, "yanked": False}
    put(files / "crates/config.json", json.dumps({"dl": f"https://{host}/crates/dl"}))
    put(files / "crates/de/mo/demo", json.dumps(entry) + "\n")
    put(files / "crates/dl/demo/1.0.0/download", crate)
    put(files / "debian/Packages", "Package: demo\nVersion: 1.0\nArchitecture: all\nFilename: ./demo.deb\nSize: 1\nSHA256: " + "0" * 64 + "\n\n")
    packages = (files / "debian/Packages").read_bytes()
    put(files / "debian/Release", f"SHA256:\n {sha256(packages)} {len(packages)} Packages\n")
    repository = files / "git/demo.git"
    with tempfile.TemporaryDirectory() as work:
        git = ["git", "-C", work, "-c", "user.name=demo", "-c", "user.email=demo@example.com"]
        subprocess.run(["git", "init", "--quiet", "--initial-branch=main", work], check=True)
        subprocess.run([*git, "commit", "--quiet", "--allow-empty", "--message=demo"], check=True)
        subprocess.run(["git", "clone", "--quiet", "--bare", work, str(repository)], check=True)
    subprocess.run(["git", "-C", str(repository), "update-server-info"], check=True)


def put(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def make_wheel():
    made = io.BytesIO()
    info = "demo-1.0.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("demo.py", "")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: clients\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"demo.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return made.getvalue()


def make_tar(name, content, *others):
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as archive:
        for one, text in ((name, content), *others):
            entry = tarfile.TarInfo(one)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return made.getvalue()


def site(place):
    """Pinned Python packages, for the system's own interpreter."""
    wanted, target = (HERE / "requirements.txt").read_text(), place / "site"
    kept = target / "installed.txt"
    if not kept.exists() or kept.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        print("==> installing the Python clients", flush=True)
        command = [PYTHON, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), "--requirement"]
        if subprocess.run([*command, str(HERE / "requirements.txt")]).returncode != 0:
            sys.exit("error: the packages of requirements.txt can't be installed\n  help: check that PyPI is reachable")
        kept.write_text(wanted)
    return [f"{target}:/opt/site"]


def secrets(directory):
    """A key of the stand-in provider, for the sandbox to use and not to have."""
    file = directory / "secrets.toml"
    file.touch(mode=0o600)
    file.write_text(f'[provider]\nvalue = "{KEY}"\nrules = ["good.test/v1/**"]\nslot = "bearer"\nplaceholder_prefix = "sk-"\n')
    return file


def agent(place):
    """A pinned agent from npm."""
    wanted, target = (HERE / "package-lock.json").read_text(), place / "agent"
    kept = target / "installed.json"
    if not kept.exists() or kept.read_text() != wanted:
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, target)
        print("==> installing an agent", flush=True)
        if subprocess.run(["npm", "ci", "--silent", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=target).returncode != 0:
            sys.exit("error: the packages of package-lock.json can't be installed\n  help: check that the npm registry is reachable")
        kept.write_text(wanted)
    return [f"{target}:/opt/agent"]


def toolchain(_):
    found = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True)
    return [f"{found.stdout.strip()}:/opt/rust"]


def python(code):
    return {"run": f"PYTHONPATH=/opt/site {PYTHON} -c \"{code}\"", "mounts": site}


PIP = f"{PYTHON} -m pip --no-cache-dir --disable-pip-version-check download --no-deps --dest /tmp/pip"
NPM = "cd /tmp && npm install --no-audit --no-fund --cache /tmp/npm --prefix /tmp/package"
APT = (
    "mkdir -p /tmp/apt/lists/partial /tmp/apt/cache && echo 'SOURCE' > /tmp/apt/list && apt-get update -o Dir::Etc::SourceList=/tmp/apt/list "
    "-o Dir::Etc::SourceParts=/dev/null -o Dir::State::Lists=/tmp/apt/lists -o Dir::Cache=/tmp/apt/cache -o APT::Sandbox::User= "
    "-o APT::Update::Error-Mode=any"
)
CARGO = (
    "mkdir -p /tmp/crate/src && cd /tmp/crate && touch src/lib.rs && printf '[package]\\nname = \"user\"\\nversion = \"1.0.0\"\\n"
    "edition = \"2021\"\\n[dependencies]\\ndemo = { version = \"1\", registry = \"world\" }\\n' > Cargo.toml && "
    "CARGO_HOME=/tmp/cargo CARGO_REGISTRIES_WORLD_INDEX=sparse+https://HOST/crates/ RUSTC=/opt/rust/bin/rustc /opt/rust/bin/cargo fetch"
)

# Writes a commit message for what is staged, with the help of a model.
AGENT = (
    "git init --quiet /tmp/repository && cd /tmp/repository && git config user.name demo && git config user.email demo@example.com && "
    "echo hello > file && git add file && printf 'provider=openai\\nOPENAI_API_KEY=%s\\nOPENAI_BASE_URL=https://HOST/v1\\nOPENAI_MODEL=any\\n' "
    "\"$OPENAI_API_KEY\" > ~/.aicommits && node /opt/agent/node_modules/aicommits/dist/cli.mjs --yes < /dev/null"
)

CLIENTS = {
    "curl": {"run": "curl -sS --fail https://HOST/curl", "asks": "/curl"},
    "wget": {"run": "wget -q -O- https://HOST/wget", "asks": "/wget"},
    "git": {"run": "git clone --quiet https://HOST/git/demo.git /tmp/demo", "asks": "/git/demo.git/info/refs"},
    "pip": {
        "run": f"{PIP} --index-url https://HOST/simple demo",
        "asks": "/files/demo-1.0",
        "registry": "SAGGAR_CLIENTS_PYPI",
        "fetch": f"{PIP} --index-url URL six",
    },
    "npm": {
        "run": f"{NPM} --registry https://HOST/npm/ demo",
        "asks": "/npm/demo/-/demo-1.0.0.tgz",
        "registry": "SAGGAR_CLIENTS_NPM",
        "fetch": f"{NPM} --registry URL is-odd",
    },
    "cargo": {"run": CARGO, "asks": "/crates/dl/demo", "mounts": toolchain},
    "apt": {
        "run": APT.replace("SOURCE", "deb [trusted=yes] https://HOST/debian ./"),
        "asks": "/Packages",
        "registry": "SAGGAR_CLIENTS_DEBIAN",
        "fetch": APT.replace("SOURCE", "deb [trusted=yes] URL bookworm main"),
    },
    "requests": {
        **python("import requests; requests.get('https://HOST/requests').raise_for_status()"),
        "asks": "/requests",
    },
    "httpx": {**python("import httpx; httpx.get('https://HOST/httpx').raise_for_status()"), "asks": "/httpx"},
    "aiohttp": {
        **python(
            "import asyncio, aiohttp\nasync def main():\n    async with aiohttp.ClientSession() as session:\n        "
            "async with session.get('https://HOST/aiohttp') as answer:\n            answer.raise_for_status()\nasyncio.run(main())"
        ),
        "asks": "/aiohttp",
    },
    "openai": {
        **python(
            "import openai\nclient = openai.OpenAI(base_url='https://HOST/v1', api_key='placeholder', max_retries=0)\n"
            "answer = client.chat.completions.create(model='any', messages=[{'role': 'user', 'content': 'hello'}])\n"
            "assert answer.choices[0].message.content == 'hello from the world'"
        ),
        "asks": "/v1/chat/completions",
    },
    "anthropic": {
        **python(
            "import anthropic\nclient = anthropic.Anthropic(base_url='https://HOST', api_key='placeholder', max_retries=0)\n"
            "answer = client.messages.create(model='any', max_tokens=9, messages=[{'role': 'user', 'content': 'hello'}])\n"
            "assert answer.content[0].text == 'hello from the world'"
        ),
        "asks": "/v1/messages",
    },
    "node": {
        "run": "node -e \"fetch('https://HOST/node').then(answer => process.exit(answer.ok ? 0 : 1))\"",
        "asks": "/node",
    },
    "agent": {"run": AGENT, "asks": "/v1/chat/completions", "mounts": agent, "secret": "OPENAI_API_KEY"},
}

if __name__ == "__main__":
    main()
