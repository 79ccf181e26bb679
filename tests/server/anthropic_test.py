"""Anthropic messages over plain HTTP: streams against whole answers, tools, schemas, prompts and errors."""

import json
import unittest

from server_testing import (
    ANTHROPIC_STRICT,
    ARGUMENTS,
    FORMAT,
    QUESTION,
    TICKET,
    TICKET_QUESTION,
    WILD,
    SharedServer,
    fits_shape,
)


class Messages(SharedServer):
    def ask(self, **fields):
        return {"messages": QUESTION, "max_tokens": 100, "temperature": 0, **fields}

    @staticmethod
    def joined(events):
        message, blocks = None, []
        for name, event in events:
            if name != event["type"]:
                raise AssertionError(f"event {name} of type {event['type']}")
            if name == "message_start":
                message = event["message"]
            elif name == "content_block_start":
                blocks.append(event["content_block"])
            elif name == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                kind = delta["type"]
                if kind == "text_delta":
                    block["text"] += delta["text"]
                elif kind == "thinking_delta":
                    block["thinking"] += delta["thinking"]
                elif kind == "signature_delta":
                    block["signature"] = delta["signature"]
                else:
                    block["json"] = block.get("json", "") + delta["partial_json"]
            elif name == "content_block_stop" and "json" in blocks[event["index"]]:
                blocks[event["index"]]["input"] = json.loads(blocks[event["index"]].pop("json"))
            elif name == "message_delta":
                message.update(event["delta"])
                message["usage"] = event["usage"]
        message["content"] = blocks
        return message

    def test_a_stream_adds_up_to_the_whole_answer(self):
        tool = {"name": "search_ticket", "description": "Search a ticket.", "input_schema": TICKET["function"]["parameters"]}
        for request in (self.ask(), self.ask(thinking={"type": "disabled"}), self.ask(max_tokens=3),
                        self.ask(thinking={"type": "disabled"}, stop_sequences=["is"]),
                        self.ask(messages=TICKET_QUESTION, tools=[tool], thinking={"type": "disabled"}),
                        self.ask(**WILD, output_config={"format": FORMAT}), self.ask(**WILD, output_format=FORMAT),
                        self.ask(**WILD, tools=[ANTHROPIC_STRICT], tool_choice={"type": "any"}, thinking={"type": "disabled"})):
            with self.subTest(request=request):
                whole = self.server.post("/v1/messages", request)
                streamed = self.joined(self.server.stream("/v1/messages", request))
                for message in (whole, streamed):
                    del message["id"], message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]
                    for block in message["content"]:
                        block.pop("signature", None)
                        block.pop("id", None)
                self.assertEqual(streamed, whole)

    def test_outputs_and_strict_tools_satisfy_their_schema(self):
        for seed in range(4):
            reply = self.server.post("/v1/messages", self.ask(**{**WILD, "seed": seed}, output_config={"format": FORMAT}, thinking={"type": "disabled"}))
            self.assertTrue(fits_shape(json.loads(reply["content"][-1]["text"])), reply)
            choice = {"type": "tool", "name": "search_ticket", "disable_parallel_tool_use": True}
            reply = self.server.post("/v1/messages", self.ask(**{**WILD, "seed": seed}, tools=[ANTHROPIC_STRICT], tool_choice=choice,
                                                              thinking={"type": "disabled"}))
            self.assertEqual([block["type"] for block in reply["content"]], ["tool_use"])
            self.assertTrue(fits_shape(reply["content"][0]["input"]), reply)

    def test_a_thinking_budget_is_kept(self):
        whole = self.server.post("/v1/messages", self.ask())["content"]
        short = self.server.post("/v1/messages", self.ask(thinking={"type": "enabled", "budget_tokens": 3}))["content"]
        self.assertTrue(whole[0]["thinking"].startswith(short[0]["thinking"]))
        self.assertLess(len(short[0]["thinking"]), len(whole[0]["thinking"]))
        self.assertEqual(short[1]["type"], "text")

    def test_fields(self):
        reply = self.server.post("/v1/messages", self.ask(system="Be brief."))
        self.assertEqual([block["type"] for block in reply["content"]], ["thinking", "text"])
        self.assertEqual(reply["stop_reason"], "end_turn")
        count = self.server.post("/v1/messages/count_tokens", {"messages": QUESTION, "system": "Be brief."})["input_tokens"]
        usage = reply["usage"]
        self.assertEqual(usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"], count)
        stopped = self.server.post("/v1/messages", self.ask(thinking={"type": "disabled"}, stop_sequences=["is"]))
        self.assertEqual((stopped["stop_reason"], stopped["stop_sequence"]), ("stop_sequence", "is"))
        self.assertEqual(self.server.post("/v1/messages", self.ask(max_tokens=2))["stop_reason"], "max_tokens")

    def test_prompts_are_those_of_the_other_dialect(self):
        call = {"id": "toolu_1", "name": "search_ticket", "input": ARGUMENTS}
        mine = {"system": [{"type": "text", "text": "A"}, {"type": "text", "text": "B"}], "messages": [
            *TICKET_QUESTION,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "I look."},
                                              {"type": "tool_use", **call}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "rain"}, {"type": "text", "text": "So?"}]}],
            "tools": [{"name": "search_ticket", "description": "Search a ticket.", "input_schema": TICKET["function"]["parameters"]}]}
        theirs = {"messages": [
            {"role": "system", "content": "A\n\nB"}, *TICKET_QUESTION,
            {"role": "assistant", "reasoning_content": "hm", "content": "I look.", "tool_calls": [
                {"id": "toolu_1", "type": "function", "function": {"name": "search_ticket", "arguments": json.dumps(ARGUMENTS)}}]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "rain"}, {"role": "user", "content": "So?"}], "tools": [TICKET]}
        self.assertEqual(self.server.post("/v1/messages/count_tokens", mine)["input_tokens"],
                         self.server.post("/tokenize", theirs)["count"])

    def test_errors_have_its_shape(self):
        bad = {**ANTHROPIC_STRICT, "input_schema": {"type": "object", "properties": {"a": {"type": "array", "$dynamicRef": "#x"}}}}
        for change, needle in (({"tools": [bad]}, "tools[0].input_schema: json schema, /properties/a/$dynamicRef"), ({"tools": [{**bad, "strict": 1}]}, "tools[0].strict"),
                               ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
                               ({"output_config": {"format": {"type": "yaml"}}}, "output_config.format.type"),
                               ({"output_config": {"format": {"type": "json_schema", "schema": {"type": "array", "$dynamicRef": "#x"}}}}, "output_config.format.schema: json schema, /$dynamicRef"),
                               ({"max_tokens": "x"}, "max_tokens"), ({"stop_sequences": [""]}, "stop_sequences: got an empty text, wanted at least one character"),
                               ({"stop_sequences": ["a"] * 17}, "stop_sequences: got 17 strings"), ({"messages": [{"role": "critic", "content": "x"}]}, "messages[0].role"),
                               ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
                               ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages[0].content[0].source")):
            status, _, reply = self.server.request("POST", "/v1/messages", self.ask(**change))
            self.assertEqual((status, reply["type"], reply["error"]["type"]), (400, "error", "invalid_request_error"))
            self.assertIn(needle, reply["error"]["message"])


if __name__ == "__main__":
    unittest.main()
