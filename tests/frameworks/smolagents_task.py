"""smolagents, unmodified, with executor_type="e2b": an agent computes in one step and answers in the next, with what the first one left."""

import io
import pathlib
import tarfile

import numpy
from e2b_code_interpreter import Sandbox, Volume
from smolagents import ChatMessage, CodeAgent, MessageRole, Model

TURNS = [
    "Thought: I add them up.\n<code>\nnumbers = [3, 5, 7]\ntotal = sum(numbers)\nprint('total', total)\n</code>",
    "Thought: that fails.\n<code>\ntotal / 0\n</code>",
    "Thought: it is kept.\n<code>\nfinal_answer(total * 2)\n</code>",
]


class Script(Model):
    """A model that says what is written above, and checks what it is told."""

    def __init__(self):
        super().__init__(model_id="scripted")
        self.asked = []

    def generate(self, messages, stop_sequences=None, response_format=None, tools_to_call_from=None, **_):
        self.asked.append(str(messages[-1].content))
        return ChatMessage(role=MessageRole.ASSISTANT, content=TURNS[len(self.asked) - 1])


def packages():
    """A volume with numpy and Pillow, which smolagents takes for granted in every E2B sandbox."""
    volume = Volume.create("packages")
    box = Sandbox.create(timeout=120, volume_mounts={"/packages": volume})
    try:
        archive = io.BytesIO()
        with tarfile.open(fileobj=archive, mode="w:gz", compresslevel=1) as tar:
            place = pathlib.Path(numpy.__file__).parents[1]
            for part in [*place.glob("numpy*"), *place.glob("PIL"), *place.glob("pillow*")]:
                tar.add(part, part.name, filter=lambda entry: None if "/tests" in entry.name else entry)
        box.files.write("/tmp/packages.tar.gz", archive.getvalue())
        box.commands.run("tar -xzf /tmp/packages.tar.gz -C /packages --no-same-owner", timeout=60)
    finally:
        box.kill()
    return volume


script = Script()
sandbox = {"volume_mounts": {"/packages": packages()}, "envs": {"PYTHONPATH": "/packages"}}
with CodeAgent(tools=[], model=script, executor_type="e2b", executor_kwargs=sandbox, verbosity_level=0) as agent:
    answer = agent.run("Double the sum of 3, 5 and 7.")
assert answer == 30, answer
assert "total 15" in script.asked[1], script.asked[1]
assert "ZeroDivisionError" in script.asked[2], script.asked[2]
print("smolagents: ok")
