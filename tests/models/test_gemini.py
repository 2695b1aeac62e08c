"""Google's client for Python, unmodified: it takes the stand-in for Gemini. So what the gateway makes of the stand-in's answers is what it
makes of Gemini's. The gateway speaks this wire to providers only, so its own answers are read with OpenAI's client over HTTP."""

import json
import os
import unittest
import urllib.error
import urllib.request

from google import genai
from google.genai import errors, types

URL, KEY, STANDIN = os.environ["GATEWAY_URL"], os.environ["GATEWAY_KEY"], os.environ["STANDIN_URL"]
TOOL = {"type": "object", "properties": {"where": {"type": "string"}}}
SAID = [{"role": "user", "content": "hi"}]
CHAT_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": TOOL}}]
LOOK = types.FunctionDeclaration(name="look", description="Looks.", parameters_json_schema=TOOL)
CONFIG = types.GenerateContentConfig(tools=[types.Tool(function_declarations=[LOOK])], system_instruction="Be brief.", max_output_tokens=50,
                                     automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True),
                                     thinking_config=types.ThinkingConfig(include_thoughts=True))
google = genai.Client(api_key="any", http_options=types.HttpOptions(base_url=STANDIN, api_version="v1beta"))


def chat(model, **more):
    """Status and body of the gateway's answer, or the events of its stream."""
    body = json.dumps({"model": model, "messages": SAID, **more}).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {KEY}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{URL}/v1/chat/completions", body, headers)) as answer:
            text = answer.read().decode()
            if not more.get("stream"):
                return 200, json.loads(text)
            return 200, [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


class Standin(unittest.TestCase):
    """The stand-in speaks the wire that Google's client reads."""

    def test_a_stream_with_a_thought_a_signed_call_and_usage(self):
        chunks = list(google.models.generate_content_stream(model="plain", contents="hi", config=CONFIG))
        parts = [part for chunk in chunks for part in chunk.candidates[0].content.parts or []]
        thoughts = [part.text for part in parts if part.thought]
        text = "".join(part.text for part in parts if part.text and not part.thought)
        call = next(part for part in parts if part.function_call)
        self.assertEqual((thoughts, text, call.function_call.name, call.function_call.args, call.thought_signature),
                         (["I think. "], "Hello there ", "look", {"where": "here"}, b"SIG"))
        usage = chunks[-1].usage_metadata
        self.assertEqual((usage.prompt_token_count, usage.cached_content_token_count, usage.candidates_token_count, usage.thoughts_token_count,
                          usage.total_token_count), (1000, 500, 20, 12, 1032))
        self.assertEqual(chunks[-1].candidates[0].finish_reason, types.FinishReason.STOP)
        # The client sends the call back with its signature, and the stand-in wants it.
        answer = types.Part.from_function_response(name="look", response={"output": "seen"})
        contents = [types.Content(role="user", parts=[types.Part(text="hi")]), types.Content(role="model", parts=[call]),
                    types.Content(role="user", parts=[answer])]
        self.assertEqual(google.models.generate_content(model="plain", contents=contents, config=CONFIG).text, "Hello there ")
        call.thought_signature = None
        with self.assertRaisesRegex(errors.ClientError, "thought_signature"):
            google.models.generate_content(model="plain", contents=contents, config=CONFIG)

    def test_errors_and_blocks(self):
        for model, code, status in [("rate-limited", 429, "RESOURCE_EXHAUSTED"), ("overloaded", 503, "UNAVAILABLE"), ("picky", 400, "INVALID_ARGUMENT")]:
            with self.assertRaises(errors.APIError) as raised:
                google.models.generate_content(model=model, contents="hi")
            self.assertEqual((raised.exception.code, raised.exception.status), (code, status))
        blocked = google.models.generate_content(model="blocked", contents="hi")
        self.assertEqual((blocked.prompt_feedback.block_reason, blocked.candidates), (types.BlockedReason.SAFETY, None))
        unsafe = list(google.models.generate_content_stream(model="unsafe", contents="hi"))[-1]
        self.assertEqual(unsafe.candidates[0].finish_reason, types.FinishReason.SAFETY)


class Gateway(unittest.TestCase):
    """What the gateway makes of the same answers."""

    def test_a_turn_with_a_call_goes_round(self):
        status, whole = chat("gemini-plain", tools=CHAT_TOOLS, max_tokens=50)
        self.assertEqual(status, 200, whole)
        message, usage = whole["choices"][0]["message"], whole["usage"]
        call = message["tool_calls"][0]
        self.assertEqual((message["content"], whole["choices"][0]["finish_reason"], call["function"]["name"], json.loads(call["function"]["arguments"])),
                         ("Hello there ", "tool_calls", "look", {"where": "here"}))
        self.assertEqual((usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"],
                          usage["completion_tokens_details"]["reasoning_tokens"]), (1000, 500, 32, 12))
        # The stand-in refuses a call without its signature.
        result = {"role": "tool", "tool_call_id": call["id"], "content": "seen"}
        status, again = chat("gemini-plain", tools=CHAT_TOOLS, messages=[*SAID, message, result])
        self.assertEqual((status, again["choices"][0]["message"]["content"] if status == 200 else again), (200, "Hello there "))

    def test_a_stream(self):
        status, chunks = chat("gemini-plain", stream=True, stream_options={"include_usage": True})
        text = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks if chunk["choices"])
        self.assertEqual((status, text, chunks[-1]["usage"]["total_tokens"]), (200, "Hello there ", 1032))

    def test_errors_and_blocks(self):
        self.assertEqual([chat(f"gemini-{model}")[0] for model in ["rate-limited", "overloaded", "picky"]], [429, 529, 400])
        for model in ["blocked", "unsafe"]:
            status, whole = chat(f"gemini-{model}")
            self.assertEqual((status, whole["choices"][0]["finish_reason"] if status == 200 else whole), (200, "content_filter"), model)


if __name__ == "__main__":
    unittest.main()
