"""Volumes, through the synchronous client: what stays between sandboxes, who may use one, and when it can be destroyed."""

import os

import e2b
import pytest
from e2b import Sandbox, SandboxException, Volume
from test_sandbox import IS_NEW

if IS_NEW:
    from e2b import VolumeException
else:
    # What this generation has for them.
    VolumeException = Exception


@pytest.fixture
def volume(server):
    volume = Volume.create("kept")
    yield volume
    Volume.destroy(volume.volume_id)


def test_files_stay_and_several_sandboxes_share_them(volume):
    assert [(one.volume_id, one.name) for one in Volume.list()] == [(volume.volume_id, "kept")]
    first = Sandbox.create(timeout=60, volume_mounts={"/mnt/data": volume})
    second = Sandbox.create(timeout=60, volume_mounts={"/srv/data": "kept"})
    try:
        first.files.write("/mnt/data/a/file", "hello")
        assert second.files.read("/srv/data/a/file") == "hello"
        assert second.commands.run("echo $(id -un) $(stat -c %U /srv/data/a/file)").stdout == "user user\n"
        # It has the server's size for volumes, and no more.
        full = first.commands.run("dd if=/dev/zero of=/mnt/data/big bs=1M count=32 2>&1 | grep -c 'No space'; rm /mnt/data/big")
        assert full.stdout == "1\n"
        with pytest.raises(VolumeException, match="in use by sandboxes"):
            Volume.destroy(volume.volume_id)
    finally:
        first.kill()
        second.kill()
    third = Sandbox.create(timeout=60, volume_mounts={"/mnt/data": volume})
    try:
        assert third.files.read("/mnt/data/a/file") == "hello"
    finally:
        third.kill()


def test_a_volume_is_found_by_its_id_until_it_is_destroyed(volume):
    again = Volume.connect(volume.volume_id)
    assert (again.name, again.token) == ("kept", volume.token)
    with pytest.raises(VolumeException, match="already"):
        Volume.create("kept")
    with pytest.raises(VolumeException, match="not a volume's name"):
        Volume.create("../kept")
    assert Volume.destroy(volume.volume_id) is True
    assert Volume.destroy(volume.volume_id) is False
    assert Volume.list() == []
    with pytest.raises(e2b.NotFoundException):
        Volume.connect(volume.volume_id)
    with pytest.raises(SandboxException, match="there is no volume"):
        Sandbox.create(timeout=60, volume_mounts={"/mnt/data": "kept"})


def test_files_of_a_volume_are_read_and_written_without_a_sandbox(volume):
    written = volume.write_file("/a", "hello")
    assert (written.path, written.name, written.type.value, written.size, written.mode & 0o777) == ("/a", "a", "file", 5, 0o644)
    assert volume.read_file("a") == "hello"
    assert volume.read_file("/a", format="bytes") == b"hello"
    big = os.urandom(3_000_000)
    assert volume.write_file("/deep/er/big", big, force=True, mode=0o600, uid=1234, gid=4321).size == len(big)
    assert b"".join(volume.read_file("/deep/er/big", format="stream")) == big
    stat = volume.get_info("/deep/er/big")
    assert (stat.uid, stat.gid, stat.mode & 0o777, stat.mtime.tzinfo is not None) == (1234, 4321, 0o600, True)
    made = volume.make_dir("/dir", mode=0o700)
    assert (made.type.value, made.mode & 0o777) == ("directory", 0o700)
    assert [entry.path for entry in volume.list("/")] == ["/a", "/deep", "/dir", "/lost+found"] or \
        sorted(entry.path for entry in volume.list("/"))[:3] == ["/a", "/deep", "/dir"]
    assert "/deep/er/big" in [entry.path for entry in volume.list("/", depth=3)]
    changed = volume.update_metadata("/a", uid=0, mode=0o640)
    assert (changed.uid, changed.mode & 0o777) == (0, 0o640)
    # What belongs to another is written as root, and stays that other's.
    assert volume.write_file("/a", "again").uid == 0
    assert volume.exists("/a") and not volume.exists("/absent")
    # What was written is there in sandboxes, for their user; and the other way round.
    sandbox = Sandbox.create(timeout=60, volume_mounts={"/mnt/data": volume})
    try:
        volume.write_file("/new", "by the api")
        assert sandbox.commands.run("cat /mnt/data/new; echo more >> /mnt/data/new; ln -s /etc/passwd /mnt/data/out").stdout == "by the api"
        assert volume.read_file("/new") == "by the apimore\n"
        assert (volume.get_info("/out").type.value, volume.get_info("/out").target) == ("symlink", "/etc/passwd")
    finally:
        sandbox.kill()
    volume.remove("/deep")
    assert not volume.exists("/deep/er/big")
    full = os.urandom(20 << 20)
    with pytest.raises(VolumeException):
        volume.write_file("/full", full)
    assert not volume.exists("/full") and volume.read_file("/new") == "by the apimore\n"


def test_what_is_not_in_a_volume_is_not_found_and_nobody_leaves_it(volume):
    for call in (volume.read_file, volume.list, volume.get_info, volume.remove):
        with pytest.raises(e2b.NotFoundException):
            call("/absent")
    with pytest.raises(e2b.NotFoundException):
        volume.write_file("/absent/file", "x")
    with pytest.raises(e2b.NotFoundException):
        volume.make_dir("/absent/dir")
    for path in ("/../etc/passwd", "a/../../x", "/.."):
        with pytest.raises(VolumeException, match="path"):
            volume.read_file(path)
        with pytest.raises(VolumeException, match="path"):
            volume.write_file(path, "x")
    with pytest.raises(VolumeException, match="top of a volume"):
        volume.remove("/")
    other = Volume.create("other")
    try:
        # The token of one volume doesn't open another, and neither does none.
        for token in (other.token, "x", other.token.split(".")[0] + "."):
            with pytest.raises(Exception) as refused:
                volume.read_file("/a", token=token)
            assert "401" in str(refused.value) or "nauthorized" in str(refused.value) or "key" in str(refused.value)
        other.write_file("/mine", "x")
        assert not volume.exists("/mine")
        # It is destroyed although its files were just used.
        assert Volume.destroy(other.volume_id) is True
    finally:
        Volume.destroy(other.volume_id)
