"""Trains the small model for a number of minutes, then saves; the next call resumes.

Phases
  base   rows of 1024 tokens, dense attention; the indexer already learns from it by distillation
  long   a third of the steps with rows of 4096
  final  the same, with the indexer's top-k deciding and quantisation-aware training; the learning rate falls

  python3 train.py --config models/tiny/config.json --data .train/pack --state STATE --phase base --minutes 9
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import threading
import time
from pathlib import Path
from queue import Queue

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from checkpoint import load_weights, save_weights
from functions import compiled
from generator import Generator, load_texts
from model import Config, Model, Numerics
from muon import Muon
from shipped import load_shipped

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
_PHASES = {"base": ((1024,), "train", False), "long": ((1024, 1024, 4096), "train", False),
           "final": ((1024, 1024, 4096), "qat", True)}
_MTP_WEIGHT = 0.15
_BIAS_SPEED = 1e-3


@compiled
def weighted_cross_entropy(logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    losses = F.cross_entropy(logits.float(), targets, reduction="none")
    return (losses * weights).sum() / weights.sum()


def _work(generator: Generator, queue, seed: int, length: int, rows: int) -> None:
    generator.rng = random.Random(seed)
    stream = generator.rows(length)
    while True:
        pairs = [next(stream) for _ in range(rows)]
        queue.put((np.stack([p[0] for p in pairs]), np.stack([p[1] for p in pairs])))


class Feed:
    """Batches of packed rows from worker processes, moved to the device one step ahead."""

    def __init__(self, generator: Generator, lengths: tuple[int, ...], tokens: int, workers: int, seed: int) -> None:
        context = multiprocessing.get_context("fork")
        self.tokens = tokens
        self.queues = {}
        self.processes = []
        for order, length in enumerate(sorted(set(lengths))):
            rows = max(1, 8192 // length)
            self.queues[length] = context.Queue(maxsize=max(4, 4 * tokens // (rows * length)))
            for worker in range(max(1, workers // len(set(lengths)))):
                process = context.Process(target=_work, daemon=True, args=(
                    generator, self.queues[length], seed * 1000 + order * 100 + worker, length, rows))
                process.start()
                self.processes.append(process)

    def start(self, schedule: tuple[int, ...], device: torch.device) -> None:
        self.ready: Queue = Queue(maxsize=3)
        threading.Thread(target=self._move, args=(schedule, device), daemon=True).start()

    def _move(self, schedule: tuple[int, ...], device: torch.device) -> None:
        step = 0
        while True:
            length = schedule[step % len(schedule)]
            need, ids, weights = max(1, self.tokens // length), [], []
            while sum(len(i) for i in ids) < need:
                piece = self.queues[length].get()
                ids.append(piece[0])
                weights.append(piece[1])
            self.ready.put((torch.from_numpy(np.concatenate(ids)[:need].astype(np.int64)).to(device),
                            torch.from_numpy(np.concatenate(weights)[:need].astype(np.float32)).to(device)))
            step += 1

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()


def optimisers(model: Model) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of linears and experts; AdamW for embeddings, norms, router and hyper-connections."""
    matrices, tables, rest = [], [], []
    for name, p in model.named_parameters():
        if name in ("embed.weight", "head.weight"):
            tables.append(p)
        elif p.ndim == 3 or (p.ndim == 2 and not name.endswith((".fn", ".ape")) and ".gate." not in name
                             and "weights_proj" not in name):
            matrices.append(p)
        else:
            rest.append(p)
    fused = next(model.parameters()).is_cuda
    adam = torch.optim.AdamW([{"params": tables, "lr": 1.0}, {"params": rest, "lr": 0.5}], betas=(0.9, 0.95), eps=1e-10,
                             weight_decay=0.0, fused=fused)
    muon = Muon(matrices, lr=1.0)
    for optimiser in (adam, muon):
        for group in optimiser.param_groups:
            group["relative"] = group["lr"]
    return [adam, muon]


@torch.no_grad()
def balance(model: Model, speed: float | torch.Tensor) -> float:
    """Moves each expert's selection bias towards equal load; returns the largest load over the mean."""
    worst = 0.0
    for module in model.modules():
        if hasattr(module, "bias") and getattr(module, "load", None) is not None:
            mean = module.load.mean()
            module.bias += speed * torch.sign(mean - module.load)
            if not isinstance(speed, torch.Tensor) and speed == 0:
                worst = max(worst, float(module.load.max() / mean))
    return worst


def held_out_batch(data: Path, tokenizer: Tokenizer, length: int, rows: int, device: torch.device) -> torch.Tensor:
    """Rows of running held-out corpus text."""
    texts = load_texts(data, "held_out")
    random.Random(5).shuffle(texts)
    stream: list[int] = []
    for text in texts:
        stream += tokenizer.encode(text).ids
    rows = min(rows, len(stream) // (length + 1))
    return torch.tensor(stream[:rows * (length + 1)], device=device).view(rows, length + 1)


def recall_probe(generator: Generator, length: int, rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of one lookup document each, for watching retrieval from outside the window: ids and weights."""
    generator.rng = random.Random(seed)
    ids, weights = [], []
    while len(ids) < rows:
        piece, weight = generator.encode(generator.document("lookup", length))
        if 0.6 * length < len(piece) <= length + 1:
            pad = length + 1 - len(piece)
            ids.append(np.pad(piece, (0, pad)).astype(np.int64))
            weights.append(np.pad(weight, (0, pad)).astype(np.float32))
    return torch.from_numpy(np.stack(ids)), torch.from_numpy(np.stack(weights))


@torch.no_grad()
def recall_share(model: Model, probe: tuple[torch.Tensor, torch.Tensor], numerics: Numerics) -> float:
    """Share of the probe's value tokens that come out on top."""
    model.eval()
    ids, weights = probe
    streams = model.trunk(ids[:, :-1], numerics)
    right = model.project(model.hidden(streams), numerics).argmax(-1) == ids[:, 1:].reshape(-1)
    mask = weights[:, 1:].reshape(-1) == 1.0
    model.train()
    return (right & mask).sum().item() / mask.sum().item()


@torch.no_grad()
def held_out_loss(model: Model, batch: torch.Tensor, numerics: Numerics, step: int = 8) -> float:
    """Mean negative log-likelihood per token."""
    total = 0.0
    for rows in batch.split(step):
        logits = model.logits(rows[:, :-1], numerics).float()
        total += F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten(), reduction="sum").item()
    return total / batch[:, 1:].numel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, help="default: beside the config")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--state", type=Path, required=True, help="folder of the resumable state")
    parser.add_argument("--weights", type=Path, help="start from these saved weights instead of the state")
    parser.add_argument("--shipped", type=Path, help="start from the weights of an exported model instead")
    parser.add_argument("--output", type=Path, help="folder for the bf16 weights")
    parser.add_argument("--phase", choices=_PHASES, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--tokens", type=int, default=65536, help="per step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--lr-end", type=float, help="linear fall over this call")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--length", type=int, nargs="*", help="row lengths instead of the phase's")
    arguments = parser.parse_args()
    begin = time.monotonic()

    lengths, numerics_name, sparse = _PHASES[arguments.phase]
    lengths = tuple(arguments.length or lengths)
    tokenizer = Tokenizer.from_file(str(arguments.tokenizer or arguments.config.parent / "tokenizer.json"))
    generator = Generator(arguments.data, tokenizer, arguments.seed)
    probe = recall_probe(generator, max(lengths), 16 * 1024 // max(lengths), 99)
    feed = Feed(generator, lengths, arguments.tokens, arguments.workers, arguments.seed)
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.recompile_limit = 256
        torch._dynamo.config.accumulated_recompile_limit = 4096
        torch.manual_seed(arguments.seed)
        feed.start(lengths, device)

        config = Config.load(arguments.config)
        if arguments.weights:
            model = load_weights(config, arguments.weights, str(device))
        elif arguments.shipped:
            model = load_shipped(arguments.shipped, str(device))
        else:
            model = Model(config).to(device)
        optimisers_ = optimisers(model)
        step = 0
        saved = arguments.state / "state.pt"
        if saved.exists() and not (arguments.weights or arguments.shipped):
            state = torch.load(saved, map_location=device, weights_only=True)
            model.load_state_dict(state["model"])
            for optimiser, values in zip(optimisers_, state["optimisers"]):
                relative = [g["relative"] for g in optimiser.param_groups]
                optimiser.load_state_dict(values)
                for group, r in zip(optimiser.param_groups, relative):
                    group["relative"] = r
            step = state["step"]
        numerics = Numerics(numerics_name, sparse=sparse)
        probe = tuple(t.to(device) for t in probe)
        held_out = held_out_batch(arguments.data, tokenizer, 512, 64, device)
        csa = [layer.attn for layer in model.layers if layer.attn.ratio == 4]
        print(f"phase {arguments.phase}, step {step}, ready after {time.monotonic() - begin:.0f} s", flush=True)

        first_step, mark, mark_tokens = step, time.monotonic(), 0
        start = time.monotonic()
        deadline = begin + 60 * arguments.minutes
        sums = torch.zeros(3, device=device)
        count = 0
        while time.monotonic() < deadline:
            progress = min(1.0, (time.monotonic() - start) / max(1.0, deadline - start))
            lr = arguments.lr
            if arguments.lr_end is not None:
                lr += (arguments.lr_end - arguments.lr) * progress
            lr *= min(1.0, (step - first_step + 1) / arguments.warmup)
            for optimiser in optimisers_:
                for group in optimiser.param_groups:
                    group["lr"] = lr * group["relative"]

            ids, weights = feed.ready.get()
            model.train()
            seen, wanted = ids.unbind(1)
            streams = model.trunk(seen[:, :-2], numerics)
            logits = model.project(model.hidden(streams), numerics)
            loss = weighted_cross_entropy(logits, wanted[:, 1:-1].reshape(-1), weights[:, 1:-1].reshape(-1))
            draft = model.project(model.draft_hidden(streams, seen[:, 1:-1], numerics), numerics)
            draft_loss = weighted_cross_entropy(draft, wanted[:, 2:].reshape(-1), weights[:, 2:].reshape(-1))
            distillation = sum(a.distillation for a in csa) / len(csa)
            (loss + _MTP_WEIGHT * draft_loss + distillation).backward()
            adam_params = [p for g in optimisers_[0].param_groups for p in g["params"]]
            torch.nn.utils.clip_grad_norm_(adam_params, 1.0)
            for optimiser in optimisers_:
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            balance(model, _BIAS_SPEED * lr / 4e-3)
            sums += torch.stack([loss.detach(), draft_loss.detach(), distillation.detach()])
            count += 1
            step += 1
            mark_tokens += seen[:, :-2].numel()
            if step - first_step in (1, 10) or step % 200 == 0:
                a, b, c = (sums / count).tolist()
                with torch.compiler.set_stance("force_eager"):
                    recalled = recall_share(model, probe, numerics)
                now = time.monotonic()
                print(f"step {step} at {now - begin:.0f} s: loss {a:.4f}, mtp {b:.4f}, indexer {c:.4f}, recall {recalled:.3f}, lr {lr:.2e}, "
                      f"{mark_tokens / (now - mark):.0f} tokens/s, queue {[q.qsize() for q in feed.queues.values()]}, "
                      f"load {balance(model, 0.0):.2f}", flush=True)
                mark, mark_tokens, count = now, 0, 0
                sums.zero_()
        model.eval()
        with torch.compiler.set_stance("force_eager"):
            loss = held_out_loss(model, held_out, Numerics("train", sparse=sparse))
        print(f"held-out loss {loss:.4f} per token, perplexity {np.exp(loss):.2f}; streams rms "
              f"{streams.float().square().mean().sqrt().item():.2f}; {step} steps", flush=True)
        arguments.state.mkdir(parents=True, exist_ok=True)
        torch.save({"model": model.state_dict(), "optimisers": [o.state_dict() for o in optimisers_], "step": step}, saved)
        if arguments.output:
            save_weights(model, arguments.output)
        print(f"saved after {time.monotonic() - begin:.0f} s", flush=True)
    finally:
        feed.stop()


if __name__ == "__main__":
    main()
