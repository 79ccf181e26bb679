"""Requests as others' clients send them, from public reports: each row is a kind of request, and what must come of it."""

import json
import unittest

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


if __name__ == "__main__":
    unittest.main()
