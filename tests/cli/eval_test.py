"""dsv4 eval: figures beside those of the logits that `dsv4 logits` writes, comparisons, bounds, mistakes."""

import json
import math
import pathlib
import struct
import tempfile
import unittest

from dsv4_process import dsv4, dsv4_json, read_npy

TEXTS = ["The quick brown fox jumps over the lazy dog.", "What is the capital of France? Paris is the capital of France.", "1, 2, 3, 5, 8"]


class Eval(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))

    def lines(self, name, *lines):
        path = self.folder / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def logprobs(self, ids):
        """Log-probabilities of each token behind the first, by `dsv4 logits`."""
        (self.folder / "ids.json").write_text(json.dumps(ids))
        output = self.folder / "logits.npy"
        self.assertEqual(dsv4("logits", "--tokens", self.folder / "ids.json", "--output", output).returncode, 0)
        (_, width), data = read_npy(output)
        found = []
        for position in range(1, len(ids)):
            row = struct.unpack_from(f"<{width}f", data, 4 * width * (position - 1))
            highest = max(row)
            found.append(row[ids[position]] - highest - math.log(math.fsum(math.exp(x - highest) for x in row)))
        return found

    def ids(self, text, bos=True):
        line = json.loads(dsv4("tokenize", "--json", text).stdout)
        return ([0] if bos else []) + line["ids"]

    def test_perplexity_is_that_of_the_logits(self):
        data = self.lines("texts.jsonl", *({"text": text} for text in TEXTS))
        written = self.folder / "logprobs.jsonl"
        report = dsv4_json("eval", "perplexity", "--data", data, "--json", "-q", "--write-logprobs", written, "--html", self.folder / "page.html",
                           "--output", self.folder / "out.jsonl")
        lines = [json.loads(line) for line in written.read_text().splitlines()]
        logprobs = [logprob for line in lines for logprob in self.logprobs(line["tokens"])]
        mean = math.fsum(logprobs) / len(logprobs)
        self.assertEqual(report["tokens"], len(logprobs))
        self.assertAlmostEqual(report["nll_per_token"]["value"], -mean, delta=1e-5)
        self.assertAlmostEqual(report["perplexity"]["value"], math.exp(-mean), delta=1e-3)
        num_bytes = sum(len(text.encode()) for text in TEXTS)
        self.assertAlmostEqual(report["bits_per_byte"]["value"], -math.fsum(logprobs) / num_bytes / math.log(2), delta=1e-5)
        self.assertLess(report["perplexity"]["low"], report["perplexity"]["value"])
        self.assertGreater(report["perplexity"]["high"], report["perplexity"]["value"])
        page = (self.folder / "page.html").read_text()
        self.assertIn("Surprise along the texts", page)
        self.assertIn("<svg", page)
        # A measurement says what it came to, and praises nothing as long as nobody set a bound.
        self.assertRegex(page, r'<p class="verdict none">perplexity \d+\.\d+')
        for word in ("Nothing found", "passed", 'class="badge', 'class="pass"'):
            self.assertNotIn(word, page)
        for bound, verdict, words in (("1e9", "pass", "within the bounds"), ("1.01", "finding", "not within the bounds")):
            dsv4("eval", "perplexity", "--data", data, "-q", "--max-perplexity", bound, "--html", self.folder / "bounded.html")
            self.assertRegex((self.folder / "bounded.html").read_text(), rf'<p class="verdict {verdict}">perplexity \d+\.\d+[^<]*: {words}</p>')
        self.assertEqual(len((self.folder / "out.jsonl").read_text().splitlines()), len(TEXTS))
        # Compared with itself by way of the file: no divergence.
        same = dsv4_json("eval", "perplexity", "--data", written, "--json", "-q", "--max-kl", "1e-4", "--min-top1", "1")
        self.assertLess(same["kl"]["value"], 1e-5)
        self.assertEqual(same["top1_agreement"]["value"], 1)
        self.assertAlmostEqual(same["perplexity_ratio"]["value"], 1, delta=1e-4)
        # Other numerics differ, in memory and by way of the file alike.
        other = dsv4_json("eval", "perplexity", "--data", data, "--json", "-q", "--against-numerics", "plain")
        self.assertGreater(other["kl"]["value"], 0)
        self.assertGreater(other["top1_agreement"]["value"], 0.5)
        refused = dsv4("eval", "perplexity", "--data", written, "--numerics", "plain", "-q", "--max-kl", "1e-12")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("not kept: kl is", refused.stdout)

    def test_only_the_completion_is_scored_and_windows_cut(self):
        line = {"prompt": "The capital of France is", "completion": " Paris, the city."}
        data = self.lines("pairs.jsonl", line)
        report = dsv4_json("eval", "perplexity", "--data", data, "--json", "-q", "--bos", "off", "--write-logprobs", self.folder / "w.jsonl")
        written = json.loads((self.folder / "w.jsonl").read_text())
        expected = self.logprobs(written["tokens"])[written["first"] - 1:]
        self.assertEqual(report["tokens"], len(expected))
        self.assertAlmostEqual(report["nll_per_token"]["value"], -math.fsum(expected) / len(expected), delta=1e-5)
        # Pieces of three tokens, each with the one in front of it.
        text = self.lines("text.jsonl", {"text": TEXTS[0]})
        dsv4_json("eval", "perplexity", "--data", text, "--json", "-q", "--write-logprobs", self.folder / "whole.jsonl")
        report = dsv4_json("eval", "perplexity", "--data", text, "--json", "-q", "--window", "3")
        ids = json.loads((self.folder / "whole.jsonl").read_text())["tokens"]
        expected = []
        for begin in range(1, len(ids), 3):
            piece = ids[begin - 1:begin + 3]
            expected += self.logprobs(piece)
        self.assertEqual(report["tokens"], len(ids) - 1)
        self.assertAlmostEqual(report["nll_per_token"]["value"], -math.fsum(expected) / len(expected), delta=1e-5)

    def test_log_probabilities_of_others(self):
        data = self.lines("text.jsonl", {"text": TEXTS[1]})
        dsv4_json("eval", "perplexity", "--data", data, "--json", "-q", "--write-logprobs", self.folder / "own.jsonl")
        own = json.loads((self.folder / "own.jsonl").read_text())
        # As vLLM writes them.
        entries = [None] + [{str(id): {"logprob": logprob} for id, logprob in top} for top in own["top"][1:]]
        for entry, id, logprob in zip(entries[1:], own["tokens"][1:], own["logprobs"][1:]):
            entry[str(id)] = {"logprob": logprob}
        vllm = self.lines("vllm.jsonl", {"prompt_token_ids": own["tokens"], "prompt_logprobs": entries})
        report = dsv4_json("eval", "perplexity", "--data", vllm, "--json", "-q", "--max-kl", "1e-4", "--min-top1", "1")
        self.assertAlmostEqual(report["perplexity_ratio"]["value"], 1, delta=1e-4)
        # As a chat completion has them: those of an answer that `run` gives, from its own log-probabilities.
        answer = dsv4_json("run", "--json", "--thinking-mode", "chat", "--temperature", "0", "-n", "12", "--logprobs", "5", "What is the capital of France?")
        content = [{"token": item["token"], "bytes": item.get("bytes"), "logprob": item["logprob"],
                    "top_logprobs": item["top_logprobs"]} for item in answer["logprobs"]]
        chat = self.lines("chat.jsonl", {"messages": [{"role": "user", "content": "What is the capital of France?"}],
                                         "choices": [{"logprobs": {"content": content}}]})
        report = dsv4_json("eval", "perplexity", "--data", chat, "--json", "-q", "--max-kl", "1e-3", "--min-top1", "1")
        self.assertEqual(report["tokens"], len(content))
        self.assertLess(report["logprob_change"]["value"], 1e-4)

    def test_choices(self):
        questions = [{"prompt": "The capital of France is", "choices": [" Paris", " the Moon"], "answer": 0},
                     {"prompt": "2 + 2 = ", "choices": ["4", "5", "five"], "answer": 0}]
        data = self.lines("choices.jsonl", *questions)
        report = dsv4_json("eval", "choice", "--data", data, "--json", "-q", "--bos", "off", "--output", self.folder / "out.jsonl")
        lines = [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]
        right = 0
        for question, line in zip(questions, lines):
            prompt = question["prompt"]
            for choice, logprob in zip(question["choices"], line["logprobs"]):
                ids = self.ids(prompt + choice, bos=False)
                first = len(self.ids(prompt.rstrip(), bos=False))
                self.assertAlmostEqual(logprob, math.fsum(self.logprobs(ids)[first - 1:]), delta=1e-4)
            chosen = line["logprobs"].index(max(line["logprobs"]))
            self.assertEqual(chosen, line["chosen"])
            right += chosen == question["answer"]
        self.assertEqual(report["accuracy"]["value"], right / 2)
        half = self.lines("half.jsonl", questions[0], questions[0] | {"answer": 1})
        for bound, code in (("0.5", 0), ("0.6", 1)):
            self.assertEqual(dsv4("eval", "choice", "--data", half, "-q", "--min-accuracy", bound).returncode, code)

    def test_answers_calls_and_needles(self):
        data = self.lines("questions.jsonl", {"prompt": "What is the capital of France?", "answer": ["Paris", "a"]},
                          {"prompt": "Say 42.", "answer": "x{3}", "match": "regex"})
        report = dsv4_json("eval", "generation", "--data", data, "--json", "-q", "-n", "24", "--output", self.folder / "out.jsonl")
        self.assertEqual(report["questions"], 2)
        first = json.loads((self.folder / "out.jsonl").read_text().splitlines()[0])
        self.assertEqual(first["right"], "Paris" in first["content"] or "a" in first["content"])
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
        data = self.lines("tools.jsonl", {"prompt": "Call f.", "tools": [tool], "expect": []})
        report = dsv4_json("eval", "tools", "--data", data, "--json", "-q", "-n", "24")
        self.assertEqual(report["requests"], 1)
        self.assertIn("trigger_f1", report)
        data = self.lines("needles.jsonl", *({"haystack": "The grass is green. ", "needle": "The code is 7341.", "question": "What is the code?",
                                              "answer": "7341", "tokens": 64, "depth": depth} for depth in (0.0, 0.5)))
        text = dsv4("eval", "needle", "--data", data, "-q", "-n", "8")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("Found, by length and depth", text.stdout)

    def test_mistakes(self):
        good = self.lines("good.jsonl", {"text": TEXTS[0]})
        for lines, message in [([{"txt": "x"}], "line 1: wanted one of text, prompt, messages or tokens"),
                               ([{"text": TEXTS[0]}, {"tokens": [1, -4]}], "line 2: tokens: got array, wanted ids of 0.."),
                               ([{"tokens": [5]}], "1 token, none of which has one in front of it"),
                               ([{"tokens": [5, 6], "logprobs": [None]}], "logprobs: got array, wanted lists of 2"),
                               ([], "no lines")]:
            process = dsv4("eval", "perplexity", "--data", self.lines("bad.jsonl", *lines), "-q")
            self.assertEqual(process.returncode, 3, process.stderr)
            self.assertIn(message, process.stderr)
        self.assertEqual(dsv4("eval", "choice", "--data", good, "-q").returncode, 3)
        self.assertEqual(dsv4("eval", "choice", "--data", good, "--max-kl", "1").returncode, 2)
        self.assertEqual(dsv4("eval", "perplexity", "--data", self.folder / "none.jsonl").returncode, 3)
        for option in ("--output", "--html", "--write-logprobs"):
            for path, message in ((good, "wanted a file of its own"), (self.folder, "a directory"), (self.folder / "no" / "x", "is no directory")):
                process = dsv4("eval", "perplexity", "--data", good, "-q", option, path)
                self.assertEqual((process.returncode, process.stdout), (3, ""), "before the work")
                self.assertIn(f"{option}: {path}: ", process.stderr)
                self.assertIn(message, process.stderr)
        self.assertEqual(json.loads(good.read_text()), {"text": TEXTS[0]})
        nothing = dsv4("eval", "perplexity", "--data", good, "-q", "--max-kl", "1")
        self.assertEqual(nothing.returncode, 1)
        self.assertIn("nothing to compare with", nothing.stdout)


if __name__ == "__main__":
    unittest.main()
