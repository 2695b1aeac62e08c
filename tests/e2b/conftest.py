"""A server for the tests, from the binary that $SAGGAR names, and sandboxes of it through the installed client.

The client is configured by what the server prints at its start, and by nothing else."""

import gc
import http.client
import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import tempfile
import time

import pytest

START_PATIENCE = 60
# By default a server has no volumes.
VOLUMES = ["--volumes-bytes-max", "256M", "--volume-size", "16M"]


class Server:
    """`saggar serve` on a free port, with a data directory of its own."""

    def __init__(self, *flags):
        self.place = tempfile.mkdtemp(prefix="saggar-e2b-")
        self.data = os.path.join(self.place, "data")
        self.log = os.path.join(self.place, "log")
        self.flags = flags
        self.port = 0
        self.environment = {}
        self.start()

    def start(self):
        command = [os.environ["SAGGAR"], "serve", "--port", str(self.port), "--data-dir", self.data, *self.flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SAGGAR"))}
        with open(self.log, "a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        self.printed = []
        deadline = time.monotonic() + START_PATIENCE
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            self.printed.append(line)
            if line.startswith("listening on "):
                break
            assert line, f"the server did not start: {self.logged()}"
        self.url = self.printed[-1].split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        for line in self.printed:
            if line.strip().startswith("export "):
                for name, value in re.findall(r"(\w+)=(\S+)", line):
                    # The key is shown once, at the first start.
                    if value != "YOUR_KEY":
                        self.environment[name] = value

    def logged(self):
        with open(self.log) as log:
            return log.read()

    def restart(self):
        """Kills it without a word, and starts it again on the same data and port."""
        self.process.kill()
        self.process.wait()
        self.start()

    def ask(self, method, path):
        """By hand, so that whatever the clients did wrong can be put right."""
        kind = http.client.HTTPConnection
        more = {}
        if self.url.startswith("https:"):
            kind, more = http.client.HTTPSConnection, {"context": ssl._create_unverified_context()}
        connection = kind("127.0.0.1", self.port, timeout=60, **more)
        connection.request(method, path, headers={"X-API-KEY": self.environment["E2B_API_KEY"]})
        body = connection.getresponse().read()
        connection.close()
        return json.loads(body or b"null")

    def stop(self):
        """Ends it, and what sandboxes there are, and fails if anything of them is left."""
        try:
            if self.process.poll() is None:
                for sandbox in self.ask("GET", "/v2/sandboxes?limit=1000"):
                    self.ask("DELETE", f"/sandboxes/{sandbox['sandboxID']}")
                self.process.send_signal(signal.SIGTERM)
                self.process.wait(60)
            # A supervisor's socket goes with its sandbox, and so does the record of what there is of it.
            left = [os.path.join(kind, name) for kind in ["control", "sandboxes"] for name in os.listdir(os.path.join(self.data, kind))]
            assert not left, f"these are left: {left}\n{self.logged()}"
        finally:
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            shutil.rmtree(self.place)


def pytest_configure(config):
    config.addinivalue_line("markers", "whole: only for `make test-all`")


@pytest.fixture(scope="session")
def server():
    server = Server(*VOLUMES)
    os.environ.update(server.environment)
    yield server
    server.stop()


@pytest.fixture
def sandbox(server):
    from e2b import Sandbox

    sandbox = Sandbox.create(timeout=120)
    yield sandbox
    sandbox.kill()


def until(condition, what, patience=20):
    """Waits until something is so, and fails when it isn't in time."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.05)
    raise AssertionError(f"not in time: {what}")


# A stream of the client that is collected closes itself, for which it takes a lock. In the middle of another call that lock is held by
# the same thread, which then waits for ever. So nothing is collected but between tests.
gc.disable()


@pytest.fixture(autouse=True)
def collected():
    yield
    gc.collect()
