"""The two compressors: one entry per `ratio` tokens, pooled per channel, normed, rotated, rounded."""

from dataclasses import dataclass

import numpy as np

from .numerics import Numerics


@dataclass
class CompressorWeights:
    wkv: np.ndarray    # [c*d, D], c = 2 at the overlapping ratio, else 1
    wgate: np.ndarray  # [c*d, D]
    ape: np.ndarray    # [ratio, c*d]
    norm: np.ndarray   # [d]


def pool(num: Numerics, a: np.ndarray, b: np.ndarray, ratio: int, overlap: bool) -> np.ndarray:
    """Rows a, b [n, c*d] (b with its position bias) -> pooled entries [n // ratio, d]."""
    o, t = num.options, num.dtype
    blocks = a.shape[0] // ratio
    a = a[:blocks * ratio].reshape(blocks, ratio, -1)
    b = b[:blocks * ratio].reshape(blocks, ratio, -1)
    absent = t(-np.inf) if o.initial_score == "minus-infinity" else t(0)
    if overlap:
        d = a.shape[-1] // 2
        previous, current = (np.s_[..., :d], np.s_[..., d:])
        if o.compressor_halves == "current,previous":
            previous, current = current, previous
        if o.compressor_rows == "current":
            a, b = a[current], b[current]
        else:
            before_a = np.concatenate([np.zeros((1, ratio, d), t), a[:-1][previous]])
            before_b = np.concatenate([np.full((1, ratio, d), absent, t), b[:-1][previous]])
            if o.stale_state:  # what the same slot held after an earlier sequence: here the last block of this one
                before_a[0], before_b[0] = a[-1][previous], b[-1][previous]
            if o.prefill_previous == "dropped" and 0 < o.prefill // ratio < blocks:
                before_a[o.prefill // ratio], before_b[o.prefill // ratio] = 0, absent
            a, b = np.concatenate([before_a, a[current]], 1), np.concatenate([before_b, b[current]], 1)
    elif o.hca_overlap:
        a = np.concatenate([np.concatenate([np.zeros((1, *a.shape[1:]), t), a[:-1]]), a], 1)
        b = np.concatenate([np.concatenate([np.full((1, *b.shape[1:]), -np.inf, t), b[:-1]]), b], 1)
    if o.compressor_weights == "shared":
        b = np.broadcast_to(b.mean(-1, keepdims=True), b.shape)
    e = np.exp(b - b.max(1, keepdims=True))
    return (e * a).sum(1) / e.sum(1)


def compress(num: Numerics, u: np.ndarray, w: CompressorWeights, ratio: int, overlap: bool, frequencies: np.ndarray | None,
             amplitude: float = 1.0) -> np.ndarray:
    """Normed, rotated (not if frequencies is None), not yet quantised entries [n // ratio, d] of inputs u [n, D]."""
    o, t, n = num.options, num.dtype, u.shape[0]
    d = w.norm.shape[0]
    blocks = n // ratio
    if blocks == 0:
        return np.zeros((0, d), t)
    a = num.product(u, w.wkv).astype(t)
    b = num.product(u, w.wgate).astype(t)
    for _ in range({"none": 0, "once": 1, "twice": 2}[o.ape]):
        b = b + w.ape.astype(t)[np.arange(n) % ratio]
    if o.prefill_remainder == "dropped" and n > o.prefill:
        lost = np.s_[o.prefill - o.prefill % ratio:o.prefill]
        a[lost], b[lost] = 0, -np.inf
    pooled = pool(num, a, b, ratio, overlap)
    entries = num.rms_norm(num.round(pooled), w.norm)
    if o.kv_rounding == "all-before-rope" and o.compressed_fp8:
        entries = num.round_all_fp8(entries)
    if frequencies is None:
        return entries
    position = {"first": np.arange(blocks) * ratio, "last": np.arange(blocks) * ratio + ratio - 1, "index": np.arange(blocks)}
    return num.rope(entries, position[o.entry_position], frequencies, amplitude=amplitude)
