"""The requests of agents (Claude Code, Codex) and SDKs as recorded bodies, over plain HTTP: accepted, answered in their shape, reused."""

import json
import pathlib
import unittest

from server_process import Server
from server_testing import SharedServer

SESSIONS = json.loads((pathlib.Path(__file__).parents[1] / "fixtures" / "agent-sessions.json").read_text())
SHAPES = json.loads((pathlib.Path(__file__).parents[1] / "fixtures" / "client-shapes.json").read_text())
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.",
         "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"*** Begin Patch\" LF /[^\\n]{1,8}/ LF\n%import common.LF"}}
SEARCH = {"type": "namespace", "name": "mcp__docs", "description": "Docs", "tools": [
    {"type": "function", "name": "search", "parameters": {"type": "object", "properties": {"q": {"enum": ["x", "y"]}}, "required": ["q"],
                                                          "additionalProperties": False}}]}


def body(base, change, **fields):
    merged = {**SHAPES["bases"][base]["body"], **change, **fields}
    return {name: value for name, value in merged.items() if value is not None}


class Agents(SharedServer):
    def test_every_recorded_request_is_answered(self):
        for shape in SHAPES["cases"]:
            api = SHAPES["bases"][shape["base"]]["api"]
            limit = "max_output_tokens" if api == "responses" else "max_tokens"
            with self.subTest(shape=shape["name"]):
                events = self.server.stream(PATHS[api], body(shape["base"], shape["change"], **{limit: 2}))
                last = events[-1][0] or events[-1][1]
                self.assertIn(last, ("message_stop", "response.incomplete", "response.completed", "[DONE]"), events[-1])

    def test_a_custom_tool_is_called_with_a_text(self):
        request = body("codex", {}, input="Go.", tools=[PATCH, SEARCH], tool_choice={"type": "custom", "name": "apply_patch"}, thinking=False,
                       max_output_tokens=120, seed=1, parallel_tool_calls=False)
        events = [event for _, event in self.server.stream("/v1/responses", request)]
        item = next(event["item"] for event in events if event["type"] == "response.output_item.done")
        self.assertEqual((item["type"], item["name"]), ("custom_tool_call", "apply_patch"))
        self.assertNotIn("arguments", item)
        deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
        self.assertEqual("".join(deltas), item["input"])
        self.assertRegex(item["input"], r"\A\*\*\* Begin Patch\n[^\n]{1,8}\n\Z")  # The tool's grammar.
        whole = self.server.post("/v1/responses", {**request, "stream": False})
        if whole["status"] == "completed":
            self.assertEqual(whole["output"][0]["input"], item["input"])
            # The model's text comes back as it was: all of the earlier prompt is reused.
            call = whole["output"][0]
            history = [{"role": "user", "content": "Go."}, call, {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "ok"}]
            again = self.server.post("/v1/responses", {**request, "input": history, "max_output_tokens": 1, "tool_choice": "auto"})
            self.assertGreaterEqual(again["usage"]["input_tokens_details"]["cached_tokens"], whole["usage"]["input_tokens"])

    def test_a_call_in_a_namespace_goes_back_in_it(self):
        request = body("codex", {}, input="Go.", tools=[PATCH, SEARCH], thinking=False, max_output_tokens=200, parallel_tool_calls=False,
                       tool_choice={"type": "function", "namespace": "mcp__docs", "name": "search"})
        item = self.server.post("/v1/responses", {**request, "stream": False})["output"][0]
        self.assertEqual((item["type"], item["namespace"], item["name"]), ("function_call", "mcp__docs", "search"))
        self.assertIn(json.loads(item["arguments"]), ({"q": "x"}, {"q": "y"}))

    def test_a_session_of_claude_code_is_reused(self):
        messages, cached = [], []
        for turn in range(3):
            messages.append({"role": "user", "content": f"Question {turn}: " + "what is the capital of France? " * 20})
            system = [{"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={turn};"},
                      {"type": "text", "text": "You are Claude Code. " * 20}]
            reply = self.server.post("/v1/messages", body("claude_code", {}, system=system, messages=messages, max_tokens=4, seed=turn,
                                                          thinking={"type": "disabled"}))
            usage = reply["usage"]
            cached.append((usage["cache_read_input_tokens"], usage["input_tokens"] + usage["cache_read_input_tokens"]))
            messages.append({"role": "assistant", "content": reply["content"]})
        for (_, before), (reused, _) in zip(cached, cached[1:]):
            self.assertGreaterEqual(reused, 0.99 * before, cached)


class Sessions(unittest.TestCase):
    def test_every_request_reuses_the_one_before(self):
        with Server("--context", 16384, "--alias", "*") as server:
            self.replay(server)

    def replay(self, server):
        for agent, path, limit in (("claude_code", "/v1/messages", "max_tokens"), ("codex", "/v1/responses", "max_output_tokens")):
            before, shares = 0, []
            for request in SESSIONS[agent]["requests"]:
                usage = server.post(path, {**SESSIONS[agent]["common"], **request, "stream": False, limit: 1, "seed": 1})["usage"]
                cached = usage.get("cache_read_input_tokens", usage.get("input_tokens_details", {}).get("cached_tokens"))
                if before:
                    shares.append(cached / before)
                before = usage["input_tokens"] + (cached if agent == "claude_code" else 0)
            print(f"{agent}: {len(shares) + 1} requests, {before} tokens at the end, at least {100 * min(shares):.2f} % of the earlier prompt reused")
            self.assertGreaterEqual(len(shares), 4)
            self.assertGreaterEqual(min(shares), 0.99, agent)


if __name__ == "__main__":
    unittest.main()
