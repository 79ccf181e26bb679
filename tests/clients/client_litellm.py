# pip: litellm==1.110.2
"""litellm: chat and streams through its OpenAI and Anthropic providers, tools."""

import json
import sys

import litellm

URL = sys.argv[1]
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
TOOL = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": {
    "type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "color": {"type": "string"}}, "required": ["tags", "color"]}}}

for model, base in (("openai/tiny", URL + "/v1"), ("anthropic/tiny", URL)):
    ask = {"model": model, "api_base": base, "api_key": "none", "temperature": 0, "max_tokens": 400}
    reply = litellm.completion(messages=QUESTION, **ask)
    assert "Paris" in reply.choices[0].message.content, reply
    text = "".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(messages=QUESTION, stream=True, **ask))
    assert "Paris" in text, text
    calls = litellm.completion(messages=[{"role": "user", "content": "Search a ticket with tags cook, color golden, please."}], tools=[TOOL],
                               tool_choice="required", **ask)
    arguments = json.loads(calls.choices[0].message.tool_calls[0].function.arguments)
    assert set(arguments) == {"tags", "color"}, arguments
print("chat, stream, tools in two dialects")
