// The kernel of a JavaScript context: runs pieces of code, one after another, in one global scope.
//
// Requests come on descriptor 3, results go in packets to descriptors 4 and 5, which are copies of standard output and
// error (see packets.rs). What code prints goes to standard output and error as it is. Needs Node 16 and nothing else.
(() => {
  "use strict";
  const fs = require("fs");
  const vm = require("vm");
  const util = require("util");
  const path = require("path");
  const { createRequire } = require("module");
  const repl = require("repl");
  const { PassThrough } = require("stream");
  const REQUESTS = 3;
  const OUTPUTS = [4, 5];
  const PACKET_MAX = 4096;
  const HEADER_LEN = 47;
  const RESULT_MAX = 12 << 20;
  const TEXT_MAX = 1 << 20;
  const RESULTS_MAX = 1000;
  const exit = process.reallyExit.bind(process);
  const write = fs.writeSync;
  const stringify = JSON.stringify;
  const wait = new Int32Array(new SharedArrayBuffer(4));

  let nonce = null;
  let count = 0;
  let results = 0;
  let isRunning = false;
  let interrupt = null;

  function writePacket(fd, packet) {
    for (;;) {
      try {
        write(fd, packet);
        return;
      } catch (error) {
        if (error.code !== "EAGAIN") exit(70);
        Atomics.wait(wait, 0, 0, 1);
      }
    }
  }

  function send(message, streams = [0]) {
    if (nonce === null) return;
    const payload = Buffer.from(stringify(message).replace(/[\u007f-\uffff]/g, (c) => "\\u" + c.charCodeAt(0).toString(16).padStart(4, "0")), "latin1");
    const room = PACKET_MAX - HEADER_LEN;
    for (const stream of streams) {
      for (let at = 0; at < payload.length; at += room) {
        const piece = payload.subarray(at, at + room);
        const kind = at + room >= payload.length ? "e" : "m";
        const header = `\0saggar:${nonce}:${kind}${piece.length.toString(16).padStart(4, "0")}:`;
        writePacket(OUTPUTS[stream], Buffer.concat([Buffer.from(header, "latin1"), piece]));
      }
    }
  }

  function cut(text, most = TEXT_MAX) {
    return text.length <= most ? text : `${text.slice(0, most)}… (${text.length} characters, cut after ${most})`;
  }

  function sendResult(formats, main) {
    let told = {};
    for (const [kind, value] of Object.entries(formats)) {
      if (value === null || value === undefined) continue;
      told[kind] = Buffer.isBuffer(value) || value instanceof Uint8Array ? Buffer.from(value).toString("base64") : value;
    }
    let length = stringify(told).length;
    if (length > RESULT_MAX) {
      told = { "text/plain": cut(String(told["text/plain"] ?? "")) };
      fs.writeSync(2, `saggar: a result of ${length} characters was cut: results are limited to ${RESULT_MAX}\n`);
    }
    results += 1;
    if (results > RESULTS_MAX) {
      if (main) return;
      throw new Error(`too many results: one execution may have ${RESULTS_MAX}`);
    }
    send({ type: "result", main, formats: told });
  }

  const METHODS = {
    _toHtml: "text/html", _toMarkdown: "text/markdown", _toSvg: "image/svg+xml", _toPng: "image/png", _toJpeg: "image/jpeg",
    _toPdf: "application/pdf", _toLatex: "text/latex", _toJson: "application/json",
  };

  function formatsOf(value) {
    const text = typeof value === "string" ? value : util.inspect(value, { maxStringLength: TEXT_MAX });
    const formats = { "text/plain": text };
    if (value !== null && typeof value === "object") {
      for (const [method, kind] of Object.entries(METHODS)) {
        try {
          if (typeof value[method] === "function") formats[kind] = value[method]();
        } catch {}
      }
      try {
        if (typeof value._toMime === "function") Object.assign(formats, value._toMime());
      } catch {}
    }
    return formats;
  }

  function display(...values) {
    for (const value of values) sendResult(formatsOf(value), false);
  }
  display.html = (text) => sendResult({ "text/html": String(text) }, false);
  display.markdown = (text) => sendResult({ "text/markdown": String(text) }, false);
  display.svg = (text) => sendResult({ "image/svg+xml": String(text) }, false);
  display.png = (data) => sendResult({ "image/png": data }, false);
  display.jpeg = (data) => sendResult({ "image/jpeg": data }, false);
  display.json = (value) => sendResult({ "application/json": value }, false);
  display.mime = (formats) => sendResult(formats, false);

  // Top-level `const`, `let` and `class` become `var`, so that a piece of code can be run again, as people do.
  // Anything that this short reader isn't sure of is left as it is.
  function redeclarable(code) {
    const edits = [];
    const stack = [];
    let at = 0;
    let atStatement = true;
    let last = "";
    const classes = [];
    const isWord = (c) => c !== undefined && /[\w$\u0080-\uffff]/.test(c);
    while (at < code.length) {
      const c = code[at];
      const two = code.slice(at, at + 2);
      if (two === "//") {
        const end = code.indexOf("\n", at);
        at = end < 0 ? code.length : end;
        continue;
      }
      if (two === "/*") {
        const end = code.indexOf("*/", at + 2);
        if (end < 0) return code;
        at = end + 2;
        continue;
      }
      if (c === "\n") {
        if (stack.length === 0 && !/[-+*/%=&|^<>?:,.([{!~]$/.test(last)) atStatement = true;
        at += 1;
        continue;
      }
      if (/\s/.test(c)) {
        at += 1;
        continue;
      }
      if (c === '"' || c === "'") {
        let end = at + 1;
        while (end < code.length && code[end] !== c) end += code[end] === "\\" ? 2 : 1;
        if (end >= code.length) return code;
        at = end + 1;
        last = c;
        atStatement = false;
        continue;
      }
      if (c === "`" || (c === "}" && stack[stack.length - 1] === "`")) {
        if (c === "}") stack.pop();
        let end = at + 1;
        while (end < code.length && code[end] !== "`" && code.slice(end, end + 2) !== "${") end += code[end] === "\\" ? 2 : 1;
        if (end >= code.length) return code;
        if (code[end] === "`") at = end + 1;
        else {
          stack.push("`");
          at = end + 2;
        }
        last = "`";
        atStatement = false;
        continue;
      }
      if (c === "/") {
        if (last === "" || /[-+*%=&|^<>?:,;([{!~}]$/.test(last) || /(^|[^\w$])(return|typeof|case|in|of|delete|void|throw|await|yield)$/.test(last)) {
          let end = at + 1;
          let inClass = false;
          while (end < code.length && code[end] !== "\n" && (inClass || code[end] !== "/")) {
            if (code[end] === "\\") end += 1;
            else if (code[end] === "[") inClass = true;
            else if (code[end] === "]") inClass = false;
            end += 1;
          }
          if (code[end] !== "/") return code;
          at = end + 1;
          last = ")";
          continue;
        }
      }
      if (isWord(c)) {
        let end = at;
        while (isWord(code[end])) end += 1;
        const word = code.slice(at, end);
        if (stack.length === 0 && atStatement && (word === "const" || (word === "let" && /^\s*[\w$[{\u0080-\uffff]/.test(code.slice(end))))) {
          edits.push([at, end, "var"]);
        } else if (stack.length === 0 && atStatement && word === "class") {
          const name = /^\s+([\w$\u0080-\uffff]+)/.exec(code.slice(end));
          if (name) {
            edits.push([at, at, `var ${name[1]} = `]);
            classes.push(at);
          }
        }
        last = word;
        atStatement = false;
        at = end;
        continue;
      }
      if ("([{".includes(c)) stack.push(c);
      if (")]}".includes(c)) {
        const open = stack.pop();
        if (open === undefined || "([{".indexOf(open) !== ")]}".indexOf(c)) return code;
        if (c === "}" && stack.length === 0) {
          if (classes.length > 0) {
            edits.push([at + 1, at + 1, ";"]);
            classes.pop();
          }
          atStatement = true;
          last = c;
          at += 1;
          continue;
        }
      }
      atStatement = c === ";" && stack.length === 0;
      last = c;
      at += 1;
    }
    if (stack.length) return code;
    let out = code;
    for (const [from, to, text] of edits.reverse()) out = out.slice(0, from) + text + out.slice(to);
    return out;
  }

  const server = repl.start({ input: new PassThrough(), output: new PassThrough(), prompt: "", terminal: false, useGlobal: true });
  server.removeAllListeners("SIGINT");
  const evaluateCode = server.eval.bind(server);
  // What code throws goes to the domain of the REPL.
  const failed = (error) => {
    if (isRunning && interrupt) interrupt(error && error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED" ? interrupted() : error);
    else stray(error);
  };
  if (server._domain) {
    server._domain.removeAllListeners("error");
    server._domain.on("error", failed);
  }
  for (const name of ["_", "_error"]) {
    Object.defineProperty(globalThis, name, { configurable: true, writable: true, value: undefined });
  }
  globalThis.require = createRequire(path.join(process.cwd(), "cell.js"));
  globalThis.display = display;
  Object.defineProperty(process, "stdin", { configurable: true, get: () => fs.createReadStream("/dev/null") });
  process.argv = [process.argv[0], ""];

  // `import` statements, as calls of `import()`.
  function withoutImports(code) {
    const names = (list) => list.replace(/\bas\b/g, ":");
    return code.replace(/^import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|\{([^}]*)\}\s*)?(?:from\s*)?(["'][^"'\n]+["'])(?:\s+with\s*\{[^}]*\})?;?/gm, (_, whole, all, some, module) => {
      const parts = [whole && `default: ${whole}`, some && names(some)].filter(Boolean).join(", ");
      if (all) return `var ${all} = await import(${module});${whole ? ` var ${whole} = ${all}.default;` : ""}`;
      return parts ? `var {${parts}} = await import(${module});` : `await import(${module});`;
    });
  }

  // Code without `await` is run so that an interrupt breaks its loops; the rest is for the REPL.
  function evaluate(code) {
    return new Promise((resolve, reject) => {
      interrupt = (error) => reject(error);
      const filename = `<cell ${count}>`;
      let text = redeclarable(code);
      let script = null;
      try {
        if (/^\s*\{[^]*\}\s*$/.test(text)) {
          try {
            script = new vm.Script(`(${text.trim()})`, { filename });
          } catch {}
        }
        script ??= new vm.Script(text, { filename });
      } catch (error) {
        if (/^import[\s{*"']/m.test(text)) text = withoutImports(text);
        if (!/\bawait\b/.test(text)) return reject(error);
      }
      try {
        if (script && !/\bimport\s*\(/.test(text)) {
          return resolve({ value: script.runInThisContext({ breakOnSigint: true, displayErrors: false }) });
        }
        evaluateCode(text + "\n", globalThis, filename, (error, value) => {
          if (error && error.name === "Recoverable") reject(error.err || error);
          else if (error) reject(error);
          else resolve({ value });
        });
      } catch (error) {
        reject(error);
      }
    });
  }

  function interrupted() {
    const error = new Error("the execution was interrupted");
    error.name = "Interrupted";
    error.stack = "Interrupted: the execution was interrupted";
    return error;
  }

  process.on("SIGINT", () => {
    if (isRunning && interrupt) interrupt(interrupted());
  });

  function tell(error) {
    const isError = error !== null && typeof error === "object";
    let name = "Error";
    let value = "";
    let traceback = "";
    try {
      if (isError && error.code === "ERR_SCRIPT_EXECUTION_INTERRUPTED") error = interrupted();
      name = isError ? String(error.name || error.constructor?.name || "Error") : typeof error;
      value = isError && "message" in error ? String(error.message) : util.inspect(error);
      const lines = String((isError && error.stack) || `${name}: ${value}`).split("\n");
      traceback = lines.filter((line) => !/\(?(node:|\[eval\]|internal\/|REPL)|new Promise \(<anonymous>\)$/.test(line) || !/^\s+at /.test(line)).join("\n");
    } catch {}
    send({ type: "error", name: cut(name, 1000), value: cut(value, 1 << 16), traceback: cut(traceback, 1 << 18) });
  }

  function stray(error) {
    try {
      fs.writeSync(2, `${util.inspect(error)}\n`);
    } catch {}
  }
  process.on("uncaughtException", failed);
  process.on("unhandledRejection", (error) => {
    try {
      fs.writeSync(2, `unhandled rejection: ${util.inspect(error)}\n`);
    } catch {}
  });

  async function run(request) {
    nonce = request.nonce;
    results = 0;
    count += 1;
    const changed = {};
    for (const [name, value] of Object.entries(request.env || {})) {
      changed[name] = process.env[name];
      process.env[name] = value;
    }
    send({ type: "begin" }, [0, 1]);
    let failure = null;
    isRunning = true;
    try {
      let code = request.code;
      if (request.language === "typescript") code = require("module").stripTypeScriptTypes(code, { mode: "transform" });
      const { value } = await evaluate(code);
      if (value !== undefined) sendResult(formatsOf(value), true);
    } catch (error) {
      failure = { error };
    }
    isRunning = false;
    interrupt = null;
    for (const [name, value] of Object.entries(changed)) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
    // What is written to the streams before this comes before it.
    await Promise.race([
      Promise.all([process.stdout, process.stderr].map((stream) => new Promise((done) => stream.write("", () => done())))),
      new Promise((done) => setTimeout(done, 500)),
    ]).catch(() => {});
    if (failure) tell(failure.error);
    send({ type: "end", count }, [0, 1]);
    nonce = null;
  }

  return (hello) => {
    nonce = hello.nonce;
    if (hello.language === "typescript" && typeof require("module").stripTypeScriptTypes !== "function") {
      send({ type: "unable", why: `Node ${process.version} can't run TypeScript: it takes 22.13 or later` });
      exit(0);
    }
    send({ type: "ready", version: process.version });
    nonce = null;
    // Not a file stream: a thread that waits in `read` would keep the process from ending.
    const input = new (require("net").Socket)({ fd: REQUESTS, readable: true, writable: false });
    let buffer = Buffer.alloc(0);
    let turn = Promise.resolve();
    input.on("data", (piece) => {
      buffer = Buffer.concat([buffer, piece]);
      for (;;) {
        if (buffer.length < 8) return;
        const length = parseInt(buffer.subarray(0, 8).toString("latin1"), 16);
        if (!Number.isInteger(length)) exit(70);
        if (buffer.length < 8 + length) return;
        const request = JSON.parse(buffer.subarray(8, 8 + length).toString("utf8"));
        buffer = buffer.subarray(8 + length);
        turn = turn.then(() => run(request));
      }
    });
    input.on("end", () => exit(0));
    input.on("error", () => exit(70));
  };
})()
