"""Muon: momentum, then an approximate orthogonalisation of each weight matrix by Newton-Schulz steps.

Updates are scaled to the size of an AdamW update (0.2 * sqrt(larger side)), so both optimisers share one learning rate
scale. A leading axis (stacked experts) is a batch of matrices.
"""

from __future__ import annotations

import torch
from torch import Tensor


def orthogonalise(g: Tensor, steps: int = 5) -> Tensor:
    """[..., N, K] -> roughly its nearest semi-orthogonal matrix, in bf16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """For matrices only; everything else belongs to AdamW."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.1) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[tuple[int, ...], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum" not in state:
                    state["momentum"] = torch.zeros_like(p)
                state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                by_shape.setdefault(tuple(p.shape), []).append(p)
            for shape, params in by_shape.items():
                look_ahead = torch.stack([p.grad.lerp(self.state[p]["momentum"], group["momentum"]) for p in params])
                update = orthogonalise(look_ahead)
                scale = group["lr"] * 0.2 * max(shape[-2], shape[-1]) ** 0.5
                # the learning rate may be a tensor: a recorded step (train_drafter.py) reads it anew each time
                torch._foreach_mul_(params, 1 - group["lr"] * group["weight_decay"])
                torch._foreach_sub_(params, list((update.float() * scale).unbind()))
