"""Programs in a sandbox, through the synchronous client, of either generation."""

import base64
import threading

import e2b
import pytest
from conftest import until
from e2b import CommandExitException, InvalidArgumentException, NotFoundException, Sandbox, TimeoutException
from e2b.sandbox.commands.command_handle import PtySize
from test_sandbox import IS_NEW


def test_output_codes_and_users(sandbox):
    seen = {"out": [], "err": []}
    result = sandbox.commands.run(
        "echo one; echo two >&2; id -un; pwd", on_stdout=seen["out"].append, on_stderr=seen["err"].append
    )
    assert (result.stdout, result.stderr, result.exit_code) == ("one\nuser\n/home/user\n", "two\n", 0)
    assert "".join(seen["out"]) == result.stdout and "".join(seen["err"]) == "two\n"
    assert sandbox.commands.run("id -un; pwd", user="root").stdout == "root\n/root\n"
    assert sandbox.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    with pytest.raises(CommandExitException) as ended:
        sandbox.commands.run("echo last words; exit 3")
    assert (ended.value.exit_code, ended.value.stdout) == (3, "last words\n")


def test_what_cannot_be_started_is_told(sandbox):
    with pytest.raises(InvalidArgumentException, match="does not exist"):
        sandbox.commands.run("true", cwd="/not/there")
    with pytest.raises(e2b.AuthenticationException, match="invalid username"):
        sandbox.commands.run("true", user="nobody-here")


def test_much_output_comes_whole(sandbox):
    result = sandbox.commands.run("head -c 3000000 /dev/zero | tr '\\0' x; echo; seq 1 20000 >&2")
    assert len(result.stdout) == 3_000_001 and result.stderr.splitlines()[-1] == "20000"
    text = "é☂" * 1000
    assert sandbox.commands.run(f"printf %s '{text}'").stdout == text


def test_a_deadline_ends_a_program_and_all_it_started(sandbox):
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 987 & sleep 986", timeout=1)
    until(lambda: not processes(sandbox, "sleep 98"), "everything is gone")


def processes(sandbox, words):
    found = "for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline 2>/dev/null; echo; done"
    lines = sandbox.commands.run(found).stdout.splitlines()
    return [line for line in lines if line.startswith(words)]


def test_background_connect_list_and_kill(sandbox):
    handle = sandbox.commands.run("echo started; sleep 985", background=True, timeout=0)
    listed = sandbox.commands.list()
    assert [found.envs for found in listed] == [{}]
    assert [(found.pid, found.cmd, found.args[-1], found.cwd) for found in listed] == [
        (handle.pid, "/bin/bash", "echo started; sleep 985", "/home/user")
    ]
    # Who goes away leaves it running.
    handle.disconnect()
    again = sandbox.commands.connect(handle.pid)
    assert sandbox.commands.kill(handle.pid) is True
    with pytest.raises(CommandExitException) as ended:
        again.wait()
    assert ended.value.exit_code != 0
    until(lambda: sandbox.commands.kill(handle.pid) is False, "it is known to be dead")
    # How it ended is told to who comes late.
    with pytest.raises(CommandExitException):
        sandbox.commands.connect(handle.pid).wait()
    with pytest.raises(NotFoundException):
        sandbox.commands.connect(999_999)
    assert sandbox.commands.list() == []


def test_stdin(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=30)
    for line in ["one\n", "two\n", "é" * 100_000 + "\n"]:
        sandbox.commands.send_stdin(handle.pid, line)
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\ntwo\n" + "é" * 100_000 + "\n"
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=30)
    handle.send_stdin(b"by its handle\n")
    handle.close_stdin()
    assert handle.wait().stdout == "by its handle\n"
    handle = sandbox.commands.run("sleep 980 & sleep 979", background=True, timeout=0)
    assert handle.kill() is True
    until(lambda: not processes(sandbox, "sleep 9"), "all that it started is gone")
    # None is given to who didn't ask for it.
    assert sandbox.commands.run("cat", timeout=10).stdout == ""
    silent = sandbox.commands.run("sleep 984", background=True, timeout=0)
    with pytest.raises(e2b.SandboxException):
        sandbox.commands.send_stdin(silent.pid, "x")
    sandbox.commands.kill(silent.pid)


def test_stdin_without_anybody_following(sandbox):
    handle = sandbox.commands.run("read a; read b; echo $a $b > /tmp/heard", background=True, stdin=True, timeout=0)
    sandbox.commands.send_stdin(handle.pid, "one\n")
    handle.disconnect()
    sandbox.commands.send_stdin(handle.pid, "two\n")
    until(lambda: sandbox.files.exists("/tmp/heard") and sandbox.files.read("/tmp/heard") == "one two\n", "both are heard")


@pytest.mark.skipif(not IS_NEW, reason="this generation has no such call")
def test_streamed_input(sandbox):
    handle = sandbox.commands.run("cat", background=True, stdin=True, timeout=60)
    sandbox.commands.stream_input(handle.pid, (f"{number}\n" for number in range(500)))
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "".join(f"{number}\n" for number in range(500))


def test_many_programs_at_once(sandbox):
    results = {}

    def run(number):
        results[number] = sandbox.commands.run(f"echo {number}; sleep 0.2").stdout

    threads = [threading.Thread(target=run, args=[number]) for number in range(16)]
    [thread.start() for thread in threads]
    [thread.join(60) for thread in threads]
    assert results == {number: f"{number}\n" for number in range(16)}


def test_a_silent_program_is_waited_for(sandbox, monkeypatch):
    # Keep-alives are sent as often as the client asks; here, every second.
    import e2b.connection_config

    for name in dir(e2b.connection_config):
        if name == "KEEPALIVE_PING_INTERVAL_SEC":
            monkeypatch.setattr(e2b.connection_config, name, 1)
    assert sandbox.commands.run("sleep 3; echo done").stdout == "done\n"


def test_a_terminal(sandbox):
    output = []
    arguments = {"size": PtySize(rows=24, cols=80), "timeout": 60}
    terminal = sandbox.pty.create(**arguments)
    reader = threading.Thread(target=lambda: terminal_wait(terminal, output))
    reader.start()
    sandbox.pty.send_stdin(terminal.pid, b"tty; stty size; echo $TERM\n")
    until(lambda: "xterm-256color" in "".join(output) and "24 80" in "".join(output), "the terminal answers")
    sandbox.pty.resize(terminal.pid, PtySize(rows=50, cols=132))
    sandbox.pty.send_stdin(terminal.pid, b"stty size\n")
    until(lambda: "50 132" in "".join(output), "it has its new size")
    sandbox.pty.send_stdin(terminal.pid, b"exit 4\n")
    reader.join(30)
    assert not reader.is_alive() and output[-1] == "exit 4"
    another = sandbox.pty.create(**arguments, cwd="/tmp", user="root", envs={"WHO": "me"})
    another.disconnect()
    output.clear()
    again = sandbox.pty.connect(another.pid)
    reader = threading.Thread(target=lambda: terminal_wait(again, output))
    reader.start()
    if IS_NEW:
        sandbox.pty.stream_input(another.pid, ["echo $WHO; ", b"pwd; id", b" -un\n"])
    else:
        sandbox.pty.send_stdin(another.pid, b"echo $WHO; pwd; id -un\n")
    until(lambda: "me\r\n/tmp\r\nroot" in "".join(output), "it answers who came later")
    assert sandbox.pty.kill(another.pid) is True
    reader.join(30)
    assert not reader.is_alive()
    until(lambda: sandbox.pty.kill(another.pid) is False, "it is gone")


def terminal_wait(terminal, output):
    try:
        terminal.wait(on_pty=lambda data: output.append(data.decode(errors="replace")))
        output.append("exit 0")
    except CommandExitException as ended:
        output.append(f"exit {ended.exit_code}")


def test_the_end_of_the_sandbox_is_told_to_who_follows(server):
    sandbox = Sandbox.create(timeout=60)
    handle = sandbox.commands.run("sleep 983", background=True, timeout=0)
    threading.Timer(0.5, sandbox.kill).start()
    with pytest.raises(Exception) as ended:
        handle.wait()
    assert not isinstance(ended.value, AssertionError), ended.value
    assert isinstance(ended.value, (TimeoutException, e2b.SandboxException)), repr(ended.value)


def test_git(sandbox):
    git = sandbox.git
    sandbox.files.write("/home/user/repo/a.txt", "a\n")
    git.init("/home/user/repo", initial_branch="main")
    git.configure_user("Somebody", "somebody@example.com", scope="local", path="/home/user/repo")
    git.add("/home/user/repo")
    git.commit("/home/user/repo", "first")
    git.create_branch("/home/user/repo", "other")
    assert set(git.branches("/home/user/repo").branches) == {"main", "other"}
    assert git.status("/home/user/repo").is_clean
    git.checkout_branch("/home/user/repo", "main")
    git.delete_branch("/home/user/repo", "other")
    assert git.branches("/home/user/repo").branches == ["main"]
    sandbox.files.write("/home/user/repo/a.txt", "b\n")
    assert not git.status("/home/user/repo").is_clean
    git.restore("/home/user/repo", ["a.txt"])
    assert sandbox.files.read("/home/user/repo/a.txt") == "a\n"
    git.set_config("core.pager", "cat", scope="local", path="/home/user/repo")
    assert git.get_config("core.pager", scope="local", path="/home/user/repo") == "cat"
    # A remote that needs no network.
    git.init("/home/user/bare.git", bare=True, initial_branch="main")
    git.remote_add("/home/user/repo", "origin", "/home/user/bare.git")
    assert git.remote_get("/home/user/repo", "origin") == "/home/user/bare.git"
    git.push("/home/user/repo", remote="origin", branch="main")
    git.clone("/home/user/bare.git", path="/home/user/copy")
    assert sandbox.files.read("/home/user/copy/a.txt") == "a\n"
    sandbox.files.write("/home/user/repo/b.txt", "more\n")
    git.add("/home/user/repo", files=["b.txt"])
    git.commit("/home/user/repo", "second", author_name="A", author_email="a@example.com")
    git.push("/home/user/repo", remote="origin", branch="main")
    git.pull("/home/user/copy", remote="origin", branch="main")
    assert sandbox.files.read("/home/user/copy/b.txt") == "more\n"
    git.reset("/home/user/repo", mode="hard", target="HEAD~1")
    assert not sandbox.files.exists("/home/user/repo/b.txt")


def test_what_is_printed_is_bytes(sandbox):
    data = bytes(range(256)) * 50
    sandbox.files.write("/tmp/bytes", data)
    assert base64.b64decode(sandbox.commands.run("base64 /tmp/bytes").stdout) == data
