#!/usr/bin/env python3
"""Sampled tool requests with a free choice, and what watching for calls costs: python3 tests/server/lazy_calls.py [--requests 1000].

models/tiny at temperature 1, tools that are not strict. Every call must parse, name a real tool and satisfy its schema, and no markup may
be in the text. The cost is processor time of the server for the same tokens with tools and as a plain text. Exits with 1 when something does not hold.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("server", "cli", "diag")]
os.environ.setdefault("DSV4_BINARY", str(ROOT / "build" / "release" / "dsv4"))
from server_process import Server  # noqa: E402

CHAT = "/v1/chat/completions"
TOOLS = [
    {"name": "search_ticket", "description": "Search a ticket.", "parameters": {"type": "object", "properties": {
        "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4}, "color": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 50}}, "required": ["tags", "color"], "additionalProperties": False}},
    {"name": "get_time", "description": "The time.", "parameters": {"type": "object", "properties": {
        "zone": {"enum": ["utc", "local"]}}, "required": ["zone"], "additionalProperties": False}},
    {"name": "move", "description": "Moves.", "parameters": {"type": "object", "properties": {
        "to": {"type": "object", "properties": {"x": {"type": "number"}, "y": {"type": "number"}}, "required": ["x", "y"], "additionalProperties": False},
        "fast": {"type": "boolean"}}, "required": ["to"], "additionalProperties": False}},
]
ASKS = ["Search a ticket with tags cook, color golden, please.", "What time is it?", "Move to 3, 4.", "Search a ticket with tags bird, sea, color blue, please."]


def problem(schema, value, where=""):
    """The fault of a value, or nothing: as much of JSON Schema as TOOLS uses."""
    if "enum" in schema:
        return "" if value in schema["enum"] else f"{where}: {value!r}"
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float)}
    if not isinstance(value, kinds[schema["type"]]) or (schema["type"] in ("integer", "number") and isinstance(value, bool)):
        return f"{where}: {value!r} is no {schema['type']}"
    if schema["type"] == "object":
        if missing := set(schema["required"]) - set(value):
            return f"{where}: without {missing}"
        if odd := set(value) - set(schema["properties"]):
            return f"{where}: has {odd}"
        return next((text for name, item in value.items() if (text := problem(schema["properties"][name], item, f"{where}.{name}"))), "")
    if schema["type"] == "array":
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 30):
            return f"{where}: {len(value)} items"
        return next((text for i, item in enumerate(value) if (text := problem(schema["items"], item, f"{where}[{i}]"))), "")
    return "" if schema.get("minimum", value) <= value <= schema.get("maximum", value) else f"{where}: {value}"


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cost(server):
    """Processor time of 1,500 tokens, of one greedy answer without an end; with tools, and of the same prompt as a plain text."""
    free = {"temperature": 0, "logit_bias": {"100": 1000}, "max_tokens": 1500, "speculation": "off"}
    chat = {"messages": [{"role": "user", "content": "Say something."}], "tools": [{"type": "function", "function": tool} for tool in TOOLS], "thinking": False}
    ids = server.post("/tokenize", chat)["tokens"]
    asks = {"tools": (CHAT, {**chat, **free}), "text": ("/v1/completions", {"prompt": ids, **free})}
    times = {name: [] for name in asks}
    for _ in range(7):
        for name, (path, body) in asks.items():
            begin = processor_seconds(server.process.pid)
            assert server.post(path, body)["usage"]["completion_tokens"] == 1500
            times[name].append(processor_seconds(server.process.pid) - begin)
    return statistics.median(times["tools"]) / statistics.median(times["text"]) - 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=16, help="requests at one time")
    arguments = parser.parse_args()
    schemas = {tool["name"]: tool["parameters"] for tool in TOOLS}
    faults, calls, answers = [], 0, 0

    with Server("--max-sequences", 16, "--context", 4096) as server:
        def ask(seed):
            return server.post(CHAT, {"messages": [{"role": "user", "content": ASKS[seed % len(ASKS)]}], "thinking": seed % 3 == 0, "temperature": 1,
                                      "tools": [{"type": "function", "function": tool} for tool in TOOLS], "seed": seed, "max_tokens": 400})["choices"][0]

        with concurrent.futures.ThreadPoolExecutor(arguments.streams) as pool:
            for seed, choice in enumerate(pool.map(ask, range(arguments.requests))):
                answers += 1
                message = choice["message"]
                if "DSML" in (message["content"] or ""):
                    faults.append((seed, "markup in the text", message["content"]))
                for call in message.get("tool_calls", []):
                    calls += 1
                    name = call["function"]["name"]
                    wrong = "no such tool" if name not in schemas else problem(schemas[name], json.loads(call["function"]["arguments"]))
                    if wrong:
                        faults.append((seed, wrong, call["function"]))
        extra = cost(server)
    print(f"{answers} answers, {calls} calls, {len(faults)} faults; watching costs {100 * extra:+.1f} % (wanted: under 3)")
    for fault in faults[:10]:
        print(fault)
    return 1 if faults or extra > 0.03 or calls == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
