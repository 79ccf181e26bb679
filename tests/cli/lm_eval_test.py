"""lm-eval's multiple choice and perplexity over `dsv4 serve` equal those of `dsv4 eval` to 1e-4. Shown as skipped where lm-eval is not installed."""

import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI
except ImportError:
    print("skipped: lm-eval is not installed")
    sys.exit(77)

from dsv4_process import BINARY, TINY, dsv4_json

QUESTIONS = [
    {"prompt": "The capital of France is", "choices": [" Paris", " London", " a city in the south"], "answer": 0},
    {"prompt": "Question: What is 2 + 2?\nAnswer:", "choices": [" 3", " 4", " four"], "answer": 1},
    {"prompt": "Water is ", "choices": ["wet", "dry", "made of stone"], "answer": 0},
    {"prompt": "Café, naïve and", "choices": [" Straße", " résumé", " \u4f60\u597d"], "answer": 1},
]
TEXTS = ["The quick brown fox jumps over the lazy dog. It does so every day.", "One, two, three.\n\nFour: five; six?", "Ein Text auf Deutsch, mit Umlauten: äöü."]


def instance(kind, *arguments):
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0, metadata=("test", 0, 1))


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.server = subprocess.Popen([BINARY, "serve", "--port", "0", "-m", str(TINY)], stderr=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.server.stderr.close)
        cls.addClassCleanup(cls.server.wait)
        cls.addClassCleanup(cls.server.kill)
        line = ""
        while " at http" not in line:
            line = cls.server.stderr.readline()
            if not line:
                raise AssertionError("the server ended")
        cls.url = line.split(" at ")[1].split()[0]
        os.environ.setdefault("OPENAI_API_KEY", "none")
        os.environ["HF_HUB_OFFLINE"] = "1"
        cls.model = LocalCompletionsAPI(base_url=cls.url + "/v1/completions", model="tiny", tokenizer_backend="remote", batch_size=1, max_length=4096)

    def lines(self, name, lines):
        path = pathlib.Path(self.folder.name) / name
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    def test_multiple_choice(self):
        output = pathlib.Path(self.folder.name) / "out.jsonl"
        report = dsv4_json("eval", "choice", "--data", self.lines("choices.jsonl", QUESTIONS), "--bos", "off", "--json", "-q", "--output", output)
        ours = [json.loads(line) for line in output.read_text().splitlines()]
        right = 0
        worst = 0.0
        for question, line in zip(QUESTIONS, ours):
            requests = [instance("loglikelihood", question["prompt"], choice) for choice in question["choices"]]
            theirs = self.model.loglikelihood(requests, disable_tqdm=True)
            for (logprob, greedy), own, own_greedy in zip(theirs, line["logprobs"], line["is_greedy"]):
                self.assertAlmostEqual(logprob, own, delta=1e-4)
                worst = max(worst, abs(logprob - own))
                self.assertEqual(greedy, own_greedy)
            values = [logprob for logprob, _ in theirs]
            right += values.index(max(values)) == question["answer"]
        self.assertAlmostEqual(report["accuracy"]["value"], right / len(QUESTIONS), delta=1e-9)
        print(f"beside dsv4 eval: choices {worst:.1e}")

    def test_perplexity(self):
        output = pathlib.Path(self.folder.name) / "out.jsonl"
        report = dsv4_json("eval", "perplexity", "--data", self.lines("texts.jsonl", [{"text": text} for text in TEXTS]), "--json", "-q", "--output", output)
        ours = [json.loads(line) for line in output.read_text().splitlines()]
        theirs = self.model.loglikelihood_rolling([instance("loglikelihood_rolling", text) for text in TEXTS], disable_tqdm=True)
        for logprob, line in zip(theirs, ours):
            self.assertAlmostEqual(logprob, -line["nll"], delta=1e-4)
        print(f"beside dsv4 eval: texts {max(abs(logprob + line['nll']) for logprob, line in zip(theirs, ours)):.1e}")
        words = sum(len(re.split(r"\s+", text)) for text in TEXTS)
        num_bytes = sum(len(text.encode()) for text in TEXTS)
        total = math.fsum(theirs)
        self.assertAlmostEqual(report["word_perplexity"]["value"] / math.exp(-total / words), 1, delta=1e-4)
        self.assertAlmostEqual(report["byte_perplexity"]["value"], math.exp(-total / num_bytes), delta=1e-4)


if __name__ == "__main__":
    unittest.main()
