"""Bodies that grow, one field at a time: whatever becomes of them, the server needs at most 256 MiB beyond its model."""

import functools
import gzip
import json
import pathlib
import tempfile
import unittest

from attack_testing import CHAT, MAX_MIB, MEMORY_FACTOR, REQUEST, chosen, memory, sized

from dsv4_process import wait_until
from server_process import Server

MIB = 2**20
MOST = 23 * MIB  # Of a body, whose parts are as many as fit: nearly --max-body-mib.


def filled(head, unit, tail, size=MOST):
    return head.encode() + unit.encode() * ((size - len(head) - len(tail)) // len(unit.encode())) + tail.encode()


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


# Texts of very many tokens for their bytes, and of one long piece: letters, characters of two to four bytes, numbers, signs, blanks, escapes.
UNITS = ("x y ", "a", "\u00e9", "\u6f22", "\U0001f600", "1", "!", " ", "\\n", "x\\n", '\\"', "\\u0001")
CONVERSATION = ('{"messages":[{"role":"user","content":"', '"}]}')
PROMPT = ('{"prompt":"', '"}')
INPUT = ('{"input":"', '"}')
# Every kind of request that reads a text into tokens.
TEXTS = (("/tokenize", *PROMPT), ("/tokenize", *CONVERSATION), ("/tokenize?api=messages", *CONVERSATION), ("/tokenize?api=responses", *INPUT),
         (CHAT, *CONVERSATION), (CHAT + "/render", *CONVERSATION), ("/v1/completions", *PROMPT), ("/v1/completions/render", *PROMPT),
         ("/v1/completions/render", '{"prompt":["x","', '"]}'), ("/v1/completions", '{"prompt":"x","suffix":"', '"}'),
         ("/v1/messages", *CONVERSATION), ("/v1/messages/count_tokens", *CONVERSATION),
         ("/v1/responses", *INPUT), ("/v1/responses/input_tokens", *INPUT), ("/v1/responses/compact", *INPUT),
         ("/api/chat", *CONVERSATION), ("/api/generate", *PROMPT))


def texts():
    for path, head, tail in TEXTS:
        for unit in UNITS:
            yield f"text of {unit!r} in {path} {head[1:12]}", path, functools.partial(filled, head, unit, tail)


# Fields that a request of a kind needs beside the one that grows.
LEAST = {"/v1/messages": {"max_tokens": 1, "messages": REQUEST["messages"]}, "/v1/messages/count_tokens": {"messages": REQUEST["messages"]},
         "/tokenize": {"prompt": "x"}, "/detokenize": {"tokens": [1]}, "/api/generate": {"prompt": "x"}, "/api/chat": {"messages": REQUEST["messages"]},
         "/api/show": {}, "/v1/files": {}, "/v1/batches": {"input_file_id": "file-1", "endpoint": CHAT, "completion_window": "24h"}}
# By type of the API's table: a value that grows, as (head, what is repeated, tail).
VALUES = {"string": ('"', "x y ", '"'), "object": None, "integer": ("1", "0", ""), "number": ("1", "0", ""), "boolean": ("1", "0", ""),
          "array": ('["', 'x","', '"]'), "array:integer": ("[", "9,", "9]"), "array:string": ('["', 'x","', '"]'),
          "array:object": ("[", '{"type":"text","role":"user","content":"x"},', "{}]")}


def spelled(schema):
    """The types of a property of the API's document, as its table writes them."""
    for one in schema.get("anyOf", [schema]):
        yield one["type"] + (":" + one["items"]["type"] if "items" in one else "")


def fields(document):
    """Every field of every request that the server's own table lists, once by each type that it may have."""
    for path, methods in document["paths"].items():
        if "post" not in methods or "{name}" in path:
            continue
        properties = methods["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        if path in LEAST:
            least = LEAST[path]
        else:
            least = {"input": "x"} if "/responses" in path else REQUEST if "/chat/" in path else {"prompt": "x"}
        for name, schema in properties.items():
            for kind in spelled(schema):
                others = {key: value for key, value in least.items() if key != name}
                head = f'{json.dumps(others)[:-1]}{", " if others else ""}"{name}": '
                value = VALUES[kind]
                body = functools.partial(members, head + "{", "}}") if value is None else functools.partial(filled, head + value[0], value[1], value[2] + "}")
                yield f"{name} of {path} as {kind}", path, body


class Values(unittest.TestCase):
    def test_no_value_needs_much_memory(self):
        self.grow(lambda _: bodies())

    def test_no_text_needs_much_memory(self):
        self.grow(lambda _: chosen(texts(), sized(60), "texts"))

    def test_no_field_needs_much_memory(self):
        self.grow(lambda server: chosen(fields(server.request("GET", "/openapi.json")[2]), sized(60), "fields"))

    def test_a_batch_needs_little_memory(self):
        head = '--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--x\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        line = '{"custom_id":"%d","method":"POST","url":"/v1/completions","body":{"prompt":"%s","max_tokens":1}}\n'
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        worst = (0, "")
        with tempfile.TemporaryDirectory() as folder, Server("--context", 4096, "--prefix-cache-mib", 16, "--batches-dir", folder) as server:
            server.post(CHAT, REQUEST)
            model = memory(server.process)
            for name, text in (("a line of letters", line % (0, "x y " * (MOST // 4 - 100))), ("a line of new lines", line % (0, "\\n" * (MOST // 2 - 100))),
                               ("a line of ids", line.replace('"%s"', "%s") % (0, "[" + "9," * (MOST // 2 - 100) + "9]")),
                               ("short lines that are none", "[]\n" * (MOST // 3 - 200)), ("3000 short lines", "".join(line % (i, "x") for i in range(3000)))):
                pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
                with self.subTest(name):
                    status, _, file = server.request("POST", "/v1/files", (head + text + "\r\n--x--\r\n").encode(), form)
                    self.assertEqual(status, 200, file)
                    self.assertEqual(server.request("GET", f"/v1/files/{file['id']}/content")[2], text)
                    batch = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
                    status, _, batch = server.request("POST", "/v1/batches", batch)
                    if status == 200:
                        path = f"/v1/batches/{batch['id']}"
                        wait_until(lambda path=path: server.request("GET", path)[2]["status"] in ("completed", "failed"), f"{name}: the batch has ended")
                    else:
                        self.assertEqual(status, 400, batch)
                    peak = memory(server.process, "VmHWM") - model
                    worst = max(worst, (peak, name))
                    self.assertLess(peak, MAX_MIB * MEMORY_FACTOR)
        print(f"batches, the most: {worst[0]:.0f} MiB, {worst[1]}")

    def grow(self, cases):
        worst, count = (0, ""), 0
        with Server("--context", 4096, "--prefix-cache-mib", 16) as server:
            expected = server.post(CHAT, REQUEST)["choices"][0]["message"]
            model = memory(server.process)
            for name, path, body in cases(server):
                count += 1
                body = body() if callable(body) else body
                pathlib.Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")
                with self.subTest(name):
                    status = server.request("POST", path, body)[0]
                    peak = memory(server.process, "VmHWM") - model
                    worst = max(worst, (peak, name))
                    if peak > 128:
                        print(f"{name}: {len(body) / MIB:.0f} MiB, status {status}, peak {peak:.0f} MiB")
                    self.assertIn(status, (200, 400, 404, 413))
                    self.assertLess(peak, MAX_MIB * MEMORY_FACTOR)
            self.assertEqual(server.post(CHAT, REQUEST)["choices"][0]["message"], expected)
        print(f"{count} bodies, the most: {worst[0]:.0f} MiB, {worst[1]}")

    def test_what_a_little_stands_for_is_bounded(self):
        with Server("--context", 4096) as server:
            for body in (b'{"prompt":"' + b"a" * (20 * MIB) + b'"}', b'{"prompt":[' + b"[]," * (7 * MIB) + b"0]}"):
                self.assertEqual(server.request("POST", "/tokenize", gzip.compress(body), {"Content-Encoding": "gzip"})[0], 413)
            text = json.dumps({"prompt": "All work and no play makes Jack a dull boy. " * 20000}).encode()  # 860 KB, which anyone may send.
            self.assertEqual(server.request("POST", "/tokenize", gzip.compress(text), {"Content-Encoding": "gzip"})[0], 200)


if __name__ == "__main__":
    unittest.main()
