"""E2B's code interpreter, through its unmodified client: the first test is the smoke case, the rest is for `make test-all`."""

import asyncio
import threading

import pytest
from e2b import InvalidArgumentException, NotFoundException, SandboxException, TimeoutException
from e2b_code_interpreter import AsyncSandbox, Sandbox

# Only `make test-all` runs these; run.sh chooses.
whole = pytest.mark.whole


@pytest.fixture
def box(server):
    # Without a name: the client asks for `code-interpreter-v1`.
    sandbox = Sandbox.create(timeout=120)
    yield sandbox
    sandbox.kill()


def test_code_keeps_its_state_prints_shows_and_raises(box):
    seen = {"stdout": [], "stderr": [], "result": [], "error": []}
    box.run_code("x = 20")
    execution = box.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)\nx += 22\nx",
        on_stdout=lambda message: seen["stdout"].append(message.line),
        on_stderr=lambda message: seen["stderr"].append(message.line),
        on_result=lambda result: seen["result"].append(result.text),
    )
    assert (execution.text, execution.logs.stdout, execution.logs.stderr) == ("42", ["out\n"], ["err\n"])
    assert seen == {"stdout": ["out\n"], "stderr": ["err\n"], "result": ["42"], "error": []}
    assert execution.execution_count == 2
    failed = box.run_code("1/0", on_error=lambda error: seen["error"].append(error.name))
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero")
    assert "line 1" in failed.error.traceback and seen["error"] == ["ZeroDivisionError"]
    assert box.run_code("x").text == "42"
    assert box.run_code("y=1; cd /tmp; pwd; echo err >&2", language="bash").logs.stdout == ["/tmp\n"]
    assert box.run_code("pwd; echo $y", language="bash").logs.stdout == ["/tmp\n1\n"]
    assert box.run_code("const a = 40; await Promise.resolve(a + 2)", language="javascript").text == "42"
    assert box.run_code("const a = 1; [a]", language="javascript").text == "[ 1 ]"


@whole
def test_contexts_are_apart_and_can_be_listed_restarted_and_removed(box):
    box.run_code("x = 'default'")
    one = box.create_code_context(cwd="/tmp", language="python")
    assert (one.language, one.cwd) == ("python", "/tmp")
    assert box.run_code("import os; os.getcwd()", context=one).text == "/tmp"
    assert box.run_code("x", context=one).error.name == "NameError"
    box.run_code("x = 'one'", context=one)
    assert (box.run_code("x").text, box.run_code("x", context=one).text) == ("default", "one")
    assert {context.id for context in box.list_code_contexts()} >= {one.id}
    box.restart_code_context(one)
    assert box.run_code("x", context=one).error.name == "NameError"
    box.remove_code_context(one)
    assert one.id not in {context.id for context in box.list_code_contexts()}
    for call in [lambda: box.run_code("1", context=one), lambda: box.restart_code_context(one), lambda: box.remove_code_context(one)]:
        with pytest.raises(NotFoundException):
            call()
    with pytest.raises(InvalidArgumentException):
        box.run_code("1", context=one, language="python")
    with pytest.raises(SandboxException, match="not supported"):
        box.run_code("1", language="r")


@whole
def test_variables_are_for_one_execution(box):
    assert box.run_code("import os; os.environ['A']", envs={"A": "b"}).text == "b"
    assert box.run_code("os.environ.get('A')").text is None
    assert box.run_code("os.environ['E2B_SANDBOX'], os.environ['E2B_SANDBOX_ID']").text == f"('true', '{box.sandbox_id}')"
    assert box.run_code("echo $A", envs={"A": "it's"}, language="bash").logs.stdout == ["it's\n"]
    assert box.run_code("process.env.A", envs={"A": "b"}, language="javascript").text == "b"


@whole
def test_a_timeout_interrupts_the_code_and_the_context_goes_on(box):
    box.run_code("x = 1")
    with pytest.raises(TimeoutException):
        box.run_code("import time\nwhile True: time.sleep(0.1)", timeout=1)
    assert box.run_code("x", timeout=20).text == "1"


@whole
def test_every_kind_of_result_arrives(box):
    code = """
class Rich:
    def _repr_html_(self): return '<b>x</b>'
    def _repr_markdown_(self): return '**x**'
    def _repr_svg_(self): return '<svg/>'
    def _repr_png_(self): return b'png'
    def _repr_jpeg_(self): return b'jpeg'
    def _repr_pdf_(self): return b'pdf'
    def _repr_latex_(self): return '$x$'
    def _repr_json_(self): return {'x': [1, None]}
    def _repr_javascript_(self): return 'alert(1)'
    def _repr_mimebundle_(self, include=None, exclude=None): return {'application/x-own': 'own'}
    def __repr__(self): return 'Rich'
display(Rich())
Rich()
"""
    shown, main = box.run_code(code).results
    assert (shown.is_main_result, main.is_main_result) == (False, True)
    for result in (shown, main):
        assert (result.text, result.html, result.markdown, result.svg, result.latex) == ("Rich", "<b>x</b>", "**x**", "<svg/>", "$x$")
        assert (result.png, result.jpeg, result.pdf) == ("cG5n", "anBlZw==", "cGRm")
        assert (result.json, result.javascript, result.extra) == ({"x": [1, None]}, "alert(1)", {"application/x-own": "own"})
    html = box.run_code("from IPython.display import HTML, display\ndisplay(HTML('<i>y</i>'))").results[0]
    assert html.html == "<i>y</i>"
    with_await = box.run_code("import asyncio\nawait asyncio.sleep(0.01)\n'waited'")
    assert with_await.text == "waited"
    assert box.run_code("input('?')").error.name == "StdinNotImplementedError"
    assert box.run_code("!echo from shell").logs.stdout == ["from shell\n"]


@whole
def test_what_ends_the_process_costs_its_context_alone(box):
    other = box.create_code_context()
    box.run_code("kept = 1", context=other)
    for code in ["import os; os._exit(3)", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]:
        box.run_code("x = 1")
        died = box.run_code(code)
        assert died.error.name == "ContextDied" and "started anew" in died.error.value
        assert box.run_code("x").error.name == "NameError"
    assert box.run_code("kept", context=other).text == "1"


@whole
def test_output_comes_while_the_code_runs(box):
    first = threading.Event()
    code = "import os, time\nprint('first', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\n'went'"
    seen = []
    worker = threading.Thread(target=lambda: seen.append(box.run_code(code, on_stdout=lambda _: first.set(), timeout=60)))
    worker.start()
    assert first.wait(30)
    box.files.write("/tmp/go", "")
    worker.join(30)
    assert seen[0].text == "went"


@whole
def test_contexts_outlive_the_server(server, box):
    box.run_code("x = 'kept'")
    context = box.create_code_context(language="bash")
    box.run_code("y=kept", context=context)
    server.restart()
    assert box.run_code("x").text == "kept"
    assert box.run_code("echo $y", context=context).logs.stdout == ["kept\n"]


@whole
def test_the_asynchronous_client_does_the_same(server):
    async def use():
        box = await AsyncSandbox.create(timeout=120)
        try:
            context = await box.create_code_context(cwd="/tmp")
            one, two = await asyncio.gather(box.run_code("import time; time.sleep(0.2); 1", context=context), box.run_code("2"))
            lines = []
            await box.run_code("print('a')", on_stdout=lambda message: lines.append(message.line))
            with pytest.raises(TimeoutException):
                await box.run_code("while True: pass", timeout=1)
            return one.text, two.text, lines, (await box.run_code("3")).text
        finally:
            await box.kill()

    assert asyncio.run(use()) == ("1", "2", ["a\n"], "3")


@whole
def test_a_large_result_is_cut_and_says_so(box):
    execution = box.run_code("'x' * (100 << 20)", timeout=60)
    assert "cut" in execution.text and len(execution.text) < 2 << 20
    assert "limited" in "".join(execution.logs.stderr)
    assert box.run_code("1").text == "1"
