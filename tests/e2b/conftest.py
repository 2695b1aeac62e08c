"""A server for the tests, from the binary that $SAGGAR names, and sandboxes of it through the installed client.

The client is configured by what the server prints at its start, and by nothing else."""

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest

START_PATIENCE = 60


class Server:
    """`saggar serve` on a free port, with a data directory of its own."""

    def __init__(self, *flags):
        self.data = tempfile.mkdtemp(prefix="saggar-e2b-")
        self.flags = flags
        self.port = 0
        self.environment = {}
        self.start()

    def start(self):
        command = [os.environ["SAGGAR"], "serve", "--port", str(self.port), "--data-dir", self.data, *self.flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SAGGAR"))}
        log = open(os.path.join(self.data, "..", os.path.basename(self.data) + ".log"), "a")
        self.log = log.name
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, env=environment, text=True)
        printed = []
        deadline = time.monotonic() + START_PATIENCE
        while time.monotonic() < deadline:
            line = self.process.stdout.readline()
            printed.append(line)
            if line.startswith("listening on "):
                break
            assert line, f"the server did not start: {open(self.log).read()}"
        self.url = printed[-1].split()[-1]
        self.port = int(self.url.rsplit(":", 1)[1])
        for line in printed:
            if line.strip().startswith("export "):
                for name, value in re.findall(r"(\w+)=(\S+)", line):
                    # The key is shown once, at the first start.
                    if value != "YOUR_KEY":
                        self.environment[name] = value

    def restart(self):
        """Kills it without a word, and starts it again on the same data and port."""
        self.process.kill()
        self.process.wait()
        self.start()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.data, ignore_errors=True)
        if os.path.exists(self.log):
            os.unlink(self.log)


@pytest.fixture(scope="session")
def server():
    server = Server()
    os.environ.update(server.environment)
    yield server
    kill_all()
    server.stop()


def kill_all():
    from e2b import Sandbox

    pages = Sandbox.list()
    while pages.has_next:
        for info in pages.next_items():
            Sandbox.kill(info.sandbox_id)


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
