"""The same surface through the asynchronous client: what differs there is that it streams where the other asks, and runs much at once."""

import asyncio
import os

import e2b
import pytest
from e2b import AsyncSandbox, CommandExitException
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType
from test_sandbox import IS_NEW

PATIENCE = 60


def run(test):
    """Runs a test with a sandbox of its own, within a bounded time."""

    async def with_sandbox():
        sandbox = await AsyncSandbox.create(timeout=120)
        try:
            await test(sandbox)
        finally:
            await sandbox.kill()

    asyncio.run(asyncio.wait_for(with_sandbox(), PATIENCE))


async def until(condition, what):
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"not in time: {what}")


def test_commands(server):
    async def test(sandbox):
        result = await sandbox.commands.run("echo one; echo two >&2")
        assert (result.stdout, result.stderr) == ("one\n", "two\n")
        with pytest.raises(CommandExitException) as ended:
            await sandbox.commands.run("exit 3")
        assert ended.value.exit_code == 3
        with pytest.raises(e2b.TimeoutException):
            await sandbox.commands.run("sleep 50", timeout=1)
        handle = await sandbox.commands.run("cat", background=True, stdin=True)
        assert handle.pid in [found.pid for found in await sandbox.commands.list()]
        await sandbox.commands.send_stdin(handle.pid, "heard\n")
        if IS_NEW:
            stream = sandbox.commands.stream_input(handle.pid)
            for number in range(50):
                await stream.send(f"{number}\n")
            await stream.close()
        await sandbox.commands.close_stdin(handle.pid)
        result = await handle.wait()
        assert result.stdout.startswith("heard\n") and (not IS_NEW or result.stdout.endswith("49\n"))
        sleeping = await sandbox.commands.run("sleep 50", background=True)
        assert await sandbox.commands.kill(sleeping.pid)
        with pytest.raises(CommandExitException):
            await sleeping.wait()
        results = await asyncio.gather(*(sandbox.commands.run(f"echo {number}") for number in range(20)))
        assert [result.stdout for result in results] == [f"{number}\n" for number in range(20)]

    run(test)


def test_a_terminal(server):
    async def test(sandbox):
        output = []
        terminal = await sandbox.pty.create(
            PtySize(rows=24, cols=80), on_data=lambda data: output.append(data.decode(errors="replace")), timeout=60
        )
        await sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
        await until(lambda: "24 80" in "".join(output), "the terminal answers")
        await sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=132))
        await sandbox.pty.send_stdin(terminal.pid, b"stty size; exit 4\n")
        with pytest.raises(CommandExitException) as ended:
            await terminal.wait()
        assert ended.value.exit_code == 4 and "50 132" in "".join(output)

    run(test)


def test_files(server):
    async def test(sandbox):
        data = os.urandom(1_000_000)
        await sandbox.files.write("dir/blob", data)
        assert bytes(await sandbox.files.read("dir/blob", format="bytes")) == data
        pieces = [piece async for piece in await sandbox.files.read("dir/blob", format="stream")]
        assert b"".join(pieces) == data
        assert [entry.name for entry in await sandbox.files.list("dir")] == ["blob"]
        assert await sandbox.files.make_dir("dir") is False
        await sandbox.files.rename("dir/blob", "dir/other")
        assert await sandbox.files.exists("dir/other") and not await sandbox.files.exists("dir/blob")
        await sandbox.files.remove("dir")
        with pytest.raises(e2b.NotFoundException):
            await sandbox.files.read("dir/other")

    run(test)


def test_watching_over_a_stream(server):
    async def test(sandbox):
        await sandbox.files.make_dir("watched/sub")
        events = []
        handle = await sandbox.files.watch_dir("watched", on_event=events.append, recursive=True)

        def has(kind, name):
            return any(event.type == kind and event.name == name for event in events)

        await sandbox.files.write("watched/sub/new", "1")
        await until(lambda: has(FilesystemEventType.WRITE, "sub/new"), "it is written")
        assert has(FilesystemEventType.CREATE, "sub/new")
        assert not [event for event in events if event.name.startswith(("#", "sub/#"))], events
        await sandbox.files.remove("watched/sub/new")
        await until(lambda: has(FilesystemEventType.REMOVE, "sub/new"), "it is removed")
        await handle.stop()
        with pytest.raises(e2b.NotFoundException):
            await sandbox.files.watch_dir("absent", on_event=events.append)

    run(test)


def test_life(server):
    async def test(sandbox):
        assert (await sandbox.get_info()).sandbox_id == sandbox.sandbox_id
        await sandbox.set_timeout(200)
        await sandbox.pause()
        with pytest.raises(e2b.TimeoutException):
            await sandbox.commands.run("true")
        again = await AsyncSandbox.connect(sandbox.sandbox_id)
        assert (await again.commands.run("echo awake")).stdout == "awake\n"
        assert await again.is_running() and await again.get_metrics()
        pages = AsyncSandbox.list(limit=1)
        assert await pages.next_items()

    run(test)


def test_many_sandboxes_at_once(server):
    async def test(first):
        sandboxes = await asyncio.gather(*(AsyncSandbox.create(timeout=60) for _ in range(20)))
        assert len({sandbox.sandbox_id for sandbox in sandboxes}) == 20
        results = await asyncio.gather(*(sandbox.commands.run("echo $E2B_SANDBOX_ID") for sandbox in sandboxes))
        assert [result.stdout.strip() for result in results] == [sandbox.sandbox_id for sandbox in sandboxes]
        assert all(await asyncio.gather(*(sandbox.kill() for sandbox in sandboxes)))

    run(test)


def test_what_is_not_built(server):
    async def test(sandbox):
        calls = []
        if IS_NEW:
            calls += [lambda: e2b.AsyncSecret.create("name", "value")]
        for call in calls:
            with pytest.raises(Exception, match="not supported yet") as refused:
                await call()
            assert type(refused.value).__module__ == "e2b.exceptions", repr(refused.value)
        with pytest.raises(Exception, match="'nextjs' not found"):
            await AsyncSandbox.create("nextjs")
        assert await e2b.AsyncTemplate.exists("base")

    run(test)
