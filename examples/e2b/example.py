"""A program that an agent might write, run in a sandbox of your own server with E2B's client."""

from e2b import Sandbox

PROGRAM = """
import json
answer = 6 * 7
print("6 * 7 =", answer)
json.dump({"answer": answer}, open("/tmp/answer.json", "w"))
"""

with Sandbox.create(timeout=60) as sandbox:
    sandbox.files.write("/home/user/program.py", PROGRAM)
    print(sandbox.commands.run("python3 program.py").stdout, end="")
    print(sandbox.files.read("/tmp/answer.json"))
