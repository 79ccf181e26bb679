# pip: lm-eval[api]==0.4.13
"""lm-eval over local-completions. Log-likelihoods of texts and continuations are those of the server's own tokens. Its multiple choice and
perplexity are those of `dsv4 eval` (tests/cli/lm_eval_test.py)."""

import json
import pathlib
import re
import subprocess
import sys
import urllib.request

from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI

URL = sys.argv[1]
model = LocalCompletionsAPI(base_url=URL + "/v1/completions", model="tiny", tokenizer_backend="remote", num_concurrent=2, max_length=2048)


def post(path, body):
    request = urllib.request.Request(URL + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)


def wanted(context, continuation):
    tokens = post("/tokenize", {"prompt": context + continuation})["tokens"]
    behind = len(tokens) - len(post("/tokenize", {"prompt": context})["tokens"])
    scores = post("/v1/completions", {"prompt": tokens, "max_tokens": 0, "echo": True, "logprobs": 1})["choices"][0]["logprobs"]
    return sum(scores["token_logprobs"][-behind:])


PAIRS = [("What is the capital of France? It is", " Paris."), ("What is the capital of France? It is", " Madrid."),
         ("The capital of Spain is", " Madrid."), ("The capital of Spain is", " Paris.")]
got = model.loglikelihood([Instance("loglikelihood", {}, pair, i) for i, pair in enumerate(PAIRS)])
worst = max(abs(score - wanted(*pair)) for (score, _), pair in zip(got, PAIRS, strict=True))
assert worst < 1e-4, (got, worst)
assert got[0][0] > got[1][0] and got[2][0] > got[3][0], got
rolling = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, ("The capital of France is Paris.",), 0)])
assert rolling[0] < 0
beside_eval = subprocess.run([sys.executable, pathlib.Path(__file__).parents[1] / "cli" / "lm_eval_test.py"], capture_output=True, text=True)
assert beside_eval.returncode == 0, (beside_eval.returncode, beside_eval.stdout, beside_eval.stderr[-3000:])
figures = "; ".join(re.findall(r"beside dsv4 eval: .*", beside_eval.stdout))
print(f"multiple choice: worst difference {worst:.1e}; {figures}")
