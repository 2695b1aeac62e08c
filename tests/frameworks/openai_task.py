"""The OpenAI Agents SDK, unmodified, with its E2B sandboxes of both types: a scripted agent writes a file with a shell and reads it back,
and the next run finds it in the workspace that was kept."""

import asyncio
import json
import sys

from agents import ModelResponse, Runner, Usage, set_tracing_disabled
from agents.extensions.sandbox.e2b import E2BSandboxClient, E2BSandboxClientOptions
from agents.models.interface import Model
from agents.run import RunConfig
from agents.sandbox import SandboxAgent, SandboxRunConfig
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

set_tracing_disabled(True)


class Script(Model):
    """Calls a tool for each line, then answers with the last result."""

    def __init__(self, *commands):
        self.commands, self.results = list(commands), []

    async def get_response(self, system_instructions, input, model_settings, tools, output_schema, handoffs, tracing, **_):
        for item in input if isinstance(input, list) else []:
            if item.get("type") == "function_call_output":
                self.results.append(str(item["output"]))
        if self.commands:
            names = [tool.name for tool in tools]
            assert "exec_command" in names, names
            call = ResponseFunctionToolCall(
                type="function_call", call_id=f"call_{len(self.commands)}", name="exec_command", arguments=json.dumps({"cmd": self.commands.pop(0)})
            )
            output = [call]
        else:
            text = ResponseOutputText(type="output_text", text=self.results[-1], annotations=[])
            output = [ResponseOutputMessage(id="msg", type="message", role="assistant", status="completed", content=[text])]
        return ModelResponse(output=output, usage=Usage(), response_id=None)

    def stream_response(self, *_, **__):
        raise NotImplementedError


async def main(persistence):
    for kind in ("e2b", "e2b_code_interpreter"):
        client = E2BSandboxClient()
        options = E2BSandboxClientOptions(sandbox_type=kind, timeout=120, workspace_persistence=persistence)
        session = await client.create(options=options)
        try:
            await session.start()
            script = Script("echo kept > notes.txt && cat notes.txt", "python3 -c 'print(6 * 7)'")
            agent = SandboxAgent(name="worker", model=script, instructions="Work in the sandbox.")
            config = RunConfig(sandbox=SandboxRunConfig(session=session))
            result = await Runner.run(agent, "Write and compute.", run_config=config)
            assert "42" in result.final_output, result.final_output
            assert any("kept" in told for told in script.results), script.results
            # What is persisted comes back into a sandbox that lost it.
            archive = await session.persist_workspace()
            await session.exec("rm -f notes.txt")
            await session.hydrate_workspace(archive)
            read = await session.exec("cat notes.txt")
            assert b"kept" in read.stdout, read
        finally:
            await client.delete(session)
        print(f"openai-agents, {kind}, workspace kept as {persistence}: ok")


asyncio.run(main(*sys.argv[1:] or ["tar"]))
