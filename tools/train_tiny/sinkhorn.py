"""The mHC mixing matrix: softmax over rows, then Sinkhorn normalisation, with its own backward pass.

Twenty iterations on 4x4 matrices are hundreds of tiny steps; autograd would store every one. Both passes here keep only
the denominators: a normalised matrix times its denominators is the matrix before. On a GPU each pass is one Triton
kernel, elsewhere plain PyTorch. Source: architecture specification 4.1.
"""

from __future__ import annotations

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:  # CPU-only installations
    triton = None


def _forward_reference(logits: Tensor, iterations: int, eps: float) -> tuple[Tensor, Tensor]:
    c = torch.softmax(logits, -1) + eps
    denominators = []
    for step in range(2 * iterations - 1):
        axis = -2 if step % 2 == 0 else -1
        d = c.sum(axis, keepdim=True) + eps
        c = c / d
        denominators.append(d.flatten(-2))
    return c, torch.stack(denominators, -2)


def _backward_reference(grad: Tensor, c: Tensor, denominators: Tensor, eps: float) -> Tensor:
    for step in reversed(range(denominators.shape[-2])):
        axis = -2 if step % 2 == 0 else -1
        d = denominators[..., step, :].unsqueeze(axis)
        grad = (grad - (grad * c).sum(axis, keepdim=True)) / d
        c = c * d
    p = c - eps
    return p * (grad - (grad * p).sum(-1, keepdim=True))


if triton is not None:

    @triton.jit
    def _forward_kernel(logits, out, denominators, count, eps, STEPS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i = tl.arange(0, N)
        offsets = t[:, None, None] * (N * N) + i[None, :, None] * N + i[None, None, :]
        inside = (t < count)[:, None, None]
        x = tl.load(logits + offsets, mask=inside, other=0.0)
        e = tl.exp(x - tl.max(x, axis=2)[:, :, None])
        c = e / tl.sum(e, axis=2)[:, :, None] + eps
        rows = t[:, None] * (STEPS * N) + i[None, :]
        for step in tl.static_range(STEPS):
            if step % 2 == 0:
                d = tl.sum(c, axis=1) + eps
                c = c / d[:, None, :]
            else:
                d = tl.sum(c, axis=2) + eps
                c = c / d[:, :, None]
            tl.store(denominators + rows + step * N, d, mask=(t < count)[:, None])
        tl.store(out + offsets, c, mask=inside)

    @triton.jit
    def _backward_kernel(grad, out, denominators, result, count, eps, STEPS: tl.constexpr, N: tl.constexpr,
                         BLOCK: tl.constexpr):
        t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        i = tl.arange(0, N)
        offsets = t[:, None, None] * (N * N) + i[None, :, None] * N + i[None, None, :]
        inside = (t < count)[:, None, None]
        g = tl.load(grad + offsets, mask=inside, other=0.0)
        c = tl.load(out + offsets, mask=inside, other=0.25)
        rows = t[:, None] * (STEPS * N) + i[None, :]
        for step in tl.static_range(STEPS - 1, -1, -1):
            d = tl.load(denominators + rows + step * N, mask=(t < count)[:, None], other=1.0)
            if step % 2 == 0:
                g = (g - tl.sum(g * c, axis=1)[:, None, :]) / d[:, None, :]
                c = c * d[:, None, :]
            else:
                g = (g - tl.sum(g * c, axis=2)[:, :, None]) / d[:, :, None]
                c = c * d[:, :, None]
        p = c - eps
        tl.store(result + offsets, p * (g - tl.sum(g * p, axis=2)[:, :, None]), mask=inside)


class _Sinkhorn(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, iterations: int, eps: float) -> Tensor:
        ctx.eps = eps
        if not logits.is_cuda or triton is None:
            c, denominators = _forward_reference(logits, iterations, eps)
        else:
            logits = logits.contiguous()
            count, n = logits.shape[0], logits.shape[-1]
            c = torch.empty_like(logits)
            denominators = torch.empty(count, 2 * iterations - 1, n, device=logits.device)
            _forward_kernel[(triton.cdiv(count, 128),)](logits, c, denominators, count, eps, 2 * iterations - 1, n, 128)
        ctx.save_for_backward(c, denominators)
        return c

    @staticmethod
    def backward(ctx, grad: Tensor):
        c, denominators = ctx.saved_tensors
        if not grad.is_cuda or triton is None:
            return _backward_reference(grad, c, denominators, ctx.eps), None, None
        count, steps, n = denominators.shape
        result = torch.empty_like(c)
        _backward_kernel[(triton.cdiv(count, 128),)](grad.contiguous(), c, denominators, result, count, ctx.eps, steps, n, 128)
        return result, None, None


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """fp32 [tokens, n, n] logits to (nearly) doubly stochastic matrices."""
    return _Sinkhorn.apply(logits, iterations, eps)
