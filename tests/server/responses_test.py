"""OpenAI responses over plain HTTP: streams against whole answers, tools, schemas, items."""

import json
import unittest

from server_testing import (
    ARGUMENTS,
    FORMAT,
    QUESTION,
    STRICT,
    STRICT_TIME,
    TICKET,
    TICKET_QUESTION,
    SharedServer,
    fits_shape,
)


class Responses(SharedServer):
    def test_a_stream_ends_with_the_whole_answer(self):
        flat = {"type": "function", **TICKET["function"]}
        wild = {"temperature": 1.5, "seed": 3, "max_output_tokens": 300}
        for request in ({"input": QUESTION[0]["content"]}, {"input": QUESTION, "thinking": False, "instructions": "Be brief."},
                        {"input": QUESTION, "max_output_tokens": 4}, {"input": QUESTION, **wild, "text": {"format": {"name": "x", **FORMAT}}},
                        {"input": QUESTION, **wild, "tools": [{"type": "function", **STRICT}], "tool_choice": "required", "thinking": False},
                        {"input": TICKET_QUESTION, "tools": [flat], "thinking": False}):
            with self.subTest(request=request):
                request = {"temperature": 0, **request}
                whole = self.server.post("/v1/responses", request)
                events = self.server.stream("/v1/responses", request)
                self.assertEqual([event["sequence_number"] for _, event in events], list(range(len(events))))
                last = events[-1][1]
                self.assertEqual(last["type"], "response." + whole["status"])
                for document in (whole, last["response"]):
                    for item in document["output"]:
                        item.pop("id")
                        item.pop("call_id", None)
                    for name in ("id", "created_at", "completed_at", "usage"):
                        document.pop(name)
                self.assertEqual(last["response"], whole)
                deltas = "".join(event["delta"] for _, event in events if event["type"] == "response.output_text.delta")
                texts = [part["text"] for item in whole["output"] if item["type"] == "message" for part in item["content"]]
                self.assertEqual(deltas, "".join(texts))

    def test_outputs_and_strict_tools_satisfy_their_schema(self):
        allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "search_ticket"}]}
        tools = [{"type": "function", **tool} for tool in (STRICT_TIME, STRICT)]
        for seed in range(4):
            request = {"input": QUESTION, "temperature": 1.5, "seed": seed, "thinking": False}
            reply = self.server.post("/v1/responses", {**request, "text": {"format": {"name": "x", **FORMAT}}})
            self.assertTrue(fits_shape(json.loads(reply["output"][-1]["content"][0]["text"])), reply)
            reply = self.server.post("/v1/responses", {**request, "tools": tools, "tool_choice": allowed})
            self.assertEqual({item["name"] for item in reply["output"]}, {"search_ticket"})
            self.assertTrue(all(fits_shape(json.loads(item["arguments"])) for item in reply["output"]), reply)
        for change, param in (({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"), ({"text": {"format": {"type": "x"}}}, "text.format.type"),
                              ({"text": {"format": {"name": "x", "type": "json_schema", "schema": {"not": {}}}}}, "text.format.schema"),
                              ({"tools": [{"type": "function", **STRICT, "parameters": {"not": {}}}]}, "tools[0].parameters")):
            status, _, reply = self.server.request("POST", "/v1/responses", {"input": "x", **change})
            self.assertEqual((status, reply["error"]["param"]), (400, param), reply)

    def test_items_become_the_prompt_of_the_other_dialect(self):
        items = [{"role": "user", "content": [{"type": "input_text", "text": TICKET_QUESTION[0]["content"]}]},
                 {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]},
                 {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
                 {"type": "function_call", "call_id": "c1", "name": "search_ticket", "arguments": json.dumps(ARGUMENTS)},
                 {"type": "function_call_output", "call_id": "c1", "output": "rain"}]
        reply = self.server.post("/v1/responses", {"input": items, "instructions": "A", "max_output_tokens": 1,
                                                   "tools": [{"type": "function", **TICKET["function"]}]})
        theirs = {"messages": [{"role": "system", "content": "A"}, *TICKET_QUESTION,
                               {"role": "assistant", "reasoning_content": "hm", "content": "I look.", "tool_calls": [
                                   {"id": "c1", "type": "function", "function": {"name": "search_ticket", "arguments": json.dumps(ARGUMENTS)}}]},
                               {"role": "tool", "tool_call_id": "c1", "content": "rain"}], "tools": [TICKET]}
        self.assertEqual(reply["usage"]["input_tokens"], self.server.post("/tokenize", theirs)["count"])

    def test_what_is_not_kept_is_refused(self):
        for field, value, wanted in (("previous_response_id", "resp_1", 404), ("background", True, 400)):
            status, _, reply = self.server.request("POST", "/v1/responses", {"input": "x", field: value})
            self.assertEqual((status, reply["error"]["param"]), (wanted, field))


if __name__ == "__main__":
    unittest.main()
