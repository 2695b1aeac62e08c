// OpenAI's and Anthropic's clients for Node, unmodified, against the gateway.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const { GATEWAY_URL: url, GATEWAY_KEY: key, MODELS_SMOKE: smoke } = process.env;
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const messages = [{ role: "user", content: "hi" }];
const schema = { type: "object", properties: { where: { type: "string" } } };
const tools = [{ type: "function", function: { name: "look", description: "Looks.", parameters: schema } }];
const full = smoke ? test.skip : test;

test("openai streams and answers", async () => {
  const whole = await openai.chat.completions.create({ model: "plain", messages });
  assert.equal(whole.choices[0].message.content, "Hello there");
  let text = "";
  for await (const chunk of await openai.chat.completions.create({ model: "plain", messages, stream: true })) text += chunk.choices[0].delta.content ?? "";
  assert.equal(text, "Hello there ");
});

test("anthropic streams and answers", async () => {
  const whole = await anthropic.messages.create({ model: "claude-plain", max_tokens: 50, messages });
  assert.equal(whole.content[0].text, "Hello there");
  const message = await anthropic.messages.stream({ model: "claude-plain", max_tokens: 50, messages }).finalMessage();
  assert.equal(message.stop_reason, "end_turn");
});

full("each client gets the answer of a provider of another wire", async () => {
  const final = await openai.chat.completions.stream({ model: "claude-plain", messages, tools }).finalChatCompletion();
  assert.deepEqual([final.choices[0].finish_reason, final.choices[0].message.tool_calls[0].function.arguments], ["tool_calls", '{"where":"here"}']);
  const use = [{ name: "look", description: "Looks.", input_schema: schema }];
  const message = await anthropic.messages.stream({ model: "plain", max_tokens: 50, messages, tools: use }).finalMessage();
  assert.deepEqual(message.content.map((block) => block.type), ["text", "tool_use"]);
  assert.deepEqual(message.content[1].input, { where: "here" });
  const response = await openai.responses.stream({ model: "claude-plain", input: "hi" }).finalResponse();
  assert.deepEqual([response.status, response.output_text], ["completed", "Hello there "]);
});

full("errors have the classes that clients know", async () => {
  await assert.rejects(openai.chat.completions.create({ model: "rate-limited", messages }), OpenAI.RateLimitError);
  await assert.rejects(anthropic.messages.create({ model: "claude-picky", max_tokens: 5, messages }), Anthropic.BadRequestError);
  await assert.rejects(openai.chat.completions.create({ model: "nope", messages }), OpenAI.NotFoundError);
  await assert.rejects(new OpenAI({ baseURL: url, apiKey: "sgr_wrong", maxRetries: 0 }).models.list(), OpenAI.AuthenticationError);
});

full("a torn stream is an error", async () => {
  const read = async (model) => { for await (const _ of await openai.chat.completions.create({ model, messages, stream: true })); };
  await assert.rejects(read("torn"), OpenAI.APIError);
  await assert.rejects(read("claude-torn"), OpenAI.APIError);
  await assert.rejects(anthropic.messages.stream({ model: "torn", max_tokens: 5, messages }).finalMessage(), Anthropic.APIError);
});
