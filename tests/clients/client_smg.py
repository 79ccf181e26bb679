# pip: smg==1.13.0
"""Shepherd's model gateway, which reads every request by its own types: chat, Messages, Responses and tools."""

import sys

from router_testing import CHAT, QUESTION, ask, check, routed

TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}

with routed(lambda port: [sys.executable, "-m", "smg.launch_router", "--worker-urls", sys.argv[1], "--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]) as port:
    pieces = check(port)
    status, _, reply = ask(port, "/v1/messages", QUESTION)
    assert status == 200 and "Paris" in reply["content"][-1]["text"], reply
    status, _, reply = ask(port, CHAT, {**QUESTION, "tools": [TOOL], "tool_choice": "required", "max_tokens": 200})
    assert status == 200 and reply["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "get_weather", reply
print(f"{pieces} pieces of 200 tokens, Messages, a tool")
