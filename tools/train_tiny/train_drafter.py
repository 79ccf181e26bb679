"""Trains a DSpark drafter for an exported model, whose weights stay as they are, and writes it in the release's names.

The data are answers of the model itself (own_texts.py) and, as many tokens at most, documents of its training mixture. What the trunk
makes of them is computed once and kept on the device: taps and the head's input. A block stands at a random token of an answer. The
loss of a row is against what the trunk says there: its distribution, and in a greedy answer the token that came. It is the cross
entropy, the total variation distance (the chance that a sampled draft is refused), and for the confidence head the binary cross
entropy to the chance of acceptance. Rows further back count less. All rounding points of the release act from the first step.

  python3 train_drafter.py --model models/tiny --data DATA --texts own.jsonl --output DRAFTER --minutes 3.5
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from drafter import Blocks, DraftConfig, Drafter, taps
from export import write_drafter
from functions import compiled
from generator import Generator
from model import Model, Numerics
from muon import Muon
from shipped import load_drafter, load_shipped
from train import balance

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_BLOCKS = 14  # of a text in a step
_DECAY = 4.0  # rows; the weight of row j is exp(-j / _DECAY)
_CROSS_ENTROPY, _VARIATION, _CONFIDENCE = 0.5, 1.0, 0.2
# Where tokens are the most likely ones, only the order of the logits counts: both sides are made so much sharper.
_GREEDY_SHARPNESS = 3.0
_BIAS_SPEED = 1e-3
_COMPILED = 5  # steps
_KINDS = {"dialogue": 45, "story": 10, "tools": 12, "raw_fact": 8, "records": 10, "lookup": 3, "corpus": 12}


@compiled
def losses(draft: Tensor, target: Tensor, came: Tensor, greedy: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """draft and target logits [T,V], the tokens that came [T], whether greedily [T], confidence logits [T] -> per row: cross entropy,
    chance of refusal, confidence loss."""
    sharper = 1 + (_GREEDY_SHARPNESS - 1) * greedy[:, None]
    q, p = torch.log_softmax(draft.float() * sharper, -1), torch.softmax(target.float(), -1)
    one = F.one_hot(came, draft.shape[-1])
    p = torch.where(greedy[:, None] > 0, one.float(), p)
    refused = 0.5 * (q.exp() - p).abs().sum(-1)
    accepted = 1 - refused.detach()
    return -(p * q).sum(-1), refused, F.binary_cross_entropy_with_logits(confidence, accepted, reduction="none")


def optimisers(drafter: Drafter) -> list[torch.optim.Optimizer]:
    """As train.py: Muon for matrices, AdamW for the Markov tables, norms, router and hyper-connections."""
    matrices, tables, rest = [], [], []
    for name, p in drafter.named_parameters():
        if name.startswith("markov_"):
            tables.append(p)
        elif p.ndim == 3 or (p.ndim == 2 and not name.endswith(".fn") and ".gate." not in name and "confidence" not in name):
            matrices.append(p)
        else:
            rest.append(p)
    adam = torch.optim.AdamW([{"params": tables, "lr": 1.0}, {"params": rest, "lr": 0.5}], betas=(0.9, 0.95), eps=1e-10,
                             weight_decay=0.0, fused=matrices[0].is_cuda)
    muon = Muon(matrices, lr=1.0)
    for optimiser in (adam, muon):
        for group in optimiser.param_groups:
            group["relative"] = group["lr"]
    return [adam, muon]


class Texts:
    """Token ids of all texts behind one another, which of them are anchors, and what the trunk makes of them."""

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.ids: list[np.ndarray] = []
        self.weights: list[np.ndarray] = []  # of each token
        self.greedy: list[bool] = []

    def add(self, ids: np.ndarray, weights: np.ndarray, greedy: bool) -> None:
        if len(ids) < 4 or not weights[2:self.longest].any():
            return
        self.ids.append(ids[:self.longest])
        self.weights.append(weights[:self.longest])
        self.greedy.append(greedy)

    def read(self, path: Path) -> int:
        """Answers of own_texts.py; the number of their tokens."""
        count = 0
        for line in path.open(encoding="utf-8"):
            item = json.loads(line)
            weights = np.zeros(len(item["ids"]), dtype=np.float32)
            weights[item["prompt"]:] = 1
            self.add(np.array(item["ids"]), weights, item["greedy"])
            count += int(weights.sum())
        return count

    def mixture(self, generator: Generator, tokens: int) -> None:
        """Documents of the training mixture with so many tokens that count."""
        kinds, odds, count = list(_KINDS), list(_KINDS.values()), 0
        while count < tokens:
            kind = generator.rng.choices(kinds, odds)[0]
            ids, weights = generator.encode(generator.document(kind, self.longest))
            weights = (weights >= 1).astype(np.float32)
            self.add(ids.astype(np.int64), weights, greedy=False)
            count += int(weights[:self.longest].sum())

    @torch.no_grad()
    def run_trunk(self, model: Model, draft: DraftConfig, numerics: Numerics, device: torch.device, tokens: int) -> None:
        """So many tokens at a time."""
        window = model.config.sliding_window
        order = sorted(range(len(self.ids)), key=lambda i: len(self.ids[i]))
        begin = np.concatenate([[0], np.cumsum([len(self.ids[i]) for i in order])])
        self.begin, total = torch.from_numpy(begin[:-1]).to(device), int(begin[-1])
        self.lengths = torch.tensor([len(self.ids[i]) for i in order], device=device)
        self.is_greedy = torch.tensor([float(self.greedy[i]) for i in order], device=device)
        self.flat = torch.from_numpy(np.concatenate([self.ids[i] for i in order]).astype(np.int64)).to(device)
        self.weight = torch.from_numpy(np.concatenate([self.weights[i] for i in order]).astype(np.float32)).to(device)
        width = model.config.hidden_size
        self.taps = torch.empty(total, width * len(draft.target_layer_ids), dtype=torch.bfloat16, device=device)
        self.hidden = torch.empty(total, width, dtype=torch.bfloat16, device=device)
        at = 0
        while at < len(order):
            length = window
            while True:
                batch = max(1, tokens // length)
                needed = -(-int(self.lengths[min(at + batch, len(order)) - 1]) // window) * window
                if needed <= length:
                    break
                length = needed
            texts = torch.arange(at, at + batch, device=device).clamp_max(len(order) - 1)
            place = torch.arange(length, device=device)
            inside = place < self.lengths[texts][:, None]
            index = torch.where(inside, self.begin[texts][:, None] + place, 0)
            ids = torch.where(inside, self.flat[index], 0)
            trace: list[Tensor] = []
            streams = model.trunk(ids, numerics, trace)
            self.taps[index[inside]] = taps(trace, draft, batch)[inside]
            self.hidden[index[inside]] = model.hidden(streams).view(batch, length, -1)[inside]
            at += batch
        # a text's row p foretells token p + 1: anchors are the rows whose second next token counts
        following = torch.cat([self.weight[2:], self.weight.new_zeros(2)])
        inside = torch.arange(total, device=device) + 2 < torch.repeat_interleave(self.begin + self.lengths, self.lengths)
        text_of = torch.repeat_interleave(torch.arange(len(order), device=device), self.lengths)
        self.anchors = torch.nonzero((following > 0) & inside).flatten() + 1
        self.anchor_begin = torch.searchsorted(text_of[self.anchors], torch.arange(len(order), device=device))
        self.num_anchors = torch.bincount(text_of[self.anchors], minlength=len(order))
        self.chances = self.num_anchors.float().clamp_max(64)

    def draw(self, batch: int, blocks: int, size: int, window: int) -> Batch:
        """Texts at random, by their number of anchors, and blocks at random anchors of each."""
        device, length = self.flat.device, 2 * window
        texts = torch.multinomial(self.chances, batch, replacement=True)
        pick = (torch.rand(batch, blocks, device=device) * self.num_anchors[texts][:, None]).long()
        anchors = self.anchors[self.anchor_begin[texts][:, None] + pick] - self.begin[texts][:, None]
        # Of a long text the stretch in front of one of its anchors, and those of its anchors that see enough there.
        last = anchors.amax(1)
        start = (last + size + 1 - length).clamp_min(0)
        fits = (anchors >= start[:, None] + window) | (start[:, None] == 0)
        anchors = torch.where(fits, anchors, last[:, None]) - start[:, None]
        place = start[:, None] + torch.arange(length, device=device)
        inside = place < self.lengths[texts][:, None]
        index = torch.where(inside, self.begin[texts][:, None] + place, 0)
        made = Blocks(anchors, size, length)
        rows = made.positions()
        return Batch(ids=torch.where(inside, self.flat[index], 0), taps=self.taps[index], blocks=made,
                     hidden=self.hidden[index.gather(1, rows).flatten()],
                     weight=torch.where(inside, self.weight[index], 0).gather(1, rows + 1).flatten(),
                     greedy=self.is_greedy[texts].repeat_interleave(blocks * size))


@dataclass
class Batch:
    """Stretches of texts, and of the rows of their blocks, block after block, the trunk's head input [T, D], what they weigh and whether
    their text is greedy, [T] each."""

    ids: Tensor   # [texts, length]
    taps: Tensor  # [texts, length, taps * D]
    blocks: Blocks
    hidden: Tensor
    weight: Tensor
    greedy: Tensor


def step_losses(model: Model, drafter: Drafter, batch: Batch, numerics: Numerics) -> Tensor:
    """Weighted means of cross entropy, refusal and confidence loss, and refusal by row: of drawn texts, then of greedy ones."""
    size, rows = batch.blocks.size, batch.blocks.positions()
    with torch.no_grad():
        target = model.project(batch.hidden, numerics)
    drafted = drafter.hidden(model, batch.taps, batch.ids, batch.blocks, numerics).flatten(0, 1)
    embedded, term = drafter.markov(batch.ids.gather(1, rows).flatten(), numerics)
    logits = drafter.base_logits(model, drafted, numerics) + term
    confidence = drafter.confidence_logits(drafted.detach(), embedded.detach())
    parts = losses(logits, target, batch.ids.gather(1, rows + 1).flatten(), batch.greedy, confidence)
    decayed = batch.weight * torch.exp(-torch.arange(size, device=rows.device) / _DECAY).repeat(len(batch.weight) // size)
    means = [(part * decayed).sum() / decayed.sum() for part in parts]
    by_row = []
    for greedy in (0, 1):
        weight = batch.weight * (batch.greedy == greedy)
        by_row.append((parts[1].detach() * weight).view(-1, size).sum(0) / weight.view(-1, size).sum(0).clamp_min(1))
    return torch.cat([torch.stack(means), *by_row])


def train(model: Model, drafter: Drafter, texts: Texts, arguments: argparse.Namespace, begin: float) -> None:
    device, size = model.embed.weight.device, drafter.draft_config.block_size
    optimisers_ = optimisers(drafter)
    numerics = Numerics("qat", sparse=True)
    start, deadline = time.monotonic(), begin + 60 * arguments.minutes
    step, sums, count, mark = 0, torch.zeros(3 + 2 * size, device=device), 0, start
    drafter.train()
    while time.monotonic() < deadline and (arguments.steps is None or step < arguments.steps):
        if step == _COMPILED:  # the learning rate falls over the time that is left when all is compiled
            start = time.monotonic()
        progress = min(1.0, (time.monotonic() - start) / max(1.0, deadline - start)) if step >= _COMPILED else 0.0
        lr = (arguments.lr + (arguments.lr_end - arguments.lr) * progress) * min(1.0, (step + 1) / arguments.warmup)
        for optimiser in optimisers_:
            for group in optimiser.param_groups:
                group["lr"] = lr * group["relative"]
        batch = texts.draw(arguments.batch, _BLOCKS, size, model.config.sliding_window)
        values = step_losses(model, drafter, batch, numerics)
        (_CROSS_ENTROPY * values[0] + _VARIATION * values[1] + _CONFIDENCE * values[2]).backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimisers_[0].param_groups for p in g["params"]], 1.0)
        for optimiser in optimisers_:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        balance(drafter, _BIAS_SPEED * lr / 4e-3)
        sums += values.detach()
        count += 1
        step += 1
        if step in (1, 10) or step % arguments.log == 0:
            now = time.monotonic()
            mean = (sums / count).tolist()
            drawn, greedy = ([round(1 - x, 3) for x in mean[first:first + size]] for first in (3, 3 + size))
            print(f"step {step} at {now - begin:.0f} s: cross entropy {mean[0]:.4f}, refused {mean[1]:.4f}, confidence {mean[2]:.4f}, "
                  f"accepted by row: drawn {drawn}, greedy {greedy}, lr {lr:.2e}, {count / (now - mark):.1f} steps/s, "
                  f"load {balance(drafter, 0.0):.2f}", flush=True)
            sums.zero_()
            count, mark = 0, now
    print(f"{step} steps, {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the exported model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="answers of own_texts.py")
    parser.add_argument("--mixture", type=float, default=1.0, help="tokens of the training mixture for each of an answer")
    parser.add_argument("--output", type=Path, required=True, help="folder for config.json and model.safetensors of the drafter")
    parser.add_argument("--start", type=Path, help="folder of a drafter to go on from, of whose stages the first --stages stay")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--longest", type=int, default=640, help="of texts, in tokens")
    parser.add_argument("--tokens", type=int, default=32768, help="that the trunk reads at a time")
    parser.add_argument("--batch", type=int, default=256, help="texts of a step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--lr-end", type=float, default=2e-5)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--log", type=int, default=100, help="steps from one line to the next")
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--stages", type=int, default=1)
    parser.add_argument("--rank", type=int, default=64, help="of the Markov head")
    parser.add_argument("--targets", type=int, nargs="*", help="tapped layers; default: the last three")
    parser.add_argument("--noise", type=int, help="id of the noise token; default: the last of the vocabulary")
    arguments = parser.parse_args()
    begin = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 4096
    torch.manual_seed(arguments.seed)
    texts = Texts(arguments.longest)
    count = sum(texts.read(path) for path in arguments.texts)
    generator = Generator(arguments.data, Tokenizer.from_file(str(arguments.model / "tokenizer.json")), arguments.seed)
    texts.mixture(generator, int(count * arguments.mixture))
    model = load_shipped(arguments.model, str(device)).requires_grad_(False)
    layers, vocabulary = model.config.num_hidden_layers, model.config.vocab_size
    draft = DraftConfig(arguments.block, vocabulary - 1 if arguments.noise is None else arguments.noise, arguments.rank,
                        arguments.targets or list(range(layers - 3, layers)), arguments.stages)
    drafter = Drafter(model.config, draft).to(device)
    if arguments.start:
        drafter = load_drafter(arguments.start, model.config, str(device))
        if arguments.stages > len(drafter.stages):
            parser.error(f"--stages: got {arguments.stages}, wanted at most the {len(drafter.stages)} of {arguments.start}")
        drafter.stages = drafter.stages[:arguments.stages]
        drafter.draft_config.stages = arguments.stages
    print(f"{sum(p.numel() for p in drafter.parameters())} weights, {len(texts.ids)} texts, {count} tokens of answers, "
          f"ready after {time.monotonic() - begin:.0f} s", flush=True)
    texts.run_trunk(model, drafter.draft_config, Numerics("qat", sparse=True), device, arguments.tokens)
    print(f"{len(texts.anchors)} anchors, the trunk has run after {time.monotonic() - begin:.0f} s", flush=True)
    train(model, drafter, texts, arguments, begin)
    arguments.output.mkdir(parents=True, exist_ok=True)
    size = write_drafter(drafter.cpu(), json.loads((arguments.model / "config.json").read_text(encoding="utf-8")), arguments.output)
    print(f"{arguments.output}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
