"""Files of a sandbox, through the synchronous client, of either generation."""

import gzip
import io
import os
import urllib.error
import urllib.parse
import urllib.request

import e2b
import pytest
from conftest import until
from e2b import FileType, InvalidArgumentException, NotFoundException, Sandbox
from e2b.sandbox.filesystem.filesystem import WriteEntry
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType
from test_sandbox import IS_NEW


def test_written_and_read(sandbox):
    info = sandbox.files.write("deep/er/file.txt", "hello")
    assert (info.name, info.path, info.type) == ("file.txt", "/home/user/deep/er/file.txt", FileType.FILE)
    assert sandbox.files.read("deep/er/file.txt") == "hello"
    data = os.urandom(3_000_000)
    sandbox.files.write("/tmp/blob", data)
    assert bytes(sandbox.files.read("/tmp/blob", format="bytes")) == data
    assert b"".join(sandbox.files.read("/tmp/blob", format="stream")) == data
    sandbox.files.write("/tmp/blob", io.BytesIO(data[:1000]))
    assert bytes(sandbox.files.read("/tmp/blob", format="bytes")) == data[:1000]
    sandbox.files.write("empty", "")
    assert sandbox.files.read("empty") == ""


def test_names_of_every_kind(sandbox):
    for name in ["a b", "ü☂", "100%", "%2F", "a%2Fb", "q\"uote", "it's", "semi;colon", "plus+", "#hash", "?mark", "back\\slash"]:
        sandbox.files.write(f"/tmp/names/{name}", name)
        assert sandbox.files.read(f"/tmp/names/{name}") == name
        assert sandbox.files.get_info(f"/tmp/names/{name}").name == name
    assert len(sandbox.files.list("/tmp/names")) == 12


def test_many_at_once(sandbox):
    entries = [WriteEntry(path=f"many/{number} ü.txt", data=str(number) * 1000) for number in range(20)]
    written = sandbox.files.write_files(entries)
    assert [info.path for info in written] == [f"/home/user/many/{number} ü.txt" for number in range(20)]
    assert sandbox.files.read("many/7 ü.txt") == "7" * 1000
    assert sandbox.files.write_files([]) == []


def test_gzip_and_bare_bodies(sandbox):
    text = "squeeze " * 100_000
    sandbox.files.write("squeezed", text, gzip=True)
    assert sandbox.files.read("squeezed") == text and sandbox.files.read("squeezed", gzip=True) == text
    sandbox.files.write("bare", text, use_octet_stream=True)
    assert sandbox.files.read("bare") == text


def test_metadata(sandbox):
    if not has_metadata(sandbox):
        pytest.skip("the kernel keeps no metadata of files in memory")
    info = sandbox.files.write("noted", "x", metadata={"author": "me", "Kind": "draft"})
    assert info.metadata == {"author": "me", "kind": "draft"}
    assert sandbox.files.get_info("noted").metadata == {"author": "me", "kind": "draft"}
    listed = {entry.name: entry for entry in sandbox.files.list(".")}
    assert listed["noted"].metadata == {"author": "me", "kind": "draft"}


def has_metadata(sandbox):
    sandbox.files.write("probe", "")
    try:
        sandbox.files.write("probe", "", metadata={"a": "b"})
        return True
    except e2b.SandboxException:
        return False


def test_entries(sandbox):
    assert sandbox.files.make_dir("dir/sub") is True
    assert sandbox.files.make_dir("dir/sub") is False
    sandbox.files.write("dir/sub/file", "12345")
    sandbox.commands.run("ln -s sub/file dir/link; chmod 640 dir/sub/file")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        sandbox.files.make_dir("dir/sub/file")
    entries = {entry.path: entry for entry in sandbox.files.list("dir", depth=2)}
    assert set(entries) == {"/home/user/dir/link", "/home/user/dir/sub", "/home/user/dir/sub/file"}
    file = entries["/home/user/dir/sub/file"]
    assert (file.size, file.permissions, file.owner, file.group, file.mode & 0o777) == (5, "-rw-r-----", "user", "user", 0o640)
    assert entries["/home/user/dir/sub"].type == FileType.DIR
    link = entries["/home/user/dir/link"]
    assert link.symlink_target == "/home/user/dir/sub/file"
    assert link.type == (FileType.SYMLINK if IS_NEW else FileType.FILE)
    assert len(sandbox.files.list("dir")) == 2
    moved = sandbox.files.rename("dir/sub/file", "elsewhere/moved")
    assert moved.path == "/home/user/elsewhere/moved" and not sandbox.files.exists("dir/sub/file")
    sandbox.files.remove("dir")
    assert not sandbox.files.exists("dir")
    sandbox.files.remove("dir")
    sandbox.files.write("/tmp/secret", "s", user="root")
    sandbox.commands.run("chmod 600 /tmp/secret", user="root")
    assert sandbox.files.read("/tmp/secret", user="root") == "s"
    assert sandbox.files.get_info("/tmp/secret").owner == "root"
    with pytest.raises(e2b.SandboxException):
        sandbox.files.read("/tmp/secret")


def test_what_is_not_there_is_told(sandbox):
    for wrong in [
        lambda: sandbox.files.read("absent"),
        lambda: sandbox.files.list("absent"),
        lambda: sandbox.files.get_info("absent"),
        lambda: sandbox.files.rename("absent", "x"),
        lambda: sandbox.files.watch_dir("absent"),
    ]:
        with pytest.raises(NotFoundException):
            wrong()
    with pytest.raises(InvalidArgumentException, match="directory"):
        sandbox.files.read("/home/user")
    sandbox.files.write("file", "")
    with pytest.raises(InvalidArgumentException, match="not a directory"):
        sandbox.files.list("file")


def test_storage_that_is_full_is_told(sandbox):
    with pytest.raises(e2b.NotEnoughSpaceException):
        with open("/dev/zero", "rb") as zeros:
            sandbox.files.write("/tmp/huge", Endless(zeros, 3 << 30), **({"use_octet_stream": True} if IS_NEW else {"gzip": True}))
    assert not sandbox.files.exists("/tmp/huge")
    sandbox.files.write("/tmp/small", "x")


class Endless(io.RawIOBase):
    """So many bytes of another file."""

    def __init__(self, file, left):
        self.file, self.left = file, left

    def readable(self):
        return True

    def read(self, size=-1):
        size = min(self.left, 1 << 20 if size is None or size < 0 else size)
        self.left -= size
        return self.file.read(size)

    def readinto(self, buffer):
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def test_watching_by_asking(sandbox):
    sandbox.files.make_dir("watched")
    handle = sandbox.files.watch_dir("watched")
    seen = []

    def has(kind, name):
        seen.extend(handle.get_new_events())
        return any(event.type == kind and event.name == name for event in seen)

    sandbox.files.write("watched/new", "1")
    until(lambda: has(FilesystemEventType.CREATE, "new"), "it is created")
    until(lambda: has(FilesystemEventType.WRITE, "new"), "it is written")
    seen.clear()
    sandbox.commands.run("echo more >> watched/new; chmod 600 watched/new; mv watched/new watched/old; rm watched/old")
    for kind, name in [("WRITE", "new"), ("CHMOD", "new"), ("RENAME", "new"), ("CREATE", "old"), ("REMOVE", "old")]:
        until(lambda: has(FilesystemEventType[kind], name), f"{kind} {name}")
    handle.stop()
    with pytest.raises(e2b.SandboxException):
        handle.get_new_events()
    deep = sandbox.files.watch_dir("watched", recursive=True)
    sandbox.files.write("watched/a/b/c", "")
    seen.clear()
    handle = deep
    until(lambda: has(FilesystemEventType.CREATE, "a/b/c"), "it is seen deep down")
    deep.stop()


@pytest.mark.skipif(not IS_NEW, reason="this generation does not ask for entries")
def test_watching_with_entries(sandbox):
    sandbox.files.make_dir("shown")
    handle = sandbox.files.watch_dir("shown", include_entry=True)
    sandbox.files.write("shown/file", "12345")
    seen = []
    until(lambda: seen.extend(handle.get_new_events()) or seen, "something is heard")
    assert seen[0].entry.path == "/home/user/shown/file" and seen[0].entry.size == 5
    handle.stop()


def test_signed_addresses(server, sandbox):
    def fetch(url, data=None, headers={}):
        request = urllib.request.Request(url, data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=20) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    sandbox.files.write("sign me", "signed")
    url = sandbox.download_url("sign me")
    assert fetch(url) == (200, b"signed")
    # It is for this path, for this user, to read, and nothing else.
    assert fetch(url.replace("sign%20me", "other").replace("sign+me", "other"))[0] == 401
    assert fetch(url + "&username=root")[0] == 401
    assert fetch(url, data=b"x")[0] == 401
    assert fetch(url.split("&signature")[0].split("?signature")[0])[0] in (401, 502)
    assert fetch(sandbox.download_url("sign me", use_signature_expiration=60))[0] == 200
    status, body = fetch(sandbox.download_url("sign me", use_signature_expiration=-5))
    assert status == 401 and b"expired" in body
    upload = sandbox.upload_url("posted")
    form = b'--X\r\nContent-Disposition: form-data; name="file"; filename="posted"\r\n\r\nby form\r\n--X--\r\n'
    assert fetch(upload, data=form, headers={"Content-Type": "multipart/form-data; boundary=X"})[0] == 200
    assert sandbox.files.read("posted") == "by form"
    squeezed = {"Content-Type": "application/octet-stream", "Content-Encoding": "gzip"}
    assert fetch(upload, data=gzip.compress(b"by gzip"), headers=squeezed)[0] == 200
    assert sandbox.files.read("posted") == "by gzip"


def test_ports(server, sandbox):
    page = "from http.server import *; HTTPServer(('127.0.0.1', 8000), SimpleHTTPRequestHandler).serve_forever()"
    if sandbox.commands.run("command -v python3 || true").stdout:
        sandbox.files.write("index.html", "inside")
        serving = sandbox.commands.run(f'python3 -c "{page}"', background=True, timeout=0)
    else:
        pytest.skip("nothing here can serve a page")
    host = sandbox.get_host(8000)
    name, port = host.rsplit(":", 1)
    assert name == f"8000-{sandbox.sandbox_id}.localhost" and int(port) == server.port

    def fetch(host, port_header=None, extra={}):
        headers = {"Host": host, **extra}
        if port_header:
            headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port_header), **extra}
        try:
            with urllib.request.urlopen(urllib.request.Request(f"{server.url}/index.html", headers=headers), timeout=20) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    until(lambda: fetch(host)[0] == 200, "the page is served")
    assert fetch(host) == (200, b"inside") and fetch(None, 8000) == (200, b"inside")
    status, body = fetch(sandbox.get_host(8001))
    assert status == 502 and b"port is not open" in body
    private = Sandbox.create(timeout=60, network={"allow_public_traffic": False})
    status, _ = fetch(private.get_host(8000))
    assert status == 403
    token = private.traffic_access_token
    status, body = fetch(private.get_host(8000), extra={"e2b-traffic-access-token": token})
    assert token and status == 502 and b"port is not open" in body
    private.kill()
    status, body = fetch(private.get_host(8000))
    assert status == 502 and b"was not found" in body


def test_directories_are_made_where_only_root_may(sandbox):
    # Only root may write there; the file is root's, and everybody's to read.
    sandbox.files.write("/solution/deep/file", "written")
    assert sandbox.files.read("/solution/deep/file") == "written"
    assert sandbox.commands.run("cat /solution/deep/file").stdout == "written"
