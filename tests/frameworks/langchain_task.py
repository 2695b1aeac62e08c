"""langchain-e2b, unmodified, as the backend of a deep agent: a scripted model writes, runs and edits a program in the sandbox."""

from deepagents import create_deep_agent
from e2b import Sandbox
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, ToolMessage
from langchain_e2b import E2BSandbox


def call(name, **arguments):
    return AIMessage(content="", tool_calls=[{"name": name, "args": arguments, "id": f"call_{name}_{len(arguments)}_{abs(hash(str(arguments)))}"}])


class Script(GenericFakeChatModel):
    def bind_tools(self, tools, **_):
        return self


TURNS = [
    call("write_file", file_path="/home/user/greet.py", content="print('hello')\n"),
    call("execute", command="python3 greet.py"),
    call("edit_file", file_path="/home/user/greet.py", old_string="hello", new_string="goodbye"),
    call("execute", command="python3 greet.py && ls"),
    AIMessage(content="done"),
]

box = Sandbox.create(timeout=120)
try:
    agent = create_deep_agent(model=Script(messages=iter(TURNS)), backend=E2BSandbox(sandbox=box))
    told = agent.invoke({"messages": [{"role": "user", "content": "Greet."}]})["messages"]
finally:
    box.kill()
results = [str(message.content) for message in told if isinstance(message, ToolMessage)]
assert told[-1].content == "done", told[-1]
assert "hello" in results[1] and "goodbye" in results[3] and "greet.py" in results[3], results
print("langchain-e2b: ok")
