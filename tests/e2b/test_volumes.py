"""Volumes, through the synchronous client: what stays between sandboxes, who may use one, and when it can be destroyed."""

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


def test_files_of_a_volume_need_a_sandbox(volume):
    with pytest.raises(Exception, match="not supported yet"):
        volume.write_file("/a", "hello", api_url=e2b.ConnectionConfig().api_url)
