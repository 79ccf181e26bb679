"""What other servers' users reported and this one has right from the start: a table, so that it stays. Rows say what is asked and what must come of it."""

import gzip
import json
import pathlib
import socket
import subprocess
import unittest

from dsv4_process import BINARY, PATIENCE, TINY
from server_process import Server
from server_testing import CHAT, QUESTION, TICKET, SharedServer, joined

USER = [{"role": "user", "content": "hi"}]
QUICK = {"temperature": 0, "thinking": False, "max_tokens": 8}
TOOLS = json.loads((pathlib.Path(__file__).parents[1] / "fixtures" / "mcp-tools.json").read_text())
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


def call(identity="c", **function):
    return {"role": "assistant", "content": None, "tool_calls": [{"id": identity, "type": "function", "function": {"name": "now", "arguments": "{}", **function}}]}


def result(identity="c", content="12:00"):
    return {"role": "tool", "tool_call_id": identity, "content": content}


PICTURE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
HISTORIES = {
    "a result in parts": [call(), result(content=[{"type": "text", "text": "12:00"}])], "a result of no parts": [call(), result(content=[])],
    "a result of null": [call(), result(content=None)], "a result without content": [call(), {"role": "tool", "tool_call_id": "c"}],
    "a picture as result": [call(), result(content=[PICTURE])], "an orphan result": [result("x")], "a missing result": [call()],
    "a result twice": [call(), result(), result()], "results in another order": [call("a"), call("b"), result("b"), result("a")],
    "a result without an id": [call(), {"role": "tool", "content": "12:00"}], "a user between": [call(), USER[0], result()],
    "a system between": [call(), {"role": "system", "content": "x"}, result()], "a developer": [{"role": "developer", "content": "x"}],
    "systems everywhere": [{"role": "system", "content": "x"}, USER[0], {"role": "system", "content": "y"}],
    "reasoning null": [{**call(), "reasoning_content": None}, result()], "reasoning empty": [{**call(), "reasoning_content": ""}, result()],
    "a marker in an answer": [{"role": "assistant", "content": "a</think>b"}],
}
# Bodies that are no JSON, and the byte that the answer names.
BROKEN = {
    "a mark of the order of bytes": (b"\xef\xbb\xbf{}", 0), "UTF-16": ('{"a": 1}'.encode("utf-16-le"), 1), "NaN": (b'{"temperature": NaN}', 16),
    "a comment": (b'{ /* x */ "a": 1}', 2), "a comma too many": (b'{"a": [1,]}', 9), "a control character": (b'{"a": "x\ny"}', 8),
    "bad UTF-8": (b'{"a": "\xff"}', 7), "half a surrogate": (b'{"a": "\\ud800"}', None), "brackets": (b"[" * 5000, None),
}
# Values with which nothing is asked for.
NOTHING = [
    {"skip_special_tokens": True}, {"spaces_between_special_tokens": True}, {"echo": False}, {"typical_p": 1}, {"n_predict": -1}, {"use_beam_search": False},
    {"length_penalty": 1.0}, {"early_stopping": False}, {"repetition_penalty": 1}, {"min_p": 0}, {"top_k": -1}, {"top_k": 0}, {"top_p": 1}, {"logit_bias": {}},
    {"presence_penalty": 0}, {"stop": None}, {"stop": []}, {"n": 1}, {"logprobs": False}, {"functions": []}, {"function_call": "auto"}, {"tools": []},
    {"tools": [], "tool_choice": "auto"}, {"tool_choice": {"type": "auto"}}, {"tool_choice": {"type": "none"}}, {"extra_body": {}}, {"disable_reasoning": False}, {"response_format": {"type": "text"}}, {"response_format": None}, {"modalities": ["text"]}, {"user": "me"},
    {"metadata": {}}, {"service_tier": "auto"}, {"parallel_tool_calls": True}, {"guided_decoding_backend": "auto"}, {"mirostat": 0}, {"documents": []},
    {"add_generation_prompt": True}, {"separate_reasoning": True}, {"seed": -1}, {"seed": 2**63}, {"best_of": 1}, {"max_tokens": None}, {"stream_options": None},
]
WRONG = [({"top_logprobs": 21, "logprobs": True}, "20"), ({"logit_bias": {"999999": 1}}, "logit_bias"), ({"stop_token_ids": [999999]}, "stop_token_ids"),
         ({"max_tokens": -1}, "max_tokens"), ({"max_tokens": 5.0}, "max_tokens"), ({"n": 1.5}, "n"), ({"samplers": ["top_k"]}, "samplers")]
SCHEMAS = {
    "const in anyOf": {"anyOf": [{"const": "a"}, {"const": 1}]}, "types in a list": {"type": ["string", "null"]}, "null in an enum": {"enum": ["a", None]},
    "no type": {"minLength": 1}, "formats of integers": {"type": "integer", "format": "int64"}, "allOf": {"allOf": [{"type": "object"}, {"required": ["a"]}]},
    "definitions": {"definitions": {"a": {"type": "string"}}, "$ref": "#/definitions/a"},
    "a reference at the root": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}}}},
    "an enum of 1000": {"enum": [f"v{i}" for i in range(1000)]},
}
NAMES = ["a.b", "a/b", "a:b", "a&b", "a b", "größe", "時刻", "x" * 300]
BLOCKS = [{"type": "thinking", "thinking": "x", "signature": "y"}, {"type": "redacted_thinking", "data": "x"}, {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
          {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "mcp_tool_use", "id": "m", "name": "x", "server_name": "y", "input": {}},
          {"type": "container_upload", "file_id": "f"}]
OF_2026 = [{"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}}, {"mcp_servers": []}, {"speed": "standard"}, {"inference_geo": "eu"},
           {"output_config": {"effort": "low"}}, {"thinking": {"type": "enabled", "budget_tokens": 8, "display": "omitted"}}, {"service_tier": "auto"}, {"fallbacks": []}, {"diagnostics": {}}]
ITEMS = [{"role": "user", "content": "x"}, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
         {"type": "reasoning", "summary": []}, {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": None},
         {"type": "web_search_call", "id": "w", "status": "completed"}, {"type": "local_shell_call", "call_id": "l", "action": {}}, {"type": "mcp_list_tools", "tools": []},
         {"type": "custom_tool_call", "call_id": "p", "name": "apply_patch", "input": "x"}, {"type": "custom_tool_call_output", "call_id": "p", "output": "x"}]


class Chats(SharedServer):
    def test_histories_as_agents_send_them(self):
        for name, history in HISTORIES.items():
            with self.subTest(history=name):
                self.server.post(CHAT, {"messages": [USER[0], *history, {"role": "user", "content": "go on"}], "tools": [NOW], **QUICK, "max_tokens": 1})

    def test_bodies_that_are_no_json_are_refused_by_the_byte(self):
        for name, (body, byte) in BROKEN.items():
            with self.subTest(body=name):
                status, _, reply = self.server.request("POST", CHAT, body)
                self.assertEqual(status, 400)
                self.assertRegex(reply["error"]["message"], "byte" if byte is None else rf"byte {byte}\b")
        reply = self.server.request("POST", CHAT, b'{"messages": 3, "max_tokens": 1, "messages": [{"role": "user", "content": "hi"}]}')
        self.assertEqual(reply[0], 200)

    def test_what_asks_for_nothing_is_taken(self):
        plain = self.server.post(CHAT, {"messages": USER, **QUICK})["choices"][0]["message"]
        for fields in NOTHING:
            with self.subTest(fields=fields):
                reply = self.server.post(CHAT, {"messages": USER, **QUICK, **fields})["choices"][0]["message"]
                self.assertTrue(reply["content"].startswith(plain["content"]))

    def test_what_is_wrong_is_named(self):
        for fields, word in WRONG:
            with self.subTest(fields=fields):
                status, _, reply = self.server.request("POST", CHAT, {"messages": USER, **QUICK, **fields})
                self.assertEqual(status, 400)
                self.assertIn(word, reply["error"]["message"])

    def test_efforts(self):
        for effort in ("none", "minimal", "low", "medium", "high", "xhigh", "max"):
            for fields in ({"reasoning_effort": effort}, {"chat_template_kwargs": {"reasoning_effort": effort}}):
                self.server.post(CHAT, {"messages": USER, "max_tokens": 1, **fields})

    def test_bad_words_are_held_however_they_are_spelled(self):
        for words in (["Paris"], [" Paris"], ["Par"], ["capital of"]):
            text = self.server.post(CHAT, {"messages": QUESTION, **QUICK, "max_tokens": 30, "bad_words": words})["choices"][0]["message"]["content"]
            self.assertNotIn(words[0].strip(), text)

    def test_streams_stop_where_whole_answers_do(self):
        for stop in (["Paris"], ["T"], ["is P", "Paris"], ["capital", "France"], ["."]):
            body = {"messages": QUESTION, **QUICK, "max_tokens": 40, "stop": stop}
            whole = self.server.post(CHAT, body)["choices"][0]
            message, reason, _ = joined(self.server.stream(CHAT, body))
            self.assertEqual((message["content"], reason), (whole["message"]["content"], whole["finish_reason"]))
            self.assertFalse(any(word in message["content"] for word in stop))

    def test_scores(self):
        reply = self.server.post("/v1/completions", {"prompt": "Once upon", "echo": True, "logprobs": 1, "max_tokens": 0})["choices"][0]
        self.assertEqual((reply["text"], reply["logprobs"]["token_logprobs"][0]), ("Once upon", None))
        self.server.post("/v1/completions", {"prompt": "Once", "max_tokens": None})
        reply = self.server.post(CHAT, {"messages": [{"role": "user", "content": "Say 時刻 🙂"}], **QUICK, "logprobs": True, "top_logprobs": 2})["choices"][0]
        self.assertEqual(bytes(byte for one in reply["logprobs"]["content"] for byte in one["bytes"]).decode(errors="replace"), reply["message"]["content"])


class Constraints(SharedServer):
    def test_schemas(self):
        for name, schema in SCHEMAS.items():
            with self.subTest(schema=name):
                self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 4, "guided_json": schema})
                parameters = {"type": "object", "properties": {"v": {key: value for key, value in schema.items() if key not in ("$defs", "definitions", "$ref")}}}
                tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": parameters}}
                if name != "an enum of 1000":  # Its words would be the prompt's.
                    self.server.post(CHAT, {"messages": USER, **QUICK, "tools": [tool], "tool_choice": "required"})

    def test_names_of_tools(self):
        for name in NAMES:
            tool = {"type": "function", "function": {**TICKET["function"], "name": name}}
            reply = self.server.post(CHAT, {"messages": USER, **QUICK, "max_tokens": 400, "tools": [tool], "tool_choice": "required"})["choices"][0]
            self.assertEqual(reply["message"]["tool_calls"][0]["function"]["name"], name)

    def test_tools_of_servers_one_by_one(self):
        for tool in TOOLS[::10]:
            with self.subTest(tool=tool["name"]):
                for strict in (False, True):
                    reply = self.server.post(CHAT, {"messages": USER, **QUICK, "max_tokens": 100, "tool_choice": "required",
                                                    "tools": [{"type": "function", "function": {**tool, "strict": strict}}]})["choices"][0]
                    self.assertEqual(reply["message"]["tool_calls"][0]["function"]["name"], tool["name"])

    def test_a_choice_of_a_tool_while_thinking(self):
        for choice in ("required", {"type": "function", "function": {"name": "search_ticket"}}):
            reply = self.server.post(CHAT, {"messages": USER, "temperature": 0, "max_tokens": 300, "tools": [TICKET], "tool_choice": choice})["choices"][0]
            self.assertTrue(reply["message"]["reasoning_content"])
            self.assertEqual(reply["message"]["tool_calls"][0]["function"]["name"], "search_ticket")

    def test_deltas_of_calls(self):
        events = self.server.stream(CHAT, {"messages": USER, **QUICK, "max_tokens": 300, "tools": [TICKET], "tool_choice": "required"})
        deltas = [delta for _, chunk in events if chunk != "[DONE]" for choice in chunk["choices"] for delta in choice["delta"].get("tool_calls", [])]
        self.assertEqual((deltas[0]["index"], deltas[0]["type"], deltas[0]["function"]["name"]), (0, "function", "search_ticket"))
        self.assertTrue(deltas[0]["id"])
        self.assertFalse(any("id" in delta for delta in deltas[1:] if delta["index"] == 0))


class OtherDialects(SharedServer):
    def test_messages(self):
        for block in BLOCKS:
            with self.subTest(block=block["type"]):
                self.server.post("/v1/messages", {"max_tokens": 2, "messages": [USER[0], {"role": "assistant", "content": [block, {"type": "text", "text": "x"}]}, USER[0]]})
        for fields in OF_2026:
            with self.subTest(fields=fields):
                self.server.post("/v1/messages", {"max_tokens": 12, "messages": USER, **fields})
        for edit in ("clear_tool_uses_20250919", "compact_20260112"):
            status, _, reply = self.server.request("POST", "/v1/messages", {"max_tokens": 2, "messages": USER, "context_management": {"edits": [{"type": edit}]}})
            self.assertEqual((status, "context_management" in reply["error"]["message"]), (400, True))
        body = {"messages": USER, "system": "Be brief.", "tools": [{"name": "f", "input_schema": {"type": "object"}}]}
        usage = self.server.post("/v1/messages", {**body, "max_tokens": 1})["usage"]
        self.assertEqual(self.server.post("/v1/messages/count_tokens", body)["input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"])

    def test_the_order_of_streams(self):
        events = [event for _, event in self.server.stream("/v1/messages", {"max_tokens": 60, "temperature": 0, "messages": QUESTION, "thinking": {"type": "enabled"}})]
        kinds = [event["type"] for event in events if event["type"] != "ping"]
        self.assertEqual((kinds[0], kinds[1], kinds[-2], kinds[-1]), ("message_start", "content_block_start", "message_delta", "message_stop"))
        starts = [event["index"] for event in events if event["type"] == "content_block_start"]
        self.assertEqual(starts, list(range(len(starts))))
        events = [event for _, event in self.server.stream("/v1/responses", {"max_output_tokens": 60, "temperature": 0, "input": "hi"})]
        self.assertEqual([event["sequence_number"] for event in events], list(range(len(events))))
        self.assertEqual((events[0]["type"], events[1]["type"]), ("response.created", "response.in_progress"))

    def test_items(self):
        for item in ITEMS:
            with self.subTest(item=item):
                self.server.post("/v1/responses", {"max_output_tokens": 16, "input": [USER[0], item, {"role": "user", "content": "go on"}]})

    def test_a_full_context_is_seen_in_every_protocol(self):
        long = [{"role": "user", "content": "word " * 6000}]
        for path, body in ((CHAT, {"messages": long}), ("/v1/messages", {"messages": long, "max_tokens": 4}), ("/v1/responses", {"input": long}),
                           ("/v1/completions", {"prompt": long[0]["content"]})):
            for stream in (False, True):
                status, _, reply = self.server.request("POST", path, {**body, "stream": stream})
                self.assertEqual(status, 400)
                self.assertRegex(reply["error"]["message"], r"prompt is too long: \d+ tokens > 409[56] maximum")


class Http(SharedServer):
    BODY = json.dumps({"messages": USER, **QUICK}).encode()

    def test_bodies_and_paths(self):
        packed = gzip.compress(self.BODY)
        chunks = b"".join(b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in (self.BODY[:20], self.BODY[20:])) + b"0\r\nX-After: 1\r\n\r\n"
        for name, lines, body in (("chunks", [b"Transfer-Encoding: chunked"], chunks), ("gzip", [b"Content-Encoding: gzip", b"Content-Length: %d" % len(packed)], packed),
                                  ("continue", [b"Expect: 100-continue", b"Content-Length: %d" % len(self.BODY)], self.BODY)):
            with self.subTest(body=name):
                head = b"\r\n".join([b"POST /v1/chat/completions/?x=1 HTTP/1.1", b"Host: x", b"Connection: close", b"Content-Type: application/json", *lines])
                reply = self.server.raw(head + b"\r\n\r\n" + body)
                self.assertIn(b"HTTP/1.1 200", reply)
        self.assertEqual(self.server.request("HEAD", "/v1/models")[0], 200)
        self.assertEqual(self.server.request("GET", f"/v1/models/{self.server.model}")[2]["id"], self.server.model)


class Starts(unittest.TestCase):
    def test_addresses_and_environments(self):
        for host in ("localhost", "0.0.0.0", "127.0.0.1"):
            with self.subTest(host=host), Server("--context", 1024, "--host", host) as server, socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE):
                pass
        with Server("--context", 1024, environment={"HOME": "", "LC_ALL": "xx_YY"}) as server:
            self.assertEqual(server.request("GET", "/health")[0], 200)
            done = subprocess.run([BINARY, "serve", "-m", str(TINY), "--port", str(server.port)], capture_output=True, text=True, timeout=PATIENCE)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(str(server.port), done.stderr)
        done = subprocess.run([BINARY, "serve", "-m", str(TINY), "--unix-socket", "/tmp/" + "x" * 200], capture_output=True, text=True, timeout=PATIENCE)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--unix-socket", done.stderr)


if __name__ == "__main__":
    unittest.main()
