"""Attention over the window and the compressed entries: SWA, CSA and HCA layers."""

import math

import numpy as np

from .checkpoint import Checkpoint
from .compressor import CompressorWeights, compress
from .formats import quantise_fp8, round_bf16
from .indexer import head_weights, scores, select
from .numerics import F32, F64, Numerics


def sink_attention(num: Numerics, queries: np.ndarray, keys: np.ndarray, mask: np.ndarray, sink: np.ndarray, scale: float,
                   values: np.ndarray | None = None, window: int = 0, num_window_rows: int = 0) -> np.ndarray:
    """queries [n,h,d], keys [k,d] (also the values), mask [n,k], sink [h] -> [n,h,d]. The sink is one more logit without a value."""
    o, t = num.options, num.dtype
    values = keys if values is None else values
    logits = np.einsum("qhd,kd->hqk", queries.astype(F64), keys.astype(F64), optimize=True).astype(t) * t(scale)
    logits = np.where(mask[None], logits, -np.inf)
    sink = sink.astype(t) * (t(scale) if o.sink == "scaled" else t(1))
    if o.online_softmax:
        return _online(num, logits, mask, values, sink, window, num_window_rows)
    maximum = logits.max(-1, keepdims=True)
    e = np.exp(logits - maximum)
    total = e.sum(-1, keepdims=True)
    extra = np.exp(sink[:, None, None] - maximum)
    if o.sink == "per-chunk":
        extra = extra * (-(-mask.sum(-1) // o.chunk))[None, :, None]
    if o.sink != "none":
        total = total + extra
    if o.probability_bf16:
        e = round_bf16(e)
    out = np.einsum("hqk,kd->qhd", e.astype(F64), values.astype(F64), optimize=True)
    if o.sink == "value-row":
        out = out + extra.transpose(1, 0, 2) * values[0]
    return num.round(out / total.transpose(1, 0, 2))


def _online(num: Numerics, logits, mask, values, sink, window: int, num_window_rows: int) -> np.ndarray:
    """The running-maximum form: chunks of 64 slots, window slots first, compressed entries from slot `window`."""
    heads, n, _ = logits.shape
    values = values.astype(F64)
    out = np.empty((n, heads, values.shape[1]), F64)
    for i in range(n):
        rows = np.flatnonzero(mask[i])
        in_window = int((rows < num_window_rows).sum())
        slots = np.concatenate([np.arange(in_window), window + np.arange(len(rows) - in_window)])
        maximum = np.full((heads, 1), -np.inf)
        total = np.zeros((heads, 1))
        acc = np.zeros((heads, values.shape[1]))
        for chunk in np.unique(slots // 64):
            part = rows[slots // 64 == chunk]
            x = logits[:, i, part].astype(F64)
            new_maximum = np.maximum(maximum, x.max(-1, keepdims=True))
            decay = np.exp(maximum - new_maximum)
            e = np.exp(x - new_maximum).astype(F32)
            total = total * decay + e.sum(-1, keepdims=True)
            acc = acc * decay + (round_bf16(e) if num.options.probability_bf16 else e).astype(F64) @ values[part]
            maximum = new_maximum
        if num.options.sink != "none":
            total = total + np.exp(sink[:, None] - maximum)
        out[i] = acc / total
    return num.round(out)


def grouped_linear(num: Numerics, o: np.ndarray, wo_a: np.ndarray, groups: int) -> np.ndarray:
    """o [n, heads*d] in `groups` parts, each times its own wo_a block; bf16 operands whatever wo_a was stored as."""
    n = o.shape[0]
    parts = o.reshape(n, groups, -1)
    blocks = wo_a.reshape(groups, -1, parts.shape[-1])
    if num.options.wo_a_fp8:
        parts = quantise_fp8(parts, 128)
    z = np.einsum("ngk,grk->ngr", parts.astype(F64), blocks.astype(F64), optimize=True)
    return num.round(z).reshape(n, -1)


class Attention:
    """One layer's attention, positions 0..n-1. `ratio` 0 means a sliding window alone."""

    def __init__(self, num: Numerics, checkpoint: Checkpoint, scope: str, ratio: int):
        self.num, self.ckpt, self.ratio = num, checkpoint, ratio
        self.config = checkpoint.config
        self.p = f"{scope}.attn"
        self.csa = ratio == self.config.csa_ratio and ratio != 0
        o = num.options
        plain, yarn = self.config.plain_frequencies(), self.config.yarn_frequencies()
        self.frequencies = yarn if ratio or o.swa_rope == "yarn" else plain
        self.other_frequencies = plain if ratio else yarn
        self.query_frequencies = plain if ratio and o.window_rope == "plain" else self.frequencies
        self.key_frequencies = plain if ratio and "plain" in (o.window_rope, o.window_key_rope) else self.frequencies
        self.amplitude, self.logit_factor = 1.0, 1.0
        if ratio and o.yarn_amplitude != "none":
            amplitude = 0.1 * math.log(self.config.yarn["factor"]) + 1
            self.amplitude, self.logit_factor = (amplitude, 1.0) if o.yarn_amplitude == "rotation" else (1.0, amplitude**2)

    def weight(self, name: str) -> np.ndarray:
        return self.ckpt[f"{self.p}.{name}"]

    def linear(self, x: np.ndarray, name: str) -> np.ndarray:
        return self.num.linear(x, self.ckpt.weights[f"{self.p}.{name}"])

    def __call__(self, u: np.ndarray) -> np.ndarray:
        num, c, o = self.num, self.config, self.num.options
        positions = np.arange(u.shape[0])
        q_a = self.linear(u, "wq_a")
        qr = num.record(f"{self.p}.qr", num.rms_norm(q_a, self.weight("q_norm")))
        queries = num.record(f"{self.p}.q", self.queries(qr, positions))
        rows, values = self.window_rows(u, positions)
        num.record(f"{self.p}.kv", rows)
        keys, mask = rows, self.window_mask(positions)
        if self.ratio:
            entries, entry_values = self.entries(u)
            num.record(f"{self.p}.entries", entries)
            visible = self.visible(positions, entries.shape[0])
            if self.csa:
                visible = self.selected(u, q_a, qr, positions, visible)
            elif o.hca_topk:
                visible = visible & (np.arange(entries.shape[0])[None] == visible.sum(1, keepdims=True) - 1)
            keys, mask = np.concatenate([rows, entries]), np.concatenate([mask, visible], 1)
            values = np.concatenate([values, entry_values])
        num.record(f"{self.p}.mask", mask)
        out = sink_attention(num, queries, keys, mask, self.weight("attn_sink"), c.head_dim**-0.5 * self.logit_factor, values,
                             c.sliding_window, len(positions))
        out = num.record(f"{self.p}.o", self.unrotate(out, positions))
        z = grouped_linear(num, out.reshape(len(positions), -1), self.weight("wo_a"), c.o_groups)
        num.record(f"{self.p}.wo_a", z)
        return num.record(f"{self.p}.out", self.linear(z, "wo_b"))

    def queries(self, qr: np.ndarray, positions: np.ndarray) -> np.ndarray:
        num, c, o = self.num, self.config, self.num.options
        q = self.linear(qr, "wq_b").reshape(len(positions), c.num_heads, c.head_dim)
        if o.query_norm == "before-rope":
            q = num.head_norm(q)
        q = num.rope(q, positions, self.query_frequencies, amplitude=self.amplitude)
        return num.head_norm(q) if o.query_norm == "after-rope" else q

    def window_rows(self, u: np.ndarray, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The rows attended to as keys and those summed as values: the same, but for seeded mistakes."""
        num, c, o = self.num, self.config, self.num.options
        row = num.rms_norm(self.linear(u, "wkv"), self.weight("kv_norm"))
        if o.kv_head_norm:
            row = num.head_norm(row)
        if o.kv_rounding == "all-before-rope" and o.window_fp8:
            row = num.round_all_fp8(row)
        rotated = num.rope(row, positions, self.key_frequencies, amplitude=self.amplitude)
        key = rotated if o.kv_rounding == "all-before-rope" else num.window_row(rotated, c.rope_dim)
        return key, self._value(key, row, rotated)

    def _value(self, key: np.ndarray, unrotated: np.ndarray, unquantised: np.ndarray) -> np.ndarray:
        o, nope = self.num.options, self.config.head_dim - self.config.rope_dim
        if o.value == "nope-only":
            return np.concatenate([key[:, :nope], np.zeros_like(key[:, nope:])], 1)
        if o.value == "unrotated" or o.inverse_rope == "key":
            return np.concatenate([key[:, :nope], unrotated[:, nope:]], 1)
        return unquantised if o.value == "unquantised" else key

    def window_mask(self, positions: np.ndarray) -> np.ndarray:
        o = self.num.options
        window = self.config.sliding_window + o.window_offset
        mask = (positions[None] <= positions[:, None]) & (positions[None] > positions[:, None] - window)
        if o.window_ring == "overwritten":  # the whole chunk is stored before its first query reads
            chunk_end = np.minimum((positions // o.chunk + 1) * o.chunk, len(positions)) - 1
            mask &= positions[None] > chunk_end[:, None] - window
        return mask

    def visible(self, positions: np.ndarray, num_entries: int) -> np.ndarray:
        """[n, entries]: entry j counts from its own last token on."""
        o, index = self.num.options, np.arange(num_entries)[None]
        count = (positions + 1) // self.ratio
        if o.visibility == "off-by-one":
            count = positions // self.ratio
        elif o.visibility == "incomplete":
            count = -(-(positions + 1) // self.ratio)
        elif o.visibility == "chunk-end":
            count = np.minimum((positions // o.chunk + 1) * o.chunk, len(positions)) // self.ratio
        visible = index < count[:, None]
        if o.visibility == "outside-window":
            visible &= (index + 1) * self.ratio <= positions[:, None] - self.config.sliding_window + 1
        return visible

    def _compressor(self, scope: str) -> CompressorWeights:
        return CompressorWeights(*(self.weight(f"{scope}.{name}") for name in ("wkv", "wgate", "ape", "norm")))

    def entries(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        num, c, o = self.num, self.config, self.num.options
        weights = self._compressor("compressor")
        rotated = compress(num, u, weights, self.ratio, self.csa, self.frequencies, self.amplitude)
        key = rotated
        if o.compressed_fp8 and o.kv_rounding != "all-before-rope":
            key = num.round_nope_fp8(rotated, c.rope_dim)
        unrotated = compress(num, u, weights, self.ratio, self.csa, None) if o.value == "unrotated" or o.inverse_rope == "key" else key
        return key, self._value(key, unrotated, rotated)

    def selected(self, u: np.ndarray, q_a: np.ndarray, qr: np.ndarray, positions: np.ndarray, visible: np.ndarray) -> np.ndarray:
        """Narrows `visible` to the indexer's choice."""
        num, c, o = self.num, self.config, self.num.options
        topk = o.index_topk or c.index_topk
        key_frequencies = self.frequencies if o.indexer_rope in ("both", "key") else None
        entries = compress(num, u, self._compressor("indexer.compressor"), self.ratio, True, key_frequencies, self.amplitude)
        entries = num.indexer_row(entries, o.hadamard_key, o.fp4_key)
        if o.indexer_entries == "skipped":
            entries = np.concatenate([np.zeros_like(entries[:topk]), entries[topk:]])
        source = {"normed": qr, "unnormed": q_a, "hidden": u}[o.indexer_query]
        queries = self.linear(source, "indexer.wq_b").reshape(len(positions), c.index_num_heads, c.index_head_dim)
        if o.indexer_rope in ("both", "query"):
            queries = num.rope(queries, positions, self.frequencies, amplitude=self.amplitude)
        queries = num.indexer_row(queries, o.hadamard_query, o.fp4_query)
        weights = head_weights(num, u, self.weight("indexer.weights_proj"), c.index_head_dim)
        score = scores(num, queries, entries, weights)
        for name, value in (("entries", entries), ("q", queries), ("weights", weights), ("scores", score)):
            num.record(f"{self.p}.indexer.{name}", value)
        if entries.shape[0] <= topk or o.select_all:
            return visible
        return select(score, visible, topk)

    def unrotate(self, out: np.ndarray, positions: np.ndarray) -> np.ndarray:
        o = self.num.options
        if o.inverse_rope in ("none", "key"):
            return out
        at = np.zeros_like(positions) if o.inverse_rope == "zero" else positions
        frequencies = self.other_frequencies if o.inverse_rope == "other-table" else self.query_frequencies
        return self.num.rope(out, at, frequencies, inverse=True, amplitude=self.amplitude)
