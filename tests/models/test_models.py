"""OpenAI's and Anthropic's clients for Python, unmodified, against the gateway."""

import json
import os
import subprocess
import unittest

import anthropic
import openai

URL, KEY = os.environ["GATEWAY_URL"], os.environ["GATEWAY_KEY"]
SAID = [{"role": "user", "content": "hi"}]
TOOL = {"type": "object", "properties": {"where": {"type": "string"}}}
CHAT_TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": TOOL}}]
ANTHROPIC_TOOLS = [{"name": "look", "description": "Looks.", "input_schema": TOOL}]
openai_client = openai.OpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0)
anthropic_client = anthropic.Anthropic(base_url=URL, api_key=KEY, max_retries=0)


class Smoke(unittest.TestCase):
    def test_openai_streams_and_answers(self):
        whole = openai_client.chat.completions.create(model="plain", messages=SAID)
        self.assertEqual((whole.choices[0].message.content, whole.usage.total_tokens), ("Hello there", 1020))
        with openai_client.chat.completions.create(model="plain", messages=SAID, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        self.assertEqual(text, "Hello there ")

    def test_anthropic_streams_and_answers(self):
        whole = anthropic_client.messages.create(model="claude-plain", max_tokens=50, messages=SAID)
        self.assertEqual((whole.content[0].text, whole.usage.output_tokens), ("Hello there", 20))
        with anthropic_client.messages.stream(model="claude-plain", max_tokens=50, messages=SAID, tools=ANTHROPIC_TOOLS) as stream:
            message = stream.get_final_message()
        self.assertEqual((message.stop_reason, message.content[1].input), ("tool_use", {"where": "here"}))


class Translated(unittest.TestCase):
    """Each client with a provider of another wire."""

    def test_chat_over_anthropic(self):
        whole = openai_client.chat.completions.create(model="claude-plain", messages=SAID, tools=CHAT_TOOLS)
        call = whole.choices[0].message.tool_calls[0]
        self.assertEqual((whole.choices[0].finish_reason, call.id, json.loads(call.function.arguments)), ("tool_calls", "tu_1", {"where": "here"}))
        self.assertEqual((whole.usage.prompt_tokens, whole.usage.prompt_tokens_details.cached_tokens), (1000, 500))
        with openai_client.chat.completions.stream(model="claude-plain", messages=SAID, tools=CHAT_TOOLS, stream_options={"include_usage": True}) as stream:
            final = stream.get_final_completion()
        self.assertEqual((final.choices[0].message.tool_calls[0].function.name, final.usage.total_tokens), ("look", 1020))

    def test_a_turn_with_results_goes_round(self):
        first = openai_client.chat.completions.create(model="claude-plain", messages=SAID, tools=CHAT_TOOLS).choices[0].message
        results = [{"role": "tool", "tool_call_id": call.id, "content": "seen"} for call in first.tool_calls]
        again = openai_client.chat.completions.create(model="claude-plain", messages=[*SAID, first, *results])
        self.assertEqual(again.choices[0].message.content, "Hello there ")

    def test_responses_over_both(self):
        for model in ["plain", "claude-plain"]:
            whole = openai_client.responses.create(model=model, input="hi", instructions="Be brief.")
            self.assertEqual((whole.output_text, whole.status, whole.usage.total_tokens), ("Hello there ", "completed", 1020))
            with openai_client.responses.stream(model=model, input="hi", tools=[{"type": "function", "name": "look", "parameters": TOOL, "strict": False}]) as stream:
                final = stream.get_final_response()
            self.assertEqual([item.type for item in final.output], ["message", "function_call"])
            self.assertEqual(final.output[1].arguments, '{"where":"here"}')

    def test_anthropic_over_chat(self):
        with anthropic_client.messages.stream(model="plain", max_tokens=50, system="Be brief.", messages=SAID, tools=ANTHROPIC_TOOLS) as stream:
            message = stream.get_final_message()
        self.assertEqual([block.type for block in message.content], ["text", "tool_use"])
        self.assertEqual((message.stop_reason, message.usage.input_tokens, message.usage.cache_read_input_tokens), ("tool_use", 500, 500))
        whole = anthropic_client.messages.create(model="script", max_tokens=50, messages=SAID)
        self.assertEqual(whole.content[0].text, "As written.")


class Addresses(unittest.TestCase):
    def test_mixed_up_base_urls_work(self):
        for base in [URL, f"{URL}/v1"]:
            self.assertTrue(openai.OpenAI(base_url=base, api_key=KEY).chat.completions.create(model="plain", messages=SAID).id)
            client = anthropic.Anthropic(base_url=base, api_key=KEY)
            self.assertTrue(client.messages.create(model="claude-plain", max_tokens=5, messages=SAID).id)
        older = anthropic.Anthropic(base_url=URL, api_key="x", default_headers={"Authorization": "", "X-Api-Key": KEY})
        self.assertTrue(older.messages.create(model="claude-plain", max_tokens=5, messages=SAID).id)

    def test_models_are_listed_for_both(self):
        ids = {model.id for model in openai_client.models.list()}
        self.assertEqual(ids, {model.id for model in anthropic_client.models.list()})
        self.assertIn("claude-plain", ids)
        self.assertEqual(openai_client.models.retrieve("plain").id, "plain")
        self.assertEqual(anthropic_client.messages.count_tokens(model="claude-plain", messages=SAID).input_tokens, 77)
        self.assertGreater(anthropic_client.messages.count_tokens(model="plain", messages=SAID).input_tokens, 3)


class Faults(unittest.TestCase):
    def test_errors_have_the_classes_that_clients_know(self):
        for model, of_openai, of_anthropic in [
            ("rate-limited", openai.RateLimitError, anthropic.RateLimitError),
            ("overloaded", openai.InternalServerError, anthropic.InternalServerError),
            ("broken", openai.InternalServerError, anthropic.InternalServerError),
            ("picky", openai.BadRequestError, anthropic.BadRequestError),
        ]:
            for stream in [False, True]:
                with self.assertRaises(of_openai, msg=model) as raised:
                    openai_client.chat.completions.create(model=model, messages=SAID, stream=stream)
                self.assertNotIn("sgr_", str(raised.exception))
                with self.assertRaises(of_anthropic, msg=model):
                    anthropic_client.messages.create(model=f"claude-{model}", max_tokens=5, messages=SAID, stream=stream)
        with self.assertRaises(openai.NotFoundError) as raised:
            openai_client.chat.completions.create(model="nope", messages=SAID)
        self.assertIn("claude-plain", str(raised.exception))
        with self.assertRaises(openai.BadRequestError) as raised:
            openai_client.chat.completions.create(model="claude-plain", messages=SAID, n=2)
        self.assertEqual(raised.exception.param, "n")

    def test_a_wrong_key_is_a_clients_own_error(self):
        with self.assertRaises(openai.AuthenticationError):
            openai.OpenAI(base_url=f"{URL}/v1", api_key="sgr_wrong", max_retries=0).chat.completions.create(model="plain", messages=SAID)
        with self.assertRaises(anthropic.AuthenticationError):
            anthropic.Anthropic(base_url=URL, api_key="sk-other", max_retries=0).messages.create(model="plain", max_tokens=5, messages=SAID)

    def test_a_torn_stream_is_an_error_and_never_a_short_answer(self):
        with self.assertRaises(openai.APIError):
            for _ in openai_client.chat.completions.create(model="torn", messages=SAID, stream=True):
                pass
        for model in ["claude-torn", "torn"]:
            with self.assertRaises(anthropic.APIError):
                with anthropic_client.messages.stream(model=model, max_tokens=5, messages=SAID) as stream:
                    stream.get_final_message()
        for model in ["claude-torn", "torn"]:
            with self.assertRaises(openai.APIError):
                for _ in openai_client.responses.create(model=model, input="hi", stream=True):
                    pass

    def test_a_provider_that_fails_at_first_is_asked_again(self):
        self.assertEqual(openai_client.chat.completions.create(model="flaky", messages=SAID).choices[0].message.content, "Hello there")

    def test_a_client_that_leaves_is_billed(self):
        before = spent()["routes"].get("endless", {"calls": 0})["calls"]
        with openai_client.chat.completions.create(model="endless", messages=SAID, stream=True) as stream:
            next(iter(stream))
        for _ in range(200):
            if spent()["routes"].get("endless", {"calls": 0})["calls"] > before:
                return
        self.fail("the call is not booked")


class Money(unittest.TestCase):
    def test_the_cost_is_the_providers_count_at_the_routes_prices(self):
        before = spent()["routes"].get("plain", {"micros": 0})["micros"]
        with openai_client.chat.completions.create(model="plain", messages=SAID, stream=True) as stream:
            list(stream)
        # 500 * $3 + 500 * $0.3 + 20 * $15 per million.
        self.assertEqual(spent()["routes"]["plain"]["micros"] - before, 1500 + 150 + 300)

    def test_models_are_tried_from_the_command_line(self):
        environment = {**os.environ, "SAGGAR_URL": URL, "SAGGAR_API_KEY": KEY}
        command = [os.environ["SAGGAR"], "models", "check", "plain", "script", "picky", "--json"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        tried = {model["model"]: model for model in json.loads(done.stdout)["models"]}
        self.assertEqual((done.returncode, tried["plain"]["ok"], tried["picky"]["ok"]), (1, True, False), done.stderr)
        self.assertEqual((tried["plain"]["cost_micros"], tried["script"]["input_tokens"]), (3300, 3))
        self.assertIn("the schema is wrong", tried["picky"]["error"])


def spent():
    return openai_client.models.list().saggar


if __name__ == "__main__":
    unittest.main(defaultTest="Smoke" if os.environ.get("MODELS_SMOKE") else None)
