"""Trains a small model for a number of minutes, phase after phase, and saves its weights now and then.

Phases, with their minutes: `--phases base:3 long:2 final:4`
  base   rows of 1024 tokens, dense attention; V4's indexer already learns from it by distillation
  long   some of the steps with rows of 4096; V4.1's indexer learns too
  final  the same, with the indexer's top-k deciding and quantisation-aware training; the learning rate falls

Minutes count from the program's start, so that it ends when they say. On a GPU each kind of step is recorded as a CUDA graph: a
step of this size is otherwise as long as the launching of its kernels.

  python3 train.py --config models/tiny/config.json --data DATA --phases base:6 long:7 final:7 --output WEIGHTS
"""

from __future__ import annotations

import argparse
import contextlib
import math
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
from config import Config
from evaluate import Forced
from functions import compiled
from generator import Generator, load_texts
from model import Model, Numerics
from model41 import build
from muon import Muon
from shipped import load_shipped

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Phase:
    """What the steps of a phase are like."""

    def __init__(self, lengths: tuple[int, ...], numerics: Numerics) -> None:
        self.lengths, self.numerics = lengths, numerics


_LENGTHS = (1024, 1024, 1024, 4096)
_PHASES = {"base": Phase((1024,), Numerics("train", sparse=False, indexes=False)),
           "long": Phase(_LENGTHS, Numerics("train", sparse=False)),
           "final": Phase(_LENGTHS, Numerics("qat", sparse=True))}
_MTP_WEIGHT = 0.15
_BIAS_SPEED = 1e-3
_LONGEST = 8192  # tokens of a row
_EAGER = 4  # steps of a kind before one is recorded
_LOG, _KEEP = 20, 60  # seconds; weights are kept after a line of the log
_DIVERGED = 3  # exit code


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
    """Batches of packed rows from worker processes."""

    def __init__(self, generator: Generator, lengths: list[int], tokens: int, workers: int, seed: int) -> None:
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

    def start(self, schedule: tuple[int, ...]) -> None:
        self.schedule = schedule  # of row lengths; may be exchanged at any time
        self.ready: Queue = Queue(maxsize=3)
        threading.Thread(target=self._gather, daemon=True).start()

    def _gather(self) -> None:
        step = 0
        while True:
            length = self.schedule[step % len(self.schedule)]
            need, ids, weights = max(1, self.tokens // length), [], []
            while sum(len(i) for i in ids) < need:
                piece = self.queues[length].get()
                ids.append(piece[0])
                weights.append(piece[1])
            self.ready.put((torch.from_numpy(np.concatenate(ids)[:need].astype(np.int64)),
                            torch.from_numpy(np.concatenate(weights)[:need].astype(np.float32))))
            step += 1

    def stop(self) -> None:
        for process in self.processes:
            process.terminate()


def optimisers(model: Model) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of linears and experts; AdamW for embeddings, norms, router and hyper-connections."""
    matrices, tables, rest = [], [], []
    for name, p in model.named_parameters():
        if name in ("embed.weight", "head.weight") or name.endswith("engram.embed.weight"):
            tables.append(p)
        elif p.ndim == 3 or (p.ndim == 2 and not name.endswith((".fn", ".ape", "q_weight", "k_weight")) and ".gate." not in name
                             and "weights_proj" not in name):
            matrices.append(p)
        else:
            rest.append(p)
    fused = next(model.parameters()).is_cuda
    adam = torch.optim.AdamW([{"params": tables, "lr": 1.0}, {"params": rest, "lr": 0.5}], betas=(0.9, 0.95), eps=1e-10,
                             weight_decay=0.0, fused=fused, capturable=fused)
    muon = Muon(matrices, lr=1.0)
    for optimiser in (adam, muon):
        for group in optimiser.param_groups:
            group["relative"] = group["lr"]
            group["lr"] = torch.tensor(group["lr"], device=matrices[0].device)  # a recorded step reads it anew each time
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


class Trainer:
    """Steps that read and write tensors that stay where they are, so that they can be recorded, a graph for each kind."""

    def __init__(self, model: Model, record: bool) -> None:
        self.model, self.record = model, record
        self.device = model.embed.weight.device
        self.optimisers = optimisers(model)
        self.bias_speed = torch.zeros((), device=self.device)
        self.sums = torch.zeros(3, device=self.device)
        model.rope(_LONGEST)  # recorded steps read these tables, which may not be exchanged for longer ones
        self.forget()

    def forget(self) -> None:
        """At the begin of a phase: its steps are of other kinds."""
        self.inputs: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.seen: dict[int, int] = {}
        self.sums.zero_()

    def set_rate(self, lr: float) -> None:
        self.bias_speed.fill_(_BIAS_SPEED * lr / 4e-3)
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"].fill_(lr * group["relative"])

    def _losses(self, ids: torch.Tensor, weights: torch.Tensor, numerics: Numerics) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum to be minimised, and loss, MTP loss and distillation loss."""
        model = self.model
        seen, wanted = ids.unbind(1)
        streams = model.trunk(seen[:, :-2], numerics)
        logits = model.project(model.hidden(streams), numerics)
        loss = weighted_cross_entropy(logits, wanted[:, 1:-1].reshape(-1), weights[:, 1:-1].reshape(-1))
        draft_loss = torch.zeros_like(loss)
        if hasattr(model, "mtp"):
            draft = model.project(model.draft_hidden(streams, seen[:, 1:-1], numerics), numerics)
            draft_loss = weighted_cross_entropy(draft, wanted[:, 2:].reshape(-1), weights[:, 2:].reshape(-1))
        distillation = model.distillation_loss()
        return loss + _MTP_WEIGHT * draft_loss + distillation, torch.stack([loss, draft_loss, distillation]).detach()

    def _step(self, length: int, numerics: Numerics) -> None:
        total, values = self._losses(*self.inputs[length], numerics)
        total.backward()
        torch.nn.utils.clip_grad_norm_([p for g in self.optimisers[0].param_groups for p in g["params"]], 1.0)
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        balance(self.model, self.bias_speed)
        self.sums += values

    def step(self, ids: torch.Tensor, weights: torch.Tensor, numerics: Numerics) -> None:
        length = ids.shape[-1]
        if length not in self.inputs:
            self.inputs[length] = (ids.to(self.device), weights.to(self.device))
        for place, value in zip(self.inputs[length], (ids, weights)):
            place.copy_(value)
        self.seen[length] = self.seen.get(length, 0) + 1
        if self.record and self.seen[length] == _EAGER + 1:
            graph = torch.cuda.CUDAGraph()
            try:
                torch.cuda.synchronize()
                with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                    self._step(length, numerics)
                self.graphs[length] = graph
            except RuntimeError as error:
                self.record = False
                torch.cuda.synchronize()
                for optimiser in self.optimisers:
                    optimiser.zero_grad(set_to_none=True)
                print(f"a step could not be recorded, kernels are launched one by one: {error}", flush=True)
        if length in self.graphs:
            self.graphs[length].replay()
        else:
            self._step(length, numerics)


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


def train(trainer: Trainer, feed: Feed, arguments: argparse.Namespace, report, begin: float) -> None:
    """All phases. `report(numerics)` says how good the model is."""
    model, cuda = trainer.model, trainer.device.type == "cuda"
    phases = [(name, 60 * float(minutes)) for name, minutes in (text.split(":") for text in arguments.phases)]
    done = [torch.cuda.Event(), torch.cuda.Event()] if cuda else []
    step, deadline, kept = 0, begin, time.monotonic()
    for index, (name, seconds) in enumerate(phases):
        phase, start = _PHASES[name], max(time.monotonic(), deadline)
        deadline += seconds
        feed.schedule = phase.lengths
        if cuda:
            torch.cuda.synchronize()
        trainer.forget()
        mark, mark_tokens, count, logged = time.monotonic(), 0, 0, 0
        model.train()
        while time.monotonic() < deadline:
            lr = arguments.lr
            if index == len(phases) - 1:
                lr += (arguments.lr_end - arguments.lr) * min(1.0, (time.monotonic() - start) / max(1.0, deadline - start))
            trainer.set_rate(lr * min(1.0, (step + 1) / arguments.warmup))
            ids, weights = feed.ready.get()
            trainer.step(ids, weights, phase.numerics)
            if cuda:  # at most one step ahead of the device, or the learning rate would be of another time
                done[step % 2].record()
                done[(step + 1) % 2].synchronize()
            count += 1
            step += 1
            mark_tokens += ids.shape[0] * (ids.shape[2] - 2)
            now = time.monotonic()
            if logged < 2 or now - mark > _LOG:
                values = (trainer.sums / count).tolist()
                if not math.isfinite(values[0]):
                    print(f"step {step}: the loss is {values[0]}; the weights saved last stay", flush=True)
                    raise SystemExit(_DIVERGED)
                now = time.monotonic()
                print(f"{name}, step {step} at {now - begin:.0f} s: loss {values[0]:.4f}, mtp {values[1]:.4f}, indexer {values[2]:.4f}, "
                      f"lr {lr:.2e}, {mark_tokens / (now - mark):.0f} tokens/s, queue {[q.qsize() for q in feed.queues.values()]}, "
                      f"load {balance(model, 0.0):.2f}, graphs {sorted(trainer.graphs)}", flush=True)
                mark, mark_tokens, count, logged = now, 0, 0, logged + 1
                trainer.sums.zero_()
            if count == 0 and now - kept > _KEEP:  # what is there if the run is cut short
                save_weights(model, arguments.output)
                report(phase.numerics)
                model.train()
                mark = kept = time.monotonic()
    if cuda:
        torch.cuda.synchronize()
    save_weights(model, arguments.output)
    print(f"{step} steps, saved after {time.monotonic() - begin:.0f} s", flush=True)
    report(_PHASES[phases[-1][0]].numerics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--eval", type=Path, help="folder of evaluation sets, to see how much of them the model would say")
    parser.add_argument("--weights", type=Path, help="start from these saved weights")
    parser.add_argument("--shipped", type=Path, help="start from the weights of an exported model instead")
    parser.add_argument("--output", type=Path, required=True, help="folder for the bf16 weights")
    parser.add_argument("--phases", nargs="+", required=True, metavar="PHASE:MINUTES", help=f"of {', '.join(_PHASES)}")
    parser.add_argument("--lengths", type=int, nargs="+", metavar="TOKENS", help=f"of rows, step after step, in long and final (default {_LENGTHS})")
    parser.add_argument("--tokens", type=int, default=32768, help="per step")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--lr-end", type=float, default=2e-5, help="linear fall over the last phase")
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--workers", type=int, default=13)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="on a GPU, launch every kernel of a step anew")
    arguments = parser.parse_args()
    begin = time.monotonic()

    if arguments.lengths:
        for name in ("long", "final"):
            _PHASES[name] = Phase(tuple(arguments.lengths), _PHASES[name].numerics)
    lengths = sorted({length for text in arguments.phases for length in _PHASES[text.split(":")[0]].lengths})
    tokenizer = Tokenizer.from_file(str(arguments.config.parent / "tokenizer.json"))
    config = Config.load(arguments.config)
    generator = Generator(arguments.data, tokenizer, arguments.seed, "v4.1" if config.is_v41 else "v4")
    probe = recall_probe(generator, 1024, 16, 99)
    forced = Forced(arguments.eval, tokenizer) if arguments.eval else None
    feed = Feed(generator, lengths, arguments.tokens, arguments.workers, arguments.seed)
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        torch.backends.cuda.matmul.allow_tf32 = True
        torch._dynamo.config.recompile_limit = 256
        torch._dynamo.config.accumulated_recompile_limit = 4096
        torch.manual_seed(arguments.seed)
        feed.start(_PHASES[arguments.phases[0].split(":")[0]].lengths)
        if arguments.weights:
            model = load_weights(config, arguments.weights, str(device))
        else:
            model = load_shipped(arguments.shipped, str(device)) if arguments.shipped else build(config).to(device)
        probe = tuple(t.to(device) for t in probe)
        held_out = held_out_batch(arguments.data, tokenizer, 512, 64, device)
        print(f"{sum(p.numel() for p in model.parameters())} weights, ready after {time.monotonic() - begin:.0f} s", flush=True)

        def report(numerics: Numerics) -> None:
            start = time.monotonic()
            model.eval()
            with torch.compiler.set_stance("force_eager"):
                loss = held_out_loss(model, held_out, numerics)
                shares = forced.shares(model, numerics) if forced else {}
                print(f"held-out loss {loss:.4f} per token, perplexity {np.exp(loss):.2f}, recall {recall_share(model, probe, numerics):.3f}, "
                      f"would say {shares} ({time.monotonic() - start:.1f} s)", flush=True)

        if device.type == "cuda":
            torch.cuda.synchronize()
        # the default stream cannot be recorded
        with torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else contextlib.nullcontext():
            train(Trainer(model, arguments.graph and device.type == "cuda"), feed, arguments, report, begin)
    finally:
        feed.stop()


if __name__ == "__main__":
    main()
