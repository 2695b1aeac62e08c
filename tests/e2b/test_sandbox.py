"""The life of sandboxes, through the synchronous client, of either generation."""

import datetime
import os
import re
import socket
import subprocess
import sys

import e2b
import pytest
from conftest import Server, until
from e2b import AuthenticationException, Sandbox, SandboxException, SandboxQuery, SandboxState
from packaging.version import Version
from test_faults import ask

IS_NEW = Version(__import__("importlib.metadata").metadata.version("e2b")) >= Version("2.60")
GONE = e2b.NotFoundException


def test_create_takes_all_that_can_be_kept(server):
    sandbox = Sandbox.create(
        "base",
        timeout=90,
        metadata={"team": "a", "Who = what? ☂": "x & y"},
        envs={"GREETING": "hello"},
        allow_internet_access=False,
    )
    try:
        info = sandbox.get_info()
        assert info.sandbox_id == sandbox.sandbox_id and sandbox.sandbox_id.isalnum()
        assert info.metadata == {"team": "a", "Who = what? ☂": "x & y"}
        assert info.state == SandboxState.RUNNING and info.template_id == "base"
        assert 60 < (info.end_at - info.started_at).total_seconds() <= 91
        assert sandbox.commands.run("echo $GREETING $E2B_SANDBOX $E2B_SANDBOX_ID").stdout == (
            f"hello true {sandbox.sandbox_id}\n"
        )
        # A program may be told otherwise.
        assert sandbox.commands.run("echo $GREETING", envs={"GREETING": "bye"}).stdout == "bye\n"
        assert sandbox.is_running()
    finally:
        assert sandbox.kill() is True
    assert sandbox.kill() is False and not sandbox.is_running()
    with pytest.raises(GONE):
        sandbox.get_info()
    with pytest.raises(GONE):
        Sandbox.connect(sandbox.sandbox_id)


def test_a_wrong_key_is_told(server, sandbox):
    for key in ["e2b_00", "e2b_" + "0" * 64]:
        with pytest.raises(AuthenticationException):
            Sandbox.create(api_key=key)
        with pytest.raises(AuthenticationException):
            Sandbox.kill(sandbox.sandbox_id, api_key=key)
    assert sandbox.is_running()


def test_lists_are_filtered_and_come_in_pages(server):
    run = os.urandom(4).hex()
    made = [Sandbox.create(timeout=120, metadata={"run": run, "number": str(number), "a b": "c=d&e"}) for number in range(3)]
    try:
        ids = [sandbox.sandbox_id for sandbox in made]

        def listed(limit=None, **query):
            pages, found = Sandbox.list(query=SandboxQuery(**query), limit=limit), []
            while pages.has_next:
                page = pages.next_items()
                assert limit is None or len(page) <= limit
                found += [info.sandbox_id for info in page]
            return found

        assert listed(metadata={"run": run}) == ids[::-1]
        assert listed(metadata={"run": run}, limit=1) == ids[::-1]
        assert listed(metadata={"run": run, "number": "1", "a b": "c=d&e"}) == [ids[1]]
        assert listed(metadata={"run": "another"}) == []
        made[2].pause()
        assert listed(metadata={"run": run}, state=[SandboxState.PAUSED]) == [ids[2]]
        assert listed(metadata={"run": run}, state=[SandboxState.RUNNING]) == [ids[1], ids[0]]
        if IS_NEW:
            pages, found = Sandbox.list(query=SandboxQuery(metadata={"run": run}), limit=2, order="asc"), []
            while pages.has_next:
                found += [info.sandbox_id for info in pages.next_items()]
            assert found == ids
            later = made[0].get_info().started_at + datetime.timedelta(milliseconds=1)
            assert listed(metadata={"run": run}, started_after=later) == [ids[2], ids[1]]
            assert listed(metadata={"run": run}, template="nextjs") == []
            assert len(listed(metadata={"run": run}, template="base")) == 3
    finally:
        for sandbox in made:
            sandbox.kill()


def test_time_can_be_set_and_connecting_never_takes_any(sandbox):
    def left():
        return (sandbox.get_info().end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds()

    sandbox.set_timeout(600)
    assert 540 < left() <= 600
    again = Sandbox.connect(sandbox.sandbox_id, timeout=30)
    assert left() > 540 and again.commands.run("echo again").stdout == "again\n"
    Sandbox.connect(sandbox.sandbox_id, timeout=900)
    assert 840 < left() <= 900
    sandbox.set_timeout(1)
    until(lambda: not sandbox.is_running(), "the end of its time")
    with pytest.raises(GONE):
        sandbox.set_timeout(10)


def test_a_pause_keeps_what_runs(sandbox):
    counter = sandbox.commands.run("i=0; while sleep 0.05; do i=$((i+1)); echo $i > /tmp/count; done", background=True, timeout=0)
    until(lambda: sandbox.files.exists("/tmp/count"), "the counter counts")
    sandbox.pause()
    assert sandbox.get_info().state == SandboxState.PAUSED
    if IS_NEW:
        assert sandbox.pause() is False
    with pytest.raises(e2b.TimeoutException):
        sandbox.commands.run("true")
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=60)
    assert resumed.get_info().state == SandboxState.RUNNING
    before = int(resumed.files.read("/tmp/count"))
    until(lambda: int(resumed.files.read("/tmp/count") or 0) > before, "it counts on")
    assert resumed.commands.kill(counter.pid) is True


@pytest.mark.skipif(not IS_NEW, reason="the older client always keeps the memory")
def test_a_pause_without_memory_keeps_the_files(server):
    sandbox = Sandbox.create(timeout=60, envs={"KEY": "its value"})
    try:
        sandbox.files.write("note", "kept")
        sandbox.commands.run("sleep 1000", background=True)
        assert sandbox.pause(mode="filesystem")
        assert sandbox.get_info().state == SandboxState.PAUSED
        assert sandbox.pause() is False
        same = Sandbox.connect(sandbox.sandbox_id, timeout=60)
        assert same.sandbox_id == sandbox.sandbox_id and same.files.read("note") == "kept"
        assert same.commands.run("echo $KEY").stdout == "its value\n"
        assert "sleep" not in [process.cmd for process in same.commands.list()]
    finally:
        sandbox.kill()


@pytest.mark.skipif(not IS_NEW, reason="the older client always keeps the memory")
def test_a_deadline_may_keep_the_files_alone(server):
    on_timeout = {"action": "pause", "mode": "filesystem"}
    sandbox = Sandbox.create(timeout=60, lifecycle={"on_timeout": on_timeout})
    try:
        sandbox.files.write("note", "kept")
        sandbox.commands.run("sleep 1000", background=True)
        sandbox.set_timeout(1)
        until(lambda: sandbox.get_info().state == SandboxState.PAUSED, "its time is up")
        same = Sandbox.connect(sandbox.sandbox_id, timeout=60)
        assert same.files.read("note") == "kept"
        assert "sleep" not in [process.cmd for process in same.commands.list()]
    finally:
        sandbox.kill()


def test_a_sandbox_may_pause_itself_and_wake_by_use(server):
    sandbox = Sandbox.create(timeout=2, lifecycle={"on_timeout": "pause", "auto_resume": True})
    try:
        sandbox.files.write("note", "kept")
        until(lambda: sandbox.get_info().state == SandboxState.PAUSED, "it pauses")
        assert sandbox.files.read("note") == "kept"
        assert sandbox.get_info().state == SandboxState.RUNNING
    finally:
        sandbox.kill()


def test_a_paused_sandbox_can_be_killed(server):
    sandbox = Sandbox.create(timeout=60, lifecycle={"on_timeout": "pause"})
    sandbox.pause()
    assert sandbox.kill() is True


def test_a_pause_by_its_older_name_and_the_older_addresses(server, sandbox):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    place = f"/sandboxes/{sandbox.sandbox_id}"

    def post(path, body):
        status, _, answer = ask(server, "POST", place + path, key, body)
        return status, answer

    assert sandbox.beta_pause() in (True, None) and sandbox.get_info().state == SandboxState.PAUSED
    status, answer = post("/resume", b'{"timeout": 300, "autoPause": true}')
    assert status == 201 and sandbox.sandbox_id.encode() in answer
    assert post("/resume", b"{}")[0] == 409
    assert post("/refreshes", b'{"duration": 500}')[0] == 204
    assert post("/connect", b'{"timeout": 10}')[0] == 200
    info = sandbox.get_info()
    assert 440 < (info.end_at - datetime.datetime.now(datetime.timezone.utc)).total_seconds() <= 500
    status, _, answer = ask(server, "GET", "/sandboxes", key)
    assert status == 200 and sandbox.sandbox_id.encode() in answer


@pytest.mark.skipif(not IS_NEW, reason="this generation has no such option")
def test_the_same_key_makes_one_sandbox(server):
    name = os.urandom(8).hex()
    one = Sandbox.create(timeout=60, idempotency_key=name)
    try:
        assert Sandbox.create(timeout=60, idempotency_key=name).sandbox_id == one.sandbox_id
        with pytest.raises(SandboxException, match="409"):
            Sandbox.create(timeout=61, idempotency_key=name)
    finally:
        one.kill()


def test_every_sandbox_is_secure(server):
    sandbox = Sandbox.create(timeout=60, secure=False)
    try:
        assert sandbox.commands.run("echo yes").stdout == "yes\n"
        headers = {"E2b-Sandbox-Id": sandbox.sandbox_id, "Content-Type": "application/json"}
        assert ask(server, "POST", "/process.Process/List", headers, b"{}")[0] == 401
    finally:
        sandbox.kill()


def test_the_network_is_what_the_operator_and_the_client_both_allow():
    server = Server("--e2b-network", "host", "--allow-host-network", "true")
    # Something on the host's loopback, which only who shares its network can reach.
    listener = socket.create_server(("127.0.0.1", 0))
    reach = f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]} && echo reached || echo not"
    opts = {"api_url": server.url, "sandbox_url": server.url, "api_key": server.environment["E2B_API_KEY"]}
    try:
        for options, reached in [
            ({}, "reached\n"),
            ({"allow_internet_access": True}, "reached\n"),
            ({"allow_internet_access": False}, "not\n"),
            ({"network": {"deny_out": ["0.0.0.0/0"]}}, "not\n"),
        ]:
            sandbox = Sandbox.create(timeout=60, **options, **opts)
            assert sandbox.commands.run(reach).stdout == reached, options
            sandbox.kill()
    finally:
        listener.close()
        server.stop()


def test_more_than_fit_are_told_to_come_back():
    server = Server("--capacity", "1", "--pool-max", "0")
    opts = {"api_url": server.url, "sandbox_url": server.url, "api_key": server.environment["E2B_API_KEY"]}
    try:
        first = Sandbox.create(timeout=60, **opts)
        with pytest.raises(e2b.RateLimitException):
            Sandbox.create(timeout=60, **opts)
        assert first.kill() is True
        assert Sandbox.create(timeout=60, **opts).kill() is True
    finally:
        server.stop()


def test_metrics_and_logs(sandbox):
    sandbox.commands.run("true")
    metrics = until(sandbox.get_metrics, "metrics")
    assert metrics[-1].mem_total > 0 and metrics[-1].cpu_count >= 1 and metrics[-1].disk_total > 0
    hour = datetime.timedelta(hours=1)
    now = datetime.datetime.now(datetime.timezone.utc)
    assert sandbox.get_metrics(start=now - hour, end=now + hour) and not sandbox.get_metrics(start=now + hour)
    import httpx

    headers = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    for path, key in [(f"/sandboxes/{sandbox.sandbox_id}/logs", "logEntries"), (f"/v2/sandboxes/{sandbox.sandbox_id}/logs", "logs")]:
        logs = httpx.get(os.environ["E2B_API_URL"] + path, headers=headers).raise_for_status().json()
        assert any(entry["message"] == "exec_started" for entry in logs[key]), logs


def test_update_network_takes_what_holds_and_refuses_the_rest(sandbox):
    sandbox.update_network({"deny_out": ["0.0.0.0/0"]})
    with pytest.raises(SandboxException, match="enforced"):
        sandbox.update_network({"allow_out": ["example.com"]})


def test_a_restart_of_the_server_changes_nothing(server):
    sandbox = Sandbox.create(timeout=120)
    process = sandbox.commands.run("read line; echo got $line; sleep 0.2; exit 7", background=True, stdin=True, timeout=0)
    server.restart()
    again = Sandbox.connect(sandbox.sandbox_id)
    assert [found.pid for found in again.commands.list()] == [process.pid]
    handle = again.commands.connect(process.pid)
    again.commands.send_stdin(process.pid, "through\n")
    with pytest.raises(e2b.CommandExitException) as ended:
        handle.wait()
    assert ended.value.exit_code == 7 and ended.value.stdout == "got through\n"
    assert again.kill() is True


def pasted(server):
    """What is printed between where a shell's lines begin and where they end, as somebody would mark and paste it."""
    printed = "".join(server.printed)
    return printed[printed.index("export E2B_API_URL=") : printed.index("\nEND\n") + len("\nEND\n")]


@pytest.mark.parametrize("flags", [[], ["--tls", "true"]], ids=["plain", "tls"])
def test_what_serve_prints_works_as_it_is_pasted(flags):
    server = Server(*flags)
    try:
        # In a shell that knows nothing but where this client's Python is.
        environment = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", "HOME": server.place}
        run = subprocess.run(["bash", "-eu"], input=pasted(server), env=environment, capture_output=True, text=True, timeout=80)
        assert (run.returncode, run.stdout) == (0, "hello\n\n"), run.stderr
        assert server.ask("GET", "/v2/sandboxes") == []
        with open(os.path.join(os.path.dirname(__file__), "../../docs/coming-from-e2b.md")) as page:
            example = pasted(server).split("<<'END'\n")[1].removesuffix("END\n")
            assert example in page.read() and len(example.splitlines()) == 4
    finally:
        server.stop()


OVER_TLS = """
from e2b import Sandbox
sandbox = Sandbox.create(timeout=60)
assert sandbox.commands.run("echo over tls").stdout == "over tls\\n"
sandbox.files.write("a", "b")
assert sandbox.files.read("a") == "b"
print(sandbox.get_host(80))
assert sandbox.kill()
"""


@pytest.mark.parametrize("form", ["domain", "address"])
def test_tls(form):
    # In a process of its own: what a client trusts, it reads once.
    server = Server("--tls", "true", "--domain", "sbx.localhost")
    try:
        given = dict(server.environment)
        if form == "domain":
            if not IS_NEW:
                pytest.skip("this generation does not resolve names below localhost")
            given = {name: value for name, value in given.items() if not name.endswith("_URL")}
            given["E2B_DOMAIN"] = f"sbx.localhost:{server.port}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("E2B_")}
        run = subprocess.run([sys.executable, "-c", OVER_TLS], env={**environment, **given}, capture_output=True, text=True, timeout=80)
        assert run.returncode == 0, run.stderr
        assert re.fullmatch(rf"80-[a-z2-7]{{26}}\.sbx\.localhost:{server.port}\n", run.stdout)
    finally:
        server.stop()
