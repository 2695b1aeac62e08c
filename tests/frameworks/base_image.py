"""A small image with a real bash, for tasks that start from one: the host's bash and its libraries, and busybox for everything else.

Also a server for the frameworks (tests/e2b/conftest.py), and the import of the image into it.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "e2b"))


def make(archive):
    """Writes the image as an archive of an OCI layout."""
    with tempfile.TemporaryDirectory() as place:
        root = pathlib.Path(place, "root")
        for directory in ("bin", "etc", "root", "tmp", "home/user", "usr/bin", "var", "srv"):
            (root / directory).mkdir(parents=True)
        (root / "tmp").chmod(0o1777)
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/bash\nuser:x:1000:1000::/home/user:/bin/bash\n")
        (root / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
        os.chown(root / "home/user", 1000, 1000)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        for applet in subprocess.run(["/bin/busybox", "--list"], check=True, capture_output=True, text=True).stdout.split():
            if applet not in ("busybox", "bash"):
                os.symlink("busybox", root / "bin" / applet)
        os.symlink("../../bin/env", root / "usr/bin/env")
        add_program("/bin/bash", root)
        umoci = lambda *arguments: subprocess.run(["umoci", *arguments], cwd=place, check=True, stdout=subprocess.DEVNULL)
        umoci("init", "--layout", "oci")
        umoci("new", "--image", "oci:x")
        umoci("insert", "--image", "oci:x", str(root), "/")
        umoci("config", "--image", "oci:x", "--config.env", "PATH=/usr/local/bin:/usr/bin:/bin")
        with tarfile.open(archive, "w") as tar:
            tar.add(os.path.join(place, "oci"), ".")


def add_program(program, root):
    """With the libraries that it loads."""
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    for path in [program, *re.findall(r"(/\S+)", listed)]:
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


def served(*flags):
    """A server, and the environment that leads E2B's clients to it."""
    from conftest import Server

    server = Server(*flags)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("E2B_", "SAGGAR"))}
    return server, environment | server.environment


def imported(server, name):
    """Imports the image under this name, with the command line."""
    with tempfile.TemporaryDirectory() as place:
        archive = os.path.join(place, "image.tar")
        make(archive)
        key = next(line for line in server.printed if "sgr_" in line).split("sgr_")[1].split()[0]
        command = [os.environ["SAGGAR"], "template", "import", archive, "--name", name, "--url", server.url, "--api-key", "sgr_" + key]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
