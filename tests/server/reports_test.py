"""Requests as others' clients send them, from public reports: each row is a kind of request, and what must come of it."""

import json
import unittest
import urllib.parse

from server_testing import CHAT, QUESTION, SharedServer, joined

USER = [{"role": "user", "content": "hi"}]
QUICK = {"temperature": 0, "thinking": False}


def schema_of(properties, **more):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False, **more}


class Masks(SharedServer):
    def ask(self, **fields):
        return self.server.request("POST", CHAT, {"messages": QUESTION, **QUICK, **fields})

    def test_nothing_ends_an_answer_before_min_tokens(self):
        for fields in ({"stop": ["a", "e", "i"]}, {"stop": ["Th"]}, {"stop": " "}, {"stop_token_ids": list(range(80, 120))}, {}):
            for path, body in ((CHAT, {"messages": QUESTION, **QUICK}), ("/v1/completions", {"prompt": "Once upon a time", "temperature": 0})):
                with self.subTest(path=path, fields=fields):
                    reply = self.server.post(path, {**body, "max_tokens": 12, "min_tokens": 8, **fields})
                    self.assertGreaterEqual(reply["usage"]["completion_tokens"], 8)
        plain = self.server.post(CHAT, {"messages": QUESTION, **QUICK, "max_tokens": 40})["choices"][0]["message"]["content"]
        behind = self.server.post(CHAT, {"messages": QUESTION, **QUICK, "max_tokens": 40, "min_tokens": 4, "stop": [plain[-2:]]})
        self.assertTrue(plain.startswith(behind["choices"][0]["message"]["content"]))

    def test_listed_tokens_are_all_that_comes(self):
        for fields in ({"max_tokens": 1}, {"max_tokens": 3}, {"max_tokens": 2, "seed": 3, "temperature": 1}):
            status, _, reply = self.ask(allowed_token_ids=[91, 80], **fields)
            self.assertEqual(status, 200, reply)
            self.assertEqual(reply["choices"][0]["finish_reason"], "length")
            self.assertRegex(reply["choices"][0]["message"]["content"], "^[yn]+$")

    def test_wishes_that_exclude_each_other_are_a_400(self):
        choice = {"structured_outputs": {"choice": ["yes", "no"]}}
        for fields in ({"allowed_token_ids": [309], **choice}, {"allowed_token_ids": [91], "bad_words": ["y"]},
                       {"allowed_token_ids": [91], "bad_words": ["y"], "ignore_eos": True},
                       {"bad_words": ["y", "n"], **choice}):
            for stream in (False, True):
                with self.subTest(fields=fields, stream=stream):
                    status, _, reply = self.ask(max_tokens=4, stream=stream, **fields)
                    self.assertEqual(status, 400, reply)
                    self.assertIn("no token is left", reply["error"]["message"])
        # At a later token: an end, or an error of the request's.
        status, _, reply = self.ask(max_tokens=4, allowed_token_ids=[91], structured_outputs={"choice": ["yes", "no"]})
        self.assertEqual(status, 400, reply)


class Schemas(SharedServer):
    def test_large_counts_are_taken_wherever_a_schema_stands(self):
        text = {"type": "string", "maxLength": 65536}
        for schema in (schema_of({"text": text}), schema_of({"text": {**text, "minLength": 1, "pattern": "^[a-z ]*$"}}),
                       schema_of({"list": {"type": "array", "items": {"type": "integer"}, "minItems": 1000, "maxItems": 100000}}),
                       schema_of({"map": {"type": "object", "additionalProperties": text, "maxProperties": 65536}}),
                       schema_of({"text": {"type": "string", "maxLength": 2147483647}})):
            name = {"name": "f", "strict": True}
            with self.subTest(schema=schema):
                for path, body in ((CHAT, {"response_format": {"type": "json_schema", "json_schema": {**name, "schema": schema}}}),
                                   (CHAT, {"tools": [{"type": "function", "function": {**name, "parameters": schema}}]}),
                                   ("/v1/messages", {"tools": [{**name, "input_schema": schema}]})):
                    self.server.post(path, {"messages": USER, "max_tokens": 8, "temperature": 0, **body})
                self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 8, "guided_json": schema})
        for field, value in (("guided_regex", "[a-z]{1,60000}"), ("guided_grammar", "root ::= (\"a\" | \"b\" root \"c\"){1,60000}")):
            self.server.post("/v1/completions", {"prompt": "x", "max_tokens": 8, field: value})

    def test_a_count_is_kept(self):
        reply = self.server.post(CHAT, {"messages": USER, **QUICK, "max_tokens": 900, "logit_bias": {"91": 100}, "response_format": {
            "type": "json_schema", "json_schema": {"name": "r", "schema": schema_of({"t": {"type": "string", "maxLength": 300}})}}})
        self.assertEqual(len(json.loads(reply["choices"][0]["message"]["content"])["t"]), 300)

    def test_what_a_tool_that_is_not_strict_has_is_left_out(self):
        deep = {"type": "string"}
        for _ in range(70):
            deep = {"type": "object", "properties": {"n": deep}, "required": ["n"]}
        for choice in ("auto", "required", {"type": "function", "function": {"name": "f"}}):
            self.server.post(CHAT, {"messages": USER, "max_tokens": 4, "tool_choice": choice,
                                    "tools": [{"type": "function", "function": {"name": "f", "parameters": deep}}]})


class CutCalls(SharedServer):
    ASK = {"max_tokens": 40, "temperature": 0}
    SCHEMA = schema_of({"text": {"type": "string", "minLength": 300}})

    def test_a_whole_answer_has_what_a_stream_has_of_a_call(self):
        tool = {"name": "write", "strict": True, "parameters": self.SCHEMA}
        body = {"messages": USER, "thinking": False, **self.ASK, "tool_choice": "required", "tools": [{"type": "function", "function": tool}]}
        whole = self.server.post(CHAT, body)["choices"][0]
        message, reason, _ = joined(self.server.stream(CHAT, body))
        self.assertEqual((whole["finish_reason"], reason), ("length", "length"))
        calls = [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in whole["message"]["tool_calls"]]
        self.assertEqual(calls, message["tool_calls"])
        self.assertTrue(calls[0]["arguments"].startswith('{"text"'))

    def test_anthropic_and_responses_have_the_part_too(self):
        reply = self.server.post("/v1/messages", {"messages": USER, "thinking": {"type": "disabled"}, **self.ASK, "tool_choice": {"type": "any"},
                                                  "tools": [{"name": "write", "strict": True, "input_schema": self.SCHEMA}]})
        self.assertEqual((reply["stop_reason"], reply["content"][-1]["type"], reply["content"][-1]["input"]), ("max_tokens", "tool_use", {}))
        reply = self.server.post("/v1/responses", {"input": "hi", "thinking": False, "max_output_tokens": 40, "temperature": 0, "tool_choice": "required",
                                                   "tools": [{"type": "function", "name": "write", "strict": True, "parameters": self.SCHEMA}]})
        self.assertEqual((reply["status"], reply["output"][-1]["type"], reply["output"][-1]["status"]), ("incomplete", "function_call", "incomplete"))


class Paths(SharedServer):
    def test_paths_are_decoded(self):
        name = self.server.model
        for path in (f"/v1/models/{name}", "/v1/models/" + "".join(f"%{ord(c):02x}" for c in name), f"/v1%2Fmodels/{name}"):
            self.assertEqual(self.server.request("GET", path)[0], 200, path)
        self.assertEqual(self.server.request("GET", "/v1/models/%zz")[0], 404)

    def test_a_target_may_have_its_host(self):
        for target, status in ((f"http://localhost:8000/v1/models/{self.server.model}", 200), ("HTTPS://127.0.0.1/v1/models?limit=1", 200), ("http://localhost", 200), ("http://localhost?x=1", 200),
                               ("http://localhost/v1/nowhere", 404), ("http://evil.example/v1/models", 403), ("ftp://localhost/v1/models", 404)):
            head = self.server.raw(f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()).partition(b"\r\n")[0]
            self.assertIn(str(status).encode(), head, target)

    def test_a_response_is_no_action(self):
        for path, word in (("resp_1/cancel", "background"), ("other", "no such endpoint"), ("resp_1/other", "no such endpoint")):
            status, _, reply = self.server.request("POST", "/v1/responses/" + path, {"input": "hi"})
            self.assertEqual(status, 404, path)
            self.assertIn(word, reply["error"]["message"])

    def test_paths_of_services_whose_clients_exchange_the_host_alone(self):
        chat, text = {"messages": USER, "max_tokens": 2}, {"prompt": "x", "max_tokens": 2}
        for path, body in (("/chat/completions", chat), ("/beta/chat/completions", chat), ("/beta/completions", {**text, "suffix": "y"}),
                           ("/completions", text), ("/chat/completions/", chat), ("/beta/completions/", text), ("/beta/v1/chat/completions", chat), ("/anthropic/v1/messages", chat), ("/anthropic/v1/messages/count_tokens", {"messages": USER})):
            self.assertEqual(self.server.request("POST", path, body)[0], 200, path)
        for path in ("/models", f"/models/{self.server.model}", f"/v1/models/{self.server.model}/", "/models/", "/beta/models", "/ping", "/openai/v1/models", "/api/v1/models"):
            self.assertEqual(self.server.request("GET", path)[0], 200, path)
        for path, body in (("/messages", chat), ("/messages/count_tokens", chat), ("/openai/v1/chat/completions", chat), ("/api/v1/chat/completions", chat),
                           ("/chat/completions/render", chat), ("/responses/input_tokens", {"input": "hi"})):
            self.assertEqual(self.server.request("POST", path, body)[0], 200, path)
        stored = self.server.post("/responses", {"input": "hi", "max_output_tokens": 16})["id"]
        for path in (f"/responses/{stored}", f"/responses/{stored}/input_items"):
            self.assertEqual(self.server.request("GET", path)[0], 200, path)
        self.assertIn("--batches-dir", self.server.request("GET", "/files")[2]["error"]["message"])
        self.assertEqual(self.server.request("POST", "/anthropic/v1/messages", {})[2]["type"], "error")

    def test_nothing_of_a_query_is_left_out_without_a_word(self):
        unknown = "x-dsv4-unknown-fields"
        stored = self.server.post("/v1/responses", {"input": "hi", "max_output_tokens": 16})["id"]
        for method, path, body, listed in (("GET", f"/v1/responses/{stored}?include[]=a&starting_after=1", None, "?include??"), ("POST", CHAT + "?stream=true&beta=true", {"messages": USER, "max_tokens": 1}, "?stream"),
                                           ("POST", "/reset_prefix_cache?reset_external=true", {}, "?reset_external"), ("GET", "/metrics?name[]=up", None, "?name??"),
                                           ("GET", "/v1/models?limit=1&sort=id", None, "?sort"), ("POST", "/tokenize?api=chat&x", {"messages": USER}, "?x"),
                                           ("POST", CHAT + "?q1=1", {"messages": USER, "max_tokens": 1, "foo": 1}, "foo, ?q1")):
            status, headers, _ = self.server.request(method, path, body)
            self.assertEqual((status, headers.get(unknown)), (200, listed), path)
        for method, path, body in (("GET", f"/v1/responses/{stored}?stream=false&include_obfuscation=false", None), ("GET", f"/v1/responses/{stored}/input_items?limit=3&order=asc", None), ("GET", "/health?x=1", None),
                                   ("GET", "/?theme=dark", None), ("POST", CHAT + "?api-version=2024-10-21", {"messages": USER, "max_tokens": 1})):
            status, headers, _ = self.server.request(method, path, body)
            self.assertEqual((status, headers.get(unknown)), (200, None), path)
        for path, param in ((f"/v1/responses/{stored}?stream=1", "stream"), (f"/v1/responses/{stored}?stream=True", "stream"), (f"/v1/responses/{stored}/input_items?limit=x", "limit")):
            status, _, refused = self.server.request("GET", path)
            self.assertEqual((status, refused["error"]["param"]), (400, param))
        status, _, refused = self.server.request("POST", "/tokenize?api=completions", {"messages": USER})
        self.assertEqual((status, refused["error"]["param"]), (400, "api"))
        system = {"system": "Be short.", "messages": USER}
        for query in ("?api=messages", "?x=1&api=messages", "?api=chat&api=messages", "?%61pi=messages&y"):
            self.assertEqual(self.server.request("POST", "/tokenize" + query, system)[2]["count"], self.server.post("/v1/messages/count_tokens", system)["input_tokens"], query)

    def test_what_is_not_here_says_why(self):
        for path, word in (("/v1/embeddings", "embedding server"), ("/v1/audio/speech", "text alone"), ("/sleep", "does not sleep"),
                           ("/v1/load_lora_adapter", "adapters"), ("/load_lora_adapter", "adapters"), ("/v2/rerank", "embedding server"), ("/embed", "embedding server"),
                           ("/v1/audio/transcriptions", "text alone"), ("/v1/uploads", "/v1/files"), ("/infill", "suffix"), ("/release_memory_occupation", "does not sleep"),
                           ("/v1/v1/chat/completions", "twice"), ("/v1/nowhere", "/v1/nowhere: no such endpoint"), ("/beta/nowhere", "/beta/nowhere: no such"),
                            ("/v1/messages/batches", "dsv4 batch"), ("/api/embed", "embedding server"), ("/api/pull", "dsv4 pull")):
            status, _, reply = self.server.request("POST", path, {})
            self.assertEqual(status, 404)
            message = reply["error"] if path.startswith("/api/") else reply["error"]["message"]
            self.assertIn(word, message)

    def test_what_routers_ask(self):
        for path in ("/server_info", "/get_server_info", "/model_info", "/get_model_info"):
            reply = self.server.request("GET", path)[2]
            self.assertEqual(reply["served_model_name"], self.server.model)
        self.assertEqual(self.server.request("GET", "/get_load")[2][0]["num_reqs"], 0)
        self.assertEqual(self.server.request("POST", "/v1/chat/completions/render", {"messages": USER})[2]["token_ids"],
                         self.server.request("POST", "/tokenize", {"messages": USER})[2]["tokens"])
        long = {"messages": [{"role": "user", "content": "A long text. " * 60}], "max_tokens": 1}
        cached = []
        for path in ("/flush_cache", None, "/flush_cache", None, "/reset_prefix_cache"):
            if path:
                self.assertEqual(self.server.request("POST", path)[0], 200)
            cached.append(self.server.post(CHAT, long)["usage"]["prompt_tokens_details"]["cached_tokens"])
        self.assertEqual([count > 0 for count in cached], [False, True, False, True, False])


class Ollama(SharedServer):
    def test_loads_and_unloads(self):
        for path, body in (("/api/chat", {"messages": []}), ("/api/generate", {}), ("/api/generate", {"prompt": ""})):
            reply = self.server.post(path, {"model": "tiny", **body})
            self.assertEqual((reply["done"], reply["done_reason"]), (True, "load"))
            self.assertEqual(self.server.post(path, {"model": "tiny", "keep_alive": 0, **body})["done_reason"], "unload")
        self.assertEqual(self.server.request("POST", "/api/chat", {"model": "tiny"})[0], 400)

    def test_generates(self):
        options = {"temperature": 0, "num_predict": 12}
        whole = self.server.post("/api/generate", {"model": "tiny", "prompt": "What is the capital of France?", "think": False, "stream": False, "options": options})
        chat = self.server.post("/api/chat", {"model": "tiny", "messages": QUESTION, "think": False, "stream": False, "options": options})
        self.assertEqual(whole["response"], chat["message"]["content"])
        self.assertNotIn("message", whole)
        raw = self.server.post("/api/generate", {"model": "tiny", "prompt": "Once upon", "raw": True, "stream": False, "options": options})
        text = self.server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 12, "temperature": 0})
        self.assertEqual(raw["response"], text["choices"][0]["text"])
        hole = self.server.post("/api/generate", {"model": "tiny", "prompt": "def f(", "suffix": "return x", "stream": False, "options": options})
        self.assertEqual(hole["response"], self.server.post("/v1/completions", {"prompt": "def f(", "suffix": "return x", "max_tokens": 12, "temperature": 0})["choices"][0]["text"])
        thinks = self.server.post("/api/generate", {"model": "tiny", "prompt": "hi", "system": "Be brief.", "think": True, "stream": False, "options": options})
        self.assertIn("thinking", thinks)
        for field, value in (("template", "{{ .Prompt }}"), ("context", [1, 2])):
            status, _, reply = self.server.request("POST", "/api/generate", {"model": "tiny", "prompt": "x", field: value})
            self.assertEqual(status, 400)
            self.assertIn(field, reply["error"])

    def test_describes_itself(self):
        shown = self.server.post("/api/show", {"model": "tiny:latest"})
        self.assertEqual(self.server.post("/api/show", {"name": self.server.model + ":latest"}), shown)
        self.assertLessEqual({"completion", "tools", "thinking"}, set(shown["capabilities"]))
        self.assertEqual(shown["model_info"]["deepseek4.context_length"], 4096)
        self.assertEqual(self.server.request("GET", "/api/ps")[2]["models"][0]["context_length"], 4096)
        version = tuple(map(int, self.server.request("GET", "/api/version")[2]["version"].split(".")))
        self.assertGreaterEqual(version, (0, 6, 4))
        for method, path, body in (("POST", "/api/show", {"model": "other"}), ("POST", "/api/show", {"name": "other"}), ("GET", "/api/nothing", None), ("GET", "/api/show", None)):
            status, _, reply = self.server.request(method, path, body)
            self.assertGreaterEqual(status, 400)
            self.assertIsInstance(reply["error"], str)


class Items(SharedServer):
    ASK = {"temperature": 0, "max_output_tokens": 40}

    def test_a_reference_is_the_item_itself(self):
        first = self.server.post("/v1/responses", {"input": "What is the capital of France?", **self.ASK})
        items = first["output"]
        question = {"role": "user", "content": "What is the capital of France?"}
        more = {"role": "user", "content": "and of Spain?"}
        spelled = {"input": [question, *items, more], **self.ASK, "store": False}
        for reference in (lambda item: {"type": "item_reference", "id": item["id"]}, lambda item: {"id": item["id"]}):
            referred = {"input": [question, *map(reference, items), more], **self.ASK, "store": True}
            reply = self.server.post("/v1/responses", referred)
            self.assertEqual(reply["usage"]["input_tokens"], self.server.post("/v1/responses", spelled)["usage"]["input_tokens"])
            # And it can be gone on from.
            self.server.post("/v1/responses", {"input": "more", "previous_response_id": reply["id"], **self.ASK})
        for identity in ("msg_00ff_0", "in_00ff_0", "nothing"):
            status, _, reply = self.server.request("POST", "/v1/responses", {"input": [{"type": "item_reference", "id": identity}]})
            self.assertEqual((status, reply["error"]["param"]), (400, "input[0].id"))

    def test_what_was_asked_can_be_referred_to(self):
        own = {"type": "message", "id": "msg_of_the_client", "role": "user", "content": "Be brief."}
        asked = self.server.post("/v1/responses", {"input": [{"role": "user", "content": "hi"}, own, {"role": "user", "content": "and bye"}], **self.ASK})
        text = self.server.post("/v1/responses", {"input": "hi", **self.ASK})
        for reply, count in ((asked, 3), (text, 1)):
            items = self.server.request("GET", f"/v1/responses/{reply['id']}/input_items")[2]["data"]
            names = [item["id"] for item in items]
            self.assertEqual(len(set(names)), count)
            for item in items:
                if item["id"] == own["id"]:
                    continue
                again = self.server.post("/v1/responses/input_tokens", {"input": [{"type": "item_reference", "id": item["id"]}]})
                self.assertEqual(again, self.server.post("/v1/responses/input_tokens", {"input": [{"role": "user", "content": item["content"]}]}))

    def test_input_items_come_in_pages(self):
        texts = [f"word {number}" for number in range(5)]
        reply = self.server.post("/v1/responses", {"input": [{"role": "user", "content": text} for text in texts], **self.ASK})

        def page(query):
            return self.server.request("GET", f"/v1/responses/{reply['id']}/input_items{query}")

        newest = page("?limit=2")[2]
        self.assertEqual(([item["content"] for item in newest["data"]], newest["has_more"]), (texts[:2:-1], True))
        self.assertEqual((newest["first_id"], newest["last_id"]), (newest["data"][0]["id"], newest["data"][1]["id"]))
        older = page(f"?limit=20&after={newest['last_id']}")[2]
        self.assertEqual(([item["content"] for item in older["data"]], older["has_more"]), (texts[2::-1], False))
        self.assertEqual([item["content"] for item in page("?order=asc")[2]["data"]], texts)
        for query, param in (("?limit=101", "limit"), ("?order=up", "order"), ("?after=other", "after")):
            status, _, refused = page(query)
            self.assertEqual((status, refused["error"]["param"]), (400, param))
        # Ids that are none, empty, or there already do not turn a client round in a circle.
        given = ["msg_1", "msg_2", "msg_1", "", None, 5, "a b+c/%"]
        reply = self.server.post("/v1/responses", {"input": [{"type": "message", "id": name, "role": "user", "content": f"{i}"} for i, name in enumerate(given)], **self.ASK})
        seen, after = [], ""
        for _ in given:
            one = page(f"?order=asc&limit=1&after={urllib.parse.quote_plus(after)}")[2]
            seen += [item["content"] for item in one["data"]]
            after = one["last_id"]
        self.assertEqual((seen, one["has_more"]), ([f"{i}" for i in range(len(given))], False))
        status, _, refused = self.server.request("GET", f"/v1/responses/{reply['id']}?stream=true")
        self.assertEqual((status, refused["error"]["param"]), (400, "stream"))

    def test_parts_of_answers_that_others_wrote(self):
        def tokens(part):
            talk = [{"role": "user", "content": "a"}, {"type": "message", "role": "assistant", "content": [part, {"type": "output_text", "text": "ok"}]},
                    {"role": "user", "content": "b"}]
            return self.server.post("/v1/responses/input_tokens", {"input": talk, "drop_thinking": False})["input_tokens"]

        plain = tokens({"type": "part_of_tomorrow", "data": "x"})
        self.assertGreater(tokens({"type": "refusal", "refusal": "I will not do that"}), plain)
        for part in ({"type": "reasoning_text", "text": "a long thought"}, {"type": "thinking", "thinking": "a long thought"},
                     {"type": "reasoning", "text": "a long thought"}):
            self.assertGreater(tokens(part), plain, part)
        status, _, reply = self.server.request("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "part_of_tomorrow"}]}]})
        self.assertEqual((status, reply["error"]["param"]), (400, "input[0].content[0].type"))

    def test_input_tokens_are_those_of_the_answer(self):
        body = {"input": "hi", "instructions": "Be brief."}
        counted = self.server.post("/v1/responses/input_tokens", body)
        self.assertEqual(counted["object"], "response.input_tokens")
        self.assertEqual(counted["input_tokens"], self.server.post("/v1/responses", {**body, **self.ASK})["usage"]["input_tokens"])

    def test_a_conversation_is_compacted(self):
        talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
        reply = self.server.post("/v1/responses/compact", {"input": talk, "max_output_tokens": 200, "temperature": 0, "thinking": False})
        self.assertEqual((reply["object"], reply["output"][0], reply["output"][-1]["type"]), ("response.compaction", talk[0], "compaction"))
        summary = reply["output"][-1]["encrypted_content"]
        self.assertGreater(len(summary), len("dsv4:"))
        self.server.post("/v1/responses", {"input": [*reply["output"], {"role": "user", "content": "go on"}], **self.ASK})
        for stream in (False, True):
            body = {"input": [*talk, {"type": "compaction_trigger"}], "max_output_tokens": 200, "temperature": 0, "thinking": False}
            if stream:
                events = self.server.stream("/v1/responses", body)
                output = events[-1][1]["response"]["output"]
                self.assertIn("response.output_item.done", [name for name, _ in events])
            else:
                output = self.server.post("/v1/responses", body)["output"]
            self.assertEqual([(item["type"], item["encrypted_content"]) for item in output], [("compaction", summary)])
        # Without reasoning, which could use up all tokens of the summary; one that is cut says so.
        reply = self.server.post("/v1/responses/compact", {"input": talk, "max_output_tokens": 3, "temperature": 0, "reasoning": {"effort": "high"}})
        self.assertGreater(len(reply["output"][-1]["encrypted_content"]), len("dsv4:"))
        self.assertEqual(reply["incomplete_details"], {"reason": "max_output_tokens"})
        status, _, reply = self.server.request("POST", "/v1/responses", {"input": [{"type": "compaction_trigger"}, *talk]})
        self.assertEqual(status, 400)


if __name__ == "__main__":
    unittest.main()
