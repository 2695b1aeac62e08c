"""What E2B's own tests expect of sandboxes, files, watches and programs, through the synchronous client of either generation."""

import threading

import e2b
import pytest
from conftest import until
from e2b import FileType, Sandbox, SandboxState
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType
from test_files import has_metadata
from test_sandbox import IS_NEW


def test_a_paused_sandbox_does_not_run(server):
    sandbox = Sandbox.create(timeout=120)
    try:
        assert sandbox.is_running()
        sandbox.pause()
        assert not sandbox.is_running()
        Sandbox.connect(sandbox.sandbox_id, timeout=60)
        assert sandbox.is_running()
    finally:
        sandbox.kill()
    assert not sandbox.is_running()


def test_asking_whether_a_sandbox_runs_wakes_one_that_wakes_by_use(server):
    sandbox = Sandbox.create(timeout=120, lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        sandbox.pause()
        assert sandbox.is_running() and sandbox.get_info().state == SandboxState.RUNNING
    finally:
        sandbox.kill()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_sandbox_that_ends_under_a_command_is_told_as_that(server, terminal):
    sandbox = Sandbox.create(timeout=120)
    try:
        if terminal:
            handle = sandbox.pty.create(e2b.PtySize(rows=20, cols=80), timeout=0)
        else:
            handle = sandbox.commands.run("echo begun; sleep 971", background=True, timeout=0)
        outcome = []

        def wait():
            try:
                outcome.append(handle.wait())
            except Exception as error:
                outcome.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert sandbox.kill() is True
        waiting.join(60)
    finally:
        sandbox.kill()
    (error,) = outcome
    assert isinstance(error, e2b.TimeoutException), repr(error)
    if IS_NEW:
        assert "The sandbox was killed or reached its end of life" in str(error)


def test_a_sandbox_whose_time_is_up_under_a_command_is_told_as_that(server):
    sandbox = Sandbox.create(timeout=120)
    handle = sandbox.commands.run("sleep 972", background=True, timeout=0)
    sandbox.set_timeout(1)
    with pytest.raises(e2b.TimeoutException):
        handle.wait()


def test_a_list_is_in_order(sandbox):
    made = ["b", "a", "B", "10", "9", "sub.txt", "sub/y", "sub/x", "sub/deep/z", "ü"]
    for name in made:
        sandbox.files.write(f"sorted/{name}", "")
    listed = [entry.path.removeprefix("/home/user/sorted/") for entry in sandbox.files.list("sorted", depth=3)]
    # Name by name, and what is in a directory right after it.
    assert listed == ["10", "9", "B", "a", "b", "sub", "sub/deep", "sub/deep/z", "sub/x", "sub/y", "sub.txt", "ü"]


def test_a_link_tells_where_it_leads_in_the_end(sandbox):
    sandbox.files.write("real/file", "1234")
    sandbox.commands.run("ln -s real way; ln -s way/file short; ln -s ../short real/round; ln -s nowhere broken; ln -s loop loop; ln -s / up")
    target = lambda path: sandbox.files.get_info(path).symlink_target
    for link in ["short", "real/round", "way/round"]:
        assert target(link) == "/home/user/real/file", link
    assert target("way") == "/home/user/real" and target("up") == "/" and target("real/file") is None
    # Where there is nothing at the end, E2B tells the link itself.
    for link in ["broken", "loop"]:
        assert target(link) == f"/home/user/{link}"
    listed = {entry.name: entry for entry in sandbox.files.list(".")}
    assert listed["short"].symlink_target == "/home/user/real/file"
    info = sandbox.files.get_info("short")
    # Its permissions are the target's, its listing is its own.
    assert (info.mode, info.permissions) == (0o644, "Lrwxrwxrwx")
    if not IS_NEW:
        assert info.type == FileType.FILE


def test_a_directory_has_the_size_that_the_kernel_tells(sandbox):
    sandbox.files.make_dir("sized")
    told = int(sandbox.commands.run("stat -c %s sized").stdout)
    assert told > 0 and sandbox.files.get_info("sized").size == told
    assert {entry.name: entry.size for entry in sandbox.files.list(".")}["sized"] == told


def test_the_end_of_a_sandbox_does_not_move_while_it_is_looked_at(server, sandbox):
    running = [sandbox.get_info().end_at for _ in range(20)]
    listed = [info.end_at for info in Sandbox.list().next_items() if info.sandbox_id == sandbox.sandbox_id]
    assert len({*running, *listed}) == 1
    sandbox.pause()
    assert len({sandbox.get_info().end_at for _ in range(5)}) == 1


@pytest.mark.skipif(not IS_NEW, reason="this generation has no metadata")
def test_metadata_are_attributes_of_the_name_that_e2b_gives_them(sandbox):
    if not has_metadata(sandbox):
        pytest.skip("the kernel keeps no metadata of files in memory")
    sandbox.files.write("noted", "x", metadata={"author": "me"})
    read = "import os; print(os.listxattr('noted'), os.getxattr('noted', 'user.e2b.author'))"
    assert sandbox.commands.run(f'python3 -c "{read}"').stdout == "['user.e2b.author'] b'me'\n"
    sandbox.files.write("noted", "y")
    assert sandbox.files.get_info("noted").metadata is None
    sandbox.commands.run("python3 -c \"import os; os.setxattr('noted', 'user.e2b.by', b'hand')\"")
    assert sandbox.files.get_info("noted").metadata == {"by": "hand"}


def names_and_kinds(events):
    return [(event.name, event.type.name) for event in events]


def test_a_polled_watch_tells_what_was_done_before_it_is_asked(sandbox):
    sandbox.files.make_dir("watched")
    # Many times, as each could be the one in which it is late.
    for number in range(30):
        handle = sandbox.files.watch_dir("watched")
        sandbox.files.write(f"watched/{number}", "content")
        assert names_and_kinds(handle.get_new_events()) == [(str(number), kind) for kind in ["CREATE", "CHMOD", "WRITE"]]
        assert handle.get_new_events() == []
        handle.stop()


def test_a_polled_watch_tells_of_permissions_and_of_files_that_are_replaced(sandbox):
    sandbox.files.write("watched/file", "old")
    handle = sandbox.files.watch_dir("watched")
    sandbox.commands.run("chmod 600 watched/file")
    assert names_and_kinds(handle.get_new_events()) == [("file", "CHMOD")]
    sandbox.files.write("watched/file", "new")
    told = names_and_kinds(handle.get_new_events())
    # Nothing is heard of how it was done.
    assert ("file", "WRITE") in told and {name for name, _ in told} == {"file"}
    sandbox.commands.run("echo more > watched/other")
    assert names_and_kinds(handle.get_new_events()) == [("other", "CREATE"), ("other", "WRITE")]
    handle.stop()


def test_a_polled_watch_follows_into_a_directory_that_was_just_made(sandbox):
    sandbox.files.make_dir("watched")
    for number in range(10):
        handle = sandbox.files.watch_dir("watched", recursive=True)
        sandbox.files.make_dir(f"watched/{number}")
        sandbox.files.write(f"watched/{number}/file", "content")
        told = names_and_kinds(handle.get_new_events())
        assert (str(number), "CREATE") in told and (f"{number}/file", "WRITE") in told, told
        handle.stop()


def test_a_killed_process_is_gone_when_kill_answers(sandbox):
    for _ in range(50):
        handle = sandbox.commands.run("sleep 97391 & sleep 97391", background=True, timeout=0)
        assert sandbox.commands.kill(handle.pid) is True
        assert sandbox.commands.list() == []
        left = sandbox.commands.run(f"[ -e /proc/{handle.pid} ] && echo th''ere; cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '").stdout
        assert "there" not in left and "97391" not in left
        assert sandbox.commands.kill(handle.pid) is False


def test_a_program_whose_output_nobody_takes_is_gone_when_kill_answers(sandbox):
    # More than all that is on the way between it and a client that reads nothing.
    handle = sandbox.commands.run("exec yes 97392", background=True, timeout=0)
    until(lambda: sandbox.commands.run(f"cat /proc/{handle.pid}/wchan").stdout.endswith("pipe_write"), "it waits for a reader", 60)
    assert sandbox.commands.kill(handle.pid) is True
    assert sandbox.commands.list() == [] and sandbox.commands.kill(handle.pid) is False
    assert not sandbox.files.exists(f"/proc/{handle.pid}")
