"""HTTP/2, as it is spoken over TLS, where what a client calls the server comes in no header of its own."""

import httpx
import pytest
from conftest import Server
from test_sandbox import IS_NEW

pytestmark = pytest.mark.skipif(not IS_NEW, reason="the protocol is the same for every client")


def talking(server, name="127.0.0.1"):
    """A client that calls the server by this name, wherever that leads."""

    def ask(method, path, **more):
        request = client.build_request(method, f"{server.url}{path}", extensions={"sni_hostname": name}, **more)
        request.headers["Host"] = f"{name}:{server.port}"
        answer = client.send(request)
        assert answer.http_version == "HTTP/2"
        return answer

    client = httpx.Client(http2=True, http1=False, verify=False, timeout=30)
    return ask


def test_what_the_server_is_called_counts_as_over_http_1():
    server = Server("--tls", "true", "--domain", "sbx.localhost")
    key = {"X-API-KEY": server.environment["E2B_API_KEY"]}
    try:
        ask = talking(server)
        made = ask("POST", "/v2/sandboxes", headers=key, json={"templateID": "base", "timeout": 60}).json()
        assert made["domain"] == f"sbx.localhost:{server.port}"
        id, token = made["sandboxID"], {"X-Access-Token": made["envdAccessToken"]}
        # By name, and by headers.
        named = talking(server, f"49983-{id}.sbx.localhost")
        assert named("GET", "/health").status_code == 204
        body = b"--X\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a\"\r\n\r\nhello\r\n--X--\r\n"
        form = {"Content-Type": "multipart/form-data; boundary=X"}
        assert named("POST", "/files?path=a", headers={**token, **form}, content=body).status_code == 200
        assert ask("GET", "/files?path=a", headers={"E2b-Sandbox-Id": id, **token}).text == "hello"
        assert talking(server, f"8000-{id}.sbx.localhost")("GET", "/").status_code == 502
        # An address of our own API says where it leads.
        signed = ask("POST", f"/api/v1/sandboxes/sbx_{id}/files/sign", headers=key, json={"path": "/home/user/a", "method": "get", "expires": "1m"}).json()
        assert signed["url"].startswith(f"{server.url}/"), signed
        assert ask("GET", signed["url"].removeprefix(server.url)).text == "hello"
    finally:
        server.stop()


def test_without_keys_only_this_host_may_ask():
    server = Server("--tls", "true", "--auth", "off")
    try:
        assert talking(server)("GET", "/v2/sandboxes").status_code == 200
        assert talking(server, "localhost")("GET", "/v2/sandboxes").status_code == 200
        for name in ["rebound.example.com", "127.0.0.1.example.com"]:
            assert talking(server, name)("GET", "/v2/sandboxes").status_code == 403, name
            assert talking(server, name)("GET", "/api/v1/sandboxes").status_code == 403, name
    finally:
        server.stop()
