"""Trains a DSpark drafter for an exported model, whose weights stay as they are, and writes it in the release's names.

The data are the model's own training mixture. Every eighth place of a row (from a start that changes with each step) is the
anchor of a block. The loss of a row: cross entropy against the trunk's distribution, half its total variation distance (the
chance that a sampled draft is refused), and for the confidence head the binary cross entropy to the chance of acceptance.
Rows further back count less. All rounding points of the release act from the first step.

  python3 train_drafter.py --model models/tiny --data DATA --output DRAFTER --minutes 3.5
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

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
from shipped import load_shipped
from train import Feed, balance

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_STRIDE = 8
_DECAY = 4.0  # rows; the weight of row j is exp(-j / _DECAY)
_CROSS_ENTROPY, _VARIATION, _CONFIDENCE = 0.5, 1.0, 0.2
_BIAS_SPEED = 1e-3
_COMPILED = 5  # steps


@compiled
def losses(draft: Tensor, target: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """draft and target logits [T,V], confidence logits [T] -> per row: cross entropy, chance of refusal, confidence loss."""
    q, p = torch.log_softmax(draft.float(), -1), torch.softmax(target.float(), -1)
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


def step_losses(model: Model, drafter: Drafter, ids: Tensor, weights: Tensor, blocks: Blocks, numerics: Numerics) -> Tensor:
    """ids, weights [B, >= length + 1] -> weighted means of cross entropy, refusal and confidence loss, and refusal by row."""
    batch, size = ids.shape[0], blocks.size
    with torch.no_grad():
        trace: list[Tensor] = []
        streams = model.trunk(ids[:, :blocks.length], numerics, trace)
        tapped = taps(trace, drafter.draft_config, batch)
        rows = blocks.positions(ids.device)
        hidden = model.hidden(streams).view(batch, blocks.length, -1)[:, rows]
        target = model.project(hidden.flatten(0, 1), numerics)
    drafted = drafter.hidden(model, tapped, ids, blocks, numerics).flatten(0, 1)
    embedded, term = drafter.markov(ids[:, rows].flatten(), numerics)
    logits = drafter.base_logits(model, drafted, numerics) + term
    parts = losses(logits, target, drafter.confidence_logits(drafted.detach(), embedded.detach()))
    decay = torch.exp(-torch.arange(size, device=ids.device) / _DECAY).repeat(batch * blocks.count)
    weight = weights[:, rows + 1].flatten()
    decayed = weight * decay
    means = [(part * decayed).sum() / decayed.sum() for part in parts]
    by_row = (parts[1].detach() * weight).view(-1, size).sum(0) / weight.view(-1, size).sum(0)
    return torch.cat([torch.stack(means), by_row])


def train(model: Model, drafter: Drafter, feed: Feed, length: int, arguments: argparse.Namespace, begin: float) -> None:
    device = model.embed.weight.device
    optimisers_ = optimisers(drafter)
    numerics = Numerics("qat", sparse=True)
    start, deadline = time.monotonic(), begin + 60 * arguments.minutes
    step, sums, count, mark = 0, torch.zeros(3 + drafter.draft_config.block_size, device=device), 0, start
    while time.monotonic() < deadline and (arguments.steps is None or step < arguments.steps):
        if step == _COMPILED:  # the learning rate falls over the time that is left when all is compiled
            start = time.monotonic()
        progress = min(1.0, (time.monotonic() - start) / max(1.0, deadline - start)) if step >= _COMPILED else 0.0
        lr = (arguments.lr + (arguments.lr_end - arguments.lr) * progress) * min(1.0, (step + 1) / arguments.warmup)
        for optimiser in optimisers_:
            for group in optimiser.param_groups:
                group["lr"] = lr * group["relative"]
        pair, weights = feed.ready.get()
        blocks = Blocks(1 + step % _STRIDE, _STRIDE, drafter.draft_config.block_size, length, length // _STRIDE - 2)
        drafter.train()
        values = step_losses(model, drafter, pair[:, 1], weights, blocks, numerics)
        (_CROSS_ENTROPY * values[0] + _VARIATION * values[1] + _CONFIDENCE * values[2]).backward()
        torch.nn.utils.clip_grad_norm_([p for g in optimisers_[0].param_groups for p in g["params"]], 1.0)
        for optimiser in optimisers_:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        balance(drafter, _BIAS_SPEED * lr / 4e-3)
        sums += values.detach()
        count += 1
        step += 1
        if step in (1, 10) or step % 100 == 0:
            now = time.monotonic()
            mean = (sums / count).tolist()
            print(f"step {step} at {now - begin:.0f} s: cross entropy {mean[0]:.4f}, refused {mean[1]:.4f}, confidence {mean[2]:.4f}, "
                  f"accepted by row {[round(1 - x, 3) for x in mean[3:]]}, lr {lr:.2e}, "
                  f"{count * pair.shape[0] * length / (now - mark):.0f} tokens/s, load {balance(drafter, 0.0):.2f}", flush=True)
            sums.zero_()
            count, mark = 0, now
    print(f"{step} steps, {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the exported model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder for config.json and model.safetensors of the drafter")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--length", type=int, default=1024, help="of rows, in tokens")
    parser.add_argument("--tokens", type=int, default=32768, help="per step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--lr-end", type=float, default=4e-5)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--rank", type=int, default=64, help="of the Markov head")
    parser.add_argument("--targets", type=int, nargs="*", help="tapped layers; default: the last three")
    parser.add_argument("--noise", type=int, help="id of the noise token; default: the last of the vocabulary")
    arguments = parser.parse_args()
    begin = time.monotonic()
    generator = Generator(arguments.data, Tokenizer.from_file(str(arguments.model / "tokenizer.json")), arguments.seed)
    feed = Feed(generator, (arguments.length,), arguments.tokens, arguments.workers, arguments.seed)
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.recompile_limit = 256
        torch._dynamo.config.accumulated_recompile_limit = 4096
        torch.manual_seed(arguments.seed)
        feed.start((arguments.length,), device)
        model = load_shipped(arguments.model, str(device)).requires_grad_(False)
        layers, vocabulary = model.config.num_hidden_layers, model.config.vocab_size
        draft = DraftConfig(arguments.block, vocabulary - 1 if arguments.noise is None else arguments.noise, arguments.rank,
                            arguments.targets or list(range(layers - 3, layers)))
        drafter = Drafter(model.config, draft).to(device)
        count = sum(p.numel() for p in drafter.parameters())
        print(f"{count} weights, ready after {time.monotonic() - begin:.0f} s", flush=True)
        train(model, drafter, feed, arguments.length, arguments, begin)
    finally:
        feed.stop()
    arguments.output.mkdir(parents=True, exist_ok=True)
    size = write_drafter(drafter.cpu(), json.loads((arguments.model / "config.json").read_text(encoding="utf-8")), arguments.output)
    print(f"{arguments.output}: {size} bytes", flush=True)


if __name__ == "__main__":
    main()
