"""Trains DSpark drafters for an exported model, whose weights stay as they are, and writes them in the release's names.

The data are answers of the model itself (own_texts.py) and, as many tokens at most, documents of its training mixture. What the trunk
makes of them is computed once and kept on the device: taps and the head's input. A block stands at a random token of an answer. The
loss of a row is against what the trunk says there: its distribution, and in a greedy answer the token that came. It is the cross
entropy, the total variation distance (the chance that a sampled draft is refused), and for the confidence head the binary cross
entropy to the chance of acceptance. Rows further back count less. All rounding points of the release act from the first step.

Drafters of several numbers of stages learn from the same batches. On a GPU a step is recorded once as a CUDA graph: nothing is compiled,
and a CPU that is busy with other work does not slow it down. The learning rate falls with the clock and ends when the time does.

  python3 train_drafter.py --model models/tiny --data DATA --texts own.jsonl --stages 1 2 --output ONE TWO --minutes 3.5
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import math
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from config import Config
from drafter import Blocks, DraftConfig, Drafter, taps
from export import write_drafter
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
_KEEP = 60  # seconds from one writing of the drafters to the next
_EAGER = 5  # steps before one is recorded
_KINDS = {"dialogue": 45, "story": 10, "tools": 12, "raw_fact": 8, "records": 10, "lookup": 3, "corpus": 12}


class Divergence(torch.autograd.Function):
    """Of a draft's distribution q from the wanted one p, per row: the cross entropy and half the sum of |q - p|, the chance of refusal.

    Logits [T,V] times `sharper` [T] give q. The gradient is written out: autograd would keep a dozen tensors of the vocabulary's width.
    """

    @staticmethod
    def forward(ctx, logits: Tensor, sharper: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
        log_q = torch.log_softmax(logits.float() * sharper[:, None], -1)
        entropy = -(p * log_q).sum(-1)
        q = log_q.exp_()
        difference = q - p
        ctx.save_for_backward(q, difference, sharper)
        ctx.dtype = logits.dtype
        return entropy, 0.5 * torch.linalg.vector_norm(difference, ord=1, dim=-1)

    @staticmethod
    def backward(ctx, of_entropy: Tensor, of_refused: Tensor) -> tuple[Tensor, None, None]:
        q, difference, sharper = ctx.saved_tensors
        sign = difference.sign()
        mean = (q * sign).sum(-1)
        grad = (sign - mean[:, None]).mul_(q).mul_((0.5 * of_refused * sharper)[:, None])
        return grad.addcmul_(difference, (of_entropy * sharper)[:, None]).to(ctx.dtype), None, None


def wanted(target: Tensor, came: Tensor, greedy: Tensor) -> Tensor:
    """The distribution [T,V] that a row's draft ought to have: the target's, or in a greedy text all of it on the token that came."""
    p = torch.softmax(target.float(), -1).mul_((1 - greedy)[:, None])
    return p.scatter_add_(1, came[:, None], greedy[:, None])


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
                             weight_decay=0.0, fused=matrices[0].is_cuda, capturable=matrices[0].is_cuda)
    muon = Muon(matrices, lr=1.0)
    for optimiser in (adam, muon):
        for group in optimiser.param_groups:
            group["relative"] = group["lr"]
            group["lr"] = torch.tensor(group["lr"], device=matrices[0].device)  # a recorded step reads it anew each time
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
    def run_trunk(self, model: Model, draft: DraftConfig, numerics: Numerics, device: torch.device, tokens: int, seconds: float) -> int:
        """So many tokens at a time. Stops after `seconds`: texts that were not reached are left out. The number of those that were."""
        begun, window = time.monotonic(), model.config.sliding_window
        order = sorted(range(len(self.ids)), key=lambda i: len(self.ids[i]))
        begin = np.concatenate([[0], np.cumsum([len(self.ids[i]) for i in order])])
        lengths = [len(self.ids[i]) for i in order]
        padded = [-(-length // window) * window for length in lengths]
        self.begin, total = torch.from_numpy(begin[:-1]).to(device), int(begin[-1])
        self.lengths = torch.tensor(lengths, device=device)
        self.is_greedy = torch.tensor([float(self.greedy[i]) for i in order], device=device)
        self.flat = torch.from_numpy(np.concatenate([self.ids[i] for i in order]).astype(np.int64)).to(device)
        self.weight = torch.from_numpy(np.concatenate([self.weights[i] for i in order]).astype(np.float32)).to(device)
        width = model.config.hidden_size
        self.taps = torch.zeros(total, width * len(draft.target_layer_ids), dtype=torch.bfloat16, device=device)
        self.hidden = torch.zeros(total, width, dtype=torch.bfloat16, device=device)
        # Texts of like length go together; of the batches any may be the last.
        batches, at = [], 0
        while at < len(order):
            last = at + 1
            while last < len(order) and (last - at + 1) * padded[last] <= tokens:
                last += 1
            batches.append((at, last, padded[last - 1]))
            at = last
        reached = torch.zeros(len(order), dtype=torch.bool, device=device)
        for b in np.random.default_rng(len(order)).permutation(len(batches)):
            first, last, length = batches[b]
            place = torch.arange(length, device=device)
            inside = place < self.lengths[first:last, None]
            index = torch.where(inside, self.begin[first:last, None] + place, 0)
            ids = torch.where(inside, self.flat[index], 0)
            trace: list[Tensor] = []
            streams = model.trunk(ids, numerics, trace)
            self.taps[index[inside]] = taps(trace, draft, last - first)[inside]
            self.hidden[index[inside]] = model.hidden(streams).view(last - first, length, -1)[inside]
            reached[first:last] = True
            if time.monotonic() - begun > seconds:  # masks have waited for the device
                break
        self.weight *= torch.repeat_interleave(reached, self.lengths)
        # a text's row p foretells token p + 1: anchors are the rows whose second next token counts
        following = torch.cat([self.weight[2:], self.weight.new_zeros(2)])
        inside = torch.arange(total, device=device) + 2 < torch.repeat_interleave(self.begin + self.lengths, self.lengths)
        text_of = torch.repeat_interleave(torch.arange(len(order), device=device), self.lengths)
        self.anchors = torch.nonzero((following > 0) & inside).flatten() + 1
        self.anchor_begin = torch.searchsorted(text_of[self.anchors], torch.arange(len(order), device=device))
        self.num_anchors = torch.bincount(text_of[self.anchors], minlength=len(order))
        self.chances = self.num_anchors.double().clamp_max(64).cumsum(0)
        return int(reached.sum())

    def draw(self, noise: Tensor, size: int, window: int) -> Batch:
        """Texts at random, by their number of anchors, and blocks at anchors of each. noise [texts, 1 + blocks]: uniform numbers."""
        device, length, blocks = self.flat.device, 2 * window, noise.shape[1] - 1
        texts = torch.searchsorted(self.chances, noise[:, 0].double() * self.chances[-1], right=True).clamp_max(len(self.chances) - 1)
        # one in each of as many equal parts of the text: all differ where it has enough
        part = torch.arange(blocks, device=device) + noise[:, 1:]
        pick = torch.minimum((part / blocks * self.num_anchors[texts][:, None]).long(), self.num_anchors[texts][:, None] - 1)
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


def step_losses(model: Model, drafter: Drafter, batch: Batch, p: Tensor, numerics: Numerics) -> Tensor:
    """Weighted means of cross entropy, refusal and confidence loss, and refusal by row: of drawn texts, then of greedy ones. p: what
    each row's draft ought to be."""
    size, rows = batch.blocks.size, batch.blocks.positions()
    drafted = drafter.hidden(model, batch.taps, batch.ids, batch.blocks, numerics).flatten(0, 1)
    embedded, term = drafter.markov(batch.ids.gather(1, rows).flatten(), numerics)
    logits = drafter.base_logits(model, drafted, numerics) + term
    confidence = drafter.confidence_logits(drafted.detach(), embedded.detach())
    entropy, refused = Divergence.apply(logits, 1 + (_GREEDY_SHARPNESS - 1) * batch.greedy, p)
    sure = F.binary_cross_entropy_with_logits(confidence, (1 - refused.detach()).clamp(0, 1), reduction="none")
    decayed = batch.weight * torch.exp(-torch.arange(size, device=rows.device) / _DECAY).repeat(len(batch.weight) // size)
    means = [(part * decayed).sum() / decayed.sum() for part in (entropy, refused, sure)]
    by_row = []
    for greedy in (0, 1):
        weight = batch.weight * (batch.greedy == greedy)
        by_row.append((refused.detach() * weight).view(-1, size).sum(0) / weight.view(-1, size).sum(0).clamp_min(1))
    return torch.cat([torch.stack(means), *by_row])


class Trainer:
    """Drafters that learn from the same batches. A step reads and writes tensors that stay where they are, so that it can be recorded."""

    def __init__(self, model: Model, drafters: list[Drafter], texts: Texts, batch: int) -> None:
        device = model.embed.weight.device
        self.model, self.drafters, self.texts = model, drafters, texts
        self.numerics = Numerics("qat", sparse=True)
        self.optimisers = [optimisers(drafter) for drafter in drafters]
        self.size = drafters[0].draft_config.block_size
        self.noise = torch.empty(batch, 1 + _BLOCKS, device=device)
        self.bias_speed = torch.zeros((), device=device)
        self.sums = [torch.zeros(3 + 2 * self.size, device=device) for _ in drafters]
        self.graph: torch.cuda.CUDAGraph | None = None

    def set_rate(self, lr: float) -> None:
        self.bias_speed.fill_(_BIAS_SPEED * lr / 4e-3)
        for optimiser in sum(self.optimisers, []):
            for group in optimiser.param_groups:
                group["lr"].fill_(lr * group["relative"])

    def _step(self) -> None:
        batch = self.texts.draw(self.noise, self.size, self.model.config.sliding_window)
        with torch.no_grad():
            came = batch.ids.gather(1, batch.blocks.positions() + 1).flatten()
            p = wanted(self.model.project(batch.hidden, self.numerics), came, batch.greedy)
        for drafter, pair, sums in zip(self.drafters, self.optimisers, self.sums):
            values = step_losses(self.model, drafter, batch, p, self.numerics)
            (_CROSS_ENTROPY * values[0] + _VARIATION * values[1] + _CONFIDENCE * values[2]).backward()
            torch.nn.utils.clip_grad_norm_([q for g in pair[0].param_groups for q in g["params"]], 1.0)
            for optimiser in pair:
                optimiser.step()
                optimiser.zero_grad(set_to_none=True)
            balance(drafter, self.bias_speed)
            sums += values.detach()

    def step(self) -> None:
        self.noise.uniform_()
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def record(self) -> None:
        """Steps are replayed from now on. Some must have run."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._step()
        except RuntimeError:
            for optimiser in sum(self.optimisers, []):
                optimiser.zero_grad(set_to_none=True)
            raise
        self.graph = graph


def write(drafters: list[Drafter], arguments: argparse.Namespace) -> None:
    """Into the folders of --output, each file whole or as it was."""
    config = json.loads((arguments.model / "config.json").read_text(encoding="utf-8"))
    for drafter, folder in zip(drafters, arguments.output):
        new = folder / "new"
        new.mkdir(parents=True, exist_ok=True)
        size = write_drafter(copy.deepcopy(drafter).cpu(), config, new)
        for file in new.iterdir():
            file.replace(folder / file.name)
        new.rmdir()
        print(f"{folder}: {size} bytes", flush=True)


def train(trainer: Trainer, arguments: argparse.Namespace, latest: float, begin: float) -> None:
    """For --minutes from the first step, but not beyond `latest`; SIGTERM ends it too. Writes the drafters now and then."""
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopped.append(number))
    cuda, size = trainer.noise.is_cuda, trainer.size
    for drafter in trainer.drafters:
        drafter.train()
    start = time.monotonic()
    deadline = min(start + 60 * arguments.minutes, latest)
    kept = start
    step, count, mark, done = 0, 0, start, [torch.cuda.Event(), torch.cuda.Event()] if cuda else []
    while time.monotonic() < deadline and not stopped and (arguments.steps is None or step < arguments.steps):
        progress = min(1.0, (time.monotonic() - start) / max(1.0, deadline - start))
        lr = arguments.lr_end + (arguments.lr - arguments.lr_end) * 0.5 * (1 + math.cos(math.pi * progress))
        lr *= min(1.0, (step + 1) / arguments.warmup)
        trainer.set_rate(lr)
        if cuda and arguments.graph and step == _EAGER:
            try:
                trainer.record()
                print(f"the step is recorded after {time.monotonic() - begin:.0f} s", flush=True)
            except RuntimeError as error:
                torch.cuda.synchronize()
                print(f"the step could not be recorded, each of its kernels is launched anew: {error}", flush=True)
        trainer.step()
        if cuda:  # at most one step ahead of the device, or the learning rate would be of another time
            done[step % 2].record()
            done[(step + 1) % 2].synchronize()
        count += 1
        step += 1
        if step in (1, 10, 50) or step % arguments.log == 0:
            now = time.monotonic()
            for drafter, sums in zip(trainer.drafters, trainer.sums):
                mean = (sums / count).tolist()
                drawn, greedy = ([round(1 - x, 3) for x in mean[first:first + size]] for first in (3, 3 + size))
                print(f"step {step} at {now - begin:.0f} s, {len(drafter.stages)} stages: cross entropy {mean[0]:.4f}, "
                      f"refused {mean[1]:.4f}, confidence {mean[2]:.4f}, accepted by row: drawn {drawn}, greedy {greedy}, lr {lr:.2e}, "
                      f"{count / (now - mark):.1f} steps/s, load {balance(drafter, 0.0):.2f}", flush=True)
                sums.zero_()
            count, mark = 0, now
        if time.monotonic() - kept > _KEEP:  # what is there if the run is cut short
            write(trainer.drafters, arguments)
            kept = time.monotonic()
    if cuda:
        torch.cuda.synchronize()
    print(f"{step} steps in {time.monotonic() - start:.0f} s, after {time.monotonic() - begin:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="folder of the exported model")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--texts", type=Path, nargs="*", default=[], help="answers of own_texts.py")
    parser.add_argument("--mixture", type=float, default=1.0, help="tokens of the training mixture for each of an answer")
    parser.add_argument("--mixture-tokens", type=int, default=0, help="and so many more")
    parser.add_argument("--output", type=Path, nargs="+", required=True, help="folders for config.json and model.safetensors of the drafters")
    parser.add_argument("--start", type=Path, help="folder of a drafter to go on from, of whose stages the first --stages stay")
    parser.add_argument("--minutes", type=float, required=True, help="of training, from the first step")
    parser.add_argument("--latest", type=float, default=math.inf,
                        help="seconds from the program's start to the end of training at most")
    parser.add_argument("--trunk-seconds", type=float, default=math.inf,
                        help="for the model's pass over the texts, of which those beyond are left out")
    parser.add_argument("--steps", type=int, help="stop after so many")
    parser.add_argument("--longest", type=int, default=640, help="of texts, in tokens")
    parser.add_argument("--tokens", type=int, default=65536, help="that the trunk reads at a time")
    parser.add_argument("--batch", type=int, default=256, help="texts of a step")
    parser.add_argument("--no-graph", dest="graph", action="store_false", help="on a GPU, launch every kernel of a step anew")
    parser.add_argument("--lr", type=float, default=4e-3)
    parser.add_argument("--lr-end", type=float, default=2e-5)
    parser.add_argument("--warmup", type=int, default=50)
    parser.add_argument("--seed", type=int, default=31)
    parser.add_argument("--log", type=int, default=100, help="steps from one line to the next")
    parser.add_argument("--block", type=int, default=5)
    parser.add_argument("--stages", type=int, nargs="+", default=[1], help="as many numbers as there are outputs")
    parser.add_argument("--rank", type=int, default=64, help="of the Markov head")
    parser.add_argument("--experts", type=int, nargs=2, default=[0, 0], metavar=("ALL", "ACTIVE"), help="of V4.1's stages")
    parser.add_argument("--targets", type=int, nargs="*", help="tapped layers; default: the last three")
    parser.add_argument("--noise", type=int, help="id of the noise token; default: the last of the vocabulary")
    arguments = parser.parse_args()
    if len(arguments.stages) != len(arguments.output):
        parser.error(f"--stages: got {len(arguments.stages)} numbers, wanted one for each of the {len(arguments.output)} folders")
    begin = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.compiler.set_stance("force_eager")
    torch.manual_seed(arguments.seed)
    texts = Texts(arguments.longest)
    count = sum(texts.read(path) for path in arguments.texts)
    generator = Generator(arguments.data, Tokenizer.from_file(str(arguments.model / "tokenizer.json")), arguments.seed,
                          "v4.1" if Config.load(arguments.model / "config.json").is_v41 else "v4")
    texts.mixture(generator, int(count * arguments.mixture) + arguments.mixture_tokens)
    model = load_shipped(arguments.model, str(device)).requires_grad_(False)
    layers, vocabulary = model.config.num_hidden_layers, model.config.vocab_size
    noise = vocabulary - 1 if arguments.noise is None else arguments.noise
    targets = arguments.targets or list(range(layers - 3, layers))
    drafters = []
    for stages in arguments.stages:
        drafter = Drafter(model.config, DraftConfig(arguments.block, noise, arguments.rank, targets, stages, *arguments.experts)).to(device)
        if arguments.start:
            drafter = load_drafter(arguments.start, model.config, str(device))
            if stages > len(drafter.stages):
                parser.error(f"--stages: got {stages}, wanted at most the {len(drafter.stages)} of {arguments.start}")
            drafter.stages = drafter.stages[:stages]
            drafter.draft_config.stages = stages
        drafters.append(drafter)
    print(f"{[sum(p.numel() for p in d.parameters()) for d in drafters]} weights, {len(texts.ids)} texts, {count} tokens of answers, "
          f"ready after {time.monotonic() - begin:.0f} s", flush=True)
    reached = texts.run_trunk(model, drafters[0].draft_config, Numerics("qat", sparse=True), device, arguments.tokens,
                              arguments.trunk_seconds)
    print(f"{len(texts.anchors)} anchors in {reached} of {len(texts.ids)} texts, the trunk has run after "
          f"{time.monotonic() - begin:.0f} s", flush=True)
    # the default stream cannot be recorded
    with torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else contextlib.nullcontext():
        train(Trainer(model, drafters, texts, arguments.batch), arguments, begin + arguments.latest, begin)
    write(drafters, arguments)


if __name__ == "__main__":
    main()
