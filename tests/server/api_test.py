"""Services of the server beside the dialects' plain use: scores of prompts, limits of tokens and words, text with a hole. Further
descriptions of itself, ollama's dialect, stored responses, log and traces."""

import gzip
import http.server
import json
import pathlib
import re
import struct
import tempfile
import threading
import unittest
import zlib

from server_process import Server
from server_testing import CHAT, ENDLESS, QUESTION, TICKET, TICKET_QUESTION, SharedServer

TEXT = "The capital of France is Paris. The capital of Spain is Madrid."
QUICK = {"temperature": 0, "thinking": False, "max_tokens": 12}


def fields(message):
    """A protobuf message: by number, its values."""
    out, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            value = varint()
        elif key & 7 == 1:
            value, at = int.from_bytes(message[at:at + 8], "little"), at + 8
        else:
            size = varint()
            value, at = message[at:at + size], at + size
        out.setdefault(key >> 3, []).append(value)
    return out


def attributes(pairs):
    """Key and value of OpenTelemetry's KeyValue messages."""
    out = {}
    for pair in pairs:
        key, value = fields(pair)[1][0].decode(), fields(fields(pair)[2][0])
        out[key] = value[1][0].decode() if 1 in value else value[3][0] if 3 in value else struct.unpack("<d", value[4][0].to_bytes(8, "little"))[0]
    return out


class Scores(SharedServer):
    def complete(self, **fields):
        return self.server.post("/v1/completions", {"prompt": TEXT, "temperature": 0, "ignore_eos": True, **fields})["choices"][0]

    def test_offsets_are_those_of_characters(self):
        scores = self.complete(prompt="né à l'\U0001f40b été", echo=True, logprobs=0, max_tokens=0)
        tokens, offsets = scores["logprobs"]["tokens"], scores["logprobs"]["text_offset"]
        whole = [(token, offset) for token, offset in zip(tokens, offsets) if "\ufffd" not in token]
        self.assertGreater(len(whole), 4)
        for token, offset in whole:
            self.assertEqual(scores["text"][offset:offset + len(token)], token)

    def test_what_is_out_of_bounds_is_named(self):
        for path, body, field in (("/v1/responses", {"input": "x", "max_output_tokens": 0}, "max_output_tokens"),
                                  ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 0},
                                   "max_completion_tokens"), ("/detokenize", {"tokens": [1, 99999]}, "tokens"), ("/detokenize", {"tokens": [-1]}, "tokens")):
            status, _, reply = self.server.request("POST", path, body)
            self.assertEqual((status, reply["error"]["param"]), (400, field), reply)

    def test_echo_with_logprobs_scores_the_prompt(self):
        tokens = self.server.post("/tokenize", {"prompt": TEXT})["tokens"]
        choice = self.complete(echo=True, logprobs=2, max_tokens=0)
        scores = choice["logprobs"]
        self.assertEqual((choice["text"], choice["finish_reason"]), (TEXT, "length"))
        self.assertEqual("".join(scores["tokens"]), TEXT)
        self.assertEqual([len(scores[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")], [len(tokens)] * 4)
        self.assertIsNone(scores["token_logprobs"][0])
        self.assertIsNone(scores["top_logprobs"][0])
        # Each is what the model says of the next token when the prompt ends in front of it.
        for place in (1, 5, len(tokens) - 1):
            ahead = self.server.post("/v1/completions", {"prompt": tokens[:place], "max_tokens": 1, "temperature": 0, "logprobs": 2})["choices"][0]
            self.assertEqual(ahead["logprobs"]["top_logprobs"][0], scores["top_logprobs"][place])
        # With an answer behind it, streamed or whole.
        whole = self.complete(echo=True, logprobs=1, max_tokens=3)
        self.assertEqual(len(whole["logprobs"]["tokens"]), len(tokens) + 3)
        streamed = [event for _, event in self.server.stream("/v1/completions", {
            "prompt": TEXT, "temperature": 0, "ignore_eos": True, "echo": True, "logprobs": 1, "max_tokens": 3, "stream": True}) if event != "[DONE]"]
        self.assertEqual("".join(event["choices"][0]["text"] for event in streamed), whole["text"])
        got = [token for event in streamed for token in (event["choices"][0]["logprobs"] or {"token_logprobs": []})["token_logprobs"]]
        self.assertEqual(got, whole["logprobs"]["token_logprobs"])

    def test_tokens_beside_the_texts(self):
        tokens = self.server.post("/tokenize", {"prompt": TEXT})["tokens"]
        body = {"prompt": [TEXT, "One, two"], "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": 5}
        whole = self.server.post("/v1/completions", body)["choices"]
        self.assertEqual(whole[0]["prompt_token_ids"], tokens)
        self.assertEqual(self.server.post("/detokenize", {"tokens": whole[0]["token_ids"]})["prompt"], whole[0]["text"])
        self.assertEqual([len(choice["token_ids"]) for choice in whole], [5, 5])
        events = [event["choices"][0] for _, event in self.server.stream("/v1/completions", {**body, "prompt": TEXT, "stream": True}) if event != "[DONE]"]
        self.assertEqual([token for event in events for token in event["token_ids"]], whole[0]["token_ids"])
        self.assertEqual([event["prompt_token_ids"] for event in events if "prompt_token_ids" in event], [tokens])
        chat = {"messages": QUESTION, "temperature": 0, "max_tokens": 300, "return_token_ids": True}
        reply = self.server.post(CHAT, chat)
        self.assertEqual(reply["prompt_token_ids"], self.server.post("/tokenize", {"messages": QUESTION})["tokens"])
        self.assertEqual(len(reply["choices"][0]["token_ids"]), reply["usage"]["completion_tokens"])
        events = [event for _, event in self.server.stream(CHAT, {**chat, "stream": True}) if event != "[DONE]"]
        self.assertEqual([token for event in events for token in event["choices"][0]["token_ids"]], reply["choices"][0]["token_ids"])
        self.assertEqual([event["prompt_token_ids"] for event in events if "prompt_token_ids" in event], [reply["prompt_token_ids"]])

    def test_prompt_logprobs(self):
        choice = self.complete(prompt_logprobs=1, max_tokens=1)
        tokens = self.server.post("/tokenize", {"prompt": TEXT})["tokens"]
        self.assertIsNone(choice["prompt_logprobs"][0])
        self.assertEqual(len(choice["prompt_logprobs"]), len(tokens))
        for token, entry in list(zip(tokens, choice["prompt_logprobs"], strict=True))[1:]:
            self.assertIn(str(token), entry)
            self.assertIn(1, [candidate["rank"] for candidate in entry.values()])
        reply = self.server.post(CHAT, {"messages": QUESTION, "prompt_logprobs": 0, **QUICK})
        self.assertEqual(len(reply["prompt_logprobs"]), reply["usage"]["prompt_tokens"])
        status, _, error = self.server.request("POST", CHAT, {"messages": QUESTION, "prompt_logprobs": 0, "stream": True})
        self.assertEqual((status, error["error"]["param"]), (400, "prompt_logprobs"))

    def test_a_hole_is_filled(self):
        begin, hole, end = (self.server.post("/tokenize", {"prompt": f"<｜fim▁{name}｜>"})["tokens"][0] for name in ("begin", "hole", "end"))
        bos = self.server.post("/tokenize", {"prompt": "<｜begin▁of▁sentence｜>"})["tokens"]
        before, behind = (self.server.post("/tokenize", {"prompt": text})["tokens"] for text in ("def f():\n", "\nprint(f())"))
        wanted = self.server.post("/v1/completions", {"prompt": [*bos, begin, *before, hole, *behind, end], "max_tokens": 5, "temperature": 0})
        got = self.server.post("/v1/completions", {"prompt": "def f():\n", "suffix": "\nprint(f())", "max_tokens": 5, "temperature": 0})
        self.assertEqual(got["choices"][0]["text"], wanted["choices"][0]["text"])
        self.assertEqual(got["usage"]["prompt_tokens"], wanted["usage"]["prompt_tokens"])


class Limits(SharedServer):
    def test_min_tokens(self):
        short = self.server.post(CHAT, {"messages": QUESTION, "temperature": 0, "thinking": False, "max_tokens": 100})
        count = short["usage"]["completion_tokens"]
        longer = self.server.post(CHAT, {"messages": QUESTION, "temperature": 0, "thinking": False, "max_tokens": 100, "min_tokens": count + 7})
        self.assertGreaterEqual(longer["usage"]["completion_tokens"], count + 7)
        self.assertTrue(longer["choices"][0]["message"]["content"].startswith(short["choices"][0]["message"]["content"]))

    def test_bad_words_never_come_however_they_are_spelled(self):
        for _ in range(2):
            reply = self.server.post(CHAT, {"messages": QUESTION, **QUICK, "bad_words": ["Paris"], "max_tokens": 40})
            self.assertNotIn("Paris", reply["choices"][0]["message"]["content"])
        for seed in range(5):
            text = self.server.post("/v1/completions", {"prompt": TEXT, "temperature": 2, "seed": seed, "max_tokens": 100, "bad_words": ["e", " a"]})
            # Added tokens are no text.
            self.assertNotRegex(re.sub("<[｜|].*?[｜|]>|</?think>|｜DSML｜", "", text["choices"][0]["text"]), "e| a")

    def test_allowed_token_ids(self):
        allowed = self.server.post("/tokenize", {"prompt": "yes no"})["tokens"]
        text = self.server.post("/v1/completions", {"prompt": TEXT, "temperature": 1, "seed": 1, "max_tokens": 20, "allowed_token_ids": allowed,
                                                    "logprobs": 0, "ignore_eos": True})
        self.assertEqual(set(text["choices"][0]["logprobs"]["tokens"]) - set(self.server.post(
            "/tokenize", {"prompt": "yes no", "return_token_strs": True})["token_strs"]), set())

    def test_wrong_values_name_the_field(self):
        for field, value in (("min_tokens", -1), ("min_tokens", 50), ("allowed_token_ids", [1 << 20]), ("bad_words", [""]), ("prompt_logprobs", 21)):
            status, _, reply = self.server.request("POST", CHAT, {"messages": QUESTION, "max_tokens": 5, field: value})
            self.assertEqual((status, reply["error"]["param"]), (400, field), reply)
        status, _, reply = self.server.request("POST", "/v1/completions", {"prompt": TEXT, "stop": ["x", ""]})
        self.assertEqual((status, reply["error"]["param"]), (400, "stop"), reply)


def zstd_of(data):
    """A zstd frame that holds `data` as it is."""
    return b"\x28\xb5\x2f\xfd\xa0" + len(data).to_bytes(4, "little") + (len(data) << 3 | 1).to_bytes(3, "little") + data


class Bodies(SharedServer):
    BODY = json.dumps({"messages": QUESTION, "seed": 1, **QUICK}).encode()

    def send(self, coding, body):
        connection = self.server.connect()
        connection.request("POST", CHAT, body, {"Content-Type": "application/json", "Content-Encoding": coding})
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        connection.close()
        return reply.status, answer

    def test_a_number_that_no_double_has(self):
        """An answer that echoes it could not be JSON."""
        for path, body in ((CHAT, b'{"messages": [{"role": "user", "content": "Hi"}], "temperature": 1e400}'),
                           ("/v1/responses", b'{"input": "Hi", "metadata": {"a": [-1e400]}}'),
                           ("/v1/messages", b'{"max_tokens": 2, "messages": [{"role": "user", "content": "Hi", "x": 1e309}]}')):
            status, _, reply = self.server.request("POST", path, body, {"Content-Type": "application/json"})
            self.assertEqual(status, 400, reply)
            self.assertIn("a number that no double has at byte", reply["error"]["message"])

    def test_compressed(self):
        plain = self.send("identity", self.BODY)[1]["choices"][0]["message"]
        half = len(self.BODY) // 2
        for coding, body in (("gzip", gzip.compress(self.BODY)), ("GZIP", gzip.compress(self.BODY[:half]) + gzip.compress(self.BODY[half:])),
                             ("deflate", zlib.compress(self.BODY)), ("zstd", zstd_of(self.BODY)), ("zstd", zstd_of(self.BODY[:half]) + zstd_of(self.BODY[half:])),
                             ("x-gzip", gzip.compress(self.BODY + b" " * 5_000))):
            status, answer = self.send(coding, body)
            self.assertEqual(status, 200, (coding, answer))
            self.assertEqual(answer["choices"][0]["message"], plain, coding)

    def test_what_is_not_of_its_coding_is_refused(self):
        whole = gzip.compress(self.BODY)
        for coding, body, status, words in (
                ("br", self.BODY, 415, "got br, wanted gzip, deflate or zstd"), ("gzip, gzip", whole, 415, "got gzip, gzip"),
                ("gzip", self.BODY, 400, "not of its Content-Encoding"), ("zstd", whole, 400, "not of its Content-Encoding"),
                ("deflate", whole, 400, "not of its Content-Encoding"), ("gzip", whole[:-1], 400, "ends too early"),
                ("gzip", whole[:-8] + bytes(8), 400, "not of its Content-Encoding"), ("zstd", zstd_of(self.BODY)[:-1], 400, "ends too early"),
                # 100 MB of blanks in 0.1 MB.
                ("gzip", gzip.compress(self.BODY + b" " * 100_000_000), 413, "when decoded")):
            got, answer = self.send(coding, body)
            self.assertEqual(got, status, (coding, answer))
            self.assertIn(words, answer["error"]["message"])
        self.assertEqual(self.send("gzip", whole)[0], 200)


class Calls(SharedServer):
    """With tools, an answer is free until a call begins; then it is one."""

    def test_sampled_calls_are_whole_and_real(self):
        tool = json.loads(json.dumps(TICKET))
        tool["function"]["parameters"]["additionalProperties"] = False
        calls = 0
        for seed in range(40):
            reply = self.server.post(CHAT, {"messages": TICKET_QUESTION, "tools": [tool], "thinking": False, "seed": seed, "max_tokens": 200})
            choice = reply["choices"][0]
            self.assertNotIn("DSML", choice["message"]["content"] or "")
            for call in choice["message"].get("tool_calls", []):
                calls += 1
                self.assertEqual(call["function"]["name"], "search_ticket")
                arguments = json.loads(call["function"]["arguments"])
                self.assertEqual(set(arguments), {"tags", "color"})
                self.assertIsInstance(arguments["tags"], list)
        self.assertGreater(calls, 20)


class Descriptions(SharedServer):
    def test_openapi_lists_every_route_and_field(self):
        document = self.server.request("GET", "/openapi.json")[2]
        self.assertEqual(document["openapi"], "3.1.0")
        fields = document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
        self.assertLess({"messages", "temperature", "tools", "min_tokens", "response_format"}, set(fields))
        for path in ("/v1/models/{name}", "/tokenize", "/api/chat", "/v1/responses/{name}"):
            self.assertIn(path, document["paths"])
        self.assertEqual(set(document["paths"]["/v1/responses/{name}"]), {"get", "delete"})

    def test_props_and_tokenizer_info(self):
        props = self.server.request("GET", "/props")[2]
        self.assertEqual((props["default_generation_settings"]["n_ctx"], props["total_slots"]), (4096, 8))
        self.assertEqual((props["backend"], props["device"][:5]), ("cpu", "CPU ("))
        info = self.server.request("GET", "/tokenizer_info")[2]
        self.assertEqual(info["eos_token"], "<｜end▁of▁sentence｜>")
        self.assertIn("｜DSML｜", [token["content"] for token in info["added_tokens_decoder"].values()])

    def test_models_in_the_shape_of_anthropic(self):
        reply = self.server.request("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})[2]
        self.assertEqual((reply["data"][0]["type"], reply["data"][0]["id"], reply["has_more"]), ("model", self.server.model, False))
        self.assertEqual(self.server.request("GET", "/v1/models")[2]["object"], "list")
        for query, wanted in (("?limit=1", 1), ("?after_id=" + self.server.model, 0), ("?before_id=" + self.server.model, 0), ("?limit=0", "limit"), ("?limit=x", "limit"), ("?after_id=other", "after_id")):
            status, _, reply = self.server.request("GET", "/v1/models" + query, headers={"anthropic-version": "2023-06-01"})
            if isinstance(wanted, int):
                self.assertEqual((status, len(reply["data"]), reply["first_id"]), (200, wanted, self.server.model if wanted else None), query)
            else:
                self.assertEqual((status, reply["type"]), (400, "error"), query)
                self.assertIn(wanted, reply["error"]["message"])

    def test_priority_is_taken(self):
        self.assertTrue(self.server.post(CHAT, {"messages": QUESTION, "priority": -3, **QUICK})["choices"])


class Ollama(SharedServer):
    def lines(self, body):
        connection = self.server.connect()
        connection.request("POST", "/api/chat", json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        self.assertEqual((reply.status, reply.headers.get_content_type()), (200, "application/x-ndjson"))
        lines = [json.loads(line) for line in reply.read().decode().splitlines() if line]
        connection.close()
        return lines

    def test_chat(self):
        body = {"model": "tiny:latest", "messages": QUESTION, "think": False, "options": {"temperature": 0, "num_predict": 20, "num_ctx": 2048}}
        lines = self.lines(body)
        whole = self.server.request("POST", "/api/chat", {**body, "stream": False})[2]
        self.assertIn("Paris", whole["message"]["content"])
        self.assertEqual("".join(line["message"]["content"] for line in lines), whole["message"]["content"])
        self.assertEqual((lines[-1]["done"], lines[-1]["done_reason"]), (True, "stop"))
        self.assertGreater(lines[-1]["eval_count"], 0)
        thinks = self.server.request("POST", "/api/chat", {**body, "think": True, "stream": False})[2]
        self.assertTrue(thinks["message"]["thinking"])

    def test_tools_and_their_results(self):
        body = {"model": "tiny", "messages": TICKET_QUESTION, "tools": [TICKET], "think": False, "stream": False, "options": {"temperature": 0}}
        first = self.server.request("POST", "/api/chat", body)[2]
        call = first["message"]["tool_calls"][0]["function"]
        self.assertEqual((call["name"], set(call["arguments"])), ("search_ticket", {"tags", "color"}))
        body["messages"] = [*TICKET_QUESTION, first["message"], {"role": "tool", "tool_name": "search_ticket", "content": "none"}]
        self.assertEqual(self.server.request("POST", "/api/chat", body)[0], 200)

    def test_a_message_without_content_has_an_empty_one(self):
        """ollama's own rule, and its Python client leaves out what is None; another kind of content is refused by its place."""
        call = {"function": {"name": "search_ticket", "arguments": {"tags": ["a"], "color": "red"}}}
        result = {"role": "tool", "tool_name": "search_ticket", "content": "none"}

        def answer(message, *after):
            body = {"model": "tiny", "messages": [*TICKET_QUESTION, message, *after], "tools": [TICKET], "think": False, "stream": False,
                    "options": {"temperature": 0, "num_predict": 8}}
            status, _, reply = self.server.request("POST", "/api/chat", body)
            self.assertEqual(status, 200, reply)
            return reply["message"], reply["prompt_eval_count"]

        for message, after in (({"role": "assistant", "tool_calls": [call]}, [result]), ({"role": "user"}, []), ({"role": "system"}, [])):
            with self.subTest(message=message):
                empty = answer({**message, "content": ""}, *after)
                self.assertEqual(answer(message, *after), empty)
                self.assertEqual(answer({**message, "content": None}, *after), empty)
                self.assertNotEqual(answer({**message, "content": "And where is it now?"}, *after)[1], empty[1])
        for content in (3, ["a"], {"text": "a"}):
            status, _, reply = self.server.request("POST", "/api/chat", {"model": "tiny", "messages": [*QUESTION, {"role": "user", "content": content}]})
            self.assertEqual(status, 400)
            self.assertIn("messages[1].content", reply["error"])

    def test_the_rest(self):
        self.assertEqual(self.server.request("GET", "/api/tags")[2]["models"][0]["model"], "tiny:latest")
        for path in ("/api/tags", "/api/ps"):
            self.assertGreater(self.server.request("GET", path)[2]["models"][0]["size"], 10**7)
        self.assertIn("version", self.server.request("GET", "/api/version")[2])
        for change, text in (({"model": "other"}, "other"), ({"options": {"mirostat": 2}}, "mirostat"), ({"format": "xml"}, "format"),
                             ({"options": {"messages": []}}, "options.messages"), ({"options": {"stop": [""]}}, "stop: got an empty text")):
            status, _, reply = self.server.request("POST", "/api/chat", {"model": "tiny", "messages": QUESTION, **change})
            self.assertGreaterEqual(status, 400)
            self.assertIn(text, reply["error"])


class StoredResponses(unittest.TestCase):
    ASK = {"temperature": 0, "thinking": False, "max_output_tokens": 12}

    def test_a_conversation_goes_on_after_a_restart(self):
        with tempfile.TemporaryDirectory() as directory:
            folder = pathlib.Path(directory, "responses")
            options = ("--responses-dir", folder, "--context", 4096)
            with Server(*options) as server:
                first = server.post("/v1/responses", {"input": "What is the capital of France?", **self.ASK})
                self.assertTrue(first["store"])
                second = server.post("/v1/responses", {"input": "And of Spain?", "previous_response_id": first["id"], **self.ASK})
                self.assertEqual(second["previous_response_id"], first["id"])
                items = [{"role": "user", "content": "What is the capital of France?"}, *first["output"], {"role": "user", "content": "And of Spain?"}]
                spelled = server.post("/v1/responses", {"input": items, "store": False, **self.ASK})
                self.assertEqual((second["usage"]["input_tokens"], second["output"][0]["content"][0]["text"]),
                                 (spelled["usage"]["input_tokens"], spelled["output"][0]["content"][0]["text"]))
                status, _, _ = server.request("GET", f"/v1/responses/{spelled['id']}")
                self.assertEqual(status, 404, "store: false")
            with Server(*options) as server:
                self.assertEqual(server.request("GET", f"/v1/responses/{second['id']}")[2]["output"], second["output"])
                third = server.post("/v1/responses", {"input": "Thanks.", "previous_response_id": second["id"], **self.ASK})
                self.assertGreater(third["usage"]["input_tokens"], second["usage"]["input_tokens"])
                self.assertEqual(server.request("GET", f"/v1/responses/{first['id']}/input_items")[2]["data"][0]["content"], "What is the capital of France?")
                self.assertTrue(server.request("DELETE", f"/v1/responses/{first['id']}")[2]["deleted"])
                status, _, reply = server.request("POST", "/v1/responses", {"input": "x", "previous_response_id": second["id"]})
                self.assertEqual(status, 404)
                self.assertIn(first["id"], reply["error"]["message"])
            self.assertEqual(folder.stat().st_mode & 0o777, 0o700)

    def test_of_other_keys_and_past_the_bound(self):
        with Server("--api-key", "a", "--api-key", "b", "--responses-mib", 1, "--context", 4096) as server:
            key = {"Authorization": "Bearer a"}
            first = server.request("POST", "/v1/responses", {"input": "hi", **self.ASK}, key)[2]
            self.assertEqual(server.request("GET", f"/v1/responses/{first['id']}", headers={"Authorization": "Bearer b"})[0], 404)
            self.assertEqual(server.request("GET", f"/v1/responses/{first['id']}", headers=key)[0], 200)
            metadata = {f"k{i}": "x" * 500 for i in range(200)}
            for _ in range(11):
                server.request("POST", "/v1/responses", {"input": "hi", "metadata": metadata, **self.ASK}, key)
            self.assertEqual(server.request("GET", f"/v1/responses/{first['id']}", headers=key)[0], 404)

    def test_without_a_store(self):
        with Server("--responses-mib", 0, "--context", 4096) as server:
            self.assertFalse(server.post("/v1/responses", {"input": "hi", **self.ASK})["store"])
            status, _, reply = server.request("POST", "/v1/responses", {"input": "hi", "previous_response_id": "resp_1"})
            self.assertEqual((status, reply["error"]["param"]), (400, "previous_response_id"))


class Logs(unittest.TestCase):
    def test_times_and_an_access_log(self):
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "access.log")
            with Server("--access-log", path, "--log-level", "info", "--context", 4096) as server:
                server.post(CHAT, {"messages": QUESTION, **QUICK})
                server.request("GET", "/nowhere%0Ax")
            lines = path.read_text().splitlines()
            self.assertEqual(len(lines), 2, lines)
            self.assertRegex(lines[0], r'^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+0000 127\.0\.0\.1 "POST /v1/chat/completions" 200 \d+ \d+\.\d{3} req_[0-9a-f]{24}$')
            self.assertIn('"GET /nowhere\\x0ax" 404', lines[1])
            log = "".join(server.log)
            self.assertTrue(re.search(r"^\d{4}-\d\d-\d\dT\S+ .*info.*: request id=req_", log, re.MULTILINE), log)

    def test_traces(self):
        received = []

        class Collector(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                received.append((self.path, dict(self.headers), fields(self.rfile.read(int(self.headers["Content-Length"])))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_):
                pass

        parent = "00-" + "ab" * 16 + "-" + "cd" * 8
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector) as collector:
            threading.Thread(target=collector.serve_forever, daemon=True).start()
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector.server_port}/base/", "OTEL_SERVICE_NAME": "mine",
                         "OTEL_EXPORTER_OTLP_HEADERS": "api-key=a%20b, x=1", "OTEL_RESOURCE_ATTRIBUTES": "region=eu"}
            with Server("--context", 4096, environment=variables) as server:
                server.request("POST", CHAT, {"messages": QUESTION, **QUICK}, {"traceparent": parent + "-01"})
                server.request("POST", CHAT, {"messages": QUESTION, **QUICK}, {"traceparent": parent + "-00"})  # Not sampled.
                server.request("POST", CHAT, {"messages": 3}, {"traceparent": parent + "-01"})
                server.request("GET", "/nowhere")
                server.request("GET", "/health")
            collector.shutdown()
        self.assertEqual({(path, headers["Content-Type"], headers["api-key"], headers["x"]) for path, headers, _ in received},
                         {("/base/v1/traces", "application/x-protobuf", "a b", "1")})
        spans, resource = [], {}
        for _, _, body in received:
            for one in body[1]:
                resource = attributes(fields(fields(one)[1][0])[1])
                spans += [fields(span) for scope in fields(one)[2] for span in fields(scope)[2]]
        self.assertEqual(resource, {"service.name": "mine", "region": "eu"})
        names = [span[5][0].decode() for span in spans]
        self.assertEqual(sorted(names), sorted(["POST " + CHAT, "queue", "prefill", "decode", "POST " + CHAT, "GET unknown"]))
        root, refused, lost = spans[names.index("POST " + CHAT)], spans[len(names) - 1 - names[::-1].index("POST " + CHAT)], spans[names.index("GET unknown")]
        self.assertEqual((root[1][0].hex(), root[4][0].hex(), root[6][0]), ("ab" * 16, "cd" * 8, 2))
        children = [span for span in spans if span.get(4) == [root[2][0]]]
        self.assertEqual([span[5][0] for span in children], [b"queue", b"prefill", b"decode"])
        times = [span[7][0] for span in children] + [children[-1][8][0]]
        self.assertEqual(times, sorted(times))
        said = attributes(root[9])
        self.assertEqual((said["gen_ai.operation.name"], said["gen_ai.request.model"], said["http.response.status_code"]), ("chat", "tiny", 200))
        self.assertGreater(said["gen_ai.usage.input_tokens"], 5)
        self.assertGreater(said["gen_ai.latency.time_to_first_token"], 0)
        self.assertNotIn(15, root)
        for span, status in ((refused, 400), (lost, 404)):
            self.assertEqual((attributes(span[9])["http.response.status_code"], attributes(span[9])["error.type"]), (status, str(status)))

    def test_a_variable_that_is_not_understood_is_named(self):
        for name, value in (("OTEL_EXPORTER_OTLP_ENDPOINT", "localhost:4317"), ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                            ("OTEL_TRACES_SAMPLER", "sometimes"), ("OTEL_EXPORTER_OTLP_HEADERS", "no value")):
            variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", name: value}
            with self.subTest(name=name), self.assertRaisesRegex(AssertionError, name):
                Server("--context", 2048, environment=variables)
        with Server("--context", 2048, environment={"OTEL_EXPORTER_OTLP_ENDPOINT": "nonsense", "OTEL_SDK_DISABLED": "true"}) as server:
            self.assertEqual(server.request("GET", "/health")[0], 200)


class Defaults(unittest.TestCase):
    def test_those_of_the_model_and_options(self):
        with Server("--max-tokens-chat", 3, "--max-tokens-thinking", 5, "--thinking-sampling", "model", "--context", 4096) as server:
            chat = server.post(CHAT, {"messages": QUESTION, "thinking": False, **ENDLESS})
            self.assertEqual((chat["usage"]["completion_tokens"], chat["choices"][0]["finish_reason"]), (3, "length"))
            thinks = server.post(CHAT, {"messages": QUESTION, **ENDLESS})
            self.assertEqual(thinks["usage"]["completion_tokens"], 5)
            self.assertEqual(server.post(CHAT, {"messages": QUESTION, "max_tokens": 4, **ENDLESS})["usage"]["completion_tokens"], 4)
            reply = server.post("/v1/responses", {"input": "hi", "temperature": 0, "top_p": 0.1, "tools": [
                {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}]})
            self.assertEqual((reply["temperature"], round(reply["top_p"], 3)), (1.0, 0.95))


if __name__ == "__main__":
    unittest.main()
