"""models/tiny-v41, the trained small model of V4.1: it knows a capital, calls a tool, ends by itself, on every backend of a CPU."""

import json
import pathlib
import shutil
import tempfile
import unittest

from dsv4_process import TINY, dsv4, dsv4_json

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

    def test_numbers_of_config_json_alone_cost_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model"
            shutil.copytree(TINY_V41, model)
            config = json.loads((TINY_V41 / "config.json").read_text())
            config["text_config"]["n_routed_experts"] = 65536
            (model / "config.json").write_text(json.dumps(config))
            process = dsv4("run", "-m", model, "Hello")
            self.assertEqual(process.returncode, 3)
            self.assertRegex(process.stderr, "up to layer 0: .* 196584 missing ")

    def test_the_text_is_the_same_with_drafts_and_without(self):
        question = "Tell me a story about a cat and repeat it: cat dog cat dog cat dog."
        for sampling in (("--temperature", 0), ("--temperature", 1.5, "--top-p", 0.95, "--seed", 3), ("--temperature", 1.2, "--top-k", 30, "--seed", 1),
                         ("--temperature", 1.3, "--min-p", 0.02, "--seed", 1), ("--temperature", 1, "--repetition-penalty", 1.3, "--seed", 2),
                         ("--temperature", 1, "--presence-penalty", 0.5, "--frequency-penalty", 0.4, "--seed", 2)):
            with self.subTest(sampling=sampling):
                texts = {dsv4_json("run", "-m", TINY_V41, "--backend", "cpu", "--json", "-n", 120, "--speculation", drafter, *sampling, question)["text"]
                         for drafter in ("off", "suffix", "suffix:8", "auto")}
                self.assertEqual(len(texts), 1)

    def test_ranks_and_experts_on_disk_say_what_one_process_says(self):
        question = "What is the capital of Norway?"
        wanted = ask("cpu", question)["text"]
        for options in (("--experts", "disk"), *(("--ranks", ranks, "--placement", placement) for ranks in (2, 3)
                                                 for placement in ("pipeline", "expert", "expert,sequences", "tensor"))):
            with self.subTest(options=options):
                self.assertEqual(ask("cpu", *options, question)["text"], wanted)

    def test_entries_are_not_divided_beside_candidates(self):
        for placement in ("expert,entries", "tensor,entries"):
            process = dsv4("run", "-m", TINY_V41, "--backend", "cpu", "--ranks", 2, "--placement", placement, "hi")
            self.assertEqual(process.returncode, 2, process.stderr)
            self.assertIn(f"placement {placement}: this model's candidate blocks are chosen among all entries", process.stderr)

    def test_stages_are_cut_between_layers_that_share_rows(self):
        process = dsv4("run", "-m", TINY_V41, "--backend", "cpu", "--ranks", 8, "--placement", "pipeline", "hi")
        self.assertEqual(process.returncode, 2, process.stderr)
        self.assertIn("placement pipeline: got 8 stages, want at most", process.stderr)

    def test_a_batch(self):
        requests = [{"custom_id": country, "method": "POST", "url": "/v1/chat/completions",
                     "body": {"model": "tiny-v41", "temperature": 0, "messages": [{"role": "user", "content": f"What is the capital of {country}?"}]}}
                    for country in ("France", "Japan", "Peru")]
        with tempfile.TemporaryDirectory() as folder:
            questions, answers = pathlib.Path(folder) / "in.jsonl", pathlib.Path(folder) / "out.jsonl"
            questions.write_text("".join(json.dumps(request) + "\n" for request in requests))
            self.assertEqual(dsv4("batch", "-m", TINY_V41, "--backend", "cpu", questions, answers).returncode, 0)
            said = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in map(json.loads, answers.read_text().splitlines())}
        self.assertEqual(said, {"France": "The capital of France is Paris.", "Japan": "The capital of Japan is Tokyo.", "Peru": "The capital of Peru is Lima."})


if __name__ == "__main__":
    unittest.main()
