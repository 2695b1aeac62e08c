"""Runs a command against a server of its own with models of a stand-in: serve.py COMMAND ARGUMENT…"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

import provider

PATIENCE = 500
# Each is a model of the stand-in, on both wires.
MODELS = ["plain", "rate-limited", "overloaded", "broken", "picky", "flaky", "torn", "endless"]


def catalogue(port):
    prices = "prices = { input = \"3\", output = \"15\", cached_read = \"0.3\" }"
    lines = [
        f"[providers.chat]\nkind = \"compatible\"\nurl = \"http://127.0.0.1:{port}/v1\"",
        f"[providers.anthropic]\nkind = \"anthropic\"\nurl = \"http://127.0.0.1:{port}\"",
        f"[providers.gemini]\nkind = \"gemini\"\nurl = \"http://127.0.0.1:{port}/v1beta\"\nkeys = [\"gemini\"]",
        "[providers.script]\nkind = \"scripted\"",
    ]
    for name in MODELS:
        lines.append(f"[models.{name}]\ntargets = [{{ provider = \"chat\", model = \"{name}\", {prices} }}]")
        lines.append(f"[models.claude-{name}]\ntargets = [{{ provider = \"anthropic\", model = \"{name}\", {prices} }}]")
    for name in ["plain", "rate-limited", "overloaded", "picky", "blocked", "unsafe"]:
        lines.append(f"[models.gemini-{name}]\nretries = 0\ntargets = [{{ provider = \"gemini\", model = \"{name}\", {prices} }}]")
    lines.append("[models.script]\ntargets = [{ provider = \"script\", model = '{\"turns\": [{\"text\": \"As written.\", \"input_tokens\": 3, \"output_tokens\": 2}]}' }]")
    return "\n".join(lines)


def keep_key(url, key):
    """The key that the stand-in for Gemini wants, in the server's vault."""
    body = json.dumps({"value": "any-key-of-google", "binding": {"rules": ["generativelanguage.googleapis.com"], "slot": {"header": {"name": "x-goog-api-key"}}}}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    urllib.request.urlopen(urllib.request.Request(f"{url}/api/v1/secrets/gemini", body, headers, method="PUT")).close()


def main():
    place = tempfile.mkdtemp(prefix="saggar-models-")
    path = os.path.join(place, "models.toml")
    with open(path, "w") as file:
        port = provider.start()
        file.write(catalogue(port))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SAGGAR")}
    command = [os.environ["SAGGAR"], "serve", "--port", "0", "--data-dir", os.path.join(place, "data"), "--models-file", path]
    with open(os.path.join(place, "log"), "w") as log:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
    try:
        key = url = None
        for line in server.stdout:
            key = key or next(iter(re.findall(r"sgr_[\w-]+", line)), None)
            if line.startswith("listening on "):
                url = line.split()[-1]
                break
        if not url:
            sys.exit(open(os.path.join(place, "log")).read())
        keep_key(url, key)
        environment = {**os.environ, "GATEWAY_URL": url, "GATEWAY_KEY": key, "STANDIN_URL": f"http://127.0.0.1:{port}"}
        status = subprocess.run(sys.argv[1:], env=environment, timeout=PATIENCE).returncode
        if status:
            print(open(os.path.join(place, "log")).read()[-4000:], file=sys.stderr)
        sys.exit(status)
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(place, ignore_errors=True)


main()
