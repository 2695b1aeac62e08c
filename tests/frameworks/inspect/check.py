"""Runs the self-check against a server of its own: check.py."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from base_image import imported, served  # noqa: E402

PATIENCE = 900

server, environment = served()
try:
    imported(server, "tools:1")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(HERE)]
    status = subprocess.run(command, env=environment, timeout=PATIENCE, cwd=HERE).returncode
    if status:
        print(server.logged()[-8000:], file=sys.stderr)
finally:
    server.stop()
sys.exit(status)
