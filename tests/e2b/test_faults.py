"""What no client sends, sent by hand: the right status, and never a hang."""

import http.client
import json
import os
import socket
import struct
import threading
import time

import pytest
from conftest import until
from e2b import InvalidArgumentException

PATIENCE = 15
JSON = {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
STREAM = {"Content-Type": "application/connect+json", "Connect-Protocol-Version": "1"}
NOBODY = "a" * 26


def inside(sandbox, **more):
    return {
        "E2b-Sandbox-Id": sandbox.sandbox_id,
        "E2b-Sandbox-Port": "49983",
        "X-Access-Token": sandbox.connection_config.sandbox_headers["X-Access-Token"],
        **more,
    }


def ask(server, method, path, headers={}, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type", ""), answer.read()
    finally:
        connection.close()


def envelope(message, flags=0):
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


def envelopes(body):
    found = []
    while body:
        flags, length = struct.unpack(">BI", body[:5])
        found.append((flags, json.loads(body[5 : 5 + length])))
        body = body[5 + length :]
    return found


START = {"process": {"cmd": "/bin/sh", "args": ["-c", "echo hi"]}, "stdin": False}


def test_without_the_token_nothing_is_done(server, sandbox):
    wrong = [{}, {"X-Access-Token": "wrong"}, {"X-Access-Token": os.environ["E2B_API_KEY"]}, {"X-API-KEY": os.environ["E2B_API_KEY"]}]
    for shown in wrong:
        headers = {key: value for key, value in inside(sandbox).items() if key != "X-Access-Token"} | shown
        for path, kind, body in [
            ("/process.Process/List", JSON, b"{}"),
            ("/process.Process/Start", STREAM, envelope(START)),
            ("/filesystem.Filesystem/Stat", JSON, b'{"path":"/"}'),
        ]:
            status, content, answer = ask(server, "POST", path, {**headers, **kind}, body)
            assert (status, json.loads(answer)["code"]) == (401, 401), (path, shown, answer)
        for method in ["GET", "POST"]:
            status, _, answer = ask(server, method, "/files?path=/etc/hostname", headers)
            assert status == 401 and json.loads(answer)["code"] == 401, answer
        assert ask(server, "GET", "/metrics", headers)[0] == 401
    # Whether it is there, anybody who knows its name may ask.
    assert ask(server, "GET", "/health", {"E2b-Sandbox-Id": sandbox.sandbox_id})[0] == 204


def test_a_token_is_for_one_sandbox_and_its_inside(server, sandbox):
    from e2b import Sandbox

    other = Sandbox.create(timeout=60)
    try:
        crossed = inside(sandbox) | {"E2b-Sandbox-Id": other.sandbox_id}
        assert ask(server, "POST", "/process.Process/List", {**crossed, **JSON}, b"{}")[0] == 401
        token = inside(sandbox)["X-Access-Token"]
        for headers in [{"X-API-KEY": token}, {"Authorization": f"Bearer {token}"}]:
            assert ask(server, "DELETE", f"/sandboxes/{sandbox.sandbox_id}", headers)[0] == 401
            assert ask(server, "GET", "/api/v1/sandboxes", headers)[0] == 401
    finally:
        other.kill()


def test_sandboxes_that_are_not_there(server, sandbox):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    for wrong in [NOBODY, "x", "..%2F..%2Fetc", "%00", "sbx_" + NOBODY, "i" * 5000, sandbox.sandbox_id[:-1]]:
        for method, path, body in [("GET", "", None), ("DELETE", "", None), ("POST", "/pause", b"{}"), ("POST", "/timeout", b'{"timeout":1}')]:
            status, content, answer = ask(server, method, f"/sandboxes/{wrong}{path}", key, body)
            assert status == 404 and json.loads(answer)["code"] == 404, (wrong, method, answer)
    for wrong in [NOBODY, "x", "../etc", "i" * 5000]:
        headers = {**inside(sandbox), "E2b-Sandbox-Id": wrong, **JSON}
        for path in ["/process.Process/List", "/health", "/files", "/elsewhere"]:
            status, _, answer = ask(server, "POST" if "." in path else "GET", path, headers, b"{}")
            said = json.loads(answer)
            assert status == 502 and "was not found" in said["message"] and said["code"] == 502, (wrong, path, answer)
    for wrong in ["0", "-1", "70000", "x", ""]:
        assert ask(server, "GET", "/", {**inside(sandbox), "E2b-Sandbox-Port": wrong})[0] == 502


def test_messages_that_are_none(server, sandbox):
    headers = inside(sandbox)
    for body in [b"{", b"[]", b'"x"', b"\xff\xfe", b'{"path": 7}', b"{" * 10_000, b'{"path": "a\\u0000b"}']:
        status, _, answer = ask(server, "POST", "/filesystem.Filesystem/Stat", {**headers, **JSON}, body)
        assert status == 400 and json.loads(answer)["code"] == "invalid_argument", (body[:20], answer)
    for body, code in [
        (b"", "invalid_argument"),
        (b"\x00", "invalid_argument"),
        (envelope(START)[:-1], "invalid_argument"),
        (envelope(b"{"), "invalid_argument"),
        (envelope({}), "invalid_argument"),
        (envelope(START, flags=1), "unimplemented"),
        (envelope(START, flags=0x40), "invalid_argument"),
        (b"\x00\xff\xff\xff\xff", "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/sh", "args": "no list"}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/not/there"}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/sh", "cwd": "/not/there"}}), "invalid_argument"),
        (envelope({"process": {"cmd": "/bin/sh", "envs": {"a=b": "c"}}}), "invalid_argument"),
        (envelope({"process": {"cmd": "a\0b"}}), "invalid_argument"),
    ]:
        status, content, answer = ask(server, "POST", "/process.Process/Start", {**headers, **STREAM}, body)
        assert status == 200 and content == "application/connect+json", (body, status, answer)
        flags, last = envelopes(answer)[-1]
        assert flags == 2 and last["error"]["code"] == code, (body, last)
    status, _, answer = ask(server, "POST", "/process.Process/StreamInput", {**headers, **STREAM}, envelope({"data": {"input": {"stdin": ""}}}))
    assert envelopes(answer)[-1][1]["error"]["code"] == "invalid_argument"


def test_content_types_calls_and_methods_that_are_not_known(server, sandbox):
    headers = inside(sandbox)
    for path, kind in [("/process.Process/List", "application/proto"), ("/process.Process/Start", "application/connect+proto"), ("/process.Process/Start", "application/json"), ("/filesystem.Filesystem/Stat", "text/plain"), ("/filesystem.Filesystem/Stat", "")]:
        assert ask(server, "POST", path, {**headers, "Content-Type": kind}, b"{}")[0] == 415, (path, kind)
    for kind in ["text/plain", "", "multipart/mixed", "application/json"]:
        assert ask(server, "POST", "/files?path=x", {**headers, "Content-Type": kind}, b"x")[0] == 415, kind
    for kind, body in [("multipart/form-data", b"x"), ("multipart/form-data; boundary=X", b"--X\r\nbroken"), ("multipart/form-data; boundary=X", b"")]:
        assert ask(server, "POST", "/files", {**headers, "Content-Type": kind}, body)[0] == 400, kind
    assert ask(server, "POST", "/files", {**headers, "Content-Type": "application/octet-stream"}, b"x")[0] == 400
    encoded = {**headers, "Content-Type": "application/octet-stream", "Content-Encoding": "br"}
    assert ask(server, "POST", "/files?path=x", encoded, b"x")[0] == 415
    encoded["Content-Encoding"] = "gzip"
    assert ask(server, "POST", "/files?path=x", encoded, b"not gzip")[0] == 400
    assert ask(server, "POST", "/process.Process/Nothing", {**headers, **JSON}, b"{}")[0] == 501
    assert ask(server, "POST", "/no.Service/List", {**headers, **JSON}, b"{}")[0] == 501
    assert ask(server, "GET", "/process.Process/List", headers)[0] == 404
    assert ask(server, "DELETE", "/files?path=x", headers)[0] == 404
    status, _, answer = ask(server, "PUT", "/v2/sandboxes", {"X-API-KEY": os.environ["E2B_API_KEY"]})
    assert status == 405
    for body in [b"", b"{", b"[]", b'{"templateID": 1}', b'{"templateID": "base", "timeout": -1}', b'{"templateID":"base","metadata":{"a":1}}']:
        key = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
        status, _, answer = ask(server, "POST", "/v2/sandboxes", key, body)
        assert status == 400 and json.loads(answer)["code"] == 400, (body, answer)


def test_lists_where_objects_belong(server, sandbox):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    place, before = f"/sandboxes/{sandbox.sandbox_id}", sandbox.get_info()
    for method, path in [
        ("POST", "/v2/sandboxes"),
        ("POST", "/sandboxes"),
        ("POST", f"/v2{place}/connect"),
        ("POST", f"{place}/connect"),
        ("POST", f"{place}/timeout"),
        ("POST", f"{place}/refreshes"),
        ("POST", f"{place}/resume"),
        ("POST", f"{place}/pause"),
        ("PUT", f"{place}/network"),
    ]:
        for body in [b"[]", b"[5]", b' [5, 5, true, false]', b"null", b"7", b'"base"', b"\xef\xbb\xbf{}", b"{}x", b"[" * 100_000]:
            status, _, answer = ask(server, method, path, key, body)
            assert status == 400 and json.loads(answer)["code"] == 400, (method, path, body[:20], answer)
    for field in [{"network": [["8.8.8.8"]]}, {"network": [None, ["0.0.0.0/0"], True]}, {"autoResume": [True]}]:
        status, _, answer = ask(server, "POST", "/v2/sandboxes", key, json.dumps({"templateID": "base", **field}))
        assert status == 400 and json.loads(answer)["code"] == 400, (field, answer)
    after = sandbox.get_info()
    # Its end is told by what is left, and so not to the millisecond.
    assert after.state == before.state and abs((after.end_at - before.end_at).total_seconds()) < 1
    headers = inside(sandbox)
    for rpc, message in [
        ("SendSignal", {"process": [1], "signal": "SIGNAL_SIGKILL"}),
        ("SendInput", {"process": {"pid": 1}, "input": ["eA=="]}),
        ("Update", {"process": {"pid": 1}, "pty": [[1, 1]]}),
        ("Update", {"process": {"pid": 1}, "pty": {"size": [1, 1]}}),
    ]:
        status, _, answer = ask(server, "POST", f"/process.Process/{rpc}", {**headers, **JSON}, json.dumps(message))
        assert status == 400 and json.loads(answer)["code"] == "invalid_argument", (message, answer)
    for rpc, message in [("Start", {"process": ["/bin/sh", ["-c", "true"]]}), ("Connect", {"process": [1]}), ("StreamInput", {"start": [{"pid": 1}]}), ("StreamInput", {"data": [{}]})]:
        _, _, answer = ask(server, "POST", f"/process.Process/{rpc}", {**headers, **STREAM}, envelope(message))
        assert envelopes(answer)[-1][1]["error"]["code"] == "invalid_argument", (message, answer)


def test_bodies_of_the_control_plane_that_are_none(server, sandbox):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=X", "application/jsonx", ""]:
        for path in ["/v2/sandboxes", f"/sandboxes/{sandbox.sandbox_id}/timeout"]:
            status, _, answer = ask(server, "POST", path, {**key, "Content-Type": kind}, b'{"templateID": "base", "timeout": 5}')
            assert status == 400 and "application/json" in json.loads(answer)["message"], (kind, answer)
    key["Content-Type"] = "application/json; charset=utf-8"
    for body in [b'{"timeout": 1e400}', b'{"timeout": 1.5}', b'{"timeout": 18446744073709551616}', b'{"timeout": NaN}', b'{"timeout": "5"}', b'{"timeout": 5, "timeout": 6}']:
        status, _, answer = ask(server, "POST", f"/sandboxes/{sandbox.sandbox_id}/timeout", key, body)
        assert status == 400 and json.loads(answer)["code"] == 400, (body, answer)
    status, _, answer = ask(server, "POST", "/v2/sandboxes", key, b'{"templateID": "base", "x": "' + b"y" * (1 << 20) + b'"}')
    assert status == 413 and json.loads(answer)["code"] == 413


def test_pages_that_are_none(server):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    for query in ["limit=-1", "limit=0", "limit=1000000000", "limit=x", "nextToken=forged", "nextToken=%27%20OR%201%3D1", "order=asc&nextToken=-1", "order=up", "state=ended", "startedAfter=never"]:
        status, _, answer = ask(server, "GET", f"/v2/sandboxes?{query}", key)
        assert status == 400 and json.loads(answer)["code"] == 400, (query, answer)


def test_addresses_that_are_bent(server, sandbox):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    place = f"/sandboxes/{sandbox.sandbox_id}"
    for path in [f"/{place}", f"{place}/", f"{place};x=1", f"/Sandboxes/{sandbox.sandbox_id}", f"/sandboxes/./{sandbox.sandbox_id}", f"/sandboxes/x/../{sandbox.sandbox_id}", f"/sandboxes/{sandbox.sandbox_id}%2Fpause", f"/sandboxes/%2e%2e%2fsandboxes%2f{sandbox.sandbox_id}", f"/sandboxes/{sandbox.sandbox_id.upper()}"]:
        for method in ["DELETE", "GET"]:
            assert ask(server, method, path, key)[0] == 404, (method, path)
    for method in ["PATCH", "PUT", "POST", "OPTIONS", "TRACE"]:
        assert ask(server, method, place, key)[0] == 405, method
    assert sandbox.is_running()
    # Inside, a path is what it says, and where there is nothing there is nothing.
    headers = inside(sandbox)
    assert ask(server, "GET", "/files?path=a%00b", headers)[0] == 400
    for path in ["..%2F..%2F..%2Fnot-there", "%252e%252e%252fx", "....%2F%2Fx", "%EF%BC%8E%EF%BC%8E%2Fx", "..%5Cx"]:
        assert ask(server, "GET", f"/files?path={path}", headers)[0] == 404, path


def test_names_in_one_segment(server):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"]}
    assert ask(server, "GET", "/templates/aliases/base", key)[0] == 200
    for name in ["name%2Fspace%3Atag", "%2e%2e%2fbase", "base%00", "%F0%28"]:
        assert ask(server, "GET", f"/templates/aliases/{name}", key)[0] == 404, name
    assert ask(server, "DELETE", "/templates/a%2Fb%3Ac", key)[0] == 404
    assert ask(server, "DELETE", "/templates/a%2Fb%3Ac")[0] == 401


def test_headers_without_end(server, sandbox):
    headers = {**inside(sandbox), "X-Much": "x" * 100_000}
    assert ask(server, "POST", "/process.Process/List", {**headers, **JSON}, b"{}")[0] == 431
    many = {f"X-Metadata-{number}": "x" for number in range(200)}
    assert ask(server, "POST", "/files?path=x", {**inside(sandbox), **many}, b"x")[0] in (400, 431)


def test_a_client_with_headers_without_end_is_told(server):
    from e2b import Sandbox, SandboxException

    with pytest.raises(SandboxException, match="431"):
        Sandbox.create(headers={"X-Much": "x" * 100_000})


def raw(server, head, *, then=b""):
    connection = socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE)
    lines = "".join(f"{name}: {value}\r\n" for name, value in head[1].items())
    connection.sendall(f"{head[0]} HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode() + then)
    return connection


def rest(connection):
    received = b""
    while piece := connection.recv(65536):
        received += piece
    return received


def test_a_connection_that_ends_with_a_refusal_is_said_to(server, sandbox):
    wrong = {"X-API-KEY": "e2b_00", "Content-Type": "application/json", "Content-Length": "2"}
    for path, headers in [("/v2/sandboxes", wrong), ("/process.Process/List", {**inside(sandbox), "X-Access-Token": "x", **JSON, "Content-Length": "2"})]:
        # Refused before its body has come, and after: then it goes on.
        connection = raw(server, (f"POST {path}", headers))
        assert b"connection: close" in read_until(connection, b"\r\n\r\n").lower()
        connection.close()
    key = {**wrong, "X-API-KEY": os.environ["E2B_API_KEY"]}
    connection = raw(server, ("POST /v2/sandboxes", key), then=b"[]")
    for _ in range(2):
        head = read_until(connection, b"}")
        assert b" 400 " in head and b"connection: close" not in head.lower(), head
        connection.sendall(b"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\n" + "".join(f"{name}: {value}\r\n" for name, value in key.items()).encode() + b"\r\n[]")
    connection.close()


def test_a_body_that_breaks_off_leaves_nothing(server, sandbox):
    headers = {**inside(sandbox), "Content-Type": "application/octet-stream", "Content-Length": "1000"}
    connection = raw(server, ("POST /files?path=/tmp/half", headers), then=b"only some")
    connection.shutdown(socket.SHUT_WR)
    # An answer or the end, and neither late.
    rest(connection)
    connection.close()
    connection = raw(server, ("POST /files?path=/tmp/half", headers), then=b"only some")
    connection.close()
    form = {**inside(sandbox), "Content-Type": "multipart/form-data; boundary=X", "Transfer-Encoding": "chunked"}
    part = b'--X\r\nContent-Disposition: form-data; name="file"; filename="/tmp/half"\r\n\r\nhalf'
    connection = raw(server, ("POST /files", form), then=b"%x\r\n" % len(part) + part + b"\r\n0\r\n\r\n")
    assert b" 400 " in connection.recv(65536)
    connection.close()
    assert not sandbox.files.exists("/tmp/half")


def test_input_that_breaks_off_leaves_the_way_to_others(server, sandbox):
    handle = sandbox.commands.run("cat > /tmp/fed", background=True, stdin=True, timeout=0)
    begin = envelope({"start": {"process": {"pid": handle.pid}}}) + envelope({"data": {"input": {"stdin": "b25lCg=="}}})
    headers = {**inside(sandbox), **STREAM, "Transfer-Encoding": "chunked"}
    for cut, ended in [(b"", False), (b"\x00\x00", False), (b"\x00\x00\x00\x00\x07{", True)]:
        body = begin + cut
        connection = raw(server, ("POST /process.Process/StreamInput", headers), then=b"%x\r\n" % len(body) + body + b"\r\n")
        until(lambda: sandbox.files.exists("/tmp/fed") and sandbox.files.read("/tmp/fed").endswith("one\n"), "it is fed")
        if ended:
            # Said to be over within a message: refused, and not waited for.
            connection.sendall(b"0\r\n\r\n")
            assert b"invalid_argument" in read_until(connection, b"}}")
        connection.close()
        sandbox.commands.send_stdin(handle.pid, "two\n")
        until(lambda: sandbox.files.read("/tmp/fed").endswith("two\n"), "others feed it")
    # Our own API too, at once.
    execs = json.loads(ask(server, "GET", f"/api/v1/sandboxes/sbx_{sandbox.sandbox_id}/execs", {"X-API-KEY": os.environ["E2B_API_KEY"]})[2])
    exec_id = next(item["id"] for item in execs["items"] if item["pid"] == handle.pid)
    path = f"/api/v1/sandboxes/sbx_{sandbox.sandbox_id}/execs/{exec_id}/stdin?end=true"
    status, _, answer = ask(server, "POST", path, {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/octet-stream"}, b"three\n")
    assert status == 204, answer
    assert handle.wait().exit_code == 0 and sandbox.files.read("/tmp/fed") == "one\ntwo\n" * 3 + "three\n"


def test_input_that_nobody_reads_is_not_kept_for_clients_that_have_gone(server, sandbox):
    from e2b import TimeoutException

    waits = "until [ -e /tmp/go ]; do sleep 0.1; done; wc -c > /tmp/count"
    handle = sandbox.commands.run(waits, background=True, stdin=True, timeout=0)
    length, outcomes = 2 << 20, []

    def send():
        try:
            sandbox.commands.send_stdin(handle.pid, "x" * length, request_timeout=2)
        except TimeoutException as error:
            outcomes.append(error)

    threads = [threading.Thread(target=send) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert len(outcomes) == 4
    sandbox.commands.run("touch /tmp/go")
    sandbox.commands.close_stdin(handle.pid)
    assert handle.wait().exit_code == 0
    # The first of them got some of it through. The others, who were waiting for it, nothing.
    assert int(sandbox.files.read("/tmp/count")) < length
    with pytest.raises(InvalidArgumentException, match="larger than"):
        sandbox.commands.send_stdin(handle.pid, "x" * (4 << 20))


def test_clients_that_vanish_leave_the_program_running(server, sandbox):
    message = envelope({"process": {"cmd": "/bin/sh", "args": ["-c", "sleep 0.5; echo went on > /tmp/went-on; sleep 982"]}, "tag": "mine"})
    headers = {**inside(sandbox), **STREAM, "Content-Length": str(len(message))}
    connection = raw(server, ("POST /process.Process/Start", headers), then=message)
    assert b'"pid"' in read_until(connection, b'"pid"')
    connection.close()
    until(lambda: sandbox.files.exists("/tmp/went-on"), "it goes on")
    listed = [process for process in sandbox.commands.list() if process.tag == "mine"]
    assert len(listed) == 1
    # By the name it was given, too.
    body = json.dumps({"process": {"tag": "mine"}, "signal": "SIGNAL_SIGKILL"})
    assert ask(server, "POST", "/process.Process/SendSignal", {**inside(sandbox), **JSON}, body)[0] == 200
    until(lambda: not [process for process in sandbox.commands.list() if process.tag == "mine"], "it is dead")


def read_until(connection, wanted):
    received = b""
    while wanted not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received


def test_keep_alives_come_as_often_as_asked(server, sandbox):
    message = envelope({"process": {"cmd": "/bin/sleep", "args": ["3"]}})
    headers = {**inside(sandbox), **STREAM, "Content-Length": str(len(message)), "Keepalive-Ping-Interval": "1"}
    connection = raw(server, ("POST /process.Process/Start", headers), then=message)
    received = read_until(connection, b'"end"')
    assert received.count(b"keepalive") >= 2
    connection.close()


def test_a_deadline_is_kept_for_programs_that_ignore_it(server, sandbox):
    message = envelope({"process": {"cmd": "/bin/sh", "args": ["-c", "trap '' TERM; while :; do sleep 0.1; done"]}})
    headers = {**inside(sandbox), **STREAM, "Connect-Timeout-Ms": "700"}
    begin = time.monotonic()
    _, _, answer = ask(server, "POST", "/process.Process/Start", headers, message)
    assert envelopes(answer)[-1][1]["error"]["code"] == "deadline_exceeded"
    assert time.monotonic() - begin < PATIENCE
    until(lambda: sandbox.commands.list() == [], "it is killed all the same")
    for wrong in ["-1", "soon", "99999999999"]:
        status, _, answer = ask(server, "POST", "/process.Process/Start", {**headers, "Connect-Timeout-Ms": wrong}, message)
        assert envelopes(answer)[-1][1]["error"]["code"] == "invalid_argument"


def test_a_slow_reader_of_much_output_gets_it_all(server, sandbox):
    count = 2_000_000
    message = envelope({"process": {"cmd": "/bin/sh", "args": ["-c", f"head -c {count} /dev/zero"]}})
    headers = {**inside(sandbox), **STREAM, "Content-Length": str(len(message)), "Connection": "close"}
    connection = raw(server, ("POST /process.Process/Start", headers), then=message)
    received = b""
    while piece := connection.recv(4096):
        received += piece
    assert b'"exitCode":0' in received.replace(b" ", b"") and received.count(b"AAAA") > count // 4
    connection.close()


@pytest.mark.parametrize("selector", [{}, {"pid": 0}, {"pid": 4_000_000_000}, {"tag": "absent"}])
def test_processes_that_are_not_there(server, sandbox, selector):
    headers = inside(sandbox)
    for rpc, body in [
        ("SendSignal", {"process": selector, "signal": "SIGNAL_SIGKILL"}),
        ("SendInput", {"process": selector, "input": {"stdin": "eA=="}}),
        ("CloseStdin", {"process": selector}),
        ("Update", {"process": selector, "pty": {"size": {"rows": 1, "cols": 1}}}),
    ]:
        status, _, answer = ask(server, "POST", f"/process.Process/{rpc}", {**headers, **JSON}, json.dumps(body))
        said = json.loads(answer)
        assert status == 404 and said["code"] == "not_found" and "not found" in said["message"], (rpc, answer)
    _, _, answer = ask(server, "POST", "/process.Process/Connect", {**headers, **STREAM}, envelope({"process": selector}))
    assert envelopes(answer)[-1][1]["error"]["code"] == "not_found"
