// E2B's code interpreter through its unmodified client for Node.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Sandbox } from "@e2b/code-interpreter";

test("code keeps its state, prints, shows and raises", async () => {
  const box = await Sandbox.create({ timeoutMs: 120_000 });
  try {
    const seen = [];
    await box.runCode("x = 40");
    const execution = await box.runCode("print('out')\nx + 2", { onStdout: (message) => seen.push(message.line) });
    assert.deepEqual([execution.text, execution.logs.stdout, seen, execution.executionCount], ["42", ["out\n"], ["out\n"], 2]);
    const failed = await box.runCode("1/0");
    assert.equal(failed.error.name, "ZeroDivisionError");
    assert.equal((await box.runCode("const a = 40; a + 2", { language: "javascript" })).text, "42");
    assert.deepEqual((await box.runCode("echo $A", { language: "bash", envs: { A: "b" } })).logs.stdout, ["b\n"]);
    const context = await box.createCodeContext({ language: "python", cwd: "/tmp" });
    assert.equal((await box.runCode("import os; os.getcwd()", { context })).text, "/tmp");
    assert.ok((await box.listCodeContexts()).some((one) => one.id === context.id));
    await box.restartCodeContext(context);
    await box.removeCodeContext(context);
    await assert.rejects(box.runCode("1", { context }), /not found/);
    await assert.rejects(box.runCode("while True: pass", { timeoutMs: 1000 }), /timed out/i);
    assert.equal((await box.runCode("x")).text, "40");
    const rich = await box.runCode("from IPython.display import HTML\nHTML('<b>x</b>')");
    assert.equal(rich.results[0].html, "<b>x</b>");
  } finally {
    await box.kill();
  }
});
