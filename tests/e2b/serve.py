"""Runs a command against a server of its own: serve.py COMMAND ARGUMENT…, with the environment that the server prints."""

import os
import shlex
import subprocess
import sys

from conftest import VOLUMES, Server

PATIENCE = 600

server = Server(*(shlex.split(os.environ.get("SERVE_FLAGS", "")) or VOLUMES))
try:
    sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, **server.environment}, timeout=PATIENCE).returncode)
finally:
    server.stop()
