"""The chat format of V4.1 over plain HTTP, on the small model's weights with a tokenizer that has V4.1's marker. It covers prompts,
efforts, and calls that a grammar makes the model write, streamed in every dialect that can ask for one."""

import json
import shutil
import unittest

from dsv4_process import dsv4_json
from server_process import Server
from server_testing import ANTHROPIC_STRICT, CHAT, QUESTION, STRICT, fits_shape, joined, v41_folder

WILD = {"temperature": 1.5, "thinking": {"type": "disabled"}}
LINE = "Reasoning Effort: {} (range 1-100, the higher the value, the more thorough the reasoning)\n\n"


class V41(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = v41_folder()
        cls.server = Server("--max-sequences", 4, "--context", 4096, model=cls.folder)

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        shutil.rmtree(cls.folder)

    def prompt(self, body, api="chat"):
        ids = self.server.post(f"/tokenize?api={api}", body)["tokens"]
        return self.server.post("/detokenize", {"tokens": ids})["prompt"]

    def test_the_format_is_named(self):
        self.assertEqual(self.server.request("GET", "/version")[2]["chat_revision"], "v4.1")
        self.assertIn("v4.1", self.server.request("GET", "/props")[2]["chat_template"])
        facts = dsv4_json("-m", self.folder, "inspect", "--json")["tokenizer"]
        self.assertEqual((facts["chat_revision"], "<｜System｜>" in facts["special_tokens"], "<｜System｜>" in facts["stop_tokens"]), ("v4.1", True, True))

    def test_prompts(self):
        start = "<｜begin▁of▁sentence｜><｜System｜>"
        talk = [{"role": "system", "content": "s"}, *QUESTION, {"role": "assistant", "content": "a"}, {"role": "system", "content": "late"}]
        turns = f"<｜User｜>{QUESTION[0]['content']}<｜Assistant｜></think>a<｜end▁of▁sentence｜><｜System｜>late<｜Assistant｜>"
        for effort, number in (({}, 75), ({"reasoning_effort": "low"}, 50), ({"reasoning_effort": 33}, 33), ({"reasoning_effort": "ultra"}, 100)):
            self.assertEqual(self.prompt({"messages": talk, **effort}), start + LINE.format(number) + "s" + turns + "<think>")
        self.assertEqual(self.prompt({"messages": talk, "reasoning_effort": "none"}), start + "s" + turns + "</think>")
        self.assertEqual(self.prompt({"system": "s", "messages": talk[1:], "output_config": {"effort": 7}}, "messages"), start + LINE.format(7) + "s" + turns + "<think>")
        self.assertEqual(self.prompt({"instructions": "s", "input": talk[1:], "reasoning": {"effort": "max"}}, "responses"),
                         start + LINE.format(100) + "s" + turns + "<think>")
        status, _, reply = self.server.request("POST", CHAT, {"messages": QUESTION, "reasoning_effort": 101})
        self.assertEqual(status, 400)
        self.assertIn("or a number from 1 to 100", reply["error"]["message"])

    def test_pictures_are_refused_by_their_place(self):
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
        result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}, block]}
        call = {"type": "tool_use", "id": "t", "name": "f", "input": {"content": [{"type": "image"}]}}
        for path, body, place in (
                (CHAT, {"messages": [*QUESTION, {"role": "user", "content": [{"type": "text", "text": "x"}, picture]}]}, "messages[1].content[1]"),
                ("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]},
                                                               {"role": "user", "content": [result]}]}, "messages[2].content[0].content[1]"),
                ("/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "input[0].content[0]"),
                ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": "data:,"}]}]},
                 "input[0].output[0]"),
                ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["AAAA"]}]}, "messages[0].images[0]"),
                ("/api/generate", {"prompt": "x", "images": ["AAAA"]}, "images[0]")):
            status, _, reply = self.server.request("POST", path, body)
            text = json.dumps(reply)
            self.assertEqual(status, 400, (path, text))
            self.assertIn(f"{place}: a picture; the model reads pictures and dsv4 does not yet, wanted text", text)
        # Arguments of a call are the client's own.
        done = {"type": "tool_result", "tool_use_id": "t", "content": "x"}
        self.server.post("/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": [call]},
                                                                       {"role": "user", "content": [done]}]})

    def check(self, name, arguments):
        self.assertEqual(name, "search_ticket")
        self.assertTrue(fits_shape(json.loads(arguments)), arguments)

    def test_calls_of_chat_completions(self):
        for seed in range(4):
            request = {"messages": QUESTION, **WILD, "seed": seed, "max_tokens": 300, "tools": [{"type": "function", "function": STRICT}], "tool_choice": "required",
                       "return_token_ids": True}
            reply = self.server.post(CHAT, request)["choices"][0]
            written = self.server.post("/detokenize", {"tokens": reply["token_ids"]})["prompt"]
            self.assertTrue(written.startswith('\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="search_ticket">\n<｜DSML｜ parameter name="'), written)
            self.assertTrue(written.removesuffix("<｜end▁of▁sentence｜>").endswith("</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>"), written)
            message, reason, _ = joined(self.server.stream(CHAT, request))
            self.assertEqual((message["content"], reason), ("", "tool_calls"))
            self.assertEqual(message["tool_calls"], [{"name": call["function"]["name"], "arguments": call["function"]["arguments"]} for call in reply["message"]["tool_calls"]])
            for call in message["tool_calls"]:
                self.check(call["name"], call["arguments"])
            # Sent back, the calls are the tokens that the model wrote.
            history = [*QUESTION, reply["message"], *({"role": "tool", "tool_call_id": call["id"], "content": "none"} for call in reply["message"]["tool_calls"])]
            self.assertIn(written.removesuffix("<｜end▁of▁sentence｜>") + "<｜end▁of▁sentence｜><｜User｜><tool_result>none</tool_result>",
                          self.prompt({"messages": history, "thinking": False}))

    def test_calls_of_messages(self):
        request = {"messages": QUESTION, **WILD, "seed": 5, "max_tokens": 300, "tools": [ANTHROPIC_STRICT], "tool_choice": {"type": "any"}}
        calls = [block for block in self.server.post("/v1/messages", request)["content"] if block["type"] == "tool_use"]
        parts = {}
        for _, event in self.server.stream("/v1/messages", request):
            if event["type"] == "content_block_delta":
                self.assertEqual(event["delta"]["type"], "input_json_delta")
                parts[event["index"]] = parts.get(event["index"], "") + event["delta"]["partial_json"]
        self.assertEqual([json.loads(part) for part in parts.values()], [call["input"] for call in calls])
        self.check(calls[0]["name"], json.dumps(calls[0]["input"]))

    def test_calls_of_responses(self):
        request = {"input": QUESTION, **WILD, "seed": 6, "max_output_tokens": 300, "tool_choice": "required",
                   "tools": [{"type": "namespace", "name": "desk", "tools": [{"type": "function", **STRICT}]}]}
        calls = [item for item in self.server.post("/v1/responses", request)["output"] if item["type"] == "function_call"]
        self.assertEqual({(call["namespace"], call["name"]) for call in calls}, {("desk", "search_ticket")})
        events = [event for _, event in self.server.stream("/v1/responses", request)]
        deltas = "".join(event["delta"] for event in events if event["type"] == "response.function_call_arguments.delta")
        self.assertEqual(deltas, "".join(call["arguments"] for call in calls))
        self.check(calls[0]["name"], calls[0]["arguments"])
        self.assertIn('"name": "desk::search_ticket"', self.prompt(request, "responses"))

    def test_a_tool_in_a_namespace_has_the_description_of_both(self):
        for space, own, both in (("Desk.", "Finds.", "Desk.\\nFinds."), ("", "Finds.", "Finds."), ("Desk.", None, "Desk.\\n")):
            tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, **({"description": own} if own else {})}
            prompt = self.prompt({"input": QUESTION, "tools": [{"type": "namespace", "name": "desk", "description": space, "tools": [tool]}]}, "responses")
            self.assertIn('{"name": "desk::f", "description": "%s", "parameters": {"type": "object"}}' % both, prompt)

    def test_a_tool_that_a_search_finds_is_shown_behind_its_result(self):
        tools = [{"name": name, "description": "", "input_schema": {"type": "object"}, "defer_loading": name != "find"} for name in ("find", "g", "h")]
        messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "find", "input": {}}]},
                    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [{"type": "tool_reference", "tool_name": "g"}]}]}]
        request = {"messages": messages, "max_tokens": 8, "tools": tools}
        schema = '{"name": "%s", "description": "", "parameters": {"type": "object"}}'
        prompt = self.prompt(request, "messages")
        self.assertIn(f"### Available Tool Schemas\n\n{schema % 'find'}\n\nYou MUST", prompt)
        self.assertIn(f"<tool_result>g</tool_result><｜System｜>\n\n### Updated Tool Schemas\n\n{schema % 'g'}<｜Assistant｜>", prompt)
        self.assertNotIn(schema % "h", prompt)
        # A search that this server does not run can show none of them.
        hosted = {**request, "tools": [*tools, {"type": "tool_search_tool_regex_20251119", "name": "search"}]}
        self.assertIn(schema % "h", self.prompt(hosted, "messages"))

    def test_ollama_takes_words_for_efforts(self):
        for think, usage in ((False, 0), ("low", 1)):
            reply = self.server.post("/api/chat", {"model": self.server.model, "messages": QUESTION, "think": think, "stream": False, "options": {"num_predict": 3}})
            self.assertEqual("thinking" in reply["message"], bool(usage), reply)


if __name__ == "__main__":
    unittest.main(verbosity=2)
