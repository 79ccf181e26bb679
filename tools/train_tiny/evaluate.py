"""Measures the small model on the sets in eval/, greedily, with the release's numerics.

  python3 evaluate.py --torch --model models/tiny              this folder's PyTorch model on the shipped files
  python3 evaluate.py --binary build/release/dsv4 --model models/tiny    the engine, through `dsv4 run --raw --json`
  python3 evaluate.py --torch --weights DIR ...                additionally held-out perplexity, BF16 against as shipped

Prints one JSON object; `--answers FILE` keeps every answer. `--sets capitals tools` runs a part.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Protocol

from chat import DSML, END_THINK, EOS, V41, EncodingError, calls_block, parse

_HERE = Path(__file__).resolve().parent
_SETS = ("capitals", "chats", "tools", "needles-2048", "needles-4096")
_MAX_TOKENS = {"capitals": 48, "chats": 320, "tools": 224}
_MAX_TOKENS_NEEDLES = 64


class Answer:
    """A completion: text with the end-of-sentence string if it ended by itself, and the first token's lead."""

    def __init__(self, text: str, ended: bool, margin: float | None) -> None:
        self.text, self.ended, self.margin = text, ended, margin


class Engine(Protocol):
    def answer(self, prompts: list[str], max_tokens: int) -> list[Answer]: ...


class Binary:
    """`dsv4 run`: one process a prompt."""

    def __init__(self, binary: Path, model: Path, extra: list[str]) -> None:
        self.command = [str(binary), "run", "--model", str(model), "--raw", "--json", "--temperature", "0",
                        "--logprobs", "2", *extra]
        vocabulary = json.loads((model / "tokenizer.json").read_text(encoding="utf-8"))
        self.strings = {i: s for s, i in vocabulary["model"]["vocab"].items()}
        self.added = {t["id"]: t["content"] for t in vocabulary["added_tokens"]}
        # GPT-2's printable stand-ins for bytes
        visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
        hidden = [b for b in range(256) if b not in visible]
        self.bytes = {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}

    def _decode(self, ids: list[int]) -> str:
        out = bytearray()
        for i in ids:
            if i in self.added:
                out += self.added[i].encode()
            else:
                out += bytes(self.bytes[c] for c in self.strings.get(i, ""))
        return out.decode("utf-8", errors="replace")

    def answer(self, prompts: list[str], max_tokens: int) -> list[Answer]:
        answers = []
        for prompt in prompts:
            run = subprocess.run([*self.command, "--max-tokens", str(max_tokens), prompt], capture_output=True, text=True)
            if run.returncode != 0:
                raise RuntimeError(f"{' '.join(self.command)}: exit code {run.returncode}: {run.stderr.strip()[-400:]}")
            reply = json.loads(run.stdout)
            ended = reply["finish_reason"] != "length"
            text = self._decode([i for i in reply["token_ids"] if self.added.get(i) != EOS])
            answers.append(Answer(text + (EOS if ended else ""), ended, _lead(reply.get("logprobs"))))
        return answers


def _lead(logprobs: Any) -> float | None:
    """Log-probability of the first token minus the runner-up's, if the engine reports alternatives."""
    try:
        first = logprobs["content"][0] if isinstance(logprobs, dict) else logprobs[0]
        best = sorted((t["logprob"] for t in first["top_logprobs"]), reverse=True)
        return best[0] - best[1]
    except (KeyError, IndexError, TypeError):
        return None


class Forced:
    """Items whose whole answer is known: the share of those that the model would say, by one pass over prompt and answer."""

    def __init__(self, folder: Path, tokenizer: Any) -> None:
        self.items: dict[str, list[tuple[list[int], int]]] = defaultdict(list)
        for path in sorted(folder.glob("*.jsonl")):
            for line in path.open(encoding="utf-8"):
                item = json.loads(line)
                answer = self._answer(item)
                if answer is not None:
                    prompt = tokenizer.encode(item["prompt"]).ids
                    ids = tokenizer.encode(item["prompt"] + answer).ids
                    # where the last token of the prompt goes on into the answer, there is no such border
                    if ids[:len(prompt)] == prompt:
                        self.items[item["set"]].append((ids, len(prompt)))

    @staticmethod
    def _answer(item: dict[str, Any]) -> str | None:
        kind, thinking = item["set"], item.get("mode") == "thinking"
        if kind.startswith("raw_"):
            return " " + item["expect"]
        if kind.startswith("needle_"):
            return (f"I look for it in the text. {item['expect']}{END_THINK}" if thinking else "") + item["expect"] + EOS
        if kind == "tools":
            calls = [{"function": c} for c in item["calls"]]
            revision = V41 if f"<{DSML} calls>" in item["prompt"] else "v4"
            names = " and ".join(c["name"] for c in item["calls"])
            thought = f"The user wants something that {names} can do. I call it.{END_THINK}" if thinking else ""
            return thought + "\n\n" + calls_block(calls, revision) + EOS
        return None

    def shares(self, model: Any, numerics: Any, tokens: int = 32768) -> dict[str, float]:
        import torch

        device, window, shares = model.embed.weight.device, model.config.sliding_window, {}
        for name, items in self.items.items():
            items, right = sorted(items, key=lambda item: len(item[0])), 0
            while items:
                count = max(1, min(len(items), tokens // len(items[-1][0])))
                batch, items = items[-count:], items[:-count]
                length = -(-len(batch[-1][0]) // window) * window
                ids = torch.zeros(count, length, dtype=torch.long)
                for row, (sequence, _) in enumerate(batch):
                    ids[row, :len(sequence)] = torch.tensor(sequence)
                ids = ids.to(device)
                with torch.no_grad():
                    best = model.project(model.hidden(model.trunk(ids, numerics)), numerics).argmax(-1).view(count, length)
                same = (best[:, :-1] == ids[:, 1:]).cpu()
                right += sum(bool(same[row, first - 1:len(sequence) - 1].all()) for row, (sequence, first) in enumerate(batch))
            shares[name] = round(right / len(self.items[name]), 3)
        return shares


class Torch:
    """The PyTorch model; every step computes the whole prefix again, many prompts at a time."""

    def __init__(self, model: Path, device: str) -> None:
        import torch
        from tokenizers import Tokenizer

        from model import Numerics
        from shipped import load_shipped

        self.torch, self.device = torch, device
        self.model = load_shipped(model, device)
        self.numerics = Numerics("release", sparse=True)
        self.tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
        self.eos = self.tokenizer.token_to_id(EOS)

    def answer(self, prompts: list[str], max_tokens: int) -> list[Answer]:
        encoded = [self.tokenizer.encode(p).ids for p in prompts]
        budget = 131072 if self.device == "cuda" else 4096
        results: list[Answer | None] = [None] * len(prompts)
        order = sorted(range(len(prompts)), key=lambda i: len(encoded[i]))
        while order:
            batch = [order.pop(0)]
            while order and (len(batch) + 1) * (len(encoded[order[0]]) + max_tokens) <= budget:
                batch.append(order.pop(0))
            for index, result in zip(batch, self._generate([encoded[i] for i in batch], max_tokens)):
                results[index] = result
        return results

    def _generate(self, prefixes: list[list[int]], max_tokens: int) -> list[Answer]:
        torch = self.torch
        sequences = [list(p) for p in prefixes]
        margins: list[float] = []
        alive = list(range(len(sequences)))
        for step in range(max_tokens):
            longest = max(len(sequences[i]) for i in alive)
            ids = torch.zeros(len(alive), longest, dtype=torch.long)
            for row, i in enumerate(alive):
                ids[row, :len(sequences[i])] = torch.tensor(sequences[i])
            last = torch.tensor([len(sequences[i]) - 1 for i in alive], device=self.device)
            logits = self.model.logits(ids.to(self.device), self.numerics, last)
            best = logits.topk(2, -1)
            if step == 0:
                margins = (best.values[:, 0] - best.values[:, 1]).tolist()
            for i, token in zip(alive, best.indices[:, 0].tolist()):
                sequences[i].append(token)
            alive = [i for i in alive if sequences[i][-1] != self.eos]
            if not alive:
                break
        answers = []
        for sequence, prefix, margin in zip(sequences, prefixes, margins):
            ended = sequence[-1] == self.eos
            answers.append(Answer(self.tokenizer.decode(sequence[len(prefix):], skip_special_tokens=False), ended, margin))
        return answers


def _final(text: str, mode: str | None) -> str:
    """The answer proper: without reasoning and the end mark."""
    if mode == "thinking":
        text = text.partition(END_THINK)[2]
    return text.replace(EOS, "").strip()


def judge(item: dict[str, Any], answer: Answer, revision: str) -> dict[str, bool]:
    """The checks that apply to one item."""
    kind = item["set"]
    checks = {"ended": answer.ended}
    if kind.startswith("raw_"):
        checks["correct"] = answer.text.startswith(" " + item["expect"])
    elif kind == "tools":
        try:
            calls = [c["function"] for c in parse(answer.text, item["mode"], revision)["tool_calls"]]
            arguments = [json.loads(c["arguments"]) for c in calls]
            checks["well_formed"] = bool(calls)
            wanted = item["calls"]
            checks["name"] = [c["name"] for c in calls] == [c["name"] for c in wanted]
            checks["correct"] = checks["name"] and arguments == [json.loads(c["arguments"]) for c in wanted]
        except (EncodingError, ValueError):
            checks.update(well_formed=False, name=False, correct=False)
    elif kind.endswith(("_held_out", "_fresh")):
        checks["correct"] = item["expect"] in _final(answer.text, item["mode"])
    elif "expect" in item:
        checks["correct"] = _final(answer.text, item.get("mode")) == item["expect"]
    return checks


def run(engine: Engine, sets: list[str], limit: int | None, folder: Path, keep: Path | None, revision: str) -> dict[str, Any]:
    """Shares of each check per set, and mean margins."""
    report: dict[str, Any] = {}
    lines = []
    for name in sets:
        items = [json.loads(line) for line in (folder / f"{name}.jsonl").open(encoding="utf-8")][:limit]
        start = time.monotonic()
        answers = engine.answer([i["prompt"] for i in items], _MAX_TOKENS.get(name, _MAX_TOKENS_NEEDLES))
        tallies: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for item, answer in zip(items, answers):
            checks = judge(item, answer, revision)
            for check, passed in checks.items():
                tallies[item["set"]][check].append(float(passed))
            if answer.margin is not None and item["set"].startswith("raw_"):
                tallies[item["set"]]["median_margin"].append(answer.margin)
            lines.append({"name": item["name"], "answer": answer.text, **checks,
                          "question": item["prompt"][-160:], "expect": item.get("expect", item.get("calls"))})
        for group, values in tallies.items():
            report[group] = {k: round(sorted(v)[len(v) // 2] if k == "median_margin" else sum(v) / len(v), 4)
                             for k, v in values.items()}
            report[group]["count"] = len(values["ended"])
        print(f"{name}: {time.monotonic() - start:.0f} s", file=sys.stderr)
    if keep:
        keep.write_text("".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines), encoding="utf-8")
    return report


def perplexity(weights: Path, model: Path, data: Path, device: str) -> dict[str, float]:
    """Held-out perplexity per token: master weights in BF16, and the shipped files with the release's numerics."""
    from tokenizers import Tokenizer

    from checkpoint import load_weights
    from config import Config
    from model import Numerics
    from shipped import load_shipped
    from train import held_out_batch, held_out_loss

    batch = held_out_batch(data, Tokenizer.from_file(str(model / "tokenizer.json")), 1024, 10_000, device)
    master = load_weights(Config.load(model / "config.json"), weights, device).eval()
    master.round_to_bf16()
    plain = held_out_loss(master, batch, Numerics("plain", sparse=True), 4)
    shipped = held_out_loss(load_shipped(model, device), batch, Numerics("release", sparse=True), 4)
    return {"bf16": round(math.exp(plain), 4), "as_shipped": round(math.exp(shipped), 4),
            "ratio": round(math.exp(shipped - plain), 5), "tokens": batch[:, 1:].numel()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    engine_group = parser.add_mutually_exclusive_group(required=True)
    engine_group.add_argument("--torch", action="store_true")
    engine_group.add_argument("--binary", type=Path)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--sets", nargs="*", help="names of files in --eval, without .jsonl")
    parser.add_argument("--limit", type=int, help="items per set")
    parser.add_argument("--eval", type=Path, help="default: eval or eval-v41 beside this file")
    parser.add_argument("--answers", type=Path)
    parser.add_argument("--weights", type=Path, help="master weights: also compare perplexities (needs --torch, --data)")
    parser.add_argument("--data", type=Path, help="folder with corpus.jsonl.gz")
    arguments, extra = parser.parse_known_args()
    if arguments.torch:
        if extra:
            parser.error(f"unknown arguments {extra}")
        import torch
        torch.compiler.set_stance("force_eager")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        engine: Engine = Torch(arguments.model, device)
    else:
        engine = Binary(arguments.binary, arguments.model, extra)
    is_v41 = "deepseek_v41" in (arguments.model / "config.json").read_text(encoding="utf-8")
    folder = arguments.eval or _HERE / ("eval-v41" if is_v41 else "eval")
    sets = arguments.sets or [name for name in _SETS if (folder / f"{name}.jsonl").exists()]
    report = run(engine, sets, arguments.limit, folder, arguments.answers, V41 if is_v41 else "v4")
    if arguments.weights:
        report["held_out_perplexity"] = perplexity(arguments.weights, arguments.model, arguments.data, device)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
