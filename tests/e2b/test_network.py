"""The network of sandboxes with `e2b_network = "proxied"`. Runs in the small internet of tests/network/world.py (see run.sh)."""

import json
import os

import pytest
from conftest import Server
from e2b import Sandbox, SandboxException

HAS_UPDATE = hasattr(Sandbox, "update_network")


@pytest.fixture(scope="module")
def server():
    server = Server("--e2b-network", "proxied")
    os.environ.update(server.environment)
    yield server
    server.stop()


@pytest.fixture
def create(server):
    made = []

    def create(**options):
        made.append(Sandbox.create(timeout=120, **options))
        return made[-1]

    yield create
    for sandbox in made:
        sandbox.kill()


def status(sandbox, url):
    """What a program inside gets: the status of an answer, or of a refusal."""
    command = f"curl -sS -o /dev/null -w '%{{http_code}}' --max-time 20 {url}"
    return sandbox.commands.run(command, timeout=60).stdout


GOOD, GOOD_TLS, EVIL = "http://good.test/", "https://good.test/", "http://evil.test/"


def test_what_is_not_denied_is_allowed_but_nothing_private(create):
    sandbox = create()
    assert [status(sandbox, url) for url in (GOOD, GOOD_TLS, EVIL, "http://203.0.113.10/")] == ["200"] * 4
    assert [status(sandbox, f"http://{host}/") for host in ("10.9.9.9", "private.test", "169.254.169.254")] == ["403"] * 3


@pytest.mark.parametrize("options", [{"allow_internet_access": False}, {"network": {"deny_out": ["0.0.0.0/0"]}}])
def test_without_internet_access_nothing_is_reached(create, options):
    sandbox = create(**options)
    assert [status(sandbox, url) for url in (GOOD, EVIL, "http://203.0.113.10/")] == ["403"] * 3


def test_only_what_is_allowed_is_reached_when_everything_is_denied(create):
    sandbox = create(network={"allow_out": ["good.test"], "deny_out": ["0.0.0.0/0"]})
    assert [status(sandbox, url) for url in (GOOD, GOOD_TLS, EVIL)] == ["200", "200", "403"]


def test_what_is_allowed_wins_over_what_is_denied(create):
    sandbox = create(network={"allow_out": ["203.0.113.10"], "deny_out": ["203.0.113.0/24"]})
    assert [status(sandbox, url) for url in (GOOD, "http://203.0.113.10/", EVIL)] == ["200", "200", "403"]


def test_what_e2b_refuses_is_refused(create):
    for network in [{"allow_out": ["good.test"]}, {"deny_out": ["good.test"]}, {"allow_out": ["http://good.test"], "deny_out": ["0.0.0.0/0"]}]:
        with pytest.raises(SandboxException):
            create(network=network)


@pytest.mark.skipif(not HAS_UPDATE, reason="older clients have no such call")
def test_rules_are_replaced_while_it_runs(create):
    sandbox = create()
    sandbox.update_network({"allow_out": ["good.test"], "deny_out": ["0.0.0.0/0"]})
    assert [status(sandbox, url) for url in (GOOD, EVIL)] == ["200", "403"]
    sandbox.update_network({"allow_internet_access": False})
    assert status(sandbox, GOOD) == "403"
    # What is left out is cleared.
    sandbox.update_network({})
    assert [status(sandbox, url) for url in (GOOD, EVIL)] == ["200", "200"]


def test_the_rules_are_in_the_info(server, create):
    sandbox = create(network={"allow_out": ["good.test", "203.0.113.11"], "deny_out": ["0.0.0.0/0"]})
    info = server.ask("GET", f"/sandboxes/{sandbox.sandbox_id}")
    assert info["allowInternetAccess"] is False
    assert (info["network"]["allowOut"], info["network"]["denyOut"]) == (["good.test", "203.0.113.11"], ["0.0.0.0/0"])
    assert server.ask("GET", f"/sandboxes/{create().sandbox_id}")["allowInternetAccess"] is True


def headers(**values):
    return [{"transform": {"headers": values}}]


def told(sandbox, url):
    """What the server saw of a request from inside: the world's servers answer with it."""
    return json.loads(sandbox.commands.run(f"curl -sS --max-time 20 {url}", timeout=60).stdout)["headers"]


def seen_by_servers(path):
    with open(os.environ["WORLD_LOG"]) as log:
        return [entry["headers"] for entry in map(json.loads, log) if entry.get("path") == path][-1]


KEY = "Bearer canary-of-a-header-rule-41c7"


def test_header_rules_put_values_into_requests_that_the_sandbox_never_has(server, create):
    sandbox = create(network={"rules": {"good.test": headers(Authorization=KEY)}})
    answer = told(sandbox, "https://good.test/header-rule")
    assert seen_by_servers("/header-rule")["authorization"] == KEY
    # What comes back is scrubbed, and neither the environment nor the info of the sandbox has the value.
    assert "canary" not in json.dumps(answer)
    assert "canary" not in sandbox.commands.run("env; cat /proc/*/environ 2>/dev/null; true").stdout
    assert "canary" not in json.dumps(server.ask("GET", f"/sandboxes/{sandbox.sandbox_id}"))
    # Neither over plain http nor to another host.
    told(sandbox, "http://good.test/plain")
    told(sandbox, "http://evil.test/other")
    assert "authorization" not in seen_by_servers("/plain") and "authorization" not in seen_by_servers("/other")


@pytest.mark.skipif(not HAS_UPDATE, reason="older clients have no such call")
def test_header_rules_are_replaced_with_the_other_rules(create):
    sandbox = create(network={"rules": {"good.test": headers(Authorization=KEY)}})
    sandbox.update_network({"rules": {"good.test": headers(Authorization=KEY + "-two")}})
    told(sandbox, "https://good.test/replaced")
    assert seen_by_servers("/replaced")["authorization"] == KEY + "-two"
    # What is left out is cleared.
    sandbox.update_network({})
    told(sandbox, "https://good.test/cleared")
    assert "authorization" not in seen_by_servers("/cleared")


def test_header_rules_that_cannot_be_kept_are_refused(create):
    for rules in [{"*": headers(Authorization=KEY)}, {"good.test": headers(Host="evil.test.example")}, {"good.test": headers(X="short")}]:
        with pytest.raises(SandboxException):
            create(network={"rules": rules})
