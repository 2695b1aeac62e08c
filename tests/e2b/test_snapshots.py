"""Snapshots and forks, which have files and no processes here."""

import pytest
from e2b import NotFoundException, Sandbox, SandboxException
from test_sandbox import IS_NEW


def test_a_sandbox_is_started_from_a_snapshot_of_another(sandbox):
    sandbox.files.write("notes/a.txt", "one")
    # Kept to the end: a stream that the collector closes may wait for a lock of the client that its own thread holds.
    sleeping = sandbox.commands.run("sleep 1000", background=True)
    info = sandbox.create_snapshot()
    assert info.snapshot_id and info.names == []
    sandbox.files.write("notes/a.txt", "two")
    copy = Sandbox.create(info.snapshot_id)
    try:
        assert copy.files.read("notes/a.txt") == "one"
        assert "sleep" not in [process.cmd for process in copy.commands.list()]
        assert copy.sandbox_id != sandbox.sandbox_id
    finally:
        copy.kill()
    assert sandbox.is_running() and sandbox.files.read("notes/a.txt") == "two"
    assert Sandbox.delete_snapshot(info.snapshot_id)
    assert not Sandbox.delete_snapshot(info.snapshot_id)
    with pytest.raises((NotFoundException, SandboxException), match="not found"):
        Sandbox.create(info.snapshot_id)
    assert sleeping.kill()


def test_snapshots_are_listed_by_sandbox(sandbox):
    made = [sandbox.create_snapshot().snapshot_id for _ in range(3)]
    paginator = sandbox.list_snapshots(limit=2)
    found = []
    while paginator.has_next:
        found += [info.snapshot_id for info in paginator.next_items()]
    assert found == made[::-1]
    for snapshot in made:
        assert Sandbox.delete_snapshot(snapshot)
    assert sandbox.list_snapshots().next_items() == []


def test_a_paused_sandbox_stays_paused(sandbox):
    sandbox.files.write("a", "there")
    sandbox.pause() if hasattr(sandbox, "pause") else sandbox.beta_pause()
    info = sandbox.create_snapshot()
    copy = Sandbox.create(info.snapshot_id)
    try:
        assert copy.files.read("a") == "there"
    finally:
        copy.kill()
    Sandbox.delete_snapshot(info.snapshot_id)
    assert sandbox.get_info().state.value == "paused"


@pytest.mark.skipif(not IS_NEW, reason="the older client has no forks, names and modes")
def test_forks_names_and_modes(sandbox):
    sandbox.files.write("a", "there")
    forks = sandbox.fork(count=2, timeout=60)
    assert [fork.files.read("a") for fork in forks] == ["there", "there"]
    assert len({sandbox.sandbox_id, *(fork.sandbox_id for fork in forks)}) == 3
    for fork in forks:
        fork.kill()
    info = sandbox.create_snapshot(name="named-here", mode="filesystem")
    assert info.names == ["named-here"]
    copy = Sandbox.create("named-here", timeout=60)
    assert copy.files.read("a") == "there"
    copy.kill()
    assert Sandbox.delete_snapshot(info.snapshot_id)
    with pytest.raises(SandboxException, match="memory"):
        sandbox.create_snapshot(mode="full")
