"""What the E2B wire costs: SAGGAR=… serve.py python bench.py.

One after the other: `Sandbox.create()`, `commands.run("true")` and `kill()` through the Python client, against the server, against a stub
that answers at once (what is left when that is taken away is ours), and the same three through our own API. Then many creates at once
through the asynchronous client. Prints a table; fails for nothing."""

import asyncio
import http.client
import json
import os
import statistics
import struct
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "60"))
AT_ONCE = int(os.environ.get("BENCH_AT_ONCE", "100"))


class Stub(BaseHTTPRequestHandler):
    """Answers the three calls at once, with what they would say."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def answer(self, status, body=b"", kind="application/json"):
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        self.wfile.write(head.encode() + body)

    def do_POST(self):
        if self.headers.get("transfer-encoding") == "chunked":
            while length := int(self.rfile.readline(), 16):
                self.rfile.read(length + 2)
            self.rfile.readline()
        else:
            self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.path == "/v2/sandboxes":
            sandbox = {"sandboxID": "a" * 26, "templateID": "base", "clientID": "x", "envdVersion": "0.6.4", "envdAccessToken": "t"}
            return self.answer(201, json.dumps(sandbox).encode())
        events = [{"start": {"pid": 1}}, {"end": {"exitCode": 0, "exited": True, "status": "exit status 0"}}]
        messages = [(0, json.dumps({"event": event}).encode()) for event in events] + [(2, b"{}")]
        self.answer(200, b"".join(struct.pack(">BI", flags, len(message)) + message for flags, message in messages), "application/connect+json")

    def do_DELETE(self):
        self.wfile.write(b"HTTP/1.1 204 X\r\n\r\n")

    def log_message(self, *_):
        pass


def by_client(url, key):
    from e2b import Sandbox

    os.environ.update({"E2B_API_URL": url, "E2B_SANDBOX_URL": url, "E2B_API_KEY": key})
    begin = time.perf_counter()
    sandbox = Sandbox.create()
    sandbox.commands.run("true")
    sandbox.kill()
    return (time.perf_counter() - begin) * 1000


def by_api(connection, key):
    def ask(method, path, body=None):
        headers = {"X-API-Key": key, "Content-Type": "application/json"}
        connection.request(method, path, body=json.dumps(body) if body is not None else None, headers=headers)
        answer = connection.getresponse()
        return json.loads(answer.read() or b"null")

    begin = time.perf_counter()
    sandbox = ask("POST", "/api/v1/sandboxes", {})["id"]
    ask("POST", f"/api/v1/sandboxes/{sandbox}/execs", {"command": ["/bin/bash", "-l", "-c", "true"]})
    ask("DELETE", f"/api/v1/sandboxes/{sandbox}")
    return (time.perf_counter() - begin) * 1000


async def at_once(count):
    from e2b import AsyncSandbox

    async def one():
        begin = time.perf_counter()
        sandbox = await AsyncSandbox.create(timeout=120)
        return (time.perf_counter() - begin) * 1000, sandbox

    made = await asyncio.gather(*(one() for _ in range(count)), return_exceptions=True)
    failed = [outcome for outcome in made if isinstance(outcome, BaseException)]
    times = sorted(outcome[0] for outcome in made if not isinstance(outcome, BaseException))
    await asyncio.gather(*(outcome[1].kill() for outcome in made if not isinstance(outcome, BaseException)))
    return times, failed


def main():
    url, key = os.environ["E2B_API_URL"], os.environ["E2B_API_KEY"]
    stub = ThreadingHTTPServer(("127.0.0.1", 0), Stub)
    threading.Thread(target=stub.serve_forever, daemon=True).start()
    stub_url = f"http://127.0.0.1:{stub.server_port}"
    connection = http.client.HTTPConnection(url.split("//")[1])
    contenders = {"client": lambda: by_client(url, key), "stub": lambda: by_client(stub_url, key), "api": lambda: by_api(connection, key)}
    times = {name: [] for name in contenders}
    for round_number in range(ROUNDS + 5):
        for name, run in contenders.items():
            taken = run()
            # The first ones warm up.
            if round_number >= 5:
                times[name].append(taken)
    median = {name: statistics.median(taken) for name, taken in times.items()}
    ours = median["client"] - median["stub"]
    print(f"create + run + kill, median of {ROUNDS}, in ms: client {median['client']:.1f}, stub {median['stub']:.1f}, native API {median['api']:.1f}")
    print(f"our share through the client {ours:.1f} ms = {ours / median['api']:.2f} x the native API's (promised: at most 1.5)")
    os.environ.update({"E2B_API_URL": url, "E2B_SANDBOX_URL": url})
    taken, failed = asyncio.run(at_once(AT_ONCE))
    middle, last = taken[len(taken) // 2], taken[int(len(taken) * 0.99) - 1]
    print(f"{AT_ONCE} creates at once: {len(failed)} failed, p50 {middle:.0f} ms, p99 {last:.0f} ms = {last / middle:.1f} x (promised: at most 20)")
    if failed:
        print(f"the first failure: {failed[0]!r}")
        sys.exit(1)


main()
