"""Bodies that grow, one field at a time: whatever becomes of them, the server needs at most 256 MiB beyond its model."""

import gzip
import json
import pathlib
import unittest

from attack_testing import CHAT, MAX_MIB, MEMORY_FACTOR, REQUEST, memory

from server_process import Server

MIB = 2**20
MOST = 23 * MIB  # Of a body, whose parts are as many as fit: nearly --max-body-mib.


def filled(head, unit, tail, size=MOST):
    return head.encode() + unit.encode() * ((size - len(head) - len(tail)) // len(unit)) + tail.encode()


def members(head, tail, size=MOST):
    parts, length = [], 0
    while length < size - 200:
        parts.append(f'"{len(parts):x}":0')
        length += len(parts[-1]) + 1
    return (head + ",".join(parts) + tail).encode()


def nested(depth):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for i in range(depth):
        schema = {"allOf": [schema, {"properties": {f"p{i}": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}}], "anyOf": [schema, schema]}
    return schema


def schema(value):
    return json.dumps({**REQUEST, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}}).encode()


def bodies():
    chat = json.dumps(REQUEST)[:-1]
    message = '{"role":"user","content":"x"},'
    for path, head, tail in (("/tokenize", '{"prompt":[', "0]}"), (CHAT, chat + ',"metadata":[', "0]}"), (CHAT, chat + ',"stop":[', '"z"]}')):
        for unit in ("[],", "0,", "{},", '"",', "1e1,", "[[]],", '{"a":0},', "null,"):
            yield f"{path} {head[-10:]} {unit}", path, filled(head, unit, tail)
    yield "members", "/tokenize", members('{', "}")
    yield "members of metadata", CHAT, members(chat + ',"metadata":{', "}}")
    yield "logit_bias", CHAT, members(chat + ',"logit_bias":{', "}}", 12 * MIB)
    yield "ids", "/detokenize", filled('{"tokens":[', "9,", "9]}")
    yield "lists of ids", "/v1/completions", filled('{"prompt":[', "[9],", "[9]]}")
    yield "ids as a prompt", "/v1/completions", filled('{"max_tokens":1,"prompt":[', "9,", "9]}")
    yield "stop_token_ids", CHAT, filled(chat + ',"stop_token_ids":[', "9,", "9]}")
    yield "allowed_token_ids", CHAT, filled(chat + ',"allowed_token_ids":[', "9,", "9]}")
    yield "messages", CHAT, filled('{"messages":[', message, message[:-1] + "]}")
    yield "messages of Anthropic", "/v1/messages", filled('{"max_tokens":1,"messages":[', message, message[:-1] + "]}")
    yield "input", "/v1/responses", filled('{"input":[', message, message[:-1] + "]}")
    yield "messages of ollama", "/api/chat", filled('{"model":"tiny","messages":[', message, message[:-1] + "]}")
    tool = '{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"a":{"type":"string"}}}}},'
    yield "tools", CHAT, filled(chat + ',"tools":[', tool, tool[:-1] + "]}")
    for path, head in (("/tokenize", '{"prompt":"'), ("/v1/completions", '{"prompt":"'), (CHAT, '{"messages":[{"role":"user","content":"'),
                       ("/v1/messages/count_tokens", '{"messages":[{"role":"user","content":"')):
        tail = '"}' if "prompt" in head else '"}]}'
        yield f"text of {path}", path, filled(head, "x y ", tail)
        yield f"escapes of {path}", path, filled(head, "\\u0001", tail)
    yield "strings of tokens", "/tokenize", filled('{"return_token_strs":true,"prompt":"', "x\\n", '"}', 20 * MIB)
    yield "content parts", CHAT, filled('{"messages":[{"role":"user","content":[', '{"type":"text","text":"x"},', '{"type":"text","text":"x"}]}]}')
    yield "bad_words", CHAT, json.dumps({**REQUEST, "bad_words": ["a" * 5000 + str(i) for i in range(1000)]}).encode()
    yield "bad_words that differ", CHAT, json.dumps({**REQUEST, "bad_words": [f"{i} {i * 7919 % 10007} word" for i in range(12000)]}).encode()
    yield "choices", CHAT, json.dumps({**REQUEST, "guided_choice": [f"answer {i} " * 3 for i in range(20000)]}).encode()
    yield "enum", CHAT, schema({"enum": [f"v{i}" for i in range(20000)]})
    for depth in (6, 9, 11):
        yield f"allOf and anyOf, {depth} deep", CHAT, schema(nested(depth))
    both = {"type": "string"}
    for _ in range(12):
        both = {"allOf": [both, both]}
    yield "allOf of allOf", CHAT, schema(both)
    yield "properties", CHAT, schema({"type": "object", "properties": {f"p{i}": {"type": "string", "pattern": f"a{i}.*"} for i in range(5000)}})
    yield "a name of 20 MiB", CHAT, json.dumps({**REQUEST, "x" * (20 * MIB): 1}).encode()
    yield "a number of 20 MiB", "/tokenize", b'{"prompt":' + b"9" * (20 * MIB) + b"}"


class Values(unittest.TestCase):
    def test_no_field_needs_much_memory(self):
        worst = (0, "")
        with Server("--context", 4096, "--prefix-cache-mib", 16) as server:
            expected = server.post(CHAT, REQUEST)["choices"][0]["message"]
            model = memory(server.process)
            for name, path, body in bodies():
                pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
                with self.subTest(name):
                    status = server.request("POST", path, body)[0]
                    peak = memory(server.process, "VmHWM") - model
                    worst = max(worst, (peak, name))
                    if peak > 128:
                        print(f"{name}: {len(body) / MIB:.0f} MiB, status {status}, peak {peak:.0f} MiB")
                    self.assertIn(status, (200, 400, 413, 503))
                    self.assertLess(peak, MAX_MIB * MEMORY_FACTOR)
            self.assertEqual(server.post(CHAT, REQUEST)["choices"][0]["message"], expected)
        print(f"the most: {worst[0]:.0f} MiB, {worst[1]}")

    def test_what_a_little_stands_for_is_bounded(self):
        with Server("--context", 4096) as server:
            for body in (b'{"prompt":"' + b"a" * (20 * MIB) + b'"}', b'{"prompt":[' + b"[]," * (7 * MIB) + b"0]}"):
                self.assertEqual(server.request("POST", "/tokenize", gzip.compress(body), {"Content-Encoding": "gzip"})[0], 413)
            text = json.dumps({"prompt": "All work and no play makes Jack a dull boy. " * 20000}).encode()  # 860 KB, which anyone may send.
            self.assertEqual(server.request("POST", "/tokenize", gzip.compress(text), {"Content-Encoding": "gzip"})[0], 200)


if __name__ == "__main__":
    unittest.main()
