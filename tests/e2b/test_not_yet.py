"""What is not built: each call of the client ends with the exception it has for that, in words that say so, and makes nothing."""

import os

import e2b
import pytest
from e2b import BuildException, Sandbox, SandboxException, Template
from test_faults import ask
from test_sandbox import IS_NEW

NOT_YET = "not supported yet"
if IS_NEW:
    from e2b import Secret, SecretException, TemplateException
    from e2b_code_interpreter import Sandbox as Interpreter
else:
    # What this generation has for them.
    TemplateException = e2b.TemplateException

OPTIONS = {
    "template": ({"template": "nextjs"}, "'nextjs' not found"),
    "rules": ({"network": {"allow_out": ["8.8.8.8"], "deny_out": ["0.0.0.0/0"]}}, "enforced"),
    "volumes": ({"volume_mounts": {"/mnt/data": "a-volume"}}, "there is no volume"),
    "places of volumes": ({"volume_mounts": {"/proc": "a-volume"}}, "belongs to the sandbox itself"),
    "mcp": ({"mcp": {"browserbase": {}}}, "mcp is not supported yet"),
    "timeout": ({"timeout": 10**9}, "longer"),
    "metadata": ({"metadata": {"a": "b\n"}}, "label"),
}
if IS_NEW:
    OPTIONS |= {
        "iam": ({"iam": {"tokens": {"aws": Secret.iam_token(audience="a", token_type="JWT-SVID")}}}, f"iam is {NOT_YET}"),
        "request headers": ({"network": {"rules": {"example.com": [{"transform": {"headers": {"a": "b"}}}]}}}, "enforced"),
        "proxy": ({"network": {"egress_proxy": {"address": "proxy:1080"}}}, "enforced"),
    }


@pytest.mark.parametrize("option", OPTIONS)
def test_options_that_cannot_be_kept_are_refused_and_make_nothing(server, option):
    wrong, words = OPTIONS[option]
    before = len(Sandbox.list().next_items())
    with pytest.raises(SandboxException, match=words):
        Sandbox.create(**wrong)
    assert len(Sandbox.list().next_items()) == before


CALLS = {}
if IS_NEW:
    CALLS |= {
        "Secret.create": (SecretException, lambda sandbox: Secret.create("name", "value")),
        "Secret.update": (SecretException, lambda sandbox: Secret.update("name", "value")),
        "Secret.get_info": (SecretException, lambda sandbox: Secret.get_info("name")),
        "Secret.list": (SecretException, lambda sandbox: Secret.list().next_items()),
        "Secret.exists": (SecretException, lambda sandbox: Secret.exists("name")),
        "Secret.destroy": (SecretException, lambda sandbox: Secret.destroy("name")),
    }


@pytest.mark.parametrize("call", CALLS)
def test_calls_say_that_they_are_not_there(sandbox, call):
    exception, act = CALLS[call]
    with pytest.raises(exception, match=NOT_YET):
        act(sandbox)
    assert sandbox.is_running()


def test_there_is_no_gateway_for_mcp(sandbox):
    try:
        assert sandbox.get_mcp_token() is None
    except SandboxException as error:
        assert "not found" in str(error)


def test_the_template_that_is_there_exists(server):
    assert Template.exists("base") and not Template.exists("name/space:tag")


@pytest.mark.skipif(not IS_NEW, reason="it is tried with the newest client")
def test_the_code_interpreter_has_no_r_and_no_java(server):
    sandbox = Interpreter.create(timeout=60)
    try:
        for language in ("r", "java"):
            with pytest.raises(SandboxException, match="is not supported: use one of python, javascript, typescript, bash"):
                sandbox.run_code("1 + 1", language=language)
    finally:
        sandbox.kill()


@pytest.mark.skipif(not IS_NEW, reason="addresses are the same for every client")
def test_every_other_address_of_the_control_plane_says_so_to_who_may_ask(server):
    key = {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
    for method, path in [
        ("GET", "/default-templates"),
        ("PATCH", "/templates/base"),
        ("PATCH", "/v2/templates/base"),
        ("GET", "/templates/base/tags/groups"),
        ("GET", "/templates/base/tags/stable/assignments"),
        ("GET", "/teams"),
        ("GET", "/api-keys"),
        ("POST", "/api-keys"),
    ]:
        status, _, answer = ask(server, method, path, key, b"{}" if method in ("POST", "PUT", "PATCH") else None)
        assert status == 501 and b'"code":501' in answer and b"not " in answer, (method, path, status, answer)
        status, _, answer = ask(server, method, path)
        assert status == 401 and b'"code":401' in answer, (method, path, status, answer)
