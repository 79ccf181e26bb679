"""Trains the index sources that choose among candidates, and the source of the candidates, of a shipped V4.1 model. All else keeps its bytes.

Their inputs are detached in training anyway, so a CPU is enough: the model reads a few rows once, and what the indexers saw is learnt from
many times over. The source of candidates learns what the layers behind it attend to, and keeps what it chose for its own layers.

  python3 train_indexers.py --model models/tiny-v41 --data DATA --rows 29 --minutes 7
"""

from __future__ import annotations

import argparse
import copy
import json
import struct
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

import export
import model41
from functions import distillation_loss
from generator import Generator
from linears import Numerics
from model import Model
from shipped import load_shipped

_LENGTH = 4096
_QUERIES = 256  # of a row, per step
_LEAST_WEIGHT = 0.02
_HELD_OUT = 4
_NUMERICS = Numerics("qat", sparse=True)


class Row:
    """What the indexers of a row see, and where the last of their layers looks: every third query of it."""

    def __init__(self, latents: Tensor, inputs: dict[int, tuple[Tensor, Tensor]], teacher: Tensor) -> None:
        self.latents, self.inputs, self.teacher = latents, inputs, teacher


def read_rows(model: Model, source: int, chooser: int, generator: Generator, count: int) -> list[Row]:
    seen: dict[int, tuple[Tensor, Tensor]] = {}
    teachers: list[Tensor] = []
    latents: list[Tensor] = []
    stride = model41._STRIDE
    teach = model41.teacher_distribution

    def watch(*operands) -> Tensor:
        teachers.append(teach(*operands))
        return teachers[-1]

    def keep(layer: int):
        def hook(_, operands) -> None:
            if operands[0].shape[1] == _LENGTH:
                seen[layer] = tuple(x[:, ::stride].clone() for x in operands[:2])
        return hook

    hooks = [model.layers[layer].attn.indexer.register_forward_pre_hook(keep(layer)) for layer in (source, chooser)]
    hooks.append(model.layers[source].attn.compressor.register_forward_hook(lambda _, __, output: latents.append(output.clone())))
    model41.teacher_distribution = watch
    rows, stream = [], generator.rows(_LENGTH)
    while len(rows) < count:
        teachers.clear()
        latents.clear()
        model.trunk(torch.from_numpy(np.asarray(next(stream)[0][0][:_LENGTH])).long()[None], _NUMERICS)
        rows.append(Row(latents[0], dict(seen), teachers[-1].half()))
        print(f"row {len(rows)} of {count}", flush=True)
    for hook in hooks:
        hook.remove()
    model41.teacher_distribution = teach
    return rows


class Losses:
    """Of one row: how far the source is from its former choice, and both from where the chooser's layers look."""

    def __init__(self, model: Model, source: int, chooser: int) -> None:
        self.source, self.chooser = source, chooser
        self.indexers = {layer: model.layers[layer].attn.indexer for layer in (source, chooser)}
        self.former = copy.deepcopy(self.indexers[source])
        self.tables = [t[::model41._STRIDE] for t in model.rope(_LENGTH)(1, 1, _LENGTH)]
        self.all_tables = model.rope(_LENGTH)(1, 1, _LENGTH)
        self.visible = (torch.arange(_LENGTH) < torch.arange(1, _LENGTH + 1)[:, None])[None, ::model41._STRIDE]

    def scores(self, row: Row, indexer, layer: int, keys_of, queries) -> Tensor:
        u, qr = (x[:, queries] for x in row.inputs[layer])
        keys = keys_of.keys(row.latents, *self.all_tables, _NUMERICS)
        return indexer(u, qr, *(t[queries] for t in self.tables), keys, _NUMERICS)

    def __call__(self, row: Row, queries) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The three losses, and the source's scores."""
        visible, teacher = self.visible[:, queries], row.teacher[:, queries].float()
        own = self.indexers[self.source]
        with torch.no_grad():
            former = self.scores(row, self.former, self.source, self.former, queries)
            former = torch.softmax(torch.where(visible, former, -1e9), -1)
        candidates = self.scores(row, own, self.source, own, queries)
        chosen = self.scores(row, self.indexers[self.chooser], self.chooser, own, queries)
        weights = teacher.amax(-1).clamp_min(_LEAST_WEIGHT)  # queries that look at one place count most

        def divergence(scores: Tensor) -> Tensor:
            logp = torch.log_softmax(torch.where(visible, scores, -1e9), -1)
            return ((teacher * (torch.log(teacher.clamp_min(1e-9)) - logp)).sum(-1) * weights).sum() / weights.sum()

        return distillation_loss(candidates, former, visible), divergence(candidates), divergence(chosen), candidates


@torch.no_grad()
def report(losses: Losses, rows: list[Row], config, name: str) -> None:
    """Of queries that look at one place, behind 3,000 tokens: how often the candidates have it."""
    total, kept, sharp = torch.zeros(3), 0, 0
    size = config.candidate_block_size
    for row in rows:
        *values, scores = losses(row, slice(None))
        total += torch.stack(values)
        blocks = torch.where(losses.visible, scores, -1e30).unflatten(-1, (-1, size)).amax(-1)
        mass = row.teacher.float().unflatten(-1, (-1, size)).sum(-1)
        candidates = F.one_hot(blocks.topk(config.candidate_topk_blocks, -1).indices, blocks.shape[-1]).sum(-2)
        wanted = (mass.amax(-1) > 0.3) & (torch.arange(mass.shape[1]) * model41._STRIDE > 3000)
        sharp += int(wanted.sum())
        kept += int(((candidates * mass).amax(-1)[wanted] >= mass.amax(-1)[wanted] - 1e-6).sum())
    print(f"{name}: losses {[round(x, 4) for x in (total / len(rows)).tolist()]}, among the candidates {kept} of {sharp}", flush=True)


def write(model: Model, folder: Path, layers: tuple[int, ...]) -> None:
    """The indexers' tensors in the file; the others keep their bytes."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    head = json.loads(data[8:8 + size])
    stored: dict[str, export.Stored] = {}
    for layer in layers:
        export._children(stored, f"layers.{layer}.attn.indexer", model.layers[layer].attn.indexer)
    for name, tensor in stored.items():
        begin, end = (8 + size + offset for offset in head[name]["data_offsets"])
        if end - begin != len(tensor.data) or head[name]["dtype"] != tensor.dtype:
            raise ValueError(f"{name}: the file has {end - begin} bytes of {head[name]['dtype']}, not {len(tensor.data)} of {tensor.dtype}")
        data[begin:end] = tensor.data
    path.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a folder that export.py wrote; its model.safetensors changes")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, default=29, help=f"of {_LENGTH} tokens; {_HELD_OUT} of them are only looked at")
    parser.add_argument("--minutes", type=float, default=7)
    parser.add_argument("--lr", type=float, default=1.5e-3, help="falls to a fiftieth")
    parser.add_argument("--seed", type=int, default=501)
    arguments = parser.parse_args()
    torch.manual_seed(3)
    model = load_shipped(arguments.model).train().requires_grad_(False)
    source = model.config.candidate_source_layer_id
    choosers = [layer for layer in model.config.index_source_layer_ids if layer > source]
    if len(choosers) != 1:
        raise ValueError(f"index sources behind the source of candidates {source}: got {choosers}, wanted one")
    tokenizer = Tokenizer.from_file(str(arguments.model / "tokenizer.json"))
    rows = read_rows(model, source, choosers[0], Generator(arguments.data, tokenizer, arguments.seed, "v4.1"), arguments.rows)
    losses = Losses(model, source, choosers[0])
    held_out, taught = rows[-_HELD_OUT:], rows[:-_HELD_OUT]
    report(losses, held_out, model.config, "before")
    weights = [p.requires_grad_() for indexer in losses.indexers.values() for p in indexer.parameters()]
    optimiser = torch.optim.Adam(weights, betas=(0.9, 0.98), eps=1e-10)
    begin, step, done = time.monotonic(), 0, 0.0
    while done < 1:
        optimiser.param_groups[0]["lr"] = arguments.lr * min(1, (step + 1) / 20) * max(0.02, 1 - done)
        queries = torch.randperm(losses.visible.shape[1])[:_QUERIES].sort().values
        *values, _ = losses(taught[int(torch.randint(len(taught), ()))], queries)
        sum(values).backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimiser.step()
        optimiser.zero_grad()
        step, done = step + 1, (time.monotonic() - begin) / (60 * arguments.minutes)
    report(losses, held_out, model.config, f"after {step} steps")
    write(model, arguments.model, (source, choosers[0]))


if __name__ == "__main__":
    main()
