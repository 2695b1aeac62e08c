"""A provider stand-in that speaks the real wires on loopback: chat completions, responses, messages, generateContent. The name of the model says what it does."""

import http.server
import json
import socket
import threading
import time

# Fails this often before it answers, by model.
FLAKY = {}


def chat_chunks(text, call):
    def chunk(delta, reason=None):
        return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "stand-in",
                "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}
    yield chunk({"role": "assistant", "content": ""})
    for piece in text.split(" "):
        yield chunk({"content": piece + " "})
    if call:
        yield chunk({"tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}]})
        yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{\"where\":\"here\"}"}}]})
    yield chunk({}, "tool_calls" if call else "stop")
    yield {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "stand-in", "choices": [],
           "usage": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020, "prompt_tokens_details": {"cached_tokens": 500}}}


def anthropic_events(text, call):
    yield "message_start", {"message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in", "content": [],
                                        "stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 500, "cache_read_input_tokens": 500, "output_tokens": 1}}}
    yield "content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}
    for piece in text.split(" "):
        yield "content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": piece + " "}}
    yield "content_block_stop", {"index": 0}
    if call:
        yield "content_block_start", {"index": 1, "content_block": {"type": "tool_use", "id": "tu_1", "name": "look", "input": {}}}
        yield "content_block_delta", {"index": 1, "delta": {"type": "input_json_delta", "partial_json": "{\"where\":\"here\"}"}}
        yield "content_block_stop", {"index": 1}
    yield "message_delta", {"delta": {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}, "usage": {"output_tokens": 20}}
    yield "message_stop", {}


def gemini_chunks(model, has_tools, has_result):
    """What generateContent says, in pieces: a thought, then text, then a signed call if there are tools to call."""
    def chunk(parts, reason=None, output=None):
        candidate = {"content": {"role": "model", "parts": parts}, "index": 0}
        if reason:
            candidate["finishReason"] = reason
        usage = {"promptTokenCount": 1000, "cachedContentTokenCount": 500, "totalTokenCount": 1000}
        if output:
            usage |= {"candidatesTokenCount": output, "thoughtsTokenCount": 12, "totalTokenCount": 1012 + output}
        return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model, "responseId": "r1"}
    if model == "blocked":
        yield {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": {"promptTokenCount": 1000, "totalTokenCount": 1000}, "modelVersion": model}
        return
    if model == "unsafe":
        yield chunk([{"text": "I "}])
        yield chunk([], "SAFETY", 1)
        return
    yield chunk([{"text": "I think. ", "thought": True}])
    yield chunk([{"text": "Hello "}])
    yield chunk([{"text": "there "}])
    if has_tools and not has_result:
        yield chunk([{"functionCall": {"name": "look", "args": {"where": "here"}}, "thoughtSignature": "U0lH"}])
    yield chunk([{"text": ""}], "STOP", 20)


def gemini_error(status, name, message):
    return status, {"error": {"code": status, "message": message, "status": name}}


class Provider(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments):
        pass

    def answer(self, status, body, headers=(), kind="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if ":" in self.path:
            return self.gemini(body)
        model = body["model"]
        if model == "rate-limited":
            return self.answer(429, {"error": {"message": "slow down", "type": "rate_limit_error"}}, [("retry-after", "30")])
        if model == "overloaded":
            return self.answer(529, {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}})
        if model == "broken":
            return self.answer(200, b"<html>", kind="text/html")
        if model == "picky":
            return self.answer(400, {"error": {"message": "the schema is wrong", "type": "invalid_request_error"}})
        if model == "flaky" and FLAKY.setdefault(model, 0) < 2:
            FLAKY[model] += 1
            return self.answer(500, {"error": {"message": "boom"}})
        if self.path.endswith("/count_tokens"):
            return self.answer(200, {"input_tokens": 77})
        call, is_anthropic = bool(body.get("tools")), self.path.endswith("/messages")
        if not body.get("stream"):
            if is_anthropic:
                content = [{"type": "text", "text": "Hello there"}]
                return self.answer(200, {"id": "msg_1", "type": "message", "role": "assistant", "model": "stand-in", "content": content,
                                         "stop_reason": "end_turn", "stop_sequence": None, "usage": {"input_tokens": 1000, "output_tokens": 20}})
            message = {"role": "assistant", "content": "Hello there"}
            return self.answer(200, {"id": "c1", "object": "chat.completion", "created": 1, "model": "stand-in",
                                     "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                                     "usage": {"prompt_tokens": 1000, "completion_tokens": 20, "total_tokens": 1020}})
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        if is_anthropic:
            events = [f"event: {name}\ndata: {json.dumps({'type': name, **data})}\n\n" for name, data in anthropic_events("Hello there", call)]
        else:
            events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chat_chunks("Hello there", call)] + ["data: [DONE]\n\n"]
        for number, event in enumerate(events):
            if model == "torn" and number == 3:
                return
            if model == "endless" and number == 3:
                # Until the other side closes.
                self.connection.settimeout(30)
                try:
                    self.connection.recv(1)
                except OSError:
                    pass
                return
            self.wfile.write(event.encode())
            self.wfile.flush()


    def gemini(self, body):
        path, _, query = self.path.partition("?")
        model, _, method = path.rpartition("/models/")[2].partition(":")
        if not self.headers.get("x-goog-api-key"):
            return self.answer(*gemini_error(403, "PERMISSION_DENIED", "Method doesn't allow unregistered callers"))
        if model == "rate-limited":
            return self.answer(*gemini_error(429, "RESOURCE_EXHAUSTED", "slow down"))
        if model == "overloaded":
            return self.answer(*gemini_error(503, "UNAVAILABLE", "busy"))
        if model == "picky":
            return self.answer(*gemini_error(400, "INVALID_ARGUMENT", "the schema is wrong"))
        parts = [part for content in body["contents"] for part in content["parts"]]
        calls = [part for part in parts if "functionCall" in part]
        # As the provider does: a call goes back with the signature that it came with.
        if any(call.get("thoughtSignature") != "U0lH" for call in calls):
            return self.answer(*gemini_error(400, "INVALID_ARGUMENT", "Function call is missing a thought_signature in functionCall parts"))
        chunks = list(gemini_chunks(model, bool(body.get("tools")), any("functionResponse" in part for part in parts)))
        if method == "generateContent":
            parts = [part for chunk in chunks for part in (chunk.get("candidates") or [{}])[0].get("content", {}).get("parts", [])]
            whole = chunks[-1]
            if whole.get("candidates"):
                whole["candidates"][0]["content"]["parts"] = parts
            return self.answer(200, whole)
        assert (method, query) == ("streamGenerateContent", "alt=sse"), self.path
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True
        for number, chunk in enumerate(chunks):
            if model == "torn" and number == 2:
                return
            self.wfile.write(f"data: {json.dumps(chunk)}\r\n\r\n".encode())
            self.wfile.flush()


def start():
    class Server(http.server.ThreadingHTTPServer):
        daemon_threads = True
        address_family = socket.AF_INET
    server = Server(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


if __name__ == "__main__":
    print(start(), flush=True)
    while True:
        time.sleep(60)
