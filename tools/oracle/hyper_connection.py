"""Manifold-constrained hyper-connections: H residual streams mixed before and after every sub-layer."""

import numpy as np

from .formats import round_bf16
from .numerics import Numerics


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _mix(num: Numerics, streams: np.ndarray, fn: np.ndarray) -> np.ndarray:
    """g * (fn . x) over the flattened streams [n, H*D]; the norm factor g multiplies the product of the raw values."""
    o, n = num.options, streams.shape[0]
    x = streams.reshape(n, -1).astype(num.dtype)
    eps = num.dtype(num.norm_eps)
    if o.hc_norm == "per-stream":
        g = 1 / np.sqrt((streams.astype(num.dtype) ** 2).mean(-1, keepdims=True) + eps)
        return num.product((streams.astype(num.dtype) * g).reshape(n, -1), fn).astype(num.dtype)
    g = 1 / np.sqrt((x * x).mean(-1, keepdims=True) + eps)
    if o.hc_gemv == "bf16":
        return round_bf16(num.product(round_bf16(x), round_bf16(fn))).astype(num.dtype) * g
    if o.hc_gemv == "normalised-bf16":
        return num.product(round_bf16(x * g), fn).astype(num.dtype)
    return num.product(x, fn).astype(num.dtype) * g


def sinkhorn(num: Numerics, logits: np.ndarray, iterations: int, eps) -> np.ndarray:
    """Row softmax + eps, a column step, then (row, column) steps; the softmax and first column step are iteration one."""
    o = num.options
    if o.sinkhorn_start == "exp":
        c = np.exp(logits)
    elif o.sinkhorn_start == "sigmoid":
        c = sigmoid(logits) + eps
    else:
        c = np.exp(logits - logits.max(-1, keepdims=True))
        c = c / c.sum(-1, keepdims=True) + eps
    guard = eps if o.sinkhorn_eps else num.dtype(0)
    if o.sinkhorn_first == "column":
        c = c / (c.sum(-2, keepdims=True) + guard)
    for _ in range(iterations - 1 + o.sinkhorn_extra):
        c = c / (c.sum(-1, keepdims=True) + guard)
        c = c / (c.sum(-2, keepdims=True) + guard)
    return c


def split(num: Numerics, mixed: np.ndarray, scale: np.ndarray, base: np.ndarray, h: int, iterations: int, hc_eps: float):
    """(pre [n,H], post [n,H], comb [n,H,H]) from the mixing product [n, (2+H)H]."""
    o, t = num.options, num.dtype
    scale, base, eps = scale.astype(t), base.astype(t), t(hc_eps)
    if o.hc_split == "pre,post,comb":
        pre_at, post_at, comb_at = np.s_[:h], np.s_[h:2 * h], np.s_[2 * h:]
        scale_at = (0, 1, 2)
    else:
        pre_at, comb_at, post_at = np.s_[:h], np.s_[h:h + h * h], np.s_[h + h * h:]
        scale_at = (0, 2, 1)
    pre = sigmoid(mixed[:, pre_at] * scale[scale_at[0]] + base[pre_at])
    if o.hc_pre_eps:
        pre = pre + eps
    post = t(o.hc_post_factor) * sigmoid(mixed[:, post_at] * scale[scale_at[1]] + base[post_at])
    if o.hc_post_eps:
        post = post + eps
    logits = (mixed[:, comb_at] * scale[scale_at[2]] + base[comb_at]).reshape(len(mixed), h, h)
    return pre, post, sinkhorn(num, logits, iterations, eps)


def collapse(num: Numerics, streams: np.ndarray, pre: np.ndarray) -> np.ndarray:
    source = streams.astype(num.dtype)
    if num.options.hc_source == "normalised":
        flat = source.reshape(len(source), -1)
        source = source / np.sqrt((flat * flat).mean(-1, keepdims=True) + num.dtype(num.norm_eps))[:, :, None]
    return num.round((pre[:, :, None] * source).sum(1))


def hc_pre(num: Numerics, streams: np.ndarray, fn: np.ndarray, scale: np.ndarray, base: np.ndarray, iterations: int, eps: float):
    """streams [n,H,D] -> (sub-layer input [n,D], post [n,H], comb [n,H,H])."""
    pre, post, comb = split(num, _mix(num, streams, fn), scale, base, streams.shape[1], iterations, eps)
    return collapse(num, streams, pre), post, comb


def hc_post(num: Numerics, y: np.ndarray, streams: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
    """X'[j] = post[j] y + sum_i comb[i,j] X[i]."""
    y, streams = y.astype(num.dtype), streams.astype(num.dtype)
    if num.options.hc_mix_bf16:
        post, comb = round_bf16(post), round_bf16(comb)
    subscripts = "nij,nid->njd" if num.options.hc_comb == "transposed" else "nij,njd->nid"
    return num.round(post[:, :, None] * y[:, None, :] + np.einsum(subscripts, comb, streams))


def hc_head(num: Numerics, streams: np.ndarray, fn: np.ndarray, scale: np.ndarray, base: np.ndarray, eps: float) -> np.ndarray:
    """Streams [n,H,D] -> [n,D] in front of the final norm."""
    mixed = _mix(num, streams, fn)
    pre = sigmoid(mixed * scale.astype(num.dtype) + base.astype(num.dtype)) + num.dtype(eps)
    return collapse(num, streams, pre)
