"""Numerics, and the modules that hold one weight in one of the release's formats."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quant
from functions import BF16, sim8_act, sim8_act32


class Numerics:
    """Which rounding points act: the names are those of model.py."""

    def __init__(self, name: str, *, sparse: bool, indexes: bool = True) -> None:
        if name not in ("train", "qat", "plain", "release"):
            raise ValueError(f"numerics: wanted train, qat, plain or release, got {name!r}")
        self.name = name
        self.sparse = sparse  # whether the indexer's top-k decides; dense attention otherwise
        self.indexes = indexes  # whether V4.1's indexer learns, which then costs nothing
        self.simulate = name in ("qat", "release")
        self.exact = name in ("plain", "release")  # fp32 accumulation and products

    def fake(self, x: Tensor, quantised: Tensor) -> Tensor:
        return quant.ste(x, quantised) if self.name == "qat" else quantised


class Linear(nn.Module):
    """A bias-free linear in one of the release's weight formats: fp8, mxfp8 or bf16."""

    def __init__(self, n: int, k: int, form: str, gain: float = 1.0) -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.randn(n, k) * gain * k**-0.5)

    def forward(self, x: Tensor, numerics: Numerics, quantise_input: bool = True) -> Tensor:
        if numerics.simulate and quantise_input and self.form != "bf16":
            x = numerics.fake(x, simulate_input(x, 128 if self.form == "fp8" else 32))
        if numerics.exact:
            return F.linear(x.float(), self.weight.float()).to(BF16)
        return F.linear(x, self.used(numerics).to(BF16))

    def stored(self) -> Tensor:
        """What the stored format decodes to."""
        if self.form == "bf16":
            return self.weight.to(BF16).float()
        return quant.fp8_weight(self.weight) if self.form == "fp8" else quant.fp8_weight(self.weight, 32, 32)

    def used(self, numerics: Numerics) -> Tensor:
        """The weight that a product takes."""
        return quant.ste(self.weight, self.stored()) if numerics.name == "qat" and self.form != "bf16" else self.weight


def simulate_input(x: Tensor, group: int) -> Tensor:
    return sim8_act(x) if group == 128 else sim8_act32(x)


class Weight(nn.Module):
    """A lone `.weight`."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(value)


class Table(nn.Module):
    """Rows that are looked up, in FP8 with a scale for 32 elements."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, dim) * 0.5)

    def forward(self, rows: Tensor, numerics: Numerics) -> Tensor:
        found = F.embedding(rows, self.weight)
        if numerics.name == "qat":
            found = quant.ste(found, quant.fp8_weight(found.view(-1, self.weight.shape[1]), 1, 32).view(found.shape))
        return found.to(BF16)

    def stored(self) -> Tensor:
        return quant.fp8_weight(self.weight, 1, 32)


def linear32(x: Tensor, w: Tensor) -> Tensor:
    """fp32 product of a bf16 activation with a bf16-stored weight (2.6)."""
    return F.linear(x.float(), w.to(BF16).float())
