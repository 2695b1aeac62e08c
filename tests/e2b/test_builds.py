"""Builds of templates with the client: steps, files, cache, tags, logs, errors."""

import json
import os
import tempfile

import pytest
from e2b import BuildException, CommandExitException, Sandbox, Template
from e2b.sandbox.commands.command_handle import PtySize
from test_faults import ask
from test_sandbox import IS_NEW
from test_templates import KEY, upload

pytestmark = pytest.mark.skipif(not IS_NEW, reason="builds are tried with the newest client")


@pytest.fixture(scope="module")
def base(server):
    upload(server, "tiny:1", "from the base\n")
    return "tiny:1"


def test_a_template_is_built_from_steps_and_used(server, base):
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "app.txt"), "w") as file:
            file.write("copied\n")
        template = (
            Template(file_context_path=place)
            .from_template(base)
            .copy("app.txt", "/srv/app.txt")
            .set_envs({"COLOUR": "blue"})
            .run_cmd("echo $COLOUR > /srv/made; cat /srv/app.txt /greeting")
            .set_workdir("/srv")
        )
        entries = []
        info = Template.build(template, "built:v1", tags=["stable"], on_build_logs=entries.append)
        messages = [entry.message for entry in entries]
        assert "copied" in messages and "from the base" in messages, messages
        assert info.template_id == "built" and Template.exists("built:v1") and Template.exists("built:stable")
        sandbox = Sandbox.create("built:stable", timeout=60)
        try:
            assert sandbox.commands.run("cat /srv/made /srv/app.txt; echo $COLOUR").stdout == "blue\ncopied\nblue\n"
        finally:
            sandbox.kill()
        # Again: nothing has to run.
        entries.clear()
        Template.build(template, "built:v2", on_build_logs=entries.append)
        assert "cached" in [entry.message for entry in entries] and "copied" not in [entry.message for entry in entries]
        entries.clear()
        Template.build(template, "built:v3", skip_cache=True, on_build_logs=entries.append)
        assert "copied" in [entry.message for entry in entries]


def test_a_dockerfile_is_built(server):
    # The client puts `USER root` before all others, and this image has no /etc/passwd.
    base = "bare:1"
    upload(server, base, "")
    with tempfile.TemporaryDirectory() as place:
        with open(os.path.join(place, "app.txt"), "w") as file:
            file.write("copied\n")
        dockerfile = f"""\
FROM {base}
ENV COLOUR=green
WORKDIR /srv
COPY app.txt /srv/app.txt
RUN echo $COLOUR > /srv/made
USER root
"""
        template = Template(file_context_path=place).from_dockerfile(dockerfile)
        Template.build(template, "by-dockerfile")
        sandbox = Sandbox.create("by-dockerfile", timeout=60)
        try:
            assert sandbox.commands.run("pwd; cat made app.txt").stdout == "/srv\ngreen\ncopied\n"
            assert sandbox.commands.run("id -u; echo $HOME").stdout == "0\n/root\n"
            assert sandbox.files.write("/srv/written", "x").path == "/srv/written"
        finally:
            sandbox.kill()
        with pytest.raises(Exception, match="(?i)multi-stage"):
            Template(file_context_path=place).from_dockerfile(f"FROM {base} AS one\nFROM {base}\n")


def test_an_image_that_is_a_template_can_be_built_upon(server, base):
    info = Template.build_in_background(Template().from_image("tiny:1").run_cmd("true"), "upon")
    status = Template.get_build_status(info)
    while status.status.value in ("building", "waiting"):
        status = Template.get_build_status(info)
    assert status.status.value == "ready" and status.build_id == info.build_id


def test_a_failed_step_is_named_with_what_it_said(server, base):
    template = Template().from_template(base).run_cmd("true").run_cmd("echo why; exit 3")
    with pytest.raises(BuildException, match="why"):
        Template.build(template, "broken")
    assert not Template.exists("broken")
    info = Template.build_in_background(template, "broken")
    while (status := Template.get_build_status(info)).status.value in ("building", "waiting"):
        pass
    assert (status.status.value, status.reason.step) == ("error", "2")


def test_what_cannot_be_built_is_refused(server, base):
    for template, words in (
        (Template().from_template("nothing"), "'nothing' not found"),
        (Template().from_image("quay.io/a/b:1"), "does not fetch images from quay.io:443"),
    ):
        with pytest.raises(BuildException, match=words):
            Template.build(template, "refused")
    with pytest.raises(BuildException, match="can't be the name"):
        Template.build(Template().from_template(base), "name/space")


def test_links_for_uploads_are_for_one_project_and_one_hash(server, base):
    hash_ = "a" * 64
    status, _, answer = ask(server, "GET", f"/templates/mine/files/{hash_}", KEY())
    told = json.loads(answer)
    assert status == 201 and told["present"] is False
    path = told["url"].split(server.url.split("//")[1])[1]
    for wrong in (path.replace("aaaa", "bbbb"), path.replace("prj_", "prj_a"), path[:-4] + "AAAA", path.replace("expires=1", "expires=9")):
        assert ask(server, "PUT", wrong, {}, b"x")[0] in (400, 401), wrong
    assert ask(server, "PUT", path, {}, b"not an archive")[0] == 200
    assert json.loads(ask(server, "GET", f"/templates/mine/files/{hash_}", KEY())[2])["present"] is True


def test_programs_run_as_the_user_that_the_template_names(server, base):
    accounts = "mkdir -p /etc /srv/app; echo 'app:x:1234:2345::/srv/app:/bin/sh' > /etc/passwd; chown 1234:2345 /srv/app"
    template = (
        Template()
        .from_template(base)
        .run_cmd(accounts, user="root")
        .set_user("app")
        .run_cmd("id -u > /srv/app/built")
        .set_start_cmd("id -u > /tmp/started; sleep 600", "cat /tmp/started")
    )
    Template.build(template, "with-user")
    sandbox = Sandbox.create("with-user", timeout=60)
    try:
        run = lambda command, **options: sandbox.commands.run(command, **options).stdout
        assert run("id -u; id -g; echo $USER $HOME; pwd") == "1234\n2345\napp /srv/app\n/srv/app\n"
        assert run("cat /srv/app/built /tmp/started") == "1234\n1234\n"
        assert [run("id -u", user=user) for user in ("app", "user", "root")] == ["1234\n", "1000\n", "0\n"]
        assert sandbox.files.write("mine", "x").path == "/srv/app/mine"
        assert sandbox.files.read("mine") == "x" and sandbox.files.read("mine", user="app") == "x"
        assert sandbox.files.write("hers", "x", user="user").path == "/home/user/hers"
        assert run("stat -c %u:%g /srv/app/mine /home/user/hers") == "1234:2345\n1000:1000\n"
        with pytest.raises(Exception, match="invalid username: 'nobody'"):
            run("id -u", user="nobody")
        terminal = sandbox.pty.create(PtySize(rows=24, cols=80), timeout=60)
        sandbox.pty.send_stdin(terminal.pid, b"id -u > pty; exit\n")
        terminal.wait()
        assert sandbox.files.read("/srv/app/pty") == "1234\n"
    finally:
        sandbox.kill()


def test_sandboxes_have_the_limits_of_their_template(server, base):
    Template.build(Template().from_template(base).run_cmd("true"), "sized", cpu_count=1, memory_mb=256)
    told = json.loads(ask(server, "GET", "/templates/sized", KEY())[2])
    assert (told["cpuCount"], told["memoryMB"]) == (1, 256)
    sandbox = Sandbox.create("sized", timeout=60)
    try:
        info = sandbox.get_info()
        assert (info.cpu_count, info.memory_mb) == (1, 256)
        # More than that ends the program.
        hungry = "x=x; while true; do x=$x$x$x$x; done"
        with pytest.raises(CommandExitException):
            sandbox.commands.run(hungry)
    finally:
        sandbox.kill()


def test_a_user_by_number_needs_no_account(server, base):
    Template.build(Template().from_template(base).set_user("4321"), "numbered")
    sandbox = Sandbox.create("numbered", timeout=60)
    try:
        assert sandbox.commands.run("id -u; echo $HOME; pwd").stdout == "4321\n/\n/\n"
        assert sandbox.files.write("/tmp/mine", "x").path == "/tmp/mine"
    finally:
        sandbox.kill()


def test_start_and_ready_commands_run_before_a_sandbox_is_given_away(server, base):
    template = Template().from_template(base).set_start_cmd("sleep 1; echo up > /tmp/state; sleep 600", "cat /tmp/state")
    Template.build(template, "service")
    sandbox = Sandbox.create("service", timeout=60)
    try:
        assert sandbox.commands.run("cat /tmp/state").stdout == "up\n"
    finally:
        sandbox.kill()
