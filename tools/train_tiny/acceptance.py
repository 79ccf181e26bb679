"""How many drafts of a DSpark drafter are accepted, by position, on answers that the engine gave.

  python3 acceptance.py --model models/tiny --answers ANSWERS --binary build/release/dsv4     writes the answers, greedy and sampled
  python3 acceptance.py --model models/tiny --answers ANSWERS --drafter DIR                   measures on them, as JSON

Prompts: the chats and tool calls of eval/, and the openings of stories in eval/stories.jsonl. None was trained on. A text is
drafted from each of its tokens, with the release's numerics:
  greedy    a draft counts if it is the answer's token, each draft fed with the draft before it
  sampled   the answer was drawn at temperature 1; `accepted` is the chance of a draft under the rule min(1, p/q), `same_noise` that of
            a draft drawn with the noise of the token (both Gumbel), as with a seed
Position i is a share of the drafts whose first i - 1 were accepted. `tokens_a_step` follows from it, with the token that a step gives anyway.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from drafter import Blocks, Drafter, taps
from model import Model, Numerics

_HERE = Path(__file__).resolve().parent
_SETS = ("chats", "stories", "tools")
_MAX_TOKENS = {"chats": 320, "stories": 160, "tools": 224}


def write_answers(binary: Path, model: Path, out: Path, limit: int | None, threads: int) -> None:
    """Greedy and sampled answers of `dsv4 run`: one JSON object a line with the set, the mode and all token ids, the end's too."""
    end = json.loads((model / "config.json").read_text(encoding="utf-8"))["eos_token_id"]
    with out.open("w", encoding="utf-8") as file:
        for name in _SETS:
            lines = (_HERE / "eval" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[:limit]
            for index, item in enumerate(map(json.loads, lines)):
                for mode, temperature in (("greedy", 0), ("sampled", 1)):
                    command = [str(binary), "run", "--model", str(model), "--raw", "--json", "--temperature", str(temperature),
                               "--seed", str(index), "--speculation", "off", "--threads", str(threads),
                               "--max-tokens", str(_MAX_TOKENS[name]), item["prompt"]]
                    run = subprocess.run(command, capture_output=True, text=True)
                    if run.returncode != 0:
                        raise RuntimeError(f"{' '.join(command)}: exit code {run.returncode}: {run.stderr.strip()[-400:]}")
                    reply = json.loads(run.stdout)
                    answer = reply["token_ids"] + ([end] if reply["finish_reason"] != "length" else [])
                    file.write(json.dumps({"set": name, "mode": mode, "prompt": reply["prompt_token_ids"], "answer": answer}) + "\n")
            print(f"{name}: {len(lines)} prompts", flush=True)


@dataclass
class Tally:
    """Sums over drafting places."""

    drafted: Tensor     # [k] places with at least i tokens left
    accepted: Tensor    # [k] chance that the first i drafts are all accepted
    steps: float = 0.0
    tokens: float = 0.0

    @staticmethod
    def empty(size: int) -> Tally:
        return Tally(torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64))

    def add(self, chances: Tensor, left: Tensor) -> None:
        """chances [A,k] of each draft if those before it were accepted; left [A] tokens of the answer after the anchor."""
        size = chances.shape[1]
        inside = torch.arange(size) < left[:, None]
        chances = chances.double() * inside
        survival = chances.cumprod(1)
        self.drafted += inside.sum(0)
        self.accepted += survival.sum(0)
        # steps[a]: expected number of steps from anchor a to the end of the answer
        count = len(left)
        steps = torch.zeros(count + size + 1, dtype=torch.float64)
        for a in range(count - 1, -1, -1):
            exactly = torch.cat([survival[a].new_ones(1), survival[a]]) - torch.cat([survival[a], survival[a].new_zeros(1)])
            steps[a] = 1 + (exactly * steps[a + 1:a + size + 2]).sum()
        self.steps += steps[0].item()
        self.tokens += count

    def report(self) -> dict[str, object]:
        reached = torch.cat([self.drafted[:1], self.accepted[:-1]])
        return {"by_position": [round(x, 4) for x in (self.accepted / reached.clamp_min(1e-9)).tolist()],
                "tokens_a_step": round(self.tokens / max(self.steps, 1e-9), 3), "tokens": int(self.tokens)}


@torch.no_grad()
def measure(model: Model, drafter: Drafter, texts: list[dict], device: torch.device, numerics: Numerics) -> dict[str, object]:
    size = drafter.draft_config.block_size
    tallies: dict[str, Tally] = defaultdict(lambda: Tally.empty(size))
    predicted, observed = [], []
    for text in texts:
        whole, prompt = text["prompt"] + text["answer"], len(text["prompt"])
        count = len(whole) - 1 - prompt  # anchors: each token of the answer but the last
        if count < 1:
            continue
        anchors = prompt + torch.arange(count, device=device)
        blocks = Blocks(anchors[None], size, length=len(whole) - 2 + size)
        ids = torch.tensor([whole], device=device)
        ids = F.pad(ids, (0, -(-blocks.length // model.config.sliding_window) * model.config.sliding_window - len(whole)))
        trace: list[Tensor] = []
        streams = model.trunk(ids, numerics, trace)
        tapped = taps(trace, drafter.draft_config, 1)[:, :blocks.length]
        hidden = drafter.hidden(model, tapped, ids, blocks, numerics)[0].view(count, size, -1)
        base = drafter.base_logits(model, hidden.flatten(0, 1), numerics).view(count, size, -1)
        rows = blocks.positions().view(count, size)
        left = torch.arange(count, 0, -1)
        wanted = F.pad(ids[0], (0, size))[rows + 1]
        if text["mode"] == "greedy":
            previous, hits = ids[0, rows[:, 0]], []
            for i in range(size):
                _, term = drafter.markov(previous, numerics)
                previous = (base[:, i] + term).argmax(-1)
                hits.append(previous == wanted[:, i])
            names = {"greedy": torch.stack(hits, 1).float()}
        else:
            embedded, term = drafter.markov(ids[0, rows], numerics)
            q = torch.softmax(base + term, -1)
            target = model.project(model.hidden(streams), numerics)
            p = torch.softmax(target[rows], -1)
            px, qx = (t.gather(-1, wanted[..., None]) for t in (p, q))
            ratio = (qx / px.clamp_min(1e-20)).clamp(max=1).squeeze(-1)
            noise = 1 / torch.maximum(p, q * (px / qx.clamp_min(1e-20))).sum(-1)
            names = {"accepted": ratio, "same_noise": noise}
            inside = torch.arange(size) < left[:, None]
            predicted.append(torch.sigmoid(drafter.confidence_logits(hidden, embedded)).cpu()[inside])
            observed.append(torch.minimum(p, q).sum(-1).cpu()[inside])
        for name, chances in names.items():
            for kind in (text["set"], "all"):
                tallies[f"{kind}/{name}"].add(chances.cpu(), left)
    report: dict[str, object] = {name: tally.report() for name, tally in sorted(tallies.items())}
    if predicted:
        report["confidence"] = calibration(torch.cat(predicted), torch.cat(observed))
    return report


def calibration(predicted: Tensor, observed: Tensor) -> dict[str, float]:
    """Means, and the expected calibration error over ten bins of equal width."""
    bins = (predicted * 10).long().clamp(0, 9)
    error = sum((predicted[bins == b].mean() - observed[bins == b].mean()).abs().item() * (bins == b).float().mean().item()
                for b in range(10) if (bins == b).any())
    return {"predicted": round(predicted.mean().item(), 4), "observed": round(observed.mean().item(), 4),
            "calibration_error": round(error, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--answers", type=Path, required=True)
    parser.add_argument("--binary", type=Path, help="write the answers with this dsv4")
    parser.add_argument("--drafter", type=Path, help="folder that train_drafter.py --output wrote")
    parser.add_argument("--limit", type=int, help="prompts per set")
    parser.add_argument("--threads", type=int, default=0, help="of the binary; 0: its own choice")
    arguments = parser.parse_args()
    if (arguments.binary is None) == (arguments.drafter is None):
        parser.error("wanted one of --binary and --drafter")
    if arguments.binary:
        write_answers(arguments.binary, arguments.model, arguments.answers, arguments.limit, arguments.threads)
        return
    from shipped import load_drafter, load_shipped
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.compiler.set_stance("force_eager")
    model = load_shipped(arguments.model, str(device))
    drafter = load_drafter(arguments.drafter, model.config, str(device))
    texts = [json.loads(line) for line in arguments.answers.open(encoding="utf-8")]
    if arguments.limit:
        kept: dict[str, list[dict]] = defaultdict(list)
        for text in texts:
            kept[text["set"] + text["mode"]].append(text)
        texts = [t for group in kept.values() for t in group[:arguments.limit]]
    print(json.dumps(measure(model, drafter, texts, device, Numerics("release", sparse=True)), indent=1))


if __name__ == "__main__":
    main()
