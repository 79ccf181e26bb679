"""The model's pointwise and reduction steps as plain functions, compiled on GPUs.

Rounding points are the architecture specification's; section numbers are its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import quant

BF16 = torch.bfloat16


def compiled(function):
    """torch.compile on GPUs: these functions are chains of small elementwise steps."""
    return torch.compile(function, dynamic=False) if torch.cuda.is_available() else function


@compiled
def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """2.1: fp32 statistics, one rounding."""
    y = x.float()
    return (weight.to(BF16).float() * (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps))).to(BF16)


@compiled
def head_norm(q: Tensor, eps: float) -> Tensor:
    y = q.float()
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps)).to(BF16)


def head_norm_release(q: Tensor, eps: float) -> Tensor:
    """5.1: every step is a bf16 tensor in the release."""
    v = q.square().float().mean(-1, keepdim=True).to(BF16)
    v = (v.float() + eps).to(BF16)
    return (q.float() * torch.rsqrt(v.float()).to(BF16).float()).to(BF16)


@compiled
def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """2.7: interleaved pairs of the last dims; cos and sin broadcast over x's leading axes."""
    rope = 2 * cos.shape[-1]
    pairs = x[..., -rope:].float().unflatten(-1, (-1, 2))
    a, b = pairs[..., 0], pairs[..., 1]
    turned = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([x[..., :-rope], turned.to(x.dtype)], -1)


@compiled
def hc_apply_pre(streams: Tensor, pre: Tensor) -> Tensor:
    return (pre[..., None] * streams.float()).sum(-2).to(BF16)


@compiled
def hc_apply_post(y: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """4.2: the sum runs over comb's first index."""
    x = streams.float()
    out = post[..., None] * y.float()[..., None, :]
    for i in range(streams.shape[-2]):
        out = out + comb[..., i, :, None] * x[..., i, None, :]
    return out.to(BF16)


@compiled
def hc_split(mixes: Tensor, scale: Tensor, base: Tensor, n: int, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    pre = torch.sigmoid(mixes[:, :n] * scale[0] + base[:n]) + eps
    post = 2 * torch.sigmoid(mixes[:, n:2 * n] * scale[1] + base[n:2 * n])
    logits = mixes[:, 2 * n:] * scale[2] + base[2 * n:]
    return pre, post, logits


@compiled
def hc_inverse_rms(flat: Tensor, eps: float) -> Tensor:
    return torch.rsqrt(flat.float().square().mean(-1, keepdim=True) + eps)


@compiled
def swiglu(gate: Tensor, up: Tensor, limit: float) -> Tensor:
    """8.2: clamp from above on the gate, both sides on up; fp32."""
    return F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)


@compiled
def swiglu_routed(gate: Tensor, up: Tensor, weight: Tensor, limit: float) -> Tensor:
    h = F.silu(gate.float().clamp(max=limit)) * up.float().clamp(-limit, limit)
    return (h * weight[..., None]).to(BF16)


@compiled
def pool(values: Tensor, scores: Tensor) -> Tensor:
    """6.1: softmax over the block's tokens, per channel."""
    return (torch.softmax(scores, -2) * values).sum(-2).to(BF16)


@compiled
def window_probabilities(lw: Tensor, sink: Tensor, mask: Tensor, scale: float) -> Tensor:
    """5.4 for layers without compressed entries. lw [B,S,H,2W]."""
    w = torch.where(mask[..., None, :], lw.float() * scale, float("-inf"))
    top = w.amax(-1, keepdim=True).detach()
    e = torch.exp(w - top)
    z = e.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    return (e / z).to(BF16)


@compiled
def probabilities(lw: Tensor, lc: Tensor, sink: Tensor, mask: Tensor, visible: Tensor, scale: float
                  ) -> tuple[Tensor, Tensor]:
    """5.4: softmax with sink over window and compressed keys. lw [B,S,H,2W], lc [B,S,H,m], visible [B|1,S,m]."""
    w = torch.where(mask[..., None, :], lw.float() * scale, float("-inf"))
    c = torch.where(visible[:, :, None, :], lc.float() * scale, float("-inf"))
    top = torch.maximum(w.amax(-1, keepdim=True), c.amax(-1, keepdim=True)).detach()
    ew, ec = torch.exp(w - top), torch.exp(c - top)
    z = ew.sum(-1, keepdim=True) + ec.sum(-1, keepdim=True) + torch.exp(sink[:, None] - top)
    return (ew / z).to(BF16), (ec / z).to(BF16)


@compiled
def teacher_distribution(lw: Tensor, lc: Tensor, mask: Tensor, visible: Tensor, scale: float) -> Tensor:
    """What dense attention gives each compressed entry, summed over heads and normalised. [B,S,m] fp32."""
    w = torch.where(mask[..., None, :], lw.float() * scale, float("-inf"))
    c = torch.where(visible[:, :, None, :], lc.float() * scale, float("-inf"))
    top = torch.maximum(w.amax(-1, keepdim=True), c.amax(-1, keepdim=True))
    ec = torch.exp(c - top)
    z = torch.exp(w - top).sum(-1, keepdim=True) + ec.sum(-1, keepdim=True)
    mass = (ec / z).sum(2)
    return mass / mass.sum(-1, keepdim=True).clamp_min(1e-9)


@compiled
def index_scores(dots: Tensor, weights: Tensor) -> Tensor:
    """7: dots [B,S,h,m], weights [B,S,h] -> [B,S,m]; fp32."""
    return (torch.relu(dots.float()) * weights.float()[..., None]).sum(2)


@compiled
def distillation_loss(scores: Tensor, teacher: Tensor, visible: Tensor) -> Tensor:
    """KL from the teacher to the softmax of the indexer's scores, mean over queries with a choice."""
    logits = torch.where(visible, scores, -1e9)
    logp = torch.log_softmax(logits, -1)
    kl = (teacher * (torch.log(teacher.clamp_min(1e-9)) - logp)).sum(-1)
    choice = (visible.sum(-1) >= 2).float().expand(kl.shape)
    return (kl * choice).sum() / choice.sum().clamp_min(1.0)


@compiled
def engram_mix(streams: Tensor, keys: Tensor, value: Tensor, weight: Tensor, eps: float) -> Tensor:
    """V4.1: adds an n-gram's value [T,D] to each stream [T,n,D] as far as its key [T,n,D] is like the stream; one rounding."""
    x, k = streams.float(), keys.float()
    like = (x * weight * k).sum(-1) * torch.rsqrt(x.square().mean(-1) + eps) * torch.rsqrt(k.square().mean(-1) + eps)
    like = like * x.shape[-1]**-0.5
    gate = torch.sigmoid(torch.copysign(torch.sqrt(like.abs().clamp_min(1e-6)), like))
    return (x + gate[..., None] * value.float()[:, None]).to(BF16)


sim8_act = compiled(lambda x: quant.sim8(x, 128))
sim8_act32 = compiled(lambda x: quant.sim8(x, 32))
sim4_entries = compiled(lambda x: quant.sim4_e4m3(x, 16))
sim8_kv = compiled(lambda x: quant.sim8(x, 64))
sim4 = compiled(lambda x: quant.sim4(x, 32))
