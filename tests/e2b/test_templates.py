"""Templates of a project: what exists, under which names and tags, and what a sandbox from one finds."""

import json
import os
import subprocess
import tarfile
import tempfile
import time

import pytest
from e2b import Sandbox, SandboxException, Template, TemplateException
from test_faults import ask
from test_sandbox import IS_NEW

KEY = lambda: {"X-API-KEY": os.environ["E2B_API_KEY"], "Content-Type": "application/json"}
PATIENCE = 60


def upload(server, name, greeting):
    """Imports a small image through the server's own API."""
    with tempfile.TemporaryDirectory() as place:
        def umoci(*arguments):
            subprocess.run(["umoci", *arguments], cwd=place, check=True, stdout=subprocess.DEVNULL)

        with open(os.path.join(place, "greeting"), "w") as file:
            file.write(greeting)
        umoci("init", "--layout", "oci")
        umoci("new", "--image", "oci:x")
        for target in ("/bin/sh", "/bin/cat"):
            umoci("insert", "--rootless", "--image", "oci:x", "/bin/busybox", target)
        # The client's commands are run by bash.
        with open(os.path.join(place, "bash"), "w") as file:
            file.write('#!/bin/sh\nexec /bin/sh "$@"\n')
        os.chmod(os.path.join(place, "bash"), 0o755)
        umoci("insert", "--rootless", "--image", "oci:x", "bash", "/bin/bash")
        umoci("insert", "--rootless", "--image", "oci:x", "greeting", "/greeting")
        archive = os.path.join(place, "image.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(os.path.join(place, "oci"), ".")
        with open(archive, "rb") as file:
            body = file.read()
    status, _, answer = ask(server, "POST", f"/api/v1/template-jobs/upload?name={name}", KEY() | {"Content-Type": "application/x-tar"}, body)
    assert status == 202, answer
    path = "/api/v1/template-jobs/" + json.loads(answer)["id"]
    deadline = time.monotonic() + PATIENCE
    while (job := json.loads(ask(server, "GET", path, KEY())[2]))["state"] == "running":
        assert time.monotonic() < deadline, job
    assert job["state"] == "succeeded", job


@pytest.fixture(scope="module")
def greeting(server):
    upload(server, "greeting:v1", "hello\n")
    return "greeting"


def test_a_sandbox_starts_from_a_template_and_knows_its_id(server, greeting):
    sandbox = Sandbox.create("greeting:v1", timeout=60)
    try:
        assert sandbox.commands.run("cat /greeting; echo $E2B_TEMPLATE_ID").stdout == "hello\ngreeting\n"
        assert sandbox.get_info().template_id == "greeting:v1"
    finally:
        sandbox.kill()


def test_names_and_tags_are_found_given_and_taken_away(server, greeting):
    assert Template.exists(greeting) and Template.exists("greeting:v1") and not Template.exists("greeting:v2")
    assert not Template.exists("name/space:tag") and not Template.exists("nothing")
    given = Template.assign_tags("greeting:v1", ["stable", "default"])
    assert given.tags == ["stable", "default"]
    tags = {tag.tag: tag.build_id for tag in Template.get_tags(greeting)}
    assert set(tags) == {"v1", "stable", "default"} and set(tags.values()) == {given.build_id}
    sandbox = Sandbox.create(greeting, timeout=60)
    sandbox.kill()
    Template.remove_tags(greeting, ["stable", "default"])
    assert [tag.tag for tag in Template.get_tags(greeting)] == ["v1"]
    for wrong in (
        lambda: Template.assign_tags("nothing:v1", "x"),
        lambda: Template.remove_tags(greeting, "stable"),
        lambda: Template.get_tags("nothing"),
        lambda: Template.assign_tags("greeting:v1", "a:b"),
    ):
        with pytest.raises(TemplateException):
            wrong()


def test_templates_are_listed_read_and_removed(server):
    upload(server, "passing", "x")
    listed = {template["templateID"]: template for template in json.loads(ask(server, "GET", "/templates", KEY())[2])}
    assert listed["passing"]["names"] == ["passing"] and listed["passing"]["public"] is False
    if IS_NEW:
        from e2b.api.client.models import Template as Shown
        from e2b.api.client.models import TemplateWithBuilds

        assert Shown.from_dict(listed["passing"]).build_status.value == "ready"
        read = json.loads(ask(server, "GET", "/templates/passing", KEY())[2])
        assert len(TemplateWithBuilds.from_dict(read).builds) == 1
    assert ask(server, "DELETE", "/templates/passing", KEY())[0] == 204
    assert ask(server, "GET", "/templates/passing", KEY())[0] == 404
    assert ask(server, "DELETE", "/templates/passing", KEY())[0] == 404
    with pytest.raises(SandboxException, match="'passing' not found"):
        Sandbox.create("passing")


def test_the_usage_of_many_sandboxes_is_told_at_once(server):
    both = [Sandbox.create(timeout=60) for _ in range(2)]
    try:
        ids = [sandbox.sandbox_id for sandbox in both]
        answer = ask(server, "GET", "/sandboxes/metrics?sandbox_ids=" + ",".join([*ids, "nothing", "a" * 26]), KEY())
        assert answer[0] == 200, answer
        told = json.loads(answer[2])["sandboxes"]
        assert set(told) == set(ids) and all(told[one]["memTotal"] > 0 for one in ids)
        assert ask(server, "GET", "/sandboxes/metrics?sandbox_ids=" + ",".join(f"{number:026}" for number in range(101)), KEY())[0] == 400
        assert ask(server, "GET", "/sandboxes/metrics?sandbox_ids=" + ids[0])[0] == 401
    finally:
        for sandbox in both:
            sandbox.kill()
