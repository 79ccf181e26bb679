"""Common parts of the tests of the dialects: a server, requests, and the form of an answer."""

import json
import pathlib
import tempfile
import unittest

from dsv4_process import TINY
from server_process import Server

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CHAT = "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"tags": {"type": "array", "description": "List of tags", "items": {"type": "string"}},
                                           "color": {"type": "string", "description": "Colour"}}, "required": ["tags", "color"]}
TICKET = {"type": "function", "function": {"name": "search_ticket", "description": "Search a ticket.", "parameters": SCHEMA}}
ARGUMENTS = {"tags": ["cook"], "color": "golden"}
TICKET_QUESTION = [{"role": "user", "content": "Search a ticket with tags cook, color golden, please."}]

# A schema that says more than the model knows of, so that only the grammar can keep to it.
SHAPE = {"type": "object", "properties": {"tags": {"type": "array", "items": {"enum": ["cook", "a\"b", "</x>"]}, "minItems": 1, "maxItems": 3},
                                          "color": {"type": "string", "maxLength": 12}, "stars": {"type": "integer", "minimum": 1, "maximum": 5}},
         "required": ["tags", "stars"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "schema": SHAPE}
STRICT = {"name": "search_ticket", "description": "Search a ticket.", "strict": True, "parameters": SHAPE}
STRICT_TIME = {"name": "get_time", "strict": True, "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
ANTHROPIC_STRICT = {"name": "search_ticket", "strict": True, "input_schema": SHAPE}
# An answer that does not end before its max_tokens: one token always wins, so neither sampling nor the ends of sentences matter.
ENDLESS = {"temperature": 0, "logit_bias": {"100": 1000}}
WILD = {"temperature": 1.5, "seed": 3, "max_tokens": 300}


def fits_shape(value):
    return (set(value) <= set(SHAPE["properties"]) and 1 <= len(value["tags"]) <= 3 and set(value["tags"]) <= {"cook", "a\"b", "</x>"}
            and len(value.get("color", "")) <= 12 and isinstance(value["stars"], int) and 1 <= value["stars"] <= 5)


def v41_folder():
    """A new folder: the small model's weights, a tokenizer that has V4.1's marker, and the field that names its chat format."""
    folder = pathlib.Path(tempfile.mkdtemp())
    for file in filter(pathlib.Path.is_file, TINY.iterdir()):
        (folder / file.name).symlink_to(file.resolve())
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"].append({**last, "id": last["id"] + 1, "content": "<｜System｜>"})
    for name, value in (("tokenizer.json", tokenizer), ("generation_config.json", {"dsv4_chat_revision": "v4.1"})):
        (folder / name).unlink(missing_ok=True)
        (folder / name).write_text(json.dumps(value))
    return folder


def joined(events, choice=0):
    """The message that the chunks of a chat stream add up to, its finish reason and the usage."""
    message, reason, usage = {"content": "", "reasoning_content": "", "tool_calls": []}, None, None
    for _, chunk in events:
        if chunk == "[DONE]":
            continue
        usage = chunk.get("usage", usage)
        for entry in chunk["choices"]:
            if entry["index"] != choice:
                continue
            delta = entry["delta"]
            reason = entry["finish_reason"] or reason
            for name in ("content", "reasoning_content"):
                message[name] += delta.get(name) or ""
            for call in delta.get("tool_calls", []):
                if "id" in call:
                    message["tool_calls"].append({"name": call["function"]["name"], "arguments": ""})
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    return message, reason, usage


class SharedServer(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--max-sequences", 8, "--context", 4096)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
