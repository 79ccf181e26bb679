"""models/tiny-v41, the trained small model of V4.1: it knows a capital, calls a tool, ends by itself, on every backend of a CPU."""

import json
import pathlib
import tempfile
import unittest

from dsv4_process import TINY, dsv4_json

TINY_V41 = TINY.parent / "tiny-v41"
TICKET = {"type": "function", "function": {"name": "get_ticket", "description": "Get the ticket.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}, "amount": {"type": "number"}},
    "required": ["city", "amount"]}}}
BACKENDS = ("reference", "cpu")


def ask(backend, *arguments):
    return dsv4_json("run", "-m", TINY_V41, "--backend", backend, "--temperature", 0, "--json", "-n", 200, *arguments)


class TinyV41(unittest.TestCase):
    def test_it_knows_capitals_and_ends_by_itself(self):
        for backend in BACKENDS:
            for mode in ("chat", "thinking"):
                for country, capital in (("France", "Paris"), ("Norway", "Oslo"), ("Japan", "Tokyo")):
                    with self.subTest(backend=backend, mode=mode, country=country):
                        reply = ask(backend, "--thinking-mode", mode, f"What is the capital of {country}?")
                        self.assertEqual(reply["finish_reason"], "stop")
                        self.assertEqual(reply["content"], f"The capital of {country} is {capital}.")
                        self.assertEqual(bool(reply["reasoning_content"]), mode == "thinking")

    def test_it_calls_a_tool(self):
        with tempfile.TemporaryDirectory() as folder:
            tools = pathlib.Path(folder) / "tools.json"
            tools.write_text(json.dumps([TICKET]))
            for backend in BACKENDS:
                with self.subTest(backend=backend):
                    reply = ask(backend, "--thinking-mode", "chat", "--tools", tools, "Get the ticket with city Turin, amount 25.75, please.")
                    self.assertEqual(reply["finish_reason"], "tool_calls")
                    (call,) = reply["tool_calls"]
                    self.assertEqual(call["function"]["name"], "get_ticket")
                    self.assertEqual(json.loads(call["function"]["arguments"]), {"city": "Turin", "amount": 25.75})


if __name__ == "__main__":
    unittest.main()
